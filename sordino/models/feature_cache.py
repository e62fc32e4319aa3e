"""Keeps computed features on disk, in the user's cache folder.

Features of private records are as private as the records: the folder and its files are readable by
their owner alone, and SORDINO_CACHE = "none" keeps nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

VARIABLE = "SORDINO_CACHE"


def cache_folder() -> Path | None:
    """Returns the folder of cached features; None where SORDINO_CACHE is "none".

    It is what SORDINO_CACHE names, else `sordino` in XDG_CACHE_HOME or ~/.cache; never the
    working directory.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "none":
        return None
    if chosen:
        return Path(chosen).expanduser() / "features"
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(caches) / "sordino" / "features"


def load_or_compute(
    digest: str, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]
) -> np.ndarray:
    """Returns cached features, or computes and keeps them.

    Args:
        digest: Digest of everything that the features depend on.
        shape: Shape of the whole array.
        fill: Writes the features into an array of this shape, where they are not cached.

    Returns:
        A float32 array that may be written without changing the file.
    """
    folder = cache_folder()
    if folder is None:
        return _compute(shape, fill)
    path = folder / f"{digest}.npy"
    found = _read(path, shape)
    if found is not None:
        return found
    # A folder that cannot be made or written costs time, not the training.
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = folder / f"{digest}.{secrets.token_hex(4)}.part"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return _compute(shape, fill)
    try:
        _write(temporary, shape, fill)
        # A file appears whole or not at all, also where two processes compute the same features.
        os.replace(temporary, path)
    except OSError:
        return _compute(shape, fill)
    finally:
        with suppress(OSError):
            temporary.unlink()
    found = _read(path, shape)
    if found is None:
        return _compute(shape, fill)
    return found


def _compute(shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """Returns the features in memory alone."""
    made = np.empty(shape, dtype=np.float32)
    fill(made)
    return made


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns a cached array; None where there is none that can be used."""
    try:
        # Pages are read when they are used, shared by all processes, and copied when written.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if array.shape != shape or array.dtype != np.float32:
        return None
    return np.asarray(array)


def _write(path: Path, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> None:
    """Fills a file; on return it is on the disk."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    fill(array)
    array.flush()
    del array
    with open(path, "rb") as file:
        os.fsync(file.fileno())
