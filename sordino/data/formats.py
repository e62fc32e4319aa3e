"""Reads files. Anything wrong with a file becomes one message that names it."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sordino.protocol import UserError


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turns any error inside into a `UserError` that names the file and what it should be.

    Args:
        path: The file.
        kind: What it should be.

    Raises:
        UserError: Anything went wrong.
    """
    try:
        # A message that was made for the user inside must not be wrapped in a second one.
        yield
    except UserError:
        raise
    except Exception as error:
        # The parsers raise nearly anything on damaged bytes.
        if isinstance(error, OSError) and error.strerror is not None:
            raise UserError(
                f"{path} cannot be opened: {error.strerror}. Check the name and the permissions."
            ) from error
        raise damaged_file(path, kind, str(error) or type(error).__name__) from error


def damaged_file(path: Path, kind: str, reason: str) -> UserError:
    """Returns the error for a file that is not what it should be.

    Args:
        path: The file.
        kind: What it should be.
        reason: The fault.
    """
    return UserError(
        f"{path} cannot be read as {kind}: {reason.rstrip('.')}. Replace it by an undamaged copy."
    )


def open_binary(path: Path) -> BinaryIO:
    """Opens the bytes of a file, unpacked if its name ends in `.gz`.

    Args:
        path: The file.
    """
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Returns an array of bytes in the idx format of MNIST.

    The format is 0, 0, 8 (uint8), the number of axes, the big-endian length of each, the values.

    Args:
        path: The file.
        dimensions: How many axes the array must have.

    Raises:
        UserError: The file is something else, or damaged.
    """
    kind = f"an idx file of {dimensions} axes"
    expected = bytes((0, 0, 8, dimensions))
    with reading(path, kind), open_binary(path) as file:
        magic = file.read(4)
        if magic != expected:
            reason = f"it begins with {magic.hex()} instead of {expected.hex()}"
            raise damaged_file(path, kind, reason)
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        # A bytearray, since arrays over plain bytes cannot be written to.
        values = np.frombuffer(bytearray(file.read()), dtype=np.uint8)
        if values.size != np.prod(shape, dtype=np.int64):
            lengths = " x ".join(str(length) for length in shape)
            reason = f"it holds {values.size} values, but its header says {lengths}"
            raise damaged_file(path, kind, reason)
        return values.reshape(shape)


def read_sheet(path: Path, tile: int) -> np.ndarray:
    """Returns images that are stored as one picture of square RGB tiles, row by row.

    Args:
        path: The file.
        tile: The side of a tile in pixels.

    Returns:
        Bytes of shape (n, 3, tile, tile).

    Raises:
        UserError: The file is no such picture.
    """
    from PIL import Image

    kind = f"a sheet of {tile} x {tile} images"
    with reading(path, kind), Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    height, width, channels = pixels.shape
    if height % tile != 0 or width % tile != 0:
        raise damaged_file(path, kind, f"it has {width} x {height} pixels")
    tiles = pixels.reshape(height // tile, tile, width // tile, tile, channels)
    # From (row, y, column, x, channel) to images in reading order, channels first.
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, channels, tile, tile)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Returns every array of an .npz file.

    Args:
        path: The file.

    Raises:
        UserError: The file is damaged, or holds Python objects: reading them could run code.
    """
    with reading(path, "a numpy .npz file"):
        # Pickled objects would run code from a file that may come from anywhere.
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise damaged_file(path, "a numpy .npz file", "it holds a single array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}


# All that a pickle of arrays needs.
HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of numpy arrays and plain containers.

    A pickle that names anything else is refused, since it could run code.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a pickle names.

        Args:
            module: Module of the name.
            name: A class or function.

        Raises:
            UnpicklingError: Anything that arrays do not need.
        """
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which a batch of images has no need for"
            )
        return super().find_class(module, name)


def read_cifar_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels of a batch of the "python version" of CIFAR.

    Args:
        path: The file.
        label_key: What the batch calls its labels.

    Returns:
        Bytes of shape (n, 3, 32, 32), and labels.

    Raises:
        UserError: The file is no such batch, or damaged.
    """
    kind = "a pickled batch of CIFAR"
    with reading(path, kind), open(path, "rb") as file:
        batch = ArrayUnpickler(file, encoding="bytes").load()
        if not isinstance(batch, Mapping):
            raise damaged_file(
                path, kind, f"it holds a {type(batch).__name__} instead of a dictionary"
            )
        # Keys are bytes or texts, after the Python that wrote them.
        by_name = {}
        for key, value in batch.items():
            by_name[key.decode() if isinstance(key, bytes) else key] = value
        images = np.asarray(by_name["data"])
        labels = np.asarray(by_name[label_key])
    is_flat = images.ndim == 2 and images.shape[1] == 3 * 32 * 32
    if images.dtype != np.uint8 or not is_flat or labels.shape != images.shape[:1]:
        reason = f"data is {images.dtype} {images.shape} and {label_key} has shape {labels.shape}"
        raise damaged_file(path, kind, reason)
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)
