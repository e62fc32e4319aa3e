"""The moving picture of the README: `python -m docsite.movie` films the running explorer in a browser without a window.

It needs playwright, a chromium of this machine, and the extra `ui`.
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from PIL import Image

from sordino.report.pdf import BROWSERS

if TYPE_CHECKING:
    from playwright.sync_api import Page

TARGET = Path(__file__).parents[1] / "docs" / "explorer.webp"
WINDOW = {"width": 1360, "height": 1180}
WIDTH = 820  # of the picture
START = "/?rounds=20&adversary=rounds"
# Milliseconds that a frame stays: after a move, and where there is something to read.
MOVE, READ = 500, 2200
PATIENCE = 120_000
# Sliders that are moved, by what their labels begin with, and by how many stops.
MOVES = (("Rounds of training", 7), ("Noise: standard deviation", 6))
FOCUS = "one => one.focus({ preventScroll: true })"
SETTLED = """() => document.querySelector('.answer') && !document.body.innerText.includes('being computed')
    && document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"""


@contextmanager
def serve_explorer() -> Iterator[str]:
    """Yields the address of an explorer that runs until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sordino", "ui", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            wait_until_it_answers(f"{address}/_stcore/health")
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def wait_until_it_answers(address: str) -> None:
    """Return when a server answers, within two minutes."""
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(address)


def film(page: Page, address: str) -> list[tuple[Image.Image, int]]:
    """Moves sliders, chooses another adversary, and returns what was seen, with milliseconds."""
    page.goto(address + START)
    frames = [take_picture(page, READ)]
    for label, times in MOVES:
        for _ in range(times):
            # Without scrolling: the answer above must stay in the picture.
            page.get_by_role("slider", name=re.compile(label)).evaluate(FOCUS)
            page.keyboard.press("ArrowRight")
            frames.append(take_picture(page, MOVE))
        frames[-1] = (frames[-1][0], READ)
    page.get_by_role("combobox", name=re.compile("Against whom")).evaluate(FOCUS)
    page.keyboard.type("server")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    frames.append(take_picture(page, READ))
    return frames


def take_picture(page: Page, duration: int) -> tuple[Image.Image, int]:
    """Returns what the window shows once everything is computed and drawn."""
    page.wait_for_timeout(400)
    page.wait_for_function(SETTLED, timeout=PATIENCE)
    page.wait_for_timeout(600)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return shot.resize(
        (WIDTH, shot.height * WIDTH // shot.width), Image.Resampling.LANCZOS
    ), duration


def main(target: Path = TARGET) -> None:
    """Films the explorer."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with serve_explorer() as address, sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE
        )
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        page.set_default_timeout(PATIENCE)
        frames = film(page, address)
        browser.close()
    pictures, durations = zip(*frames, strict=True)
    first, *others = pictures
    first.save(
        target,
        save_all=True,
        append_images=others,
        duration=list(durations),
        loop=0,
        quality=70,
        method=6,
    )
    print(f"{target}: {len(frames)} frames, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
