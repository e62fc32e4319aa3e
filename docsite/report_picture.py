"""The first picture of the README: `python -m docsite.report_picture` trains the demo, audits it and photographs its report.

It needs a chromium of this machine, and takes eight minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sordino.report.pdf import BROWSERS

REPOSITORY = Path(__file__).parents[1]
TARGET = REPOSITORY / "docs" / "report.png"
DEMO = REPOSITORY / "sordino" / "examples" / "digits.toml"
WINDOW = "1100,1090"
# An audit of a minute shows that nothing is wrong, and little more.
MINUTES = "6"
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")


def make_audited_run(folder: Path) -> Path:
    """Trains and audits the demo with the commands that a person types.

    Args:
        folder: Where the run is written.

    Returns:
        The folder of the run, with its report.
    """
    run = folder / "demo"
    sordino = [sys.executable, "-m", "sordino"]
    subprocess.run([*sordino, "train", str(DEMO), "--out", str(run)], check=True)
    subprocess.run([*sordino, "audit", str(run), "--minutes", MINUTES], check=True)
    subprocess.run([*sordino, "report", str(run)], check=True)
    return run


def take_picture(page: Path, target: Path) -> None:
    """Writes what a browser shows of a page.

    Args:
        page: An HTML file.
        target: The PNG file.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no browser is on this machine: install chromium")
    command = [browser, *QUIET, f"--window-size={WINDOW}", f"--screenshot={target}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Makes the picture."""
    with TemporaryDirectory() as folder:
        run = make_audited_run(Path(folder))
        take_picture(run / "report.html", TARGET)
    print(TARGET)


if __name__ == "__main__":
    main()
