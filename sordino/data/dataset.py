"""A data set: arrays of training and test records, checked once.

Records are never rescaled by anything that is learnt from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sordino.protocol import UserError
from sordino.randomness import Key, Purpose

# Whose records the test part holds. Scores are exact, so only those on public records say nothing
# about anybody.
TEST_PARTS = {
    "public": "public test records",
    "brought": "the test records that came with the data",
    "held-out": "a fifth of the clients' own records, held out",
    "none": "no records",
}

# One record in five is held out where a data set comes without a test part.
TEST_SHARE = 5
# Public: which records are held out is no secret.
SPLIT_KEY = Key(secret=hashlib.sha256(b"sordino train-test split").digest())


class Scaling(NamedTuple):
    """How stored values become a model's inputs: `x * scale + shift`.

    Attributes:
        scale: float32, broadcast against one record.
        shift: The same.
    """

    scale: np.ndarray
    shift: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test records of one learning task.

    A model's input is `x * scale + shift`, computed for each batch, so that images can stay in
    memory as bytes. Scale and shift are public constants of the data set: taking them from the
    clients' records would be a release that no guarantee covers.

    Attributes:
        name: What the data set is called in reports.
        x_train: Images as uint8 (n, channels, height, width), anything else as float32 (n, ...).
        y_train: Labels as int64 (n,), or targets as float32 (n, outputs).
        x_test: As `x_train`.
        y_test: As `y_train`.
        classes: Name of every label in order; None for regression.
        scale: float32, broadcast against one record.
        shift: float32, broadcast against one record.
        columns: Values of every training record that a partition may use, such as a hospital.
        blanks: For columns that lack a value somewhere, where the first gap is, as "line 7".
        inputs: Name of every input in order, where records are rows of a table.
        test: Whose records the test part holds: "public" (published with the training records),
            "brought" (with the data, by their owner), "held-out" (a fifth of the records
            themselves), "none" (it is empty).

    Raises:
        UserError: Lengths or types that do not fit, labels out of range, values that are not
            finite, no records.

    Example:
        >>> x = np.eye(4, dtype=np.float32)
        >>> y = np.array([0, 1, 1, 0])
        >>> parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        >>> data = Dataset(name="toy", **parts, classes=("no", "yes"))
        >>> data.input_shape, data.outputs
        ((4,), 2)
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...] | None
    scale: np.ndarray = field(default_factory=lambda: np.ones((), dtype=np.float32))
    shift: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=np.float32))
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    blanks: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    test: str = "brought"

    def __post_init__(self) -> None:
        """Checks that everything fits together."""
        if self.test not in TEST_PARTS:
            raise self._error(f"test is {self.test!r}; allowed are {', '.join(TEST_PARTS)}")
        if self.classes is not None and len(self.classes) < 2:
            raise self._error(
                f"one class only, {self.classes}; there must be two or more to tell apart"
            )
        for part in ("train", "test"):
            self._check_records(part)
        # A model is trained on one kind and scored on the other.
        same_shape = self.x_train.shape[1:] == self.x_test.shape[1:]
        if not same_shape or self.x_train.dtype != self.x_test.dtype:
            raise self._error(
                f"x_train ({describe_array(self.x_train)}) and x_test "
                f"({describe_array(self.x_test)}) are records of different kinds"
            )
        if self.y_train.shape[1:] != self.y_test.shape[1:]:
            raise self._error(
                f"y_train ({describe_array(self.y_train)}) and y_test "
                f"({describe_array(self.y_test)}) are answers of different kinds"
            )
        for name, values in self.columns.items():
            # Columns decide which client has a record, so each record needs a value.
            if values.shape != self.y_train.shape[:1]:
                raise self._error(
                    f"column {name!r} has shape {values.shape}, but there are "
                    f"{len(self.y_train)} training records"
                )
        for name in ("scale", "shift"):
            self._check_constant(name, getattr(self, name))

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a record: one for each class, or for each target."""
        if self.classes is None:
            return int(self.y_train.shape[1])
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.x_train.shape[1:])

    def _check_records(self, part: str) -> None:
        """Refuses a part whose arrays do not fit."""
        x = getattr(self, f"x_{part}")
        y = getattr(self, f"y_{part}")
        if x.dtype not in (np.uint8, np.float32) or x.ndim < 2:
            raise self._error(
                f"x_{part} is {describe_array(x)}; allowed are images as uint8 and records as "
                "float32, one a row"
            )
        if len(x) != len(y):
            raise self._error(f"x_{part} has {len(x)} records, but y_{part} has {len(y)}")
        # Only a data set that was asked for without a test part may have none.
        if x.size == 0 and (part, self.test) != ("test", "none"):
            raise self._error(
                f"x_{part} is empty, with shape {x.shape}; there must be at least one record, "
                "with at least one value"
            )
        # A single nan would reach the model through any batch, and every client through the model.
        self._check_finite(f"x_{part}", x)
        if self.classes is None:
            self._check_targets(part, y)
        else:
            self._check_labels(part, y, len(self.classes))

    def _check_labels(self, part: str, y: np.ndarray, classes: int) -> None:
        """Refuses labels that are not below the number of classes."""
        if y.dtype != np.int64 or y.ndim != 1:
            raise self._error(
                f"y_{part} is {describe_array(y)}; labels must be int64, one per record"
            )
        wrong = np.flatnonzero((y < 0) | (y >= classes))
        if len(wrong) > 0:
            raise self._error(
                f"labels out of range: y_{part} is {y[wrong[0]]} at record {wrong[0]}, "
                f"but {classes} classes allow 0 to {classes - 1}"
            )

    def _check_targets(self, part: str, y: np.ndarray) -> None:
        """Refuses targets of another type or shape."""
        if y.dtype != np.float32 or y.ndim != 2 or y.shape[1] == 0:
            raise self._error(
                f"y_{part} is {describe_array(y)}; targets must be float32, "
                "shape (records, outputs)"
            )
        self._check_finite(f"y_{part}", y)

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        """Refuses values that are not finite, and says where the first is."""
        # Bytes cannot be infinite.
        if values.dtype == np.uint8:
            return
        finite = np.isfinite(values)
        if not finite.all():
            record, *place = np.argwhere(~finite)[0].tolist()
            where = f"record {record}"
            if place:
                where += f", position {tuple(place)}"
            raise self._error(
                f"{name} is {values[record, *place]} at {where}; "
                "fill in or remove values that are not finite numbers"
            )

    def _check_constant(self, name: str, values: np.ndarray) -> None:
        """Refuses a scale or shift that does not broadcast against one record."""
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise self._error(f"{name} is {describe_array(values)}; it must be float32 and finite")
        try:
            # The result must be the shape of a record: a larger one would add axes to every input.
            fits = np.broadcast_shapes(values.shape, self.input_shape) == self.input_shape
        except ValueError:
            fits = False
        if not fits:
            raise self._error(
                f"{name} has shape {values.shape}, which does not broadcast to one record of "
                f"shape {self.input_shape}"
            )

    def _error(self, problem: str) -> UserError:
        """Returns the error for a problem, which names the data set."""
        return UserError(f"data set {self.name!r}: {problem}.")


