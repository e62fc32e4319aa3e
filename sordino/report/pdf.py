"""A page on paper: a browser of this machine prints it to PDF."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sordino.protocol import UserError

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
    "brave-browser",
)
PATIENCE = 120  # seconds


def browser() -> str:
    """A browser that can print.

    Raises:
        UserError: none is installed.
    """
    found = next((path for path in map(shutil.which, BROWSERS) if path is not None), None)
    if found is None:
        raise UserError(
            "--pdf: no browser was found that prints (chromium, chrome, edge). Install one, or open the page and print it there."
        )
    return found


def print_page(page: Path) -> Path:
    """Print a page to a PDF file beside it.

    Raises:
        UserError: there is no browser, or it did not print.

    Example:
        >>> print_page(Path("runs/digits-1/report.html"))  # doctest: +SKIP
        PosixPath('runs/digits-1/report.pdf')
    """
    program, target = browser(), page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory(prefix="sordino-") as profile:
        printed = Path(profile) / "page.pdf"
        options = [
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
        ]
        if os.geteuid() == 0:
            options.append(
                "--no-sandbox"
            )  # browsers refuse to sandbox themselves for root; the page is ours and runs no script
        command = [program, *options, f"--print-to-pdf={printed}", page.resolve().as_uri()]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            said = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        except (OSError, subprocess.TimeoutExpired) as error:
            said = [str(error)]
        if not printed.exists():
            raise UserError(
                f"--pdf: {program} did not print {page}: {said[0]}. Open the page and print it there."
            )
        try:
            shutil.move(printed, target)
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    return target
