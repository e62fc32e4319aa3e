"""What the documentation shows is run: code blocks, commands, docstring examples."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import sordino
from sordino.cli import run
from tests.support import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULES = [
    m.name
    for m in pkgutil.walk_packages(sordino.__path__, "sordino.")
    if not m.name.endswith("__main__")
]
MODULES += ["docsite.command_line", "docsite.file_format", "docsite.interface", "docsite.markdown"]
FLOWER = importlib.util.find_spec("flwr") is not None


def skip_without_flower(name: str) -> None:
    if "flower" in name and not FLOWER:
        pytest.skip("Flower is not installed: pip install 'sordino[flower]'")


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


def rows(text: str) -> set[str]:
    """The rows of printed tables, but for numbers and verdicts: they need not be the same on every machine and of every claim."""
    found = [line.strip() for line in text.splitlines() if line.strip().startswith(("│", "┃"))]
    return {re.sub(r"[\d.]+|holds|refuted", "#", re.sub(r" +", " ", line)) for line in found}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capfd) -> None:
    skip_without_flower(page.name)
    monkeypatch.chdir(tmp_path)
    for text in blocks(page, "toml"):
        (tmp_path / "federation.toml").write_text(text)
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        if ">>>" not in code:  # those are doctests, run below
            exec(compile(code, str(page), "exec"), names)
    for code in blocks(page, "console"):
        for line in code.splitlines():
            if line.startswith("$ sordino "):
                assert run(shlex.split(line.removeprefix("$ sordino "))) == 0, line
    assert rows(page.read_text()) <= rows(capfd.readouterr().out)
    outcome = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module, tmp_path, monkeypatch) -> None:
    skip_without_flower(module)
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("name", sordino.__all__)
def test_every_public_name_has_a_docstring_with_an_example(name) -> None:
    text = getattr(sordino, name).__doc__ or ""
    assert "Example:" in text


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, REPOSITORY / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
