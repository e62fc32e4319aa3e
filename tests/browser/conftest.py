"""A real browser without a window: Debian's chromium, or what `SORDINO_CHROMIUM` names. Without one these tests are skipped, and say so.

Screenshots are left in screenshots/, which git ignores.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.report.pdf import BROWSERS
from tests.support import REPOSITORY

SCREENSHOTS = REPOSITORY / "screenshots"
PROGRAM = os.environ.get("SORDINO_CHROMIUM") or next(
    filter(None, map(shutil.which, BROWSERS)), None
)
QUIET = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120_000  # milliseconds: machines differ, and a page that never comes is still found out


@pytest.fixture(scope="package")  # while it runs, no other event loop can
def browser() -> Iterator:
    """One browser for all of these tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if PROGRAM is None:
        pytest.skip("no browser is on this machine: install chromium to run the browser tests")
    SCREENSHOTS.mkdir(exist_ok=True)
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=PROGRAM, args=QUIET, timeout=PATIENCE)
        yield started
        started.close()


@pytest.fixture
def page(browser) -> Iterator:
    """A page, and in `page.outside` every address beyond this machine that it asked for, which must be none."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    opened.outside = []
    opened.on("request", lambda one: opened.outside.append(one.url) if not local(one.url) else None)
    yield opened
    assert opened.outside == []
    context.close()


def local(address: str) -> bool:
    """Whether an address is on this machine, or none at all."""
    return address.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "file:", "data:", "blob:"))


def photographed(page, name: str) -> Path:
    """Leave a picture of the whole page."""
    height = page.evaluate(
        "() => Math.max(1000, (document.querySelector('[data-testid=stMain]') ?? document.body).scrollHeight)"
    )
    page.set_viewport_size(
        {"width": page.viewport_size["width"], "height": min(6000, int(height) + 60)}
    )
    page.wait_for_timeout(1500)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    return SCREENSHOTS / f"{name}.png"


def serious(page) -> list[str]:
    """What axe-core finds that keeps somebody out."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
