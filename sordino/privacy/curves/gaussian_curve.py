"""The curve of a Gaussian release, and how curves of different kinds compose.

A Gaussian curve is by far the most frequent one, and every composition begins with one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.curve import COMPARED_AT, Curve
from sordino.privacy.curves.loss_distributions import LossCurve


@dataclass(frozen=True, kw_only=True)
class GaussianCurve(Curve):
    """The curve of a mu-GDP release.

    Attributes:
        mu: The Gaussian parameter; 0 reveals nothing, infinity promises nothing.

    Example:
        >>> twice = GaussianCurve(mu=3.0).compose(GaussianCurve(mu=4.0))
        >>> twice.mu, round(twice.epsilon(1e-5), 4)
        (5.0, 33.1037)
    """

    rank: ClassVar[int] = 0
    mu: float = field()

    def __post_init__(self) -> None:
        checks.require_nonnegative(mu=self.mu)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        deltas: np.ndarray = np.exp(gaussian.log_deltas(self.mu, epsilons))
        return deltas

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        return gaussian.epsilon(self.mu, delta)

    def beta(self, alpha: float) -> float:
        """See `Curve.beta`.

        Args:
            alpha: The false positive rate.
        """
        return gaussian.beta(self.mu, alpha)

    def betas(self, alphas: np.ndarray) -> np.ndarray:
        """See `Curve.betas`; here `beta` is quick.

        Args:
            alphas: The false positive rates.
        """
        rates = np.asarray(alphas, dtype=float).tolist()
        return np.array([gaussian.beta(self.mu, alpha) for alpha in rates])

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        return gaussian.rdp(self.mu, order)

    def repeat(self, times: int) -> GaussianCurve:
        """See `Curve.repeat`.

        Args:
            times: How many such releases are composed.
        """
        checks.require_whole(at_least=0, times=times)
        if times == 0:
            return PERFECT
        return GaussianCurve(mu=self.mu * math.sqrt(times))

    def is_at_most(self, other: Curve, *, at: Sequence[float] = COMPARED_AT) -> bool:
        """See `Curve.is_at_most`; two Gaussian curves never cross.

        Args:
            other: The curve that this one is compared with.
            at: The deltas at which epsilons are compared.
        """
        if other.mu is not None:
            return self.mu <= other.mu
        return super().is_at_most(other, at=at)

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`.

        Args:
            interval: The distance between neighbouring losses of the grid.
        """
        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> GaussianCurve:
        """GDP adds in squares (Dong, Roth and Su 2022, Cor. 3.3)."""
        return GaussianCurve(mu=math.hypot(self.mu, other.mu or 0.0))


PERFECT = GaussianCurve(mu=0.0)
NOTHING = GaussianCurve(mu=math.inf)


def compose_curves(curves: Sequence[Curve]) -> Curve:
    """Returns all the curves composed, from the most special kind to the most general.

    Args:
        curves: Curves of releases each of which may depend on those before.

    Returns:
        Their composition; the curve that reveals nothing where there are none.

    Example:
        >>> compose_curves([GaussianCurve(mu=1.0)] * 9).mu
        3.0
    """
    total: Curve = PERFECT
    for curve in sorted(curves, key=lambda curve: curve.rank):
        total = total.compose(curve)
    return total
