"""Tables for a terminal that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.table import Table
from rich.text import Text

Justify = Literal["left", "right"]


def facts_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Builds a table of two columns, a bold word and a text about it.

    Args:
        rows: The words and their texts, from top to bottom.

    Returns:
        A table without borders; long texts are folded.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for word, text in rows:
        # A Text is printed as it is: what users wrote is not read as markup.
        table.add_row(word, Text(text))
    return table


def make_table(columns: dict[str, Justify], title: str | None = None) -> Table:
    """Builds an empty table.

    Args:
        columns: The head of every column, and on which side its cells are aligned.
        title: Printed above the table, on the left.

    Returns:
        The table, to which rows can be added.
    """
    table = Table(title=title, title_justify="left")
    for name, justify in columns.items():
        table.add_column(name, justify=justify)
    return table
