"""What a data set is: arrays of training and test records, checked once, and never rescaled by anything learnt from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sordino.federation.randomness import Key, Purpose
from sordino.protocol import UserError

TEST_PARTS = {
    "public": "public test records",
    "brought": "the test records that came with the data",
    "held-out": "a fifth of the clients' own records, held out",
    "none": "no records",
}  # whose records the test part holds; scores are exact, so that only those on public ones tell nothing about anybody


class Scaling(NamedTuple):
    """From stored values to a model's inputs: `x * scale + shift`, each float32 and broadcast against one record."""

    scale: np.ndarray
    shift: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test records of one learning task.

    A model's input is `x * scale + shift`, computed per batch, so that images can stay in memory as bytes. Scale and shift are public
    constants of the data set: taking them from the clients' records would be a release that no guarantee covers.

    Attributes:
        name: what the data set is called in reports.
        x_train: images as uint8 (n, channels, height, width), anything else as float32 (n, ...).
        y_train: labels as int64 (n,), or targets as float32 (n, outputs).
        x_test: as `x_train`.
        y_test: as `y_train`.
        classes: name of every label in order; None for regression.
        scale: float32, broadcast against one record.
        shift: float32, broadcast against one record.
        columns: per training record, what a partition may go by, such as a hospital.
        inputs: name of every input in order, where records are rows of a table.
        test: whose records the test part holds: "public" (published beside the training records), "brought" (by the owner of the
            data, who knows whether they are public), "held-out" (a fifth of the records themselves), "none" (it is empty).

    Raises:
        UserError: lengths or types that do not fit, labels out of range, values that are not finite, no records.

    Example:
        >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 1, 0])
        >>> data = Dataset(name="toy", x_train=x, y_train=y, x_test=x, y_test=y, classes=("no", "yes"))
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
    inputs: tuple[str, ...] | None = None
    test: str = "brought"

    def __post_init__(self) -> None:
        if self.test not in TEST_PARTS:
            raise self._error(f"test is {self.test!r}; allowed are {', '.join(TEST_PARTS)}")
        if self.classes is not None and len(self.classes) < 2:
            raise self._error(
                f"one class only, {self.classes}; there must be two or more to tell apart"
            )
        for part in ("train", "test"):
            self._check_records(part)
        if (
            self.x_train.shape[1:] != self.x_test.shape[1:]
            or self.x_train.dtype != self.x_test.dtype
        ):
            raise self._error(
                f"x_train ({described(self.x_train)}) and x_test ({described(self.x_test)}) are records of different kinds"
            )
        if self.y_train.shape[1:] != self.y_test.shape[1:]:
            raise self._error(
                f"y_train ({described(self.y_train)}) and y_test ({described(self.y_test)}) are answers of different kinds"
            )
        for name, values in self.columns.items():
            if values.shape != self.y_train.shape[:1]:
                raise self._error(
                    f"column {name!r} has shape {values.shape}, but there are {len(self.y_train)} training records"
                )
        for name in ("scale", "shift"):
            self._check_constant(name, getattr(self, name))

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for a record: one per class, or one per target."""
        return int(self.y_train.shape[1]) if self.classes is None else len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.x_train.shape[1:])

    def _check_records(self, part: str) -> None:
        x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
        if x.dtype not in (np.uint8, np.float32) or x.ndim < 2:
            raise self._error(
                f"x_{part} is {described(x)}; allowed are images as uint8 and records as float32, one a row"
            )
        if len(x) != len(y):
            raise self._error(f"x_{part} has {len(x)} records, but y_{part} has {len(y)}")
        if x.size == 0 and (part, self.test) != ("test", "none"):
            raise self._error(
                f"x_{part} is empty, with shape {x.shape}; there must be at least one record, with at least one value"
            )
        self._check_finite(f"x_{part}", x)
        if self.classes is None:
            self._check_targets(part, y)
        else:
            self._check_labels(part, y, len(self.classes))

    def _check_labels(self, part: str, y: np.ndarray, classes: int) -> None:
        if y.dtype != np.int64 or y.ndim != 1:
            raise self._error(f"y_{part} is {described(y)}; labels must be int64, one per record")
        wrong = np.flatnonzero((y < 0) | (y >= classes))
        if len(wrong) > 0:
            allowed = f"{classes} classes allow 0 to {classes - 1}"
            raise self._error(
                f"labels out of range: y_{part} is {y[wrong[0]]} at record {wrong[0]}, but {allowed}"
            )

    def _check_targets(self, part: str, y: np.ndarray) -> None:
        if y.dtype != np.float32 or y.ndim != 2 or y.shape[1] == 0:
            raise self._error(
                f"y_{part} is {described(y)}; targets must be float32, shape (records, outputs)"
            )
        self._check_finite(f"y_{part}", y)

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        if values.dtype == np.uint8:
            return
        finite = np.isfinite(values)
        if not finite.all():
            record, *place = np.argwhere(~finite)[0].tolist()
            where = f"record {record}, position {tuple(place)}" if place else f"record {record}"
            raise self._error(
                f"{name} is {values[record, *place]} at {where}; fill in or remove values that are not finite numbers"
            )

    def _check_constant(self, name: str, values: np.ndarray) -> None:
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise self._error(f"{name} is {described(values)}; it must be float32 and finite")
        try:
            fits = np.broadcast_shapes(values.shape, self.input_shape) == self.input_shape
        except ValueError:
            fits = False
        if not fits:
            raise self._error(
                f"{name} has shape {values.shape}, which does not broadcast to one record of shape {self.input_shape}"
            )

    def _error(self, problem: str) -> UserError:
        return UserError(f"data set {self.name!r}: {problem}.")


def described(values: np.ndarray) -> str:
    """Type and shape, for messages."""
    return f"{values.dtype} of shape {values.shape}"


def digest(dataset: Dataset) -> str:
    """SHA-256 of everything that training sees: records, answers, class names, scale, shift and columns; not of the name.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> digest(load_dataset("digits"))[:16]
        'e96e8e70e310ce75'
    """
    total = hashlib.sha256(repr(dataset.classes).encode())
    fields = ("x_train", "y_train", "x_test", "y_test", "scale", "shift")
    named = [(name, getattr(dataset, name)) for name in fields] + sorted(dataset.columns.items())
    for name, values in named:
        # Strings are hashed as text: their array type depends on the longest one, and object arrays hold addresses.
        plain = (
            values
            if values.dtype.kind in "biuf"
            else np.frombuffer(repr(values.tolist()).encode(), dtype=np.uint8)
        )
        total.update(f"{name} {plain.dtype.str} {values.shape}".encode())
        total.update(np.ascontiguousarray(plain).data)
    return total.hexdigest()


TEST_SHARE = 5  # one record in five is held out where a data set comes without a test part
SPLIT_KEY = Key(
    secret=hashlib.sha256(b"sordino train-test split").digest()
)  # public: which records are held out is no secret


def split(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of the training and the test records of a set that comes in one piece, 80 to 20.

    Of every five places that follow one another a keyed hash holds out one. What the records hold is not looked at: a record that
    is replaced by another moves no other record from one part to the other.

    Args:
        records: how many there are.

    Example:
        >>> train, test = split(100)
        >>> len(train), len(test), np.array_equal(np.sort(np.append(train, test)), np.arange(100))
        (80, 20, True)
    """
    starts = np.arange(0, records, TEST_SHARE)
    lengths = np.minimum(TEST_SHARE, records - starts)  # the last piece may be shorter
    words = SPLIT_KEY.stream(Purpose.PARTITION).words(len(starts))
    test = starts + (words % lengths.astype(words.dtype)).astype(np.int64)
    return np.setdiff1d(np.arange(records), test), test


def published_split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training and the test records of a published set without a test part, 80 to 20, each label in proportion.

    The labels are those of a set that everyone can look up, so these places are constants of the set. For records of a
    user's own, `split` looks at nothing but places.

    Example:
        >>> train, test = published_split(np.repeat([0, 1], 50))
        >>> len(train), len(test), int((test < 50).sum())
        (80, 20, 10)
    """
    order = np.argsort(SPLIT_KEY.stream(Purpose.PARTITION).words(len(labels)), kind="stable")
    order = order[np.argsort(labels[order], kind="stable")]
    test = np.zeros(len(labels), dtype=bool)
    test[order[::TEST_SHARE]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def without_test(dataset: Dataset) -> Dataset:
    """Returns a data set whose test part nobody looks at.

    Example:
        >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 1, 0])
        >>> toy = Dataset(name="toy", x_train=x, y_train=y, x_test=x, y_test=y, classes=("no", "yes"))
        >>> without_test(toy).y_test.size
        0
    """
    return replace(dataset, x_test=dataset.x_test[:0], y_test=dataset.y_test[:0], test="none")
