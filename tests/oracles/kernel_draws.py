"""What the compiled kernel draws, by itself: no training asks for it alone."""

from __future__ import annotations

import numpy as np

from sordino.native.layout import NoiseLaw
from sordino.native.library import load_library


def read_keystream(
    simd: str,
    key: bytes,
    nonce: bytes,
    count: int,
    *,
    first: int = 0,
) -> np.ndarray:
    """Returns 32-bit words of the ChaCha20 keystream, whose block counter begins at 0.

    Args:
        simd: the instruction set.
        key: 32 bytes.
        nonce: 12 bytes.
        count: how many words.
        first: the number of the first of them.
    """
    words = np.empty(count, np.uint32)
    load_library(simd).sordino_keystream(key, nonce, words.ctypes.data, first, count)
    return words


def draw_noise(
    simd: str,
    key: bytes,
    nonce: bytes,
    count: int,
    *,
    first: int = 0,
    law: NoiseLaw = NoiseLaw.NORMAL,
    fall: float = 0.0,
    place: float = 0.0,
) -> np.ndarray:
    """Returns noise of scale 1, as `Stream.normals` and the samplers of mechanisms draw it.

    Args:
        simd: the instruction set.
        key: 32 bytes.
        nonce: 12 bytes.
        count: how many values.
        first: the number of the first of them.
        law: which law they have.
        fall: by how much the logarithm of a staircase falls in every width.
        place: where in a width it falls.
    """
    values = np.empty(count)
    load_library(simd).sordino_noise(
        key, nonce, int(law), fall, place, values.ctypes.data, first, count
    )
    return values


def draw_subsets(
    simd: str,
    key: bytes,
    nonce: bytes,
    count: int,
    size: int,
    population: int,
) -> np.ndarray:
    """Returns subsets, one a row, as `Stream.subsets` draws them.

    Args:
        simd: the instruction set.
        key: 32 bytes.
        nonce: 12 bytes.
        count: how many subsets.
        size: the numbers in each.
        population: the numbers are below this.
    """
    subsets = np.empty((count, size), np.int64)
    load_library(simd).sordino_subsets(key, nonce, subsets.ctypes.data, count, size, population)
    return subsets
