"""Reads a user's own table: a file, a folder with a file for each client, or a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.classes import (
    NO_LABEL,
    Classes,
    class_names,
    format_classes,
    missing_classes,
    propose_words,
    refuse_other_classes,
)
from sordino.data.dataset import Dataset
from sordino.data.own import UNSCALED, Records, assemble_dataset
from sordino.data.table_columns import (
    encode_columns,
    infer_columns,
    missing_value,
    refuse_undescribed,
)
from sordino.data.table_files import (
    FILE_COLUMN,
    TextTable,
    read_text_table,
    table_of_frame,
)
from sordino.protocol import UserError
from sordino.protocol.column_kinds import (
    Column,
    GroupColumn,
    LabelColumn,
    SplitColumn,
    TargetColumn,
    names_of_kind,
)


def load_table(
    path: Path,
    classes: Classes | None = None,
    *,
    hold_out: bool = True,
    columns: Sequence[Column] | None = None,
) -> Dataset:
    """Loads a table with a header: a file, or a folder with one file for each client.

    Without a description the column `label` (words or whole numbers) is the class, or the column
    `target` (numbers) is the answer of a regression. A column `split` says train or test for each
    record; without it a fifth is held out. Every other column of numbers is an input as it is; a
    column of words is not an input, but a partition may use it.

    Args:
        path: The file or the folder.
        classes: The labels that there can be, in order, or how many there are from 0.
        hold_out: Whether a fifth is held out where no column says which records are for testing.
        columns: The description of every column; None: as above.

    Raises:
        UserError: No label or target, a missing value, a label that is not a class, or a column
            that does not fit its description.
    """
    return _build_dataset(read_text_table(path), path, classes, columns, hold_out=hold_out)


def load_frame(
    frame: Any,
    classes: Classes | None = None,
    *,
    hold_out: bool = True,
    columns: Sequence[Column] | None = None,
) -> Dataset:
    """Loads a pandas or polars DataFrame, by the same rules as a table in a file.

    Args:
        frame: The DataFrame.
        classes: The labels that there can be, in order, or how many there are from 0.
        hold_out: Whether a fifth is held out where no column says which records are for testing.
        columns: The description of every column; None: as `load_table` says.

    Raises:
        UserError: As `load_table`.
    """
    table = table_of_frame(frame)
    return _build_dataset(table, Path("DataFrame"), classes, columns, hold_out=hold_out)


def _build_dataset(
    table: TextTable,
    path: Path,
    classes: Classes | None,
    described: Sequence[Column] | None,
    *,
    hold_out: bool,
) -> Dataset:
    """Returns the data set of a table."""
    if described is None:
        _refuse_missing_answer(table)
        columns: Sequence[Column] = infer_columns(table)
    else:
        columns = described
        refuse_undescribed(table, columns)
    names, answers = _read_answers(table, path, columns, classes)
    inputs = encode_columns(table, columns)
    if not inputs:
        raise UserError(f"{path} has no column of numbers to learn from but its label or target.")
    groups = names_of_kind(columns, GroupColumn)
    if FILE_COLUMN in table.columns and FILE_COLUMN not in groups:
        groups.append(FILE_COLUMN)
    records = Records(
        x=np.stack(list(inputs.values()), axis=1),
        y=answers,
        columns={name: np.array(table.columns[name]) for name in groups},
    )
    train, test = _divide(table, columns, records)
    # A table is scaled by its description alone: see `data.dataset`.
    dataset = assemble_dataset(path, train, test, names, UNSCALED, hold_out=hold_out)
    return replace(dataset, inputs=tuple(inputs), blanks=_find_blanks(table, groups))


def _find_blanks(table: TextTable, groups: Sequence[str]) -> dict[str, str]:
    """Returns the place of the first missing value of each column that has one."""
    # They are refused only by a partition that goes by the column: notes may well have gaps.
    blanks = {}
    for name in groups:
        values = table.columns[name]
        if "" in values:
            blanks[name] = table.places[values.index("")]
    return blanks


def _refuse_missing_answer(table: TextTable) -> None:
    """Refuses a table without a description that does not name the column to be learnt."""
    # Both or neither: which of them is to be learnt must not be guessed.
    if ("label" in table.columns) == ("target" in table.columns):
        raise UserError(
            f"{table.source} has the columns {', '.join(table.columns)}; expected is either a "
            "column label or a column target, and others. [data.columns] can say which it is."
        )


def _read_answers(
    table: TextTable, path: Path, columns: Sequence[Column], classes: Classes | None
) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Returns the classes and the answers."""
    answers = names_of_kind(columns, LabelColumn, TargetColumn)
    if len(answers) != 1:
        raise UserError(
            f"{path}: [data.columns] needs one column that is to be learnt: one of the kind "
            '"label", or one of the kind "target".'
        )
    name = answers[0]
    if answers == names_of_kind(columns, TargetColumn):
        refuse_other_classes(str(path), None, classes)
        return None, _read_targets(table, name)
    # Made from the records, the list would give away a label that only one of them has.
    if classes is None:
        raise missing_classes(path, propose_words(table.take_column(name)))
    return class_names(classes), _number_labels(table, name, classes)


def _number_labels(table: TextTable, name: str, classes: Classes) -> np.ndarray:
    """Returns the place of every record's label in the list of classes."""
    places = {label: place for place, label in enumerate(class_names(classes))}
    found = []
    for record, text in enumerate(table.take_column(name)):
        if text not in places:
            raise _unknown_label(table, name, record, classes)
        found.append(places[text])
    return np.array(found, dtype=np.int64)


def _unknown_label(table: TextTable, name: str, record: int, classes: Classes) -> UserError:
    """Returns the error for a label that is not in the list."""
    text = table.columns[name][record]
    if text.lower() in NO_LABEL:
        missing = f" ({text})" if text else ""
        what = f"is missing{missing} in {{place}}. Fill it in or remove the record."
        return table.problem(name, record, what)
    return table.problem(
        name,
        record,
        f"is {text!r} in {{place}}, which is not in data.classes = {format_classes(classes)}. "
        "Correct the record, or add the class to the list.",
    )


def _read_targets(table: TextTable, name: str) -> np.ndarray:
    """Returns the answers of a regression."""
    numbers = []
    for record, text in enumerate(table.take_column(name)):
        if text == "":
            raise missing_value(table, name, record)
        try:
            numbers.append(table.read_number(name, record))
        except ValueError:
            raise table.problem(
                name,
                record,
                f"must be numbers, but is {text!r} in {{place}}. For classes, call the column "
                "label.",
            ) from None
    # Too large a number becomes infinite, which the data set refuses, saying where.
    with np.errstate(over="ignore"):
        return np.array(numbers).astype(np.float32)[:, None]


def _divide(
    table: TextTable, columns: Sequence[Column], records: Records
) -> tuple[Records, Records | None]:
    """Returns the training records and, where a column names them, the test records."""
    names = names_of_kind(columns, SplitColumn)
    if not names:
        return records, None
    # `Columns` allows one of them.
    name = names[0]
    parts = table.take_column(name)
    for record, part in enumerate(parts):
        # A misspelt "Test" would otherwise be trained on.
        if part not in ("train", "test"):
            raise table.problem(
                name, record, f"is {part!r} in {{place}}; expected is train or test."
            )
    is_test = np.array(parts) == "test"
    return records.select(~is_test), records.select(is_test)
