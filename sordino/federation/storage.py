"""Files that are whole or absent, and a folder that one process holds at a time."""

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
    """Turn what the system says about a failed write into a message that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{path} cannot be written: {reason}. What was there before is as it was."
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: after a crash at any moment it holds the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_held_here: set[Path] = (
    set()
)  # a lock of the system's refuses other processes only, so this one keeps its own list


@contextmanager
def held(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a run folder: whoever else wants it is refused. The system lets go of it when the process ends, however it ends.

    Another process is given `patience` seconds to end.

    The lock is a record lock (lockf, not flock): worker processes do not inherit it, so they cannot outlive their parent with it.
    """
    place = folder.resolve()
    refusal = UserError(
        f"another process is working on {folder}. Wait until it has ended, or stop it."
    )
    if place in _held_here:
        raise refusal
    with writing(folder / "lock"):
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + patience
        while not locked(handle):
            if time.monotonic() >= end:
                raise refusal
            time.sleep(0.2)
        _held_here.add(place)
        yield
    finally:
        _held_here.discard(place)
        os.close(handle)


def locked(handle: int) -> bool:
    """Lock a file for this process, if no other one has it."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def pack(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """Arrays and some facts as safetensors, with a digest of the arrays so that damage is noticed."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry: the order of several would differ from file to file, and equal content should be equal bytes.
    note = json.dumps({"facts": facts, "sha256": arrays_digest(arrays)})
    return bytes(save_tensors(arrays, metadata={"sordino": note}))


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and facts of `pack`.

    Raises:
        ValueError: the content is damaged.
    """
    try:
        arrays = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        note = json.loads(header["__metadata__"]["sordino"])
        facts, digest = note["facts"], note["sha256"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"not a whole file: {error}") from None
    if digest != arrays_digest(arrays):
        raise ValueError("its content does not match its digest")
    return arrays, facts


def noted_digest(path: Path) -> str:
    """Returns the digest that a file of `pack` notes of its arrays, without reading them; empty where the file is not one."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LONGEST_HEADER)))
        return str(json.loads(header["__metadata__"]["sordino"])["sha256"])
    except (OSError, KeyError, ValueError, TypeError):
        return ""


def arrays_digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes and bytes."""
    joined = hashlib.sha256()
    for name in sorted(arrays):
        joined.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        joined.update(np.ascontiguousarray(arrays[name]).tobytes())
    return joined.hexdigest()
