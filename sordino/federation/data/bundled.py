"""The data sets that come with scikit-learn, read from its files.

Importing `sklearn.datasets` brings pandas and much of scipy along: most of a second of processor time, and several seconds from a cold
disk, which `sordino train` and `sordino evaluate` of the demo would wait for.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundled:
    """Records and their labels, in scikit-learn's order."""

    data: np.ndarray
    target: np.ndarray


def read_digits() -> Bundled:
    """Returns the 1797 handwritten digits of 8 x 8 pixels, as (n, 8, 8)."""
    path = bundled_file("digits.csv.gz")
    if path is None:
        from sklearn.datasets import load_digits

        found = load_digits()
        return Bundled(data=found.images, target=found.target)
    table = np.loadtxt(gzip.decompress(path.read_bytes()).decode().splitlines(), delimiter=",")
    return Bundled(data=table[:, :-1].reshape(-1, 8, 8), target=table[:, -1].astype(np.int64))


def read_breast_cancer() -> Bundled:
    """Returns the 569 tumours of Breast Cancer Wisconsin with 30 measurements each."""
    path = bundled_file("breast_cancer.csv")
    if path is None:
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        return Bundled(data=found.data, target=found.target)
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    return Bundled(data=table[:, :-1], target=table[:, -1].astype(np.int64))


def bundled_file(name: str) -> Path | None:
    """Returns where scikit-learn has a file, without importing it; None where it is kept elsewhere."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "datasets" / "data" / name
    return path if path.is_file() else None
