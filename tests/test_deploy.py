"""What operators start from: image, compose file, unit, recipe."""

import re
import shlex
import tomllib

import pytest

from sordino.cli.main import app
from tests.support import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
# What conda calls otherwise.
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch-cpu"}


def commands() -> set[str]:
    import typer

    group = typer.main.get_command(app)
    return {f"flower {name}" for name in group.commands["flower"].commands}


def test_the_unit_and_the_image_run_a_command_that_exists() -> None:
    unit = (DEPLOY / "systemd" / "sordino@.service").read_text()
    [line] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert " ".join(shlex.split(line)[1:]) in commands()
    image = (DEPLOY / "Dockerfile").read_text()
    [command] = re.findall(r"^CMD \[(.*)\]$", image, re.MULTILINE)
    assert command.replace('"', "").replace(",", "") in commands()


def test_the_compose_file_has_a_coordinator_and_three_hospitals_without_ports() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert list(services) == ["coordinator", "north", "south", "west"]
    for service in services.values():
        # Nothing is open to other machines, and nothing but the party's folder can be written.
        assert "ports" not in service
        assert service["read_only"] is True
    assert " ".join(services["coordinator"]["command"][:2]) in commands()


def test_the_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    recipe = (DEPLOY / "conda" / "meta.yaml").read_text()
    assert f'version = "{project["version"]}"' in recipe
    listed = set(re.findall(r"^    - ([\w-]+ [^\n]+)$", recipe, re.MULTILINE))
    for dependency in project["dependencies"]:
        name, limits = re.fullmatch(r"([\w-]+)(.*)", dependency).groups()
        assert f"{CONDA_NAMES.get(name, name)} {limits}" in listed
