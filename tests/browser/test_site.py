"""The documentation site in a real browser: pages and pictures show, and nothing is loaded from elsewhere."""

from pathlib import Path

import pytest

from tests.browser.conftest import photographed, serious
from tests.test_site import built

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("name", ["index", "concepts", "sharp-edges", "reference/file"])
def test_a_page_shows(site, page, name) -> None:
    page.goto((site / f"{name}.html").as_uri())
    assert page.locator("h1").count() == 1
    for picture in page.locator("article img").all():
        assert picture.evaluate("one => one.complete && one.naturalWidth > 200")
        assert picture.get_attribute("alt")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    photographed(page, f"site-{Path(name).name}")


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "attacks", "data", "reference/file", "reference/python"])
def test_axe_finds_nothing_serious(site, page, name, colours) -> None:
    page.emulate_media(color_scheme=colours)
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_timeout(500)
    assert serious(page) == []
