"""What samples of noise show, at least: how far a histogram of it lies from one of the same noise moved by a shift.

Divergences of binned laws are at most those of the laws themselves (van Erven and Harremoës 2014, Thm 9). Limits of all bins hold
together, so whatever is computed from them does too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

BINS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """Lower and upper limits of the probabilities of bins, without a shift (first row) and with it (second row)."""

    low: np.ndarray
    high: np.ndarray

    def divergence(self, order: float) -> float:
        """A lower limit on the Rényi divergence; the larger direction."""
        return max(
            _moment(self.low[1], self.high[0], order), _moment(self.low[0], self.high[1], order)
        )

    @property
    def total_variation(self) -> float:
        """A lower limit on the total variation distance."""
        return float(np.maximum(self.low[1] - self.high[0], 0.0).sum())


def shown(values: np.ndarray, shift: float, risk: float) -> Shown:
    """What values and moved values show, with a probability of at most `risk` that any limit is wrong.

    Each half of the values fills one histogram, so that the two are independent.

    Example:
        >>> values = np.random.default_rng(1).normal(size=100_000)
        >>> seen = shown(values, 1.0, 1e-6)
        >>> 0.4 < seen.divergence(2.0) < 1.0, 0.2 < seen.total_variation < 0.383
        (True, True)
    """
    first, second = values[: len(values) // 2], values[len(values) // 2 :] + shift
    cuts = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, BINS + 1)[1:-1])
    counts = np.stack(
        [np.bincount(np.searchsorted(cuts, half), minlength=BINS) for half in (first, second)]
    )
    totals = np.array([[len(first)], [len(second)]])
    low, high = limits(counts, totals, risk / (4 * BINS))
    return Shown(low=low, high=high)


def limits(counts: np.ndarray, totals: np.ndarray, risk: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's limits of probabilities, each missed with probability at most `risk` on either side."""
    low = np.where(counts > 0, betaincinv(np.maximum(counts, 1), totals - counts + 1, risk), 0.0)
    high = np.where(
        counts < totals, betaincinv(counts + 1, np.maximum(totals - counts, 1), 1 - risk), 1.0
    )
    return low, high


def _moment(low: np.ndarray, high: np.ndarray, order: float) -> float:
    """The least divergence of laws p >= low and q <= high.

    sum p^a q^(1-a) is convex in p: mass that the lower limits leave out adds at least a (low/high)^(a-1) wherever it lies.
    """
    with np.errstate(divide="ignore"):
        ratios = (order - 1) * (np.log(low) - np.log(high))
        logs = np.append(
            np.log(low) + ratios, np.log(order * max(0.0, 1 - low.sum())) + ratios.min()
        )
    return max(0.0, float(np.logaddexp.reduce(logs)) / (order - 1))
