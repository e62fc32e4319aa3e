"""The documentation site builds without a warning, loads nothing from elsewhere, and what it says of the code is what the code says."""

import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sordino
from docsite import badges, command_line, file_format, interface, pictures, reference
from sordino.protocol import Protocol, build_schema
from tests.support import REPOSITORY

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "link": "href",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("site"))


def built(folder: Path) -> Path:
    """The site, made in a folder; any warning fails it."""
    build = pytest.importorskip(
        "mkdocs.commands.build", reason="mkdocs is not installed: pip install 'sordino[docs]'"
    )
    from mkdocs.config import load_config

    build.build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


class Loaded(HTMLParser):
    """Addresses that a page has its reader's browser load."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if (
            tag in LOADS
            and named.get(LOADS[tag])
            and named.get("rel") not in ("next", "prev", "canonical")
        ):
            self.addresses.append(named[LOADS[tag]] or "")


def test_the_pages_load_nothing_from_elsewhere(site) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {page.stem for page in (REPOSITORY / "docs").glob("*.md")} <= {
        page.stem for page in pages
    }
    for page in pages:
        for address in Loaded(page).addresses:
            assert re.match(r"(?!//)(?!\w+:)|data:", address), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        outside = re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)", style.read_text(encoding="utf-8"))
        assert [
            address for address in outside if not address.startswith("http://www.w3.org/")
        ] == [], style.name


def test_every_key_of_the_file_is_in_the_reference() -> None:
    page = file_format.page()

    def keys(node: object) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(keys, node))
        if not isinstance(node, dict):
            return set()
        own = node.get("properties", {})
        return set(own if isinstance(own, dict) else ()).union(*map(keys, node.values()))

    for key in keys(build_schema()):
        assert re.search(rf"""[`\["{{ ]{re.escape(key)}[`\]" ]""", page), key
    for f in fields(Protocol):
        assert f.metadata["doc"] in page or f.metadata["doc"].capitalize() in page


def test_every_command_and_option_is_in_the_reference(capfd) -> None:
    page = command_line.page()
    for command in ("train", "certify", "audit", "flower agree", "papers check", "ui"):
        section = page.partition(f"## sordino {command}\n")[2].partition("\n## ")[0]
        assert sordino_run([*command.split(), "--help"]) == 0
        for option in set(re.findall(r"--[a-z][a-z-]+", capfd.readouterr().out)) - {"--help"}:
            assert option in section, f"{command} {option}"
    assert [
        row.split("|")[1].strip() for row in page.rpartition("|---|---|\n")[2].splitlines() if row
    ] == ["0", "1", "2", "3", "4", "130"]


def sordino_run(arguments: list[str]) -> int:
    from sordino.cli.main import run

    return run(arguments)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_committed_reference_is_what_the_code_says(name) -> None:
    """`python -m docsite` writes it anew."""
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.PAGES[name]()


def test_the_badges_say_what_the_package_says(tmp_path) -> None:
    """`python -m docsite` draws them anew."""
    badges.main(tmp_path)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in badges.FOLDER.iterdir()}
    for file, (name, value) in badges.list_badges().items():
        assert f"![{name}: {value}](docs/badges/{file}.svg)" in readme


def test_the_moving_picture_is_small_and_moves() -> None:
    """`python -m docsite.movie` films it anew."""
    image = pytest.importorskip("PIL.Image")
    file = REPOSITORY / "docs" / "explorer.webp"
    assert file.stat().st_size < 1_500_000
    assert image.open(file).n_frames >= 10


def test_every_public_name_is_in_the_reference() -> None:
    page = interface.page()
    for name in sordino.__all__:
        assert f"### {name}\n" in page
    assert "doctest" not in page


def test_the_pictures_say_what_the_library_certifies() -> None:
    """`python -m docsite.pictures` draws them anew."""
    drawn = pictures.all_drawings()
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(drawn)
    for name, drawing in drawn.items():
        said = re.search(
            r"<desc[^>]*>(.*?)</desc>",
            (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"),
        )
        assert said is not None
        assert said[1] == drawing.description.replace("'", "&#x27;"), name