def describe_array(values: np.ndarray) -> str:
    """Returns the type and the shape of an array, for messages.

    Args:
        values: The array.
    """
    return f"{values.dtype} of shape {values.shape}"


def digest(dataset: Dataset) -> str:
    """Returns the SHA-256 of everything that training sees.

    That is records, answers, class names, scale, shift and columns, but not the name.

    Args:
        dataset: The data set.

    Example:
        >>> from sordino.data import load_dataset
        >>> digest(load_dataset("digits"))[:16]
        'e96e8e70e310ce75'
    """
    # Names of classes count: the same labels with other names are another task.
    total = hashlib.sha256(repr(dataset.classes).encode())
    fields = ("x_train", "y_train", "x_test", "y_test", "scale", "shift")
    arrays = [(name, getattr(dataset, name)) for name in fields] + sorted(dataset.columns.items())
    for name, values in arrays:
        plain = values
        # Strings are hashed as text: their array type depends on the longest one, and arrays of
        # objects hold addresses.
        if values.dtype.kind not in "biuf":
            plain = np.frombuffer(repr(values.tolist()).encode(), dtype=np.uint8)
        # Name, type and shape separate the arrays, so that no two sets of arrays give the same
        # bytes.
        total.update(f"{name} {plain.dtype.str} {values.shape}".encode())
        total.update(np.ascontiguousarray(plain).data)
    return total.hexdigest()


def split(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of the training and the test records of a set in one piece, 80 to 20.

    Of every five places that follow one another a keyed hash holds out one. The records themselves
    are not looked at: replacing one record moves no other from one part to the other.

    Args:
        records: How many there are.

    Returns:
        The places of the training records, and those of the test records.

    Example:
        >>> train, test = split(100)
        >>> len(train), len(test), np.array_equal(np.sort(np.append(train, test)), np.arange(100))
        (80, 20, True)
    """
    starts = np.arange(0, records, TEST_SHARE)
    # The last piece may be shorter.
    lengths = np.minimum(TEST_SHARE, records - starts)
    # Places are drawn, not records: with an exchanged record nothing else may change, or the
    # neighbouring data sets of the guarantee would differ in more than one record.
    words = SPLIT_KEY.stream(Purpose.PARTITION).words(len(starts))
    test = starts + (words % lengths.astype(words.dtype)).astype(np.int64)
    return np.setdiff1d(np.arange(records), test), test


def published_split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of the training and the test records of a published set, by label.

    Each label is split 80 to 20.

    The labels are those of a set that everyone can look up, so these places are constants of the
    set. For a user's records, `split` looks at nothing but places.

    Args:
        labels: Labels of all records.

    Returns:
        The places of the training records, and those of the test records.

    Example:
        >>> train, test = published_split(np.repeat([0, 1], 50))
        >>> len(train), len(test), int((test < 50).sum())
        (80, 20, 10)
    """
    # A published set may be split by its labels: they are no secret.
    order = np.argsort(SPLIT_KEY.stream(Purpose.PARTITION).words(len(labels)), kind="stable")
    order = order[np.argsort(labels[order], kind="stable")]
    test = np.zeros(len(labels), dtype=bool)
    test[order[::TEST_SHARE]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def drop_test_part(dataset: Dataset) -> Dataset:
    """Returns a data set with an empty test part.

    Args:
        dataset: The data set.

    Example:
        >>> x = np.eye(4, dtype=np.float32)
        >>> y = np.array([0, 1, 1, 0])
        >>> parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        >>> toy = Dataset(name="toy", **parts, classes=("no", "yes"))
        >>> drop_test_part(toy).y_test.size
        0
    """
    return replace(dataset, x_test=dataset.x_test[:0], y_test=dataset.y_test[:0], test="none")
