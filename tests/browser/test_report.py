"""The report in a real browser: it renders in light, dark, on a phone and on paper, loads nothing, says nothing to the console."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.cli.main import run
from sordino.report.writing import write_comparison, write_report
from tests.browser.conftest import PATIENCE, SCREENSHOTS, serious
from tests.report.conftest import audited_run
from tests.report.test_page import ATTACK

pytestmark = pytest.mark.soak

SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light"},
    "phone-dark": {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def trained(browser, tmp_path_factory) -> Path:
    """A finished run with an audit; without a browser it is not even trained."""
    return audited_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def pages(trained, tmp_path_factory) -> dict[str, Path]:
    """A report with everything in it, and a comparison."""
    place = tmp_path_factory.mktemp("pages")
    folder = Path(shutil.copytree(trained, place / "small"))
    (folder / "attacks").mkdir()
    plot = {
        "title": "ROC",
        "x_label": "false alarms",
        "y_label": "hits",
        "lines": {"attack": [[0, 0.5, 1], [0, 0.6, 1]], "chance": [[0, 1], [0, 1]]},
    }
    (folder / "attacks" / "mia.json").write_text(
        json.dumps([{**ATTACK, "plots": [plot]}, {**ATTACK, "name": "inversion", "metric": "PSNR"}])
    )
    return {
        "report": write_report(folder),
        "comparison": write_comparison([folder, trained], place / "comparison.html"),
    }


@pytest.fixture
def opened(browser, pages, request) -> Iterator:
    """A page in a browser that has no way out, and everything that it did."""
    name, screen = request.param
    context = browser.new_context(**SCREENS[screen])
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.did = []
    page.on(
        "request", lambda one: page.did.append(one.url) if not one.url.startswith("file:") else None
    )
    page.on("console", lambda one: page.did.append(one.text))
    page.on("pageerror", lambda one: page.did.append(str(one)))
    page.on("dialog", lambda one: page.did.append(one.message))
    page.goto(pages[name].as_uri())
    page.screenshot(path=SCREENSHOTS / f"{name}-{screen}.png", full_page=True)
    yield page
    context.close()


EVERYWHERE = [(name, screen) for name in ("report", "comparison") for screen in SCREENS]


@pytest.mark.parametrize("opened", EVERYWHERE, indirect=True, ids="-".join)
class TestEverywhere:
    def test_it_renders_loads_nothing_fits_the_screen_and_axe_finds_nothing_serious(
        self, opened
    ) -> None:
        figures = opened.locator("figure svg")
        assert figures.count() >= 4
        for place in range(figures.count()):
            box = figures.nth(place).bounding_box()
            assert box["width"] > 250
            assert box["height"] > 100
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        for summary in opened.locator("summary").all():
            summary.click()  # what is folded is judged too
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert serious(opened) == []
        assert opened.did == []

    def test_figures_can_be_told_from_the_paper(self, opened) -> None:
        """Every colour that a figure uses is 3 to 1 from the page behind it, but for grid lines and the fillings of cells."""
        drawn = opened.evaluate(COLOURS)
        assert len(drawn["used"]) >= 4
        for colour in drawn["used"]:
            assert contrast(colour, drawn["paper"]) >= 3, colour


COLOURS = """() => {
    const line = getComputedStyle(document.documentElement).getPropertyValue('--line').trim();
    const hex = (value) => '#' + value.match(/\\d+/g).slice(0, 3).map((n) => Number(n).toString(16).padStart(2, '0')).join('');
    const used = new Set();
    for (const shape of document.querySelectorAll('figure svg path, figure svg text, figure svg use')) {
        const style = getComputedStyle(shape);
        if (Number(style.opacity) < 1) continue;
        for (const value of [style.stroke, style.tagName === 'text' ? style.fill : 'none', shape.tagName === 'text' ? style.fill : 'none'])
            if (value.startsWith('rgb(') && hex(value) !== line) used.add(hex(value));
    }
    return {used: [...used], paper: hex(getComputedStyle(document.body).backgroundColor)};
}"""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    "opened", [("report", "light"), ("report", "dark")], indirect=True, ids="-".join
)
def test_on_paper_it_is_light_and_what_is_folded_is_there(opened) -> None:
    opened.emulate_media(media="print")
    assert (
        opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert opened.locator("pre").bounding_box()["height"] > 100
    assert not opened.locator("details.numbers").first.is_visible()
    printed = opened.pdf(prefer_css_page_size=True, print_background=True)
    (SCREENSHOTS / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF")
    assert (
        2
        <= printed.count(b"/Type /Page\n")
        + printed.count(b"/Type /Page ")
        + printed.count(b"/Type /Page/")
        <= 12
    )


@pytest.mark.parametrize("opened", [("report", "light")], indirect=True, ids="-".join)
def test_the_first_screen_tells_the_story(opened) -> None:
    visible = lambda text: opened.get_by_text(text).first.bounding_box()["y"] < 800  # noqa: E731
    for words in (
        "learns at most",
        "The best adversary is right",
        "Measured by audit",
        "Accuracy on test records",
        "A run for research.",
    ):
        assert visible(words)
    opened.keyboard.press("Tab")
    assert opened.evaluate(
        "document.activeElement !== document.body"
    )  # tables and folded parts are reached without a mouse


def test_the_command_prints_it(trained, tmp_path, capfd) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "small"))
    assert run(["report", str(folder), "--pdf"]) == 0
    assert "report.pdf" in capfd.readouterr().out
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")
