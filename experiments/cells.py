"""CSV files of experiments, with a line for each finished cell, which is never trained again."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Returns the lines of a file, none of them if there is no file yet.

    Args:
        path: The file.
    """
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def find_finished(path: Path, key: Sequence[str]) -> set[tuple[str, ...]]:
    """Returns the identifying values of the finished cells of a file.

    Args:
        path: The file.
        key: The columns that do.
    """
    return {tuple(row[name] for name in key) for row in read_rows(path)}


def append_row(path: Path, columns: Sequence[str], row: Mapping[str, object]) -> None:
    """Adds a line to a file, and the head before the first.

    Args:
        path: The file.
        columns: Its columns.
        row: A value for each of them.
    """
    append_rows(path, columns, [row])


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Adds all lines of a cell to a file at once.

    Args:
        path: The file.
        columns: Its columns.
        rows: Each with a value for each of them.
    """
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({name: spell_value(row[name]) for name in columns} for row in rows)


def spell_value(value: object) -> str:
    """Returns a value as it is written in the file: nothing for None, numbers in six digits.

    Args:
        value: The value.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def select_rows(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """Returns the lines that have some values.

    Args:
        rows: Lines of a file.
        **wanted: Values by column.
    """
    texts = {name: spell_value(value) for name, value in wanted.items()}
    return [row for row in rows if all(row[name] == text for name, text in texts.items())]
