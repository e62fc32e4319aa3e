"""Prints a page to PDF, with a browser of this machine."""

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
# Seconds after which a browser that has not printed the page is stopped.
PATIENCE = 120


def find_browser() -> str:
    """Returns a browser that can print.

    Raises:
        UserError: None is installed.
    """
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise UserError(
        "--pdf: no browser that can print was found (chromium, chrome, edge). "
        "Install one, or open the page and print it there."
    )


def print_page(page: Path) -> Path:
    """Prints a page to a PDF file next to it.

    Args:
        page: An HTML file.

    Returns:
        The PDF file.

    Raises:
        UserError: There is no browser, or it did not print.

    Example:
        >>> print_page(Path("runs/digits-1/report.html"))  # doctest: +SKIP
        PosixPath('runs/digits-1/report.pdf')
    """
    program = find_browser()
    target = page.with_suffix(".pdf")
    # A profile for this call only: the user's own browser may be running.
    with tempfile.TemporaryDirectory(prefix="sordino-") as profile:
        # Printed there first, so that a failure leaves no half page next to the report.
        printed = Path(profile) / "page.pdf"
        options = [
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
        ]
        if os.geteuid() == 0:
            # Browsers cannot sandbox themselves as root; the page is ours and runs no script.
            options.append("--no-sandbox")
        command = [program, *options, f"--print-to-pdf={printed}", page.resolve().as_uri()]
        try:
            answer = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        except (OSError, subprocess.TimeoutExpired) as error:
            lines = [str(error)]
        # Browsers end with exit code 0 even if they fail; only the file shows that they did not.
        if not printed.exists():
            raise UserError(
                f"--pdf: {program} did not print {page}: {lines[-1]}. "
                "Open the page and print it there."
            )
        try:
            shutil.move(printed, target)
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    return target
