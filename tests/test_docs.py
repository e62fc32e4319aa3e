"""What the documentation shows is run: code blocks, commands, docstring examples."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import sordino
from sordino import certify
from sordino.cli.main import run
from sordino.privacy.mechanism_comparison import mechanism_table
from sordino.protocol import Gaussian, Protocol, loads
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


@pytest.mark.soak
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


@pytest.mark.slow
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
    for page in {*PAGES, *REPOSITORY.glob("*.md")}:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


MECHANISMS_PAGE = REPOSITORY / "docs" / "mechanisms.md"


def test_the_page_of_mechanisms_has_the_noise_that_a_calibration_finds() -> None:
    protocol = loads(blocks(MECHANISMS_PAGE, "toml")[0])
    text = MECHANISMS_PAGE.read_text()
    for clip_norm, columns in (("l1", slice(1, 3)), ("l2", slice(4, 6))):
        plan = replace(protocol, local=replace(protocol.local, clip_norm=clip_norm))
        for row in mechanism_table(plan, epsilon=8.0):
            printed = re.search(
                rf"^\| {row.mechanism} \|(.*)\|$", text.partition("| std |")[2], re.M
            )
            assert printed is not None
            parameter, deviation = f"|{printed[1]}".split("|")[columns]
            name, _, value = parameter.strip().partition(",")[0].partition(" = ")
            assert name == row.parameter
            # Printed rounded up, to four digits.
            assert float(value) == pytest.approx(row.value, rel=5e-4), row.mechanism
            assert float(deviation) == pytest.approx(row.deviation, rel=2e-3), row.mechanism


def test_the_page_of_mechanisms_has_what_the_wind_example_costs() -> None:
    example = REPOSITORY / "sordino" / "examples" / "wind-scaffold.toml"
    secret = loads(example.read_text(encoding="utf-8"))
    public = replace(secret, local=replace(secret.local, minibatches="public"))
    text = MECHANISMS_PAGE.read_text()

    def cells(name: str) -> list[str]:
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        return [cell.strip() for cell in line.strip("|").split("|")][2:]

    def check(protocol: Protocol, sigma: str, printed: str) -> None:
        noisy = replace(protocol, noise=Gaussian(sigma=float(sigma)))
        epsilon = certify(noisy, "server").epsilon(1e-5)
        assert 0.99 * float(printed) <= epsilon <= float(printed), (sigma, printed)

    for sigma, hidden, seen in zip(
        cells("sigma"),
        cells("epsilon"),
        cells("epsilon if the batches are public"),
        strict=True,
    ):
        check(secret, sigma, hidden)
        check(public, sigma, seen)


STATEMENT = re.compile(r'^<a id="(?P<anchor>\w+)"></a>\n\n## (?P<name>[ABC]\d+)  ', re.MULTILINE)
CITATIONS = [
    re.compile(r"theory\.md#(\w+)"),
    re.compile(r"\((?:theory, )?([ABC]\d+)\)"),
]
SOURCES = [
    path
    for folder in ("sordino", "docs", "docsite", "tests")
    for path in sorted((REPOSITORY / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".h", ".cpp", ".html")
]


def test_every_statement_of_the_theory_has_one_anchor_by_its_name() -> None:
    text = (REPOSITORY / "docs" / "theory.md").read_text()
    names = [(found["anchor"], found["name"]) for found in STATEMENT.finditer(text)]
    assert [anchor for anchor, _ in names] == [name.lower() for _, name in names]
    assert len(names) == len(set(names)) == len(re.findall(r"^## ", text, re.MULTILINE))


MODULES = {
    path.stem: path.read_text()
    for folder in ("sordino", "tests")
    for path in (REPOSITORY / folder).rglob("*.py")
}
# What the theory says of code: `final_model.find_domain`, `curves/renyi.py`.
NAMED_CODE = re.compile(r"`(?:[\w/]+/)?(?:sordino\.\w+\.)?([a-z]\w+)\.(\w+)(?:\.\w+)?`")
# A package, the kernel's files and the keys of a protocol's file look like modules.
NO_MODULES = {"sordino", "memory", "assumptions", "federation", "local", "noise", "data"}


def test_the_theory_names_statements_and_code_that_exist() -> None:
    text = (REPOSITORY / "docs" / "theory.md").read_text()
    anchors = {found["anchor"] for found in STATEMENT.finditer(text)}
    assert {name.lower() for name in re.findall(r"\b[ABC]\d+\b", text)} <= anchors
    for module, name in NAMED_CODE.findall(text):
        if module in NO_MODULES:
            continue
        assert module in MODULES, f"{module}.{name}"
        assert name == "py" or re.search(rf"\b{name}\b", MODULES[module]), f"{module}.{name}"


def test_citations_of_the_theory_lead_to_a_statement() -> None:
    text = (REPOSITORY / "docs" / "theory.md").read_text()
    anchors = {found["anchor"] for found in STATEMENT.finditer(text)}
    for path in SOURCES:
        for pattern in CITATIONS:
            for cited in pattern.findall(path.read_text()):
                assert cited.lower() in anchors, f"{path.relative_to(REPOSITORY)}: {cited}"
