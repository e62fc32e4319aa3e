"""The curve of a release whose noise is drawn from nearly the law that was priced.

If drawn noise is within v of its law in total variation, both laws that an adversary tells apart
are: delta grows to delta(epsilon) + (1 + e^epsilon) v, and the trade-off function falls to
f(alpha + v) - v (docs/theory.md#a12). A large epsilon thus needs noise that is drawn very exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.loss_distributions import LossCurve

# How many values of epsilon are tried for the smallest delta that is known to hold.
TRIED = 257
# How often an epsilon is raised until it holds; it is given up after that.
MOST_RAISES = 60
# What rounding of a sum of two terms can take away.
UP = 1 + 2.0**-50


@dataclass(frozen=True, kw_only=True, eq=False)
class NearLawCurve(Curve):
    """The curve of a release whose noise is near its law.

    It is not a Gaussian curve, even where that of its law is: it has no `mu`.

    Attributes:
        exact: The curve of noise that has exactly its law.
        total_variation: The largest total variation between all noise together and its law.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> near = NearLawCurve(exact=GaussianCurve(mu=1.0), total_variation=1e-9)
        >>> near.epsilon(1e-5) > GaussianCurve(mu=1.0).epsilon(1e-5), near.epsilon(1e-9)
        (True, inf)
    """

    # It wraps curves of all other kinds.
    rank: ClassVar[int] = 6
    exact: Curve
    total_variation: float = field()

    @property
    def law(self) -> Curve:
        """See `Curve.law`."""
        return self.exact

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        # Beyond the turning point the sum grows; what holds there holds for every larger epsilon.
        within = np.minimum(np.asarray(epsilons, dtype=float), self._turning_point)
        return self._add_distance(within)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        checks.require_delta(delta)
        found = 0.0
        for _ in range(MOST_RAISES):
            left = delta - self._distance_at(found) * UP
            if left <= 0:
                return math.inf
            # The distance was counted at an epsilon that may be too small: then it is raised.
            raised = self.law.epsilon(left)
            if raised <= found:
                return found
            found = raised * (1 + 1e-12)
        return math.inf

    def beta(self, alpha: float) -> float:
        """See `Curve.beta`.

        Args:
            alpha: The false positive rate.
        """
        checks.require_probability(alpha=alpha)
        distance = self.total_variation
        # Rounded down: the adversary may err more often than computed, never less often.
        return max(0.0, self.law.beta(min(1.0, (alpha + distance) * UP)) - distance)

    def betas(self, alphas: np.ndarray) -> np.ndarray:
        """See `Curve.betas`.

        Args:
            alphas: The false positive rates.
        """
        distance = self.total_variation
        moved = np.minimum(1.0, (np.asarray(alphas, dtype=float) + distance) * UP)
        return np.maximum(0.0, self.law.betas(moved) - distance)

    def rdp(self, order: float) -> float:
        """Returns infinity: a difference of any probability may leave Rényi divergences unbounded.

        `law` has the divergences of the law.

        Args:
            order: The order of the Rényi divergence.
        """
        checks.require_order(order)
        return math.inf

    def repeat(self, times: int) -> NearLawCurve:
        """See `Curve.repeat`.

        Args:
            times: How many such releases are composed.
        """
        checks.require_whole(at_least=0, times=times)
        # Draw by draw a law takes the place of another, and their distances add up.
        return NearLawCurve(
            exact=self.law.repeat(times), total_variation=times * self.total_variation
        )

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`.

        Args:
            interval: The distance between neighbouring losses of the grid.
        """
        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> NearLawCurve:
        return NearLawCurve(
            exact=self.law.compose(other.law),
            total_variation=self.total_variation + other.total_variation,
        )

    def _distance_at(self, epsilon: float) -> float:
        return self.total_variation * (1 + math.exp(min(epsilon, 700.0)))

    def _add_distance(self, epsilons: np.ndarray) -> np.ndarray:
        grown = self.total_variation * (1 + np.exp(np.minimum(epsilons, 700.0)))
        deltas: np.ndarray = np.minimum(1.0, (self.law.deltas(epsilons) + grown) * UP)
        return deltas

    @cached_property
    def _turning_point(self) -> float:
        """About the epsilon at which the smallest delta holds."""
        # Any point would be valid. Beyond the last one, the distance alone is 1.
        most = max(0.0, -math.log(self.total_variation))
        tried = np.linspace(0, most, TRIED)
        low = 0
        high = TRIED - 1
        # Both terms are convex in e^epsilon, so the sum falls and then grows: a few curves' points
        # are enough, of which each may be dear.
        while low < high:
            middle = (low + high) // 2
            here, next_one = self._add_distance(tried[middle : middle + 2])
            if next_one <= here:
                low = middle + 1
            else:
                high = middle
        return float(tried[low])


def allow_distance(curve: Curve, total_variation: float) -> Curve:
    """Returns the curve of a release whose noise is not exactly of the law that was priced.

    Args:
        curve: The curve of the law.
        total_variation: The largest total variation between all noise together and the law.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> allow_distance(GaussianCurve(mu=1.0), 0.0).mu
        1.0
    """
    if total_variation == 0:
        return curve
    return NearLawCurve(exact=curve.law, total_variation=curve.total_variation + total_variation)
