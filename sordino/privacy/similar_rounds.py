"""Joins rounds that differ little in price, so that thousands are priced as hundreds."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np


def join_similar_rounds(
    shifts: np.ndarray, counts: np.ndarray, *, slack: float = 1e-7
) -> tuple[np.ndarray, np.ndarray]:
    """Joins rounds with nearly the same shifts, and returns fewer rounds and their counts.

    All rounds of a group get the largest shifts of the group, entry by entry.

    Args:
        shifts: The shifts of the rounds, one row per round.
        counts: How often each round occurs.
        slack: The largest share of the sum of squared shifts by which a group may raise it, so that
            only rounds that hardly matter are joined.

    Example:
        >>> shifts = 1 / np.arange(1, 10001)[:, None]
        >>> rows, counts = join_similar_rounds(shifts, np.ones(10000, dtype=int))
        >>> len(rows) < 1000, int(counts.sum())
        (True, 10000)
        >>> bool(np.dot(counts, rows[:, 0] ** 2) < 1.0001 * np.pi**2 / 6)
        True
    """
    # Sorted, a group of neighbours is a group of nearly equal rounds.
    order = np.argsort(-shifts.max(axis=1), kind="stable")
    rows = shifts[order]
    often = counts[order]
    largest = rows.max(axis=1) ** 2
    upto = np.append(0, np.cumsum(often))
    summed = np.append(0.0, np.cumsum(often * largest))
    allowed = slack * float(summed[-1])
    starts = [0]
    while starts[-1] < len(rows):
        start = starts[-1]

        def raised(end: int, start: int = start) -> float:
            """Returns by how much a group raises the sum of the squared shifts.

            Args:
                end: The first round behind the group.
                start: The first round of the group.
            """
            excess: float = largest[start] * (upto[end] - upto[start]) - (
                summed[end] - summed[start]
            )
            return excess

        starts.append(bisect_right(range(len(rows) + 1), allowed, lo=start + 1, key=raised) - 1)
    return np.maximum.reduceat(rows, starts[:-1], axis=0), np.add.reduceat(often, starts[:-1])
