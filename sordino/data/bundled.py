"""Reads the data sets that come with scikit-learn from its files.

Importing `sklearn.datasets` also imports pandas and much of scipy: most of a second of processor
time, and several seconds from a cold disk, which `sordino train` and `sordino evaluate` of the demo
would wait for.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundled:
    """Records and their labels, in scikit-learn's order.

    Attributes:
        data: The records.
        target: Their labels.
    """

    data: np.ndarray
    target: np.ndarray


def read_digits() -> Bundled:
    """Returns the 1797 handwritten digits of 8 x 8 pixels, as (n, 8, 8)."""
    path = find_bundled_file("digits.csv.gz")
    # A scikit-learn that keeps its files elsewhere still has its own loader, only slower.
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return Bundled(data=digits.images, target=digits.target)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",")
    images = table[:, :-1].reshape(-1, 8, 8)
    return Bundled(data=images, target=table[:, -1].astype(np.int64))


def read_breast_cancer() -> Bundled:
    """Returns the 569 tumours of Breast Cancer Wisconsin with 30 measurements each."""
    path = find_bundled_file("breast_cancer.csv")
    if path is None:
        from sklearn.datasets import load_breast_cancer

        tumours = load_breast_cancer()
        return Bundled(data=tumours.data, target=tumours.target)
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    return Bundled(data=table[:, :-1], target=table[:, -1].astype(np.int64))


def find_bundled_file(name: str) -> Path | None:
    """Returns the path of a file that comes with scikit-learn, without importing scikit-learn.

    Args:
        name: Name of the file.

    Returns:
        The path; None where scikit-learn keeps it elsewhere.
    """
    # `find_spec` locates a package without running it.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "datasets" / "data" / name
    if path.is_file():
        return path
    return None
