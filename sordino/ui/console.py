"""How Sordino speaks: messages and progress on standard error, results on standard output."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sordino.protocol import SordinoError
from sordino.protocol.documents import plain
from sordino.protocol.errors import typed

INTERRUPTED = 130  # what shells expect after Ctrl-C

# No markup and no emoji codes: names and paths of users are printed as they are.
results = Console(highlight=False, markup=False, emoji=False)
messages = Console(stderr=True, highlight=False, markup=False, emoji=False)


def forgive() -> None:
    """Let letters that the output cannot show be written as escapes: no result is lost to a name in it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def given_up() -> bool:
    """Whether standard output takes no more, as a full disk does not; then nothing more is sent there."""
    try:
        print(flush=True)  # an empty line tells
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return True
    return False


def print_json(document: Any) -> None:
    """One JSON document and nothing else; infinity is the string "inf", what is not known is null."""
    print(json.dumps(plain(document), indent=2, allow_nan=False))


def facts_table(rows: list[tuple[str, str]]) -> Table:
    """Aligned lines of a word and what there is to say about it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for word, text in rows:
        table.add_row(word, Text(text))
    return table


class Stopped(SordinoError):
    """Ctrl-C, after everything was put in order."""

    exit_code = INTERRUPTED

    def __init__(self, run: Path | None) -> None:
        go_on = (
            f" Go on with: {typed('resume', run)}" if run is not None else " Nothing was written."
        )
        super().__init__("stopped." + go_on)
