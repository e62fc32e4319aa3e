"""The worst of several curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.loss_distributions import LossCurve


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstCurve(Curve):
    """The worst of several clients' curves, at every epsilon and delta.

    Attributes:
        curves: The curve of every client.
    """

    rank: ClassVar[int] = 5
    curves: tuple[Curve, ...]

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns the largest delta at each epsilon; see `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        largest: np.ndarray = np.max([curve.deltas(epsilons) for curve in self.curves], axis=0)
        return largest

    def epsilon(self, delta: float) -> float:
        """Returns the largest epsilon at a delta; see `Curve.epsilon`.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        return max(curve.epsilon(delta) for curve in self.curves)

    def beta(self, alpha: float) -> float:
        """Returns the least false negative rate; see `Curve.beta`.

        Args:
            alpha: The false positive rate.
        """
        return min(curve.beta(alpha) for curve in self.curves)

    def rdp(self, order: float) -> float:
        """Returns the largest Rényi divergence; see `Curve.rdp`.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        return max(curve.rdp(order) for curve in self.curves)

    def repeat(self, times: int) -> WorstCurve:
        """Returns the worst of the repeated curves; see `Curve.repeat`.

        Args:
            times: How often each curve is composed with itself.
        """
        # A client stays the same over all rounds, so each is composed before the worst is taken.
        return WorstCurve(curves=tuple(curve.repeat(times) for curve in self.curves))

    def losses(self, interval: float) -> LossCurve:
        """Returns privacy losses on a grid; see `Curve.losses`.

        Args:
            interval: The spacing of the grid.
        """
        # The largest of convex curves is convex.
        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> WorstCurve:
        return WorstCurve(curves=tuple(curve.compose(other) for curve in self.curves))


def find_worst_curve(curves: Sequence[Curve]) -> Curve:
    """Returns the worst of several curves, at every epsilon and delta.

    Args:
        curves: The curves to compare, at least one.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> find_worst_curve([GaussianCurve(mu=1.0), GaussianCurve(mu=2.0)]).mu
        2.0
    """
    mus = [curve.mu for curve in curves if curve.mu is not None]
    # Gaussian curves never cross, so the largest mu is the worst everywhere and stays exact.
    if len(mus) == len(curves):
        return curves[mus.index(max(mus))]
    return WorstCurve(curves=tuple(curves))
