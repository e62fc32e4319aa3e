"""Proposes a description of a table's columns, by looking at its records.

A proposal is for a public sample or a dry run: limits and categories that are taken from private
records tell about them. Writing it into a protocol states it as public knowledge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.data.classes import propose_words
from sordino.data.table_columns import KNOWN_NAMES, MISSING_WORDS
from sordino.data.table_files import FILE_COLUMN, TextTable
from sordino.protocol import UserError
from sordino.protocol.column_kinds import (
    CategoryColumn,
    Column,
    GroupColumn,
    IgnoredColumn,
    LabelColumn,
    NumberColumn,
    SplitColumn,
    TargetColumn,
    names_of_kind,
)
from sordino.protocol.entries import encode_table
from sordino.protocol.file import toml_key, toml_value
from sordino.protocol.value_checks import is_control

# More different words than this are names or notes, and no categories.
MOST_CATEGORIES = 60
# What a proposed list calls gaps in a column of words.
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A description that fits a table.

    Attributes:
        name: The path of the table, for `data.name`.
        columns: The description of every column.
        classes: The labels that occur; None for a regression.
        groups: The columns that could say which client a record belongs to.
    """

    name: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None
    groups: tuple[str, ...]


def propose_description(
    table: TextTable,
    *,
    label: str | None = None,
    target: str | None = None,
    group: str | None = None,
) -> Proposal:
    """Returns a description of a table that its records fit.

    Args:
        table: The table.
        label: The column that holds the class; None: `label`, or else the last column of words.
        target: The column that holds the answer of a regression.
        group: A column that assigns records to clients.

    Raises:
        UserError: There is no such column, none that could be learnt, or a class whose name no
            protocol file can list.
    """
    for name in (label, target, group):
        if name is not None:
            table.take_column(name)
    if label is None and target is None:
        label, target = _find_answer(table)
    columns: list[Column] = []
    for name, texts in table.columns.items():
        # The reader adds this column; it is in none of the files.
        if name == FILE_COLUMN:
            continue
        if name == label:
            columns.append(LabelColumn(name=name))
        elif name == target:
            columns.append(TargetColumn(name=name))
        elif name == group:
            columns.append(GroupColumn(name=name))
        else:
            columns.append(_propose_column(table, name, texts))
    classes = None
    if label is not None:
        _refuse_unprintable_labels(table, label)
        classes = tuple(propose_words(table.take_column(label)))
    groups = names_of_kind(columns, GroupColumn)
    if FILE_COLUMN in table.columns:
        groups.append(FILE_COLUMN)
    return Proposal(
        name=table.source, columns=tuple(columns), classes=classes, groups=tuple(groups)
    )


def write_proposal(proposal: Proposal, *, sizes: Sequence[int] | None = None) -> str:
    """Returns the tables of a protocol file that state a proposal.

    Args:
        proposal: The description.
        sizes: How many training records every client has; None leaves it unsaid.
    """
    lines = ["[data]", f"name = {toml_value(proposal.name)}"]
    if proposal.groups:
        lines.append(f"partition = {{ by = {toml_value(proposal.groups[0])} }}")
    if sizes is not None:
        lines.append(f"sizes = {toml_value(list(sizes))}")
    if proposal.classes is not None:
        lines.append(f"classes = {toml_value(list(proposal.classes))}")
    lines += ["", "[data.columns]"]
    for column in proposal.columns:
        inner = encode_table(column)
        del inner["name"]
        value = toml_value({"kind": column.tag, **inner}) if inner else toml_value(column.tag)
        lines.append(f"{toml_key(column.name)} = {value}")
    return "\n".join(lines) + "\n"


def _find_answer(table: TextTable) -> tuple[str | None, str | None]:
    """Returns the column of labels, or the column of targets."""
    if "label" in table.columns:
        return "label", None
    if "target" in table.columns:
        return None, "target"
    # Tables usually end with what is to be learnt.
    name = [column for column in table.columns if column != FILE_COLUMN][-1]
    different = set(table.columns[name])
    if 2 <= len(different) <= MOST_CATEGORIES:
        return name, None
    raise UserError(
        f"{table.source}: it is unclear which column is to be learnt. Name it: --label COLUMN "
        f"for classes, --target COLUMN for numbers; the columns are {', '.join(table.columns)}."
    )


def _propose_column(table: TextTable, name: str, texts: Sequence[str]) -> Column:
    """Returns a description of one column."""
    # A column called label or target that is not the answer is one like all others.
    if KNOWN_NAMES.get(name) is SplitColumn:
        return SplitColumn(name=name)
    present = [place for place, text in enumerate(texts) if text.lower() not in MISSING_WORDS]
    has_gaps = len(present) < len(texts)
    numbers = _parse_all(table, name, present)
    if numbers:
        limits = (_round_outwards(min(numbers), down=True), _round_outwards(max(numbers)))
        # A constant column tells a model nothing, and equal limits are none.
        if limits[0] == limits[1]:
            return IgnoredColumn(name=name)
        # The middle is 0 once it is scaled, so that a gap by itself moves no model.
        fill = (limits[0] + limits[1]) / 2 if has_gaps else None
        return NumberColumn(name=name, limits=limits, fill=fill)
    categories = sorted({texts[record] for record in present})
    if not 1 < len(categories) <= MOST_CATEGORIES or not all(map(_is_category, categories)):
        return IgnoredColumn(name=name)
    if not has_gaps:
        return CategoryColumn(name=name, categories=tuple(categories))
    if UNKNOWN not in categories:
        categories.append(UNKNOWN)
    return CategoryColumn(name=name, categories=tuple(categories), fill=UNKNOWN)


def _is_category(word: str) -> bool:
    """Returns whether a protocol file can list a word as a category or a class."""
    # A text of several lines is a note.
    return not any(is_control(character) for character in word)


def _refuse_unprintable_labels(table: TextTable, name: str) -> None:
    """Refuses a column of classes with a name that no protocol file can list."""
    for record, text in enumerate(table.take_column(name)):
        if not _is_category(text):
            raise table.problem(
                name,
                record,
                f"is {text!r} in {{place}}: the name of a class stands on one line, without "
                "control characters. Correct the record, or name another column.",
            )


def _parse_all(table: TextTable, name: str, records: Sequence[int]) -> list[float]:
    """Returns the numbers of records; none where one of them is not a finite number."""
    numbers = []
    for record in records:
        try:
            numbers.append(table.read_number(name, record))
        except ValueError:
            return []
    return numbers


def _round_outwards(value: float, *, down: bool = False) -> float:
    """Returns a round number beyond a value, so that no record's exact value is proposed."""
    if value == 0:
        return 0.0
    # One digit and a half: 1, 1.5, 2, 2.5 ... times a power of ten.
    unit = 10.0 ** math.floor(math.log10(abs(value))) / 2
    steps = value / unit
    rounded = math.floor(steps) if down else math.ceil(steps)
    return float(f"{rounded * unit:.12g}")
