"""Every data set by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from sordino.federation.data import folders, images, own, tables, wind
from sordino.federation.data.dataset import Dataset
from sordino.federation.data.sources import data_root
from sordino.protocol import UserError
from sordino.protocol.entries import nearest

LOADERS: Mapping[str, Callable[[Path | None], Dataset]] = {
    "digits": images.load_digits,
    "breast-cancer": tables.load_breast_cancer,
    "mnist": images.load_mnist,
    "fashion-mnist": images.load_fashion_mnist,
    "cifar10": images.load_cifar10,
    "cifar100": images.load_cifar100,
    "adult": tables.load_adult,
    "pneumoniamnist": images.load_pneumonia,
    "location30": tables.load_location,
    "gefcom-wind": wind.load_wind,
    "utkface": images.load_utkface,
    "utkface-race": partial(images.load_utkface, answer="race"),
    "utkface-age": partial(images.load_utkface, answer="age"),
}
BUNDLED = ("digits", "breast-cancer")  # come with scikit-learn: no files needed
FILES: Mapping[str, Callable[[Path], Dataset]] = {
    ".npz": own.load_npz,
    ".csv": own.load_csv,
    ".csv.gz": own.load_csv,
}
KNOWN = tuple(LOADERS)


def load_dataset(name: str, *, root: Path | None = None) -> Dataset:
    """A data set by name, or from a path: an .npz file, a .csv or .csv.gz file, or a folder of images.

    Named sets are looked for in `root`, by default the folder that the environment variable SORDINO_DATA names, then at OpenML;
    docs/data.md lists the files. A name wins over a file of the same name.

    Args:
        name: one of `KNOWN`, or a path.
        root: folder of the files of named sets.

    Raises:
        UserError: an unknown name, files that are missing or damaged, or data that make no sense.

    Example:
        >>> digits = load_dataset("digits")
        >>> digits.x_train.shape, digits.x_test.shape, digits.outputs
        ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    if name in LOADERS:
        return LOADERS[name](None if name in BUNDLED else data_root(root))
    path = Path(os.path.expanduser(name))
    suffix = next((suffix for suffix in FILES if path.name.endswith(suffix)), None)
    if os.path.isdir(path):
        return folders.load_folder(path)
    if suffix is not None and os.path.isfile(path):
        return FILES[suffix](path)
    raise _unknown(name, path, is_path=suffix is not None or "/" in name)


def _unknown(name: str, path: Path, *, is_path: bool) -> UserError:
    if os.path.exists(path):
        return UserError(
            f"data {name!r}: this kind of file is not known. Allowed are {', '.join(FILES)} files and folders of images."
        )
    if is_path:
        return UserError(
            f"data {name!r}: there is no such file or folder (looked for {path.absolute()})."
        )
    hint = nearest(name, KNOWN)
    return UserError(
        f"data {name!r} is not known.{' ' + hint if hint else ''} Known are {', '.join(KNOWN)}; or give the path of an .npz file, a .csv "
        "file or a folder of images."
    )
