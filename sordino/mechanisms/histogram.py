"""How far noise lies, at least, from the same noise moved by a shift, as a histogram of it shows.

Divergences of binned laws are at most those of the laws themselves (van Erven and Harremoës 2014,
Thm 9). Limits of all bins hold together, so whatever is computed from them does too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

BINS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class BinLimits:
    """Limits of the probabilities of bins, without a shift (first row) and with it (second row).

    Attributes:
        low: The lower limits.
        high: The upper limits.
    """

    low: np.ndarray
    high: np.ndarray

    def divergence(self, order: float) -> float:
        """Returns a lower limit on the Rényi divergence in its larger direction.

        Args:
            order: Finite, above 1.
        """
        forwards = _find_least_divergence(self.low[1], self.high[0], order)
        backwards = _find_least_divergence(self.low[0], self.high[1], order)
        return max(forwards, backwards)

    @property
    def total_variation(self) -> float:
        """A lower limit on the total variation distance."""
        return float(np.maximum(self.low[1] - self.high[0], 0.0).sum())


def find_bin_limits(values: np.ndarray, shift: float, risk: float) -> BinLimits:
    """Returns limits of the bins' probabilities, for noise and for the same noise moved.

    Args:
        values: Values of the noise, independent.
        shift: By how much the noise is moved.
        risk: The largest probability that any limit is wrong.

    Example:
        >>> values = np.random.default_rng(1).normal(size=100_000)
        >>> limits = find_bin_limits(values, 1.0, 1e-6)
        >>> 0.4 < limits.divergence(2.0) < 1.0, 0.2 < limits.total_variation < 0.383
        (True, True)
    """
    # Each half of the values fills one histogram, so that the two are independent.
    half = len(values) // 2
    first = values[:half]
    second = values[half:] + shift
    # Bins that are equally full, of both halves together.
    shares = np.linspace(0, 1, BINS + 1)[1:-1]
    cuts = np.quantile(np.concatenate([first, second]), shares)
    counts = []
    for sample in (first, second):
        bins = np.searchsorted(cuts, sample)
        counts.append(np.bincount(bins, minlength=BINS))
    totals = np.array([[len(first)], [len(second)]])
    low, high = find_clopper_pearson_limits(np.stack(counts), totals, risk / (4 * BINS))
    return BinLimits(low=low, high=high)


def find_clopper_pearson_limits(
    counts: np.ndarray, totals: np.ndarray, risk: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns Clopper and Pearson's lower and upper limits of probabilities.

    Args:
        counts: How often each event happened.
        totals: The number of trials of each.
        risk: The largest probability that a limit is missed, on either side.
    """
    # A count of 0 or of all has no such quantile; its limit is 0 or 1.
    misses = totals - counts
    below = betaincinv(np.maximum(counts, 1), misses + 1, risk)
    above = betaincinv(counts + 1, np.maximum(misses, 1), 1 - risk)
    low = np.where(counts > 0, below, 0.0)
    high = np.where(misses > 0, above, 1.0)
    return low, high


def _find_least_divergence(low: np.ndarray, high: np.ndarray, order: float) -> float:
    """Returns the least divergence of any laws p, q with p >= low and q <= high."""
    # sum p^a q^(1-a) is convex in p: mass that the lower limits leave out adds at least
    # a (low/high)^(a-1) wherever it lies.
    with np.errstate(divide="ignore"):
        ratios = (order - 1) * (np.log(low) - np.log(high))
        left_out = np.log(order * max(0.0, 1 - low.sum())) + ratios.min()
        logs = np.append(np.log(low) + ratios, left_out)
    return max(0.0, float(np.logaddexp.reduce(logs)) / (order - 1))
