"""How files are read. Whatever is wrong with a file becomes one message that names it."""

from __future__ import annotations

import csv
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
    """Turn what goes wrong inside into a `UserError` that names the file and what it should be."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the parsers below raise nearly anything on damaged bytes
        if isinstance(error, OSError) and error.strerror is not None:
            raise UserError(
                f"{path} cannot be opened: {error.strerror}. Check the name and the permissions."
            ) from error
        raise damaged(path, kind, str(error) or type(error).__name__) from error


def damaged(path: Path, kind: str, why: str) -> UserError:
    """The error for a file that is not what it should be."""
    return UserError(
        f"{path} cannot be read as {kind}: {why.rstrip('.')}. Replace it by an undamaged copy."
    )


def open_binary(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked if its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes in the idx format of MNIST: 0, 0, 8 (uint8), number of axes, the big-endian length of each, the values."""
    kind = f"an idx file of {dimensions} axes"
    with reading(path, kind), open_binary(path) as file:
        magic = file.read(4)
        if magic != bytes((0, 0, 8, dimensions)):
            raise damaged(
                path,
                kind,
                f"it begins with {magic.hex()} instead of {bytes((0, 0, 8, dimensions)).hex()}",
            )
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        values = np.frombuffer(bytearray(file.read()), dtype=np.uint8)
        if values.size != np.prod(shape, dtype=np.int64):
            raise damaged(
                path,
                kind,
                f"it holds {values.size} values, but its header says {' x '.join(map(str, shape))}",
            )
        return values.reshape(shape)


def read_sheet(path: Path, tile: int) -> np.ndarray:
    """Images stored as one picture of square RGB tiles, row by row: uint8 (n, 3, tile, tile)."""
    from PIL import Image

    kind = f"a sheet of {tile} x {tile} images"
    with reading(path, kind), Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    height, width, channels = pixels.shape
    if height % tile != 0 or width % tile != 0:
        raise damaged(path, kind, f"it has {width} x {height} pixels")
    tiles = pixels.reshape(height // tile, tile, width // tile, tile, channels)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, channels, tile, tile)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file. Arrays of Python objects are refused: reading them could run code."""
    with reading(path, "a numpy .npz file"):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise damaged(path, "a numpy .npz file", "it holds a single array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}


def read_table(path: Path) -> dict[str, list[str]]:
    """A CSV file with a header as columns of text, spaces around values removed; `.gz` is unpacked."""
    kind = "a CSV table"
    with reading(path, kind), open_binary(path) as file:
        rows = csv.reader(
            (line.decode("utf-8-sig") for line in file), skipinitialspace=True, strict=True
        )
        header = [name.strip() for name in next(rows, [])]
        if header == [] or len(set(header)) != len(header) or "" in header:
            raise damaged(
                path,
                kind,
                f"its first line must name every column, each once, but is {','.join(header)[:200]!r}",
            )
        records = []
        for row in rows:
            if len(row) not in (0, len(header)):
                raise damaged(
                    path,
                    kind,
                    f"line {rows.line_num} has {len(row)} values for {len(header)} columns",
                )
            if row:
                records.append([value.strip() for value in row])
    return {name: [record[place] for record in records] for place, name in enumerate(header)}


HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
    ("_codecs", "encode"),
}  # fmt: skip


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of numpy arrays and plain containers; a pickle that names anything else is refused, since it could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which a batch of images has no need for"
            )
        return super().find_class(module, name)


def read_cifar_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels of a batch of the "python version" of CIFAR."""
    kind = "a pickled batch of CIFAR"
    with reading(path, kind), open(path, "rb") as file:
        batch = ArrayUnpickler(file, encoding="bytes").load()
        if not isinstance(batch, Mapping):
            raise damaged(path, kind, f"it holds a {type(batch).__name__} instead of a dictionary")
        named = {
            key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()
        }
        images, labels = np.asarray(named["data"]), np.asarray(named[label_key])
    if (
        images.dtype != np.uint8
        or images.ndim != 2
        or images.shape[1] != 3 * 32 * 32
        or labels.shape != images.shape[:1]
    ):
        raise damaged(
            path,
            kind,
            f"data is {images.dtype} {images.shape} and {label_key} has shape {labels.shape}",
        )
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)
