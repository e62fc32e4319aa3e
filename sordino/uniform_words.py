"""Makes choices and normals of uniform 64-bit words.

Every function here is pure, and numpy alone computes it. The compiled kernel repeats each of them.
"""

from __future__ import annotations

import math

import numpy as np


def choose_swaps(words: np.ndarray, population: int) -> np.ndarray:
    """Returns the places that the first places of a Fisher-Yates shuffle are exchanged with.

    Args:
        words: Uniform words, one row for each shuffle, one column for each place.
        population: How many places a shuffle has.

    Returns:
        A table of the shape of `words`: place k is exchanged with one from k to the last.
    """
    places = np.arange(words.shape[-1], dtype=np.uint64)
    return scale_words(words, np.uint64(population) - places) + places


def shuffle_rows(swaps: np.ndarray) -> np.ndarray:
    """Returns the first places of a shuffle for each row, one row at a time.

    Only the places that were exchanged are stored, so the cost does not depend on the population.

    Args:
        swaps: What `choose_swaps` returned.

    Returns:
        A table of the same shape: the contents of the first places after the exchanges.
    """
    heads = np.empty(swaps.shape, dtype=np.int64)
    for row, targets in enumerate(swaps.tolist()):
        moved: dict[int, int] = {}
        for place, target in enumerate(targets):
            heads[row, place] = moved.get(target, target)
            moved[target] = moved.get(place, place)
    return heads


def shuffle_columns(swaps: np.ndarray, population: int) -> np.ndarray:
    """Returns the first places of a shuffle for each row, all rows at once.

    Args:
        swaps: What `choose_swaps` returned, as signed integers.
        population: How many places a shuffle has.

    Returns:
        What `shuffle_rows` returns.

    Example:
        >>> swaps = np.array([[2, 1], [0, 2]])
        >>> shuffle_columns(swaps, 3).tolist() == shuffle_rows(swaps).tolist()
        True
    """
    rows = np.arange(len(swaps))
    table = np.broadcast_to(np.arange(population), (len(swaps), population)).copy()
    for place in range(swaps.shape[1]):
        target = swaps[:, place]
        table[rows, target], table[rows, place] = table[rows, place], table[rows, target]
    return table[:, : swaps.shape[1]]


def count_items_in_heads(swaps: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Returns how many items end at the first places of each row's shuffle.

    Each item is followed by itself through the exchanges, so no shuffled table is written.

    Args:
        swaps: What `choose_swaps` returned.
        items: The items that are counted.

    Returns:
        One number for each row.

    Example:
        >>> swaps = np.array([[2, 1], [0, 2]])
        >>> counts = count_items_in_heads(swaps, np.array([1, 2]))
        >>> counts.tolist() == np.isin(shuffle_rows(swaps), [1, 2]).sum(axis=1).tolist()
        True
    """
    counts = np.zeros(len(swaps), dtype=np.int64)
    columns = np.ascontiguousarray(swaps.T.astype(np.int64))
    for item in items.tolist():
        position = np.full(len(swaps), item)
        for place, target in enumerate(columns):
            moved = np.where(position == place, target, position)
            position = np.where(target == position, place, moved)
        counts += position < len(columns)
    return counts


def scale_words(words: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Returns floor(word * span / 2^64), which is uniform below `span` (Lemire 2019).

    Args:
        words: Uniform 64-bit words.
        spans: How many values each number may have; below 2^32.

    Returns:
        The exact quotients, computed in 64-bit halves.
    """
    low = words & np.uint64(0xFFFFFFFF)
    high = words >> np.uint64(32)
    carried = (low * spans) >> np.uint64(32)
    return np.asarray((high * spans + carried) >> np.uint64(32))


def fill_normal_pairs(words: np.ndarray, normals: np.ndarray) -> None:
    """Writes a pair of normals for every pair of words (Box and Muller 1958).

    Args:
        words: Pairs of uniform words, one a row.
        normals: Where the pairs of normals are written, one a row.
    """
    # The radius uses 52 bits, so normals reach 8.5. A uniform of 32 bits would cut the tail at 6.7,
    # which is noticeable in a model of a million parameters.
    radius = np.sqrt(-2.0 * np.log(unit_interval(words[:, 0])))
    # The angle's cosine comes from the upper bits of the second word, the sign of its sine from
    # the lowest bit, which `unit_interval` does not read.
    cosine = -sine_half_turn(unit_interval(words[:, 1]) - 0.5)
    sine = np.sqrt(np.maximum(1.0 - cosine * cosine, 0.0))
    signed_sine = np.where(words[:, 1] & np.uint64(1), -sine, sine)
    np.multiply(radius, cosine, out=normals[:, 0])
    np.multiply(radius, signed_sine, out=normals[:, 1])


def unit_interval(words: np.ndarray) -> np.ndarray:
    """Returns uniforms strictly between 0 and 1.

    Args:
        words: Uniform 64-bit words.

    Returns:
        For each word the midpoint (k + 1/2) / 2^52, where k is its upper 52 bits.
    """
    # Exact: the 52 bits fill the mantissa of a float64 between 1 and 2.
    one_to_two = ((words >> np.uint64(12)) | np.uint64(0x3FF0000000000000)).view(np.float64)
    return one_to_two - (1.0 - 2.0**-53)


# Taylor coefficients of sin(pi y) / y in y^2; on |y| <= 1/2 the next term is below 3e-16. This
# polynomial replaces numpy's sine so that the compiled kernel can repeat it to the last digit that
# matters. It is also four times faster.
SINE = tuple((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(10))


def sine_half_turn(turns: np.ndarray) -> np.ndarray:
    """Returns sin(pi y) for |y| <= 1/2.

    Args:
        turns: The angles y, in half turns.

    Returns:
        Their sines.
    """
    # Horner's rule, in place.
    square = turns * turns
    total = np.full_like(turns, SINE[-1])
    for coefficient in SINE[-2::-1]:
        total *= square
        total += coefficient
    sines: np.ndarray = total * turns
    return sines
