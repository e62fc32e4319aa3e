"""Prints messages and progress on standard error, results on standard output."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from sordino.protocol import SordinoError
from sordino.protocol.documents import to_json_value
from sordino.protocol.errors import format_command

# What shells expect after Ctrl-C.
INTERRUPTED = 130

# No markup and no emoji codes: names and paths of users are printed as they are.
results = Console(highlight=False, markup=False, emoji=False)
messages = Console(stderr=True, highlight=False, markup=False, emoji=False)


def escape_unprintable() -> None:
    """Writes letters that the output cannot show as escapes.

    Otherwise a name in a result could end the command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def abandon_full_output() -> bool:
    """Stops writing to standard output if it takes no more, as on a full disk.

    Returns:
        Whether it takes no more.
    """
    try:
        # An empty line shows whether anything can be written.
        print(flush=True)
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return True
    return False


def print_message(text: str) -> None:
    """Prints a message on standard error; a terminal wraps it, so that it can be copied whole.

    Args:
        text: The message.
    """
    messages.print(text, soft_wrap=True)


def print_json(document: Any) -> None:
    """Prints one JSON document and nothing else.

    Args:
        document: The document. Infinity is printed as the string "inf", NaN as null.
    """
    print(json.dumps(to_json_value(document), indent=2, allow_nan=False))


class Stopped(SordinoError):
    """Ctrl-C was pressed, and everything is in order.

    Attributes:
        exit_code: The code that shells expect after Ctrl-C.
    """

    exit_code = INTERRUPTED

    def __init__(self, run: Path | None, sign: Path | None = None) -> None:
        """Says how to resume.

        Args:
            run: The folder of the run or audit; None where nothing was written.
            sign: The key that signs the run.
        """
        if run is None:
            super().__init__("stopped. Nothing was written.")
            return
        # A run that is to be signed is not resumed without a key.
        signing = () if sign is None else ("--sign", sign)
        super().__init__(f"stopped. Resume with: {format_command('resume', run, *signing)}")
