"""A user's own data: arrays in an .npz file, or a table in a .csv file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.federation.data.classes import (
    Classes,
    class_names,
    named_labels,
    numbers_found,
    refuse_numbers_outside,
    refuse_other_classes,
    refuse_too_many_classes,
    unsaid,
    words_found,
)
from sordino.federation.data.dataset import Dataset, Scaling, described, split, without_test
from sordino.federation.data.formats import read_npz, read_table
from sordino.federation.data.images import centred
from sordino.protocol import UserError

ARRAYS = (("x", "y"), ("x_train", "y_train"), ("x_train", "y_train", "x_test", "y_test"))
COLUMN = "column_"
LIST = "classes"
AS_IS = Scaling(np.ones((), dtype=np.float32), np.zeros((), dtype=np.float32))


def load_npz(path: Path, classes: Classes | None = None, *, hold_out: bool = True) -> Dataset:
    """Arrays from an .npz file: `x` and `y`, or `x_train` and `y_train`, with or without `x_test` and `y_test`.

    Whole numbers in y are labels that count from 0, real numbers are targets. Images are uint8, (n, height, width) or (n, channels,
    height, width). An array `column_<name>`, one value per record of x or x_train, is a column that a partition may go by. An array
    `classes` of names is a public list of the classes.

    Args:
        path: the file.
        classes: how many classes there are, or their names; None where the file lists them.
        hold_out: whether a fifth is held out where there is no test part.

    Raises:
        UserError: arrays that are missing, unknown, or of a type or shape that does not fit; classes that are not known.
    """
    arrays = read_npz(path)
    listed = _listed_classes(path, arrays.pop(LIST, None))
    columns = {
        name.removeprefix(COLUMN): values
        for name, values in arrays.items()
        if name.startswith(COLUMN)
    }
    given = {name for name in arrays if not name.startswith(COLUMN)}
    names = next((names for names in ARRAYS if set(names) == given), None)
    if names is None:
        allowed = " or ".join(", ".join(names) for names in ARRAYS)
        raise UserError(
            f"{path} holds the arrays {', '.join(sorted(given)) or '(none)'}; expected are {allowed}, and {COLUMN}<name>, {LIST}."
        )
    pieces = [
        (_inputs if name.startswith("x") else _answers)(arrays[name], f"{path}: {name}")
        for name in names
    ]
    x, y = pieces[:2]
    test = (pieces[2], pieces[3]) if len(pieces) == 4 else None
    answers = dict(zip(names[1::2], pieces[1::2], strict=True))
    found = _numbered_classes(path, answers, listed, classes)
    scaling = centred(x.shape[1]) if x.dtype == np.uint8 else AS_IS
    return _assembled(path, x, y, test, found, columns, scaling, hold_out=hold_out)


def _listed_classes(path: Path, names: np.ndarray | None) -> tuple[str, ...] | None:
    """Returns the file's own list of classes, which is as public as its names of columns."""
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
        raise UserError(
            f'{path}: {LIST} is {described(names)}; expected are names in order, each once, as np.array(["no", "yes"]).'
        )
    return tuple(names.tolist())


def _inputs(values: np.ndarray, name: str) -> np.ndarray:
    """Bytes of three or four axes are images; any other numbers become float32 as they are."""
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[:, None]
    if values.dtype == np.uint8 and values.ndim == 4:
        if values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
            raise UserError(
                f"{name} has shape {values.shape}: channels come before height and width. Save x.transpose(0, 3, 1, 2)."
            )
        return values
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise UserError(f"{name} is {described(values)}; expected are numbers, one record a row.")
    return _float32(values)


