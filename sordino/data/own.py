"""Reads a user's own arrays from an .npz file; a table is read by `own_tables`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.data.classes import (
    Classes,
    class_names,
    missing_classes,
    propose_numbers,
    refuse_numbers_outside,
    refuse_other_classes,
    refuse_too_many_classes,
)
from sordino.data.dataset import Dataset, Scaling, describe_array, drop_test_part, split
from sordino.data.formats import read_npz
from sordino.data.images import centre_pixels
from sordino.protocol import UserError

# The arrays that an .npz file may hold.
# Whole sets of names, so that a forgotten y_test is an error and not a set without a test part.
ARRAYS = (("x", "y"), ("x_train", "y_train"), ("x_train", "y_train", "x_test", "y_test"))
COLUMN_PREFIX = "column_"
CLASS_LIST = "classes"
UNSCALED = Scaling(np.ones((), dtype=np.float32), np.zeros((), dtype=np.float32))


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Records of one part of the data.

    Attributes:
        x: The inputs, one record a row.
        y: Labels, or targets.
        columns: The columns that a partition may use, one value for each record.
    """

    x: np.ndarray
    y: np.ndarray
    columns: Mapping[str, np.ndarray]

    def select(self, rows: np.ndarray) -> Records:
        """Returns some of the records.

        Args:
            rows: Their places, or a boolean for each record.
        """
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Records(x=self.x[rows], y=self.y[rows], columns=columns)


def load_npz(path: Path, classes: Classes | None = None, *, hold_out: bool = True) -> Dataset:
    """Loads arrays from an .npz file.

    The arrays are `x` and `y`, or `x_train` and `y_train`, with or without `x_test` and `y_test`.
    Whole numbers in y are labels that count from 0, real numbers are targets. Images are uint8,
    (n, height, width) or (n, channels, height, width). An array `column_<name>`, one value for each
    record of x or x_train, is a column that a partition may use. An array `classes` of names is a
    public list of the classes.

    Args:
        path: The file.
        classes: How many classes there are, or their names; None where the file lists them.
        hold_out: Whether a fifth is held out where there is no test part.

    Raises:
        UserError: Arrays that are missing, unknown, or of a type or shape that does not fit;
            classes that are not known.
    """
    return build_from_arrays(path, read_npz(path), classes, hold_out=hold_out)


def build_from_arrays(
    path: Path,
    arrays: dict[str, np.ndarray],
    classes: Classes | None = None,
    *,
    hold_out: bool = True,
) -> Dataset:
    """Returns the data set of named arrays; `load_npz` says which there may be.

    Args:
        path: Where they are from, for the data set's name and for messages.
        arrays: The arrays by name.
        classes: How many classes there are, or their names; None where an array lists them.
        hold_out: Whether a fifth is held out where there is no test part.

    Raises:
        UserError: Arrays that are missing, unknown, or of a type or shape that does not fit;
            classes that are not known.
    """
    arrays = dict(arrays)
    listed = _read_class_list(path, arrays.pop(CLASS_LIST, None))
    columns = {}
    for name in list(arrays):
        if name.startswith(COLUMN_PREFIX):
            columns[name.removeprefix(COLUMN_PREFIX)] = arrays.pop(name)
    names = next((names for names in ARRAYS if set(names) == set(arrays)), None)
    if names is None:
        allowed = " or ".join(", ".join(names) for names in ARRAYS)
        raise UserError(
            f"{path} holds the arrays {', '.join(sorted(arrays)) or '(none)'}; expected are "
            f"{allowed}, and {COLUMN_PREFIX}<name>, {CLASS_LIST}."
        )
    inputs = [_convert_inputs(arrays[name], f"{path}: {name}") for name in names[0::2]]
    answers = {name: _convert_answers(arrays[name], f"{path}: {name}") for name in names[1::2]}
    found = _find_classes(path, answers, listed, classes)
    scaling = UNSCALED
    # Only images are scaled, by a constant: a scale that is learnt would depend on private records.
    if inputs[0].dtype == np.uint8:
        scaling = centre_pixels(inputs[0].shape[1])
    targets = list(answers.values())
    train = Records(x=inputs[0], y=targets[0], columns=columns)
    test = None
    if len(inputs) == 2:
        test = Records(x=inputs[1], y=targets[1], columns={})
    return assemble_dataset(path, train, test, found, scaling, hold_out=hold_out)


def _read_class_list(path: Path, names: np.ndarray | None) -> tuple[str, ...] | None:
    """Returns the file's list of classes, which is as public as its names of columns."""
    if names is None:
        return None
    # Text only: numbers as names could be labels that somebody exported by mistake.
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
        raise UserError(
            f"{path}: {CLASS_LIST} is {describe_array(names)}; expected are names in order, "
            'each once, as np.array(["no", "yes"]).'
        )
    return tuple(names.tolist())


