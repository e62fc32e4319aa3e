"""The pages of reference that are committed, made from the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docsite import command_line, file_format

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": command_line.page,
    "file.md": file_format.page,
}


def main(folder: Path = FOLDER) -> None:
    """Writes all pages.

    Args:
        folder: Where to.
    """
    folder.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (folder / name).write_text(write(), encoding="utf-8")
