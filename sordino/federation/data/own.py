"""A user's own data: arrays in an .npz file, or a table in a .csv file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sordino.federation.data.dataset import Dataset, Scaling, described, split
from sordino.federation.data.formats import read_npz, read_table
from sordino.federation.data.images import centred
from sordino.protocol import UserError

ARRAYS = (("x", "y"), ("x_train", "y_train"), ("x_train", "y_train", "x_test", "y_test"))
COLUMN = "column_"
AS_IS = Scaling(np.ones((), dtype=np.float32), np.zeros((), dtype=np.float32))


def load_npz(path: Path) -> Dataset:
    """Arrays from an .npz file: `x` and `y`, or `x_train` and `y_train`, with or without `x_test` and `y_test`.

    Whole numbers in y are labels that count from 0, real numbers are targets. Images are uint8, (n, height, width) or (n, channels,
    height, width). An array `column_<name>`, one value per record of x or x_train, is a column that a partition may go by. Without a
    test part a fifth is held out.

    Raises:
        UserError: arrays that are missing, unknown, or of a type or shape that does not fit.
    """
    arrays = read_npz(path)
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
            f"{path} holds the arrays {', '.join(sorted(given)) or '(none)'}; expected are {allowed}, and {COLUMN}<name>."
        )
    pieces = [
        (_inputs if name.startswith("x") else _answers)(arrays[name], f"{path}: {name}")
        for name in names
    ]
    x, y = pieces[:2]
    test = (pieces[2], pieces[3]) if len(pieces) == 4 else None
    classes = _counted_classes(path, pieces[1::2])
    scaling = centred(x.shape[1]) if x.dtype == np.uint8 else AS_IS
    return _assembled(path, x, y, test, classes, columns, scaling)


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


def _counted_classes(path: Path, answers: list[np.ndarray]) -> tuple[str, ...] | None:
    """Names "0", "1", ... up to the largest label; None for targets."""
    if any(values.dtype != answers[0].dtype for values in answers):
        raise UserError(
            f"{path}: y_train and y_test must both be whole numbers (labels) or both be real numbers (targets)."
        )
    if answers[0].dtype != np.int64:
        return None
    largest, records = (
        max(int(values.max(initial=0)) for values in answers),
        sum(len(values) for values in answers),
    )
    if largest >= max(records, 2):
        raise UserError(
            f"{path}: labels out of range: one is {largest}, with only {records} records. Number the classes from 0."
        )
    return tuple(str(label) for label in range(largest + 1))


def _assembled(
    path: Path,
    x: np.ndarray,
    y: np.ndarray,
    test: tuple[np.ndarray, np.ndarray] | None,
    classes: tuple[str, ...] | None,
    columns: Mapping[str, np.ndarray],
    scaling: Scaling,
) -> Dataset:
    """The data set; where there is no test part, a fifth of the records becomes it."""
    if test is None:
        for name, length in {
            "x": len(x),
            **{f"column {name}": len(values) for name, values in columns.items()},
        }.items():
            if length != len(y):
                raise UserError(
                    f"{path}: {name} has {length} values, but there are {len(y)} answers. Give one of each per record."
                )
        train, held_out = split(y)
        test = x[held_out], y[held_out]
        x, y, columns = (
            x[train],
            y[train],
            {name: values[train] for name, values in columns.items()},
        )
    return Dataset(
        name=path.name.split(".")[0], x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=classes,
        scale=scaling.scale, shift=scaling.shift, columns=columns,
    )  # fmt: skip


def load_csv(path: Path) -> Dataset:
    """A table with a header line, from a .csv or .csv.gz file.

    The column `label` (words or whole numbers) is the class, or the column `target` (numbers) is the answer of a regression. A column
    `split` says train or test for each record; without it a fifth is held out. Every other column of numbers is an input as it is; a
    column of words is no input, but what a partition may go by.

    Raises:
        UserError: no label or target, a missing value, or a column that mixes numbers and words.
    """
    table = read_table(path)
    if ("label" in table) == ("target" in table):
        raise UserError(
            f"{path} has the columns {', '.join(table)}; expected is either a column label or a column target, and others."
        )
    held_out = _held_out(path, table.pop("split")) if "split" in table else None
    classes, y = (
        _labels(path, table.pop("label"))
        if "label" in table
        else (None, _targets(path, table.pop("target")))
    )
    numbers = {name: _numbers(path, name, values) for name, values in table.items()}
    features = [values for values in numbers.values() if values is not None]
    if features == []:
        raise UserError(f"{path} has no column of numbers to learn from, besides label or target.")
    x = np.stack(features, axis=1)
    columns = {name: np.array(table[name]) for name, values in numbers.items() if values is None}
    if held_out is None:
        return _assembled(path, x, y, None, classes, columns, AS_IS)
    columns = {name: values[~held_out] for name, values in columns.items()}
    return _assembled(
        path, x[~held_out], y[~held_out], (x[held_out], y[held_out]), classes, columns, AS_IS
    )


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


def _labels(path: Path, labels: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct labels, in order of number if they all are numbers, and the place of each record's label among them."""
    if "" in labels:
        raise UserError(
            f"{path}: label is missing in record {labels.index('') + 1}. Fill it in or remove the record."
        )
    words = set(labels)
    numbers = all(word.removeprefix("-").isdecimal() for word in words)
    classes = sorted(words, key=lambda word: (int(word), word)) if numbers else sorted(words)
    places = {word: place for place, word in enumerate(classes)}
    return tuple(classes), np.array([places[label] for label in labels], dtype=np.int64)


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
