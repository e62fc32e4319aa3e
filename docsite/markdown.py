"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a bar or a line break in a cell does not end it.

    Example:
        >>> print(table(["key", "meaning"], [["a", "this | that"]]))
        | key | meaning |
        |---|---|
        | a | this \\| that |
    """
    lines = [head, ["---"] * len(head), *rows]
    marked = [
        ("|{}|" if place == 1 else "| {} |").format(
            ("|" if place == 1 else " | ").join(map(cell, row))
        )
        for place, row in enumerate(lines)
    ]
    return "\n".join(marked)


def cell(text: str) -> str:
    """Text that may stand in a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def words(text: str) -> str:
    """Text in which nothing is taken for a tag.

    Example:
        >>> words("runs/<name>")
        'runs/&lt;name>'
    """
    return text.replace("<", "&lt;")


def code(text: str) -> str:
    """Text as code in a line.

    Example:
        >>> code("sigma")
        '`sigma`'
    """
    return f"`{text}`"


def first_line(documented: object) -> str:
    """What something is, in the first line of its docstring.

    Example:
        >>> first_line(first_line)
        'What something is, in the first line of its docstring.'
    """
    return (getattr(documented, "__doc__", None) or "").strip().partition("\n")[0]
