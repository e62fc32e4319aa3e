"""What operators start from: image, compose file, unit, recipe."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sordino.cli.main import app
from sordino.flower.ledger_counter import name_counter
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path) -> None:
    text = (DEPLOY / "systemd" / "sordino@.service").read_text()
    unit = tmp_path / "sordino@hospital.service"
    # The one thing that is not on this machine is the installation.
    unit.write_text(text.replace("/opt/sordino/bin/sordino", sys.executable))
    assert verify_unit(unit) == []
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSistem=strict"))
    [found] = verify_unit(unit)
    assert "ProtectSistem" in found


def verify_unit(unit: Path) -> list[str]:
    """What systemd finds wrong with a unit; it also speaks of others, which are the machine's."""
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if unit.name in line]


def test_the_compose_file_has_a_coordinator_and_three_hospitals_without_ports() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert list(services) == ["coordinator", "north", "south", "west"]
    for service in services.values():
        # Nothing is open to other machines, and nothing but the party's folder can be written.
        assert "ports" not in service
        assert service["read_only"] is True
    assert " ".join(services["coordinator"]["command"][:2]) in commands()


def test_a_hospitals_counter_can_be_written_under_the_unit_and_outside_of_its_folder(
    monkeypatch,
) -> None:
    """By default it is in the user's home, which the unit hides: nobody could agree to anything."""
    unit = (DEPLOY / "systemd" / "sordino@.service").read_text()
    entries = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    states = "/var/lib"
    variable, _, home = entries["Environment"].partition("=")
    monkeypatch.setenv(variable, home.replace("%S", states))
    # systemd makes this folder for the account, and lets it be written where all else is read-only.
    writable = Path(states) / entries["StateDirectory"]
    assert name_counter().is_relative_to(writable)
    assert not name_counter().is_relative_to(entries["ReadWritePaths"].replace("%i", "north"))


def test_every_hospital_of_the_compose_file_has_a_place_for_its_counter(monkeypatch) -> None:
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    image = (DEPLOY / "Dockerfile").read_text()
    [home] = re.findall(r"^ENV XDG_STATE_HOME=(.*)$", image, re.MULTILINE)
    monkeypatch.setenv("XDG_STATE_HOME", home)
    kept = []
    for name in ("north", "south", "west"):
        mounts = dict(reversed(one.split(":")) for one in document["services"][name]["volumes"])
        [volume] = [source for place, source in mounts.items() if place == home]
        assert name_counter().is_relative_to(home)
        assert not name_counter().is_relative_to("/party")
        kept.append(volume)
    # One counter's volume for each, none of them a folder that is backed up with the records.
    assert sorted(kept) == sorted(document["volumes"])


def test_the_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    recipe = (DEPLOY / "conda" / "meta.yaml").read_text()
    assert f'version = "{project["version"]}"' in recipe
    listed = set(re.findall(r"^    - ([\w-]+ [^\n]+)$", recipe, re.MULTILINE))
    for dependency in project["dependencies"]:
        name, limits = re.fullmatch(r"([\w-]+)(.*)", dependency).groups()
        assert f"{CONDA_NAMES.get(name, name)} {limits}" in listed
