"""Makes inputs of the columns of a table, record by record, from public descriptions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sordino.data.table_files import FILE_COLUMN, TextTable
from sordino.protocol import UserError
from sordino.protocol.column_kinds import (
    COLUMN_KINDS,
    CategoryColumn,
    Column,
    GroupColumn,
    IgnoredColumn,
    LabelColumn,
    NumberColumn,
    SplitColumn,
    TargetColumn,
)
from sordino.protocol.registry import Registry

# What spreadsheets, data frames and statistics programs write for a missing value.
MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "<na>", "#n/a", "?", "."})
# Longer lists of categories are shown by their first and last ones.
SHOWN = 60
# How many further words that are no categories a message names.
LISTED = 30
# The inputs that a column becomes, by name.
Inputs = Mapping[str, np.ndarray]
Encoder = Callable[[Any, TextTable], Inputs]
# Columns of these names are understood without a description.
KNOWN_NAMES: Mapping[str, type[Column]] = {
    "label": LabelColumn,
    "target": TargetColumn,
    "split": SplitColumn,
}

ENCODERS: Registry[Encoder] = Registry("encoding", "column", Column)


def encode_columns(table: TextTable, columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """Returns the inputs of a table by name, each a float32 number for every record.

    Args:
        table: The table, as it was read.
        columns: The description of every column.

    Raises:
        UserError: A value that is missing, no number, or no known category, with its place; all
            columns with such a value are named.
    """
    inputs: dict[str, np.ndarray] = {}
    faults: list[str] = []
    for column in columns:
        # Named together: one at a time, a table would take as many tries as it has such columns.
        try:
            inputs.update(ENCODERS.of(column)(column, table))
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
    return inputs


def refuse_undescribed(table: TextTable, columns: Sequence[Column]) -> None:
    """Refuses a table whose columns are not those that are described: nothing is left out silently.

    Args:
        table: The table, as it was read.
        columns: The description of every column.

    Raises:
        UserError: A column is missing, or not described.
    """
    described = [column.name for column in columns]
    for name in described:
        table.take_column(name)
    # Which file a record is from is not a column of the file.
    extra = [name for name in table.columns if name not in (*described, FILE_COLUMN)]
    if extra:
        raise UserError(
            f"{table.source} has a column {extra[0]!r} that [data.columns] does not describe. "
            f'Add it, if need be as {extra[0]} = "ignored".'
        )


def infer_columns(table: TextTable) -> list[Column]:
    """Returns descriptions of the columns where the protocol has none.

    `label`, `target` and `split` are known by their names. Of the others, columns of numbers are
    inputs, unscaled, and columns of words are for a partition.

    Args:
        table: The table, as it was read.

    Raises:
        UserError: A column mixes numbers and words, or a number is missing.
    """
    found: list[Column] = []
    for name, values in table.columns.items():
        kind = KNOWN_NAMES.get(name)
        if kind is None:
            kind = NumberColumn if _holds_numbers(table, name, values) else GroupColumn
        found.append(kind(name=name))
    return found


@ENCODERS.register(NumberColumn)
def _encode_number(column: NumberColumn, table: TextTable) -> Inputs:
    """Returns a number clipped and scaled by public limits, and whether it was missing."""
    texts = table.take_column(column.name)
    missing = np.array([_is_missing(text) for text in texts], dtype=bool)
    if missing.any() and column.fill is None:
        raise missing_value(table, column.name, int(np.flatnonzero(missing)[0]))
    # Without a fill there are no gaps left by now, and all zeros are overwritten.
    numbers = np.full(len(texts), column.fill or 0.0)
    numbers[~missing] = _read_present(column.name, table, ~missing)
    if column.limits is not None:
        low, high = column.limits
        # A value beyond a public limit must not be larger than any other record's may be.
        numbers = 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1
    with np.errstate(over="ignore"):
        inputs = {column.name: numbers.astype(np.float32)}
    if not np.isfinite(inputs[column.name]).all():
        record = int(np.flatnonzero(~np.isfinite(inputs[column.name]))[0])
        raise table.problem(
            column.name,
            record,
            f"is {texts[record]!r} in {{place}}, more than a model's numbers hold. Correct it, or "
            "give the column public limits: limits = [...] in [data.columns].",
        )
    # The second input is there whether or not a record has a gap, which would tell about it.
    if column.fill is not None:
        inputs[f"{column.name} missing"] = missing.astype(np.float32)
    return inputs


@ENCODERS.register(CategoryColumn)
def _encode_category(column: CategoryColumn, table: TextTable) -> Inputs:
    """Returns a 1 for the category of the record, and a 0 for all others."""
    places = {name: place for place, name in enumerate(column.categories)}
    chosen = np.zeros(len(table.places), dtype=np.int64)
    # Every word that is not a category, with the first record that has it.
    unknown: dict[str, int] = {}
    for record, text in enumerate(table.take_column(column.name)):
        name = text
        # A category may be called "?" or "none": only a word that is not a category is a gap.
        if text not in places and _is_missing(text):
            if column.fill is None:
                raise missing_value(table, column.name, record)
            name = column.fill
        if name in places:
            chosen[record] = places[name]
        else:
            unknown.setdefault(name, record)
    if unknown:
        raise _unknown_categories(table, column.name, unknown)
    # An input for every category of the list, also for one that no record has: which ones occur
    # must not show in the shape of the model.
    return {
        f"{column.name}={name}": (chosen == place).astype(np.float32)
        for name, place in places.items()
    }


def _unknown_categories(table: TextTable, name: str, unknown: Mapping[str, int]) -> UserError:
    """Returns the error for words that are no categories, each with its first record."""
    (word, record), *others = unknown.items()
    remedy = "Correct the record, or add the category."
    if others:
        listed = ", ".join(f"{word!r} ({table.places[place]})" for word, place in others[:LISTED])
        rest = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        remedy = f"Nor are {listed}{rest}. Correct the records, or add the categories."
    return table.problem(
        name,
        record,
        f"is {word!r} in {{place}}, which is not in the public list "
        f"data.columns.{name}.categories. {remedy}",
    )


@ENCODERS.register(LabelColumn, TargetColumn, SplitColumn, GroupColumn, IgnoredColumn)
def _encode_nothing(column: Column, table: TextTable) -> Inputs:
    """Returns no input."""
    return {}


def missing_value(table: TextTable, name: str, record: int) -> UserError:
    """Returns the error for a missing value.

    Args:
        table: The table, as it was read.
        name: Name of the column.
        record: Place of the record, from 0.
    """
    return table.problem(
        name,
        record,
        "is missing in {place}. Fill it in, remove the record, or give the column a public "
        "value for gaps: fill = ... in [data.columns].",
    )


def describe_column(column: Column) -> str:
    """Returns a sentence about what happens to a column.

    Args:
        column: Its description.

    Example:
        >>> describe_column(NumberColumn(name="age", limits=(0, 120)))
        'age: a number, clipped to 0 ... 120 and scaled to -1 ... 1; a gap is refused'
    """
    return f"{column.name}: {_DESCRIPTIONS.of(column)(column)}"


_DESCRIPTIONS: Registry[Callable[[Any], str]] = Registry("description", "column", Column)


@_DESCRIPTIONS.register(NumberColumn)
def _describe_number(column: NumberColumn) -> str:
    words = "a number"
    if column.limits is not None:
        low, high = column.limits
        words += f", clipped to {low:g} ... {high:g} and scaled to -1 ... 1"
    if column.fill is not None:
        return f"{words}; gaps become {column.fill:g}, and 1 in a second input"
    return f"{words}; a gap is refused"


@_DESCRIPTIONS.register(CategoryColumn)
def _describe_category(column: CategoryColumn) -> str:
    names = column.categories
    shown = ", ".join(names)
    if len(names) > SHOWN:
        shown = f"{', '.join(names[:2])} ... {names[-1]}"
    words = f"one of {len(names)} categories, an input for each ({shown})"
    if column.fill is not None:
        return f"{words}; gaps become {column.fill!r}"
    return f"{words}; a gap is refused"


@_DESCRIPTIONS.register(LabelColumn)
def _describe_label(column: LabelColumn) -> str:
    return "the class, one of data.classes"


@_DESCRIPTIONS.register(TargetColumn)
def _describe_target(column: TargetColumn) -> str:
    return "the answer of a regression"


@_DESCRIPTIONS.register(SplitColumn)
def _describe_split(column: SplitColumn) -> str:
    return "says train or test"


@_DESCRIPTIONS.register(GroupColumn)
def _describe_group(column: GroupColumn) -> str:
    return "no input; a partition may go by it"


@_DESCRIPTIONS.register(IgnoredColumn)
def _describe_ignored(column: IgnoredColumn) -> str:
    return "left out"


def _is_missing(text: str) -> bool:
    """Returns whether a text denotes a missing value."""
    return text.lower() in MISSING_WORDS


def _is_number(table: TextTable, name: str, record: int) -> bool:
    """Returns whether a value is a number."""
    try:
        table.read_number(name, record)
    except ValueError:
        return False
    return True


def _read_present(name: str, table: TextTable, present: np.ndarray) -> np.ndarray:
    """Returns the numbers of the records that have one."""
    texts = table.take_column(name)
    numbers = []
    for record in np.flatnonzero(present).tolist():
        try:
            numbers.append(table.read_number(name, record))
        except ValueError:
            raise table.problem(
                name,
                record,
                f"is {texts[record]!r} in {{place}}, not a number. Correct it, or describe "
                f"the column as another kind: {', '.join(COLUMN_KINDS)}.",
            ) from None
    return np.array(numbers, dtype=np.float64)


def _holds_numbers(table: TextTable, name: str, values: Sequence[str]) -> bool:
    """Returns whether a column holds numbers in every record; in some records only, it refuses."""
    wrong = [record for record in range(len(values)) if not _is_number(table, name, record)]
    if not wrong:
        return True
    first = wrong[0]
    # Only blanks are missing values; other words among numbers are errors of another kind.
    if all(values[record] == "" for record in wrong):
        raise missing_value(table, name, first)
    if len(wrong) == len(values):
        return False
    if all(_is_missing(values[record]) for record in wrong):
        raise missing_value(table, name, first)
    raise table.problem(
        name,
        first,
        f"is a number in some records, but {values[first]!r} in {{place}}. Write a number in each "
        "record, or in none, or describe the column in [data.columns].",
    )
