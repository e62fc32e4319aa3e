"""Small data sets and files for the tests of this folder."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from sordino.data import Dataset


def needs(folder: Path, *names: str) -> None:
    """Skip a test whose real files are not at hand."""
    lacking = [name for name in names if not (folder / name).exists()]
    if lacking:
        pytest.skip(f"no real data: {folder} lacks {', '.join(lacking)}")


def gunzipped(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def write_idx(path: Path, values: np.ndarray) -> None:
    content = (
        bytes((0, 0, 8, values.ndim))
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.astype(np.uint8).tobytes()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_idx_set(
    folder: Path, *, prefix: str = "", suffix: str = ".gz", train: int = 20, test: int = 10
) -> np.ndarray:
    """The four files of an MNIST-like set; returns the training images."""
    generator = np.random.default_rng(1)
    for part, count in (("t10k", test), ("train", train)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{prefix}{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{prefix}{part}-labels-idx1-ubyte{suffix}", np.arange(count) % 10)
    return images


def labelled(
    labels: np.ndarray, classes: int, columns: dict[str, np.ndarray] | None = None
) -> Dataset:
    """A classification set with the given training labels, and 30 test records of each."""
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    test = np.repeat(np.arange(classes), 30)
    return Dataset(
        name="made", x_train=x, y_train=labels.astype(np.int64), x_test=np.zeros((len(test), 1), np.float32), y_test=test,
        classes=tuple(f"c{label}" for label in range(classes)), columns=columns or {},
    )  # fmt: skip


def regression(records: int, columns: dict[str, np.ndarray] | None = None) -> Dataset:
    x = np.arange(records, dtype=np.float32)[:, None]
    return Dataset(
        name="made", x_train=x, y_train=x, x_test=x, y_test=x, classes=None, columns=columns or {}
    )
