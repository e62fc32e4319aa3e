"""Prints tables of Markdown line by line, so that a long experiment shows its rows as they come."""

from __future__ import annotations


def print_header(*words: str) -> None:
    """Prints the head of a table.

    Args:
        words: The names of the columns.
    """
    print("| " + " | ".join(words) + " |\n|" + "---|" * len(words), flush=True)


def print_row(*cells: object) -> None:
    """Prints one row of a table.

    Args:
        cells: The values of its columns.
    """
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