def _convert_inputs(values: np.ndarray, name: str) -> np.ndarray:
    """Returns bytes of three or four axes as images, and any other numbers as float32."""
    # Grey images often come without an axis for the channel.
    if values.dtype == np.uint8 and values.ndim == 3:
        return values[:, None]
    if values.dtype == np.uint8 and values.ndim == 4:
        # Channels last is the usual order elsewhere; a size of 1 or 3 gives it away.
        if values.shape[3] in (1, 3) and values.shape[1] not in (1, 3):
            raise UserError(
                f"{name} has shape {values.shape}: channels come before height and width. "
                "Save x.transpose(0, 3, 1, 2)."
            )
        return values
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise UserError(
            f"{name} is {describe_array(values)}; expected are numbers, one record a row."
        )
    return convert_float32(values)


def _convert_answers(values: np.ndarray, name: str) -> np.ndarray:
    """Returns whole numbers as labels, and real numbers as targets."""
    if values.dtype.kind in "biu" and values.shape[1:] in ((), (1,)):
        return values.reshape(-1).astype(np.int64)
    if values.dtype.kind == "f" and values.ndim in (1, 2):
        return convert_float32(values.reshape(len(values), -1))
    raise UserError(
        f"{name} is {describe_array(values)}; expected is one whole number per record (a label), "
        "or real numbers (targets)."
    )


def convert_float32(values: np.ndarray) -> np.ndarray:
    """Returns the values as float32.

    Args:
        values: Numbers of any type.
    """
    # Too large a number becomes infinite, which the data set refuses, saying where.
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _find_classes(
    path: Path,
    answers: Mapping[str, np.ndarray],
    listed: tuple[str, ...] | None,
    given: Classes | None,
) -> tuple[str, ...] | None:
    """Returns the names of the classes that labels count; None for targets."""
    if len({values.dtype for values in answers.values()}) > 1:
        raise UserError(
            f"{path}: y_train and y_test must both be whole numbers (labels) or both be real "
            "numbers (targets)."
        )
    if any(values.dtype != np.int64 for values in answers.values()):
        refuse_other_classes(str(path), None, given)
        return None
    if listed is not None:
        refuse_other_classes(str(path), listed, given)
    # The protocol's list wins: all clients agreed to it, and the file belongs to one of them.
    classes = listed if given is None else given
    if classes is None:
        raise missing_classes(path, propose_numbers(np.concatenate(list(answers.values()))))
    for name, values in answers.items():
        refuse_numbers_outside(path, values, name, classes)
    return class_names(classes)


def assemble_dataset(
    path: Path,
    train: Records,
    test: Records | None,
    classes: tuple[str, ...] | None,
    scaling: Scaling,
    *,
    hold_out: bool,
) -> Dataset:
    """Returns the data set.

    Where there is no test part, a fifth of the records becomes it, unless nothing is to be scored.

    Args:
        path: The file, for its name and for messages.
        train: The records to train on.
        test: The records to score on; None where the data bring none.
        classes: The names of the classes; None for targets.
        scaling: How values become inputs.
        hold_out: Whether a fifth is held out where there is no test part.

    Raises:
        UserError: Arrays of different lengths, or as many classes as records.
    """
    # Checked over both parts, before a split that would be of no use.
    if classes is not None:
        total = len(train.y)
        if test is not None:
            total += len(test.y)
        refuse_too_many_classes(path, len(classes), total)
    whose = "brought"
    if test is None:
        # The data set checks lengths too, but a split by rows would already fail before.
        _refuse_other_lengths(path, {"x": train.x, **train.columns}, len(train.y))
        if hold_out:
            train_rows, test_rows = split(len(train.y))
            whose = "held-out"
        else:
            train_rows = np.arange(len(train.y))
            test_rows = np.arange(0)
            whose = "none"
        test = train.select(test_rows)
        train = train.select(train_rows)
    dataset = Dataset(
        name=path.name.split(".")[0],
        x_train=train.x,
        y_train=train.y,
        x_test=test.x,
        y_test=test.y,
        classes=classes,
        scale=scaling.scale,
        shift=scaling.shift,
        columns=train.columns,
        test=whose,
    )
    if hold_out:
        return dataset
    return drop_test_part(dataset)


def _refuse_other_lengths(path: Path, arrays: Mapping[str, np.ndarray], records: int) -> None:
    """Refuses arrays that do not have one value for each record."""
    for name, values in arrays.items():
        if len(values) != records:
            called = name if name == "x" else f"column {name}"
            raise UserError(
                f"{path}: {called} has {len(values)} values, but there are {records} answers. "
                "Give one of each per record."
            )
