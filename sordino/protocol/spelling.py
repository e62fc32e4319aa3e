"""How messages name what may be written, and hint at what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from sordino.protocol.errors import UserError


def one_of(options: Iterable[str]) -> str:
    """Returns options in words: `"a", "b" or "c"`.

    Args:
        options: At least one word.
    """
    quoted = [f'"{option}"' for option in options]
    if len(quoted) == 1:
        return quoted[0]
    return ", ".join(quoted[:-1]) + " or " + quoted[-1]


def suggest_spelling(given: Any, options: Iterable[str]) -> str:
    """Returns a hint at the nearest spelling, or nothing.

    Args:
        given: What was written.
        options: The allowed words.
    """
    if not isinstance(given, str):
        return ""
    # More than one suggestion would be a list to choose from, which the message has already.
    close = difflib.get_close_matches(given, list(options), n=1)
    return f'Did you mean "{close[0]}"?' if close else ""


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Refuses the first key that is not known.

    Args:
        table: Table of the file.
        known: Keys that it may have.
        path: Where the table is in the file.

    Raises:
        UserError: Names the key, and the nearest one that is known.
    """
    known = list(known)
    for key in table:
        if key not in known:
            where = f"{path}.{key}" if path else key
            hint = suggest_spelling(key, known)
            allowed = f"allowed here: {', '.join(known)}" if known else "no key is allowed here"
            raise UserError(f"unknown key {where}. {hint + ' ' if hint else ''}({allowed})")
