"""The rule bezier: an update is multiplied by c(r) = (1 - r)(1 + 1.2 r).

The point r is public and drawn afresh in every round.

Given r an upload moves by c(r) times what its steps move by, so a round is a mixture over c(r)
(docs/theory.md#b9).
"""

from __future__ import annotations

import numpy as np

from sordino.protocol.rule_kinds import BEZIER_REACH

BINS = 24  # pieces of (0, 1), in each of which the largest c counts


def bezier_levels() -> tuple[np.ndarray, np.ndarray]:
    """Returns the largest c(r) in each piece of (0, 1), and the probability of the piece.

    Values of c(r) are in units of the largest of all.

    Example:
        >>> factors, masses = bezier_levels()
        >>> float(factors.max()), round(float(masses.sum()), 9)
        (1.0, 1.0)
        >>> round(float((factors * masses).sum() * BEZIER_REACH), 3)
        0.721
    """
    starts = np.arange(BINS) / BINS
    # c falls from r = 1/12 on; before that its largest value is the one at 1/12.
    highest = np.maximum(starts, 1 / 12)
    factors = (1 - highest) * (1 + 1.2 * highest) / BEZIER_REACH
    return np.minimum(factors, 1.0), np.full(BINS, 1 / BINS)


def spread_over_curve(
    shifts: np.ndarray, use: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns every shift at all levels of c(r), one row per round, and their probabilities.

    Args:
        shifts: The largest moves of uploads, one row per round, and one column per step at which
            the record may be used first.
        use: The probability of each column; None for a single, certain one.

    Example:
        >>> rows, use = spread_over_curve(np.ones((3, 2)), np.array([0.5, 0.25]))
        >>> rows.shape, round(float(use.sum()), 9)
        ((3, 48), 0.75)
    """
    factors, masses = bezier_levels()
    certain = np.ones(1) if use is None else use
    rows = (shifts[:, :, None] * factors).reshape(len(shifts), -1)
    return rows, np.multiply.outer(certain, masses).ravel()
