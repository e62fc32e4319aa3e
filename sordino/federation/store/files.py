"""Writes files that are whole or absent, and lets one process at a time hold a folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from sordino.protocol import UserError

LONGEST_HEADER = 100_000_000  # bytes, as the format allows


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failed write into a message that names the file.

    Args:
        path: The file, or the folder, that is written.

    Raises:
        UserError: The system refused a write, with its reason.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{path} cannot be written: {reason}. What was there before is as it was."
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file in one step.

    After a crash at any moment it holds the old content or the new, never a part.

    Args:
        path: The file.
        content: All of its bytes.

    Raises:
        OSError: It cannot be written; the old content is still there.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            # The bytes must be on disk before the name is: a rename that survives a power cut ahead
            # of them would put an empty file in place of a good one.
            os.fsync(file.fileno())
        os.replace(temporary, path)
        # The rename is an entry of the folder, which has to reach the disk as well.
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder survive a power cut.

    Args:
        folder: The folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# A lock of the system refuses other processes only, so this one keeps a list of its folders.
_held_here: set[Path] = set()


@contextmanager
def hold_lock(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Holds a run folder: nobody else can while the context lasts.

    The system lets go of it when the process ends, however it ends.

    Args:
        folder: The run folder.
        patience: For how many seconds another process is given time to end.

    Raises:
        UserError: It is held, by this process or by another one.
    """
    place = folder.resolve()
    refusal = UserError(
        f"another process is working on {folder}. Wait until it has ended, or stop it."
    )
    if place in _held_here:
        raise refusal
    # A record lock (lockf, not flock): worker processes do not inherit it, so they cannot outlive
    # their parent with it.
    with writing(folder / "lock"):
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + patience
        while not lock_file(handle):
            if time.monotonic() >= end:
                raise refusal
            time.sleep(0.2)
        _held_here.add(place)
        yield
    finally:
        _held_here.discard(place)
        os.close(handle)


def lock_file(handle: int) -> bool:
    """Locks a file for this process.

    Args:
        handle: The open file.

    Returns:
        Whether it could; False where another process has it.
    """
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def pack(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """Returns arrays and some facts as the bytes of a safetensors file.

    Args:
        arrays: The arrays by name.
        facts: What else the file says, as JSON can.

    Returns:
        The content, with a digest of the arrays so that damage is noticed.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry: the order of several would differ from file to file, and equal content should be
    # equal bytes.
    note = json.dumps({"facts": facts, "sha256": arrays_digest(arrays)})
    return bytes(save_tensors(arrays, metadata={"sordino": note}))


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and facts of a file of `pack`.

    Args:
        content: The bytes of the file.

    Returns:
        The arrays by name, and the facts.

    Raises:
        ValueError: The content is damaged.
    """
    try:
        # The library checks the layout of a file and not its numbers: for those there is the
        # digest.
        arrays = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        note = json.loads(header["__metadata__"]["sordino"])
        facts = note["facts"]
        digest = note["sha256"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"not a whole file: {error}") from None
    if digest != arrays_digest(arrays):
        raise ValueError("its content does not match its digest")
    return arrays, facts


def read_noted_digest(path: Path) -> str:
    """Returns the digest that a file of `pack` notes of its arrays, without reading them.

    Args:
        path: The file.

    Returns:
        The digest; empty where the file is not one of `pack`.
    """
    try:
        with open(path, "rb") as file:
            # A damaged length must not make us read the whole disk: the format allows headers up to
            # this size.
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
        return str(json.loads(header["__metadata__"]["sordino"])["sha256"])
    except (OSError, KeyError, ValueError, TypeError):
        return ""


def arrays_digest(arrays: dict[str, np.ndarray]) -> str:
    """Returns the SHA-256 over names, shapes and bytes of arrays.

    Args:
        arrays: The arrays by name; their order does not matter.
    """
    joined = hashlib.sha256()
    for name in sorted(arrays):
        joined.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        joined.update(np.ascontiguousarray(arrays[name]).tobytes())
    return joined.hexdigest()