def _answers(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind in "biu" and values.shape[1:] in ((), (1,)):
        return values.reshape(-1).astype(np.int64)
    if values.dtype.kind == "f" and values.ndim in (1, 2):
        return _float32(values.reshape(len(values), -1))
    raise UserError(
        f"{name} is {described(values)}; expected is one whole number per record (a label), or real numbers (targets)."
    )


def _float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # becomes infinite, which the data set refuses, saying where
        return values.astype(np.float32)


def _numbered_classes(
    path: Path,
    answers: Mapping[str, np.ndarray],
    listed: tuple[str, ...] | None,
    said: Classes | None,
) -> tuple[str, ...] | None:
    """Returns the names of the classes that labels count; None for targets."""
    if len({values.dtype for values in answers.values()}) > 1:
        raise UserError(
            f"{path}: y_train and y_test must both be whole numbers (labels) or both be real numbers (targets)."
        )
    counted = all(values.dtype == np.int64 for values in answers.values())
    if not counted or listed is not None:
        refuse_other_classes(str(path), listed if counted else None, said)
    if not counted:
        return None
    classes = listed if said is None else said
    if classes is None:
        raise unsaid(path, numbers_found(np.concatenate(list(answers.values()))))
    for name, values in answers.items():
        refuse_numbers_outside(path, values, name, classes)
    return class_names(classes)


def _assembled(
    path: Path,
    x: np.ndarray,
    y: np.ndarray,
    test: tuple[np.ndarray, np.ndarray] | None,
    classes: tuple[str, ...] | None,
    columns: Mapping[str, np.ndarray],
    scaling: Scaling,
    *,
    hold_out: bool,
) -> Dataset:
    """Returns the data set; where there is no test part, a fifth of the records becomes it, unless nothing is to be scored."""
    if classes is not None:
        refuse_too_many_classes(path, len(classes), len(y) + (0 if test is None else len(test[1])))
    whose = "brought"
    if test is None:
        _refuse_other_lengths(path, {"x": x, **columns}, len(y))
        train, held_out = split(len(y)) if hold_out else (np.arange(len(y)), np.arange(0))
        test = x[held_out], y[held_out]
        columns = {name: values[train] for name, values in columns.items()}
        x, y = x[train], y[train]
        whose = "held-out" if hold_out else "none"
    assembled = Dataset(
        name=path.name.split(".")[0], x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=classes,
        scale=scaling.scale, shift=scaling.shift, columns=columns, test=whose,
    )  # fmt: skip
    return assembled if hold_out else without_test(assembled)


def _refuse_other_lengths(path: Path, arrays: Mapping[str, np.ndarray], records: int) -> None:
    for name, values in arrays.items():
        if len(values) != records:
            called = name if name == "x" else f"column {name}"
            raise UserError(
                f"{path}: {called} has {len(values)} values, but there are {records} answers. Give one of each per record."
            )


def load_csv(path: Path, classes: Classes | None = None, *, hold_out: bool = True) -> Dataset:
    """A table with a header line, from a .csv or .csv.gz file.

    The column `label` (words or whole numbers) is the class, or the column `target` (numbers) is the answer of a regression. A column
    `split` says train or test for each record; without it a fifth is held out. Every other column of numbers is an input as it is; a
    column of words is no input, but what a partition may go by.

    Args:
        path: the file.
        classes: the labels that there can be, in order, or how many there are from 0.
        hold_out: whether a fifth is held out where no column says what is for testing.

    Raises:
        UserError: no label or target, a missing value, a label that is no class, or a column that mixes numbers and words.
    """
    table = read_table(path)
    if ("label" in table) == ("target" in table):
        raise UserError(
            f"{path} has the columns {', '.join(table)}; expected is either a column label or a column target, and others."
        )
    held_out = _held_out(path, table.pop("split")) if "split" in table else None
    names, y = _answered(path, table, classes)
    numbers = {name: _numbers(path, name, values) for name, values in table.items()}
    features = [values for values in numbers.values() if values is not None]
    if features == []:
        raise UserError(f"{path} has no column of numbers to learn from, besides label or target.")
    x = np.stack(features, axis=1)
    columns = {name: np.array(table[name]) for name, values in numbers.items() if values is None}
    test = None
    if held_out is not None:
        test = x[held_out], y[held_out]
        columns = {name: values[~held_out] for name, values in columns.items()}
        x, y = x[~held_out], y[~held_out]
    found = _assembled(path, x, y, test, names, columns, AS_IS, hold_out=hold_out)
    return replace(found, inputs=tuple(name for name in numbers if name not in columns))


def _answered(
    path: Path, table: dict[str, list[str]], classes: Classes | None
) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Returns the classes and the answers, which leave the table."""
    if "target" in table:
        refuse_other_classes(str(path), None, classes)
        return None, _targets(path, table.pop("target"))
    labels = table.pop("label")
    if classes is None:
        raise unsaid(path, words_found(labels))
    return class_names(classes), named_labels(path, labels, classes)


def _held_out(path: Path, parts: list[str]) -> np.ndarray:
    strange = [
        (record, part)
        for record, part in enumerate(parts, start=1)
        if part not in ("train", "test")
    ]
    if strange:
        raise UserError(
            f"{path}: split is {strange[0][1]!r} in record {strange[0][0]}; expected is train or test."
        )
    return np.array(parts) == "test"


def _targets(path: Path, values: list[str]) -> np.ndarray:
    numbers = _numbers(path, "target", values)
    if numbers is None:
        raise UserError(
            f"{path}: target must be numbers, but is {values[0]!r} in record 1. For classes, call the column label."
        )
    return numbers[:, None]


def _numbers(path: Path, name: str, values: list[str]) -> np.ndarray | None:
    """A column as float32, or None if it is a column of words."""
    try:
        return _float32(np.array(values, dtype=str).astype(np.float64))
    except ValueError:
        wrong = [place for place, value in enumerate(values) if not _is_number(value)]
        if all(values[place] == "" for place in wrong):
            raise UserError(
                f"{path}: {name} is missing in record {wrong[0] + 1}. Fill it in or remove the record."
            ) from None
        if len(wrong) == len(values):
            return None
        given = (
            f"{name} is a number in some records, but {values[wrong[0]]!r} in record {wrong[0] + 1}"
        )
        raise UserError(f"{path}: {given}. Write a number in each record, or in none.") from None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
