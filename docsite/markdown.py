"""Builds pieces of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; a bar or a line break in a cell does not end it.

    Args:
        head: names of the columns.
        rows: cells.

    Example:
        >>> print(table(["key", "meaning"], [["a", "this | that"]]))
        | key | meaning |
        |---|---|
        | a | this \\| that |
    """
    lines = [f"| {' | '.join(map(cell, head))} |", f"|{'|'.join(['---'] * len(head))}|"]
    for row in rows:
        lines.append(f"| {' | '.join(map(cell, row))} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Returns text that may stand in a cell.

    Args:
        text: any.
    """
    return " ".join(text.split()).replace("|", "\\|")


def escape_tags(text: str) -> str:
    """Returns text in which nothing is taken for a tag.

    Args:
        text: any.

    Example:
        >>> escape_tags("runs/<name>")
        'runs/&lt;name>'
    """
    return text.replace("<", "&lt;")


def code(text: str) -> str:
    """Returns text as code in a line.

    Args:
        text: any.

    Example:
        >>> code("sigma")
        '`sigma`'
    """
    return f"`{text}`"


def first_line(documented: object) -> str:
    """Returns the first line of a docstring.

    Args:
        documented: what has one.

    Example:
        >>> first_line(first_line)
        'Returns the first line of a docstring.'
    """
    return (getattr(documented, "__doc__", None) or "").strip().partition("\n")[0]
