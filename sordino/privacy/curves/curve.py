"""A privacy curve: everything that one bound says, in any notion of privacy.

Every curve is an upper bound, so every answer errs on the safe side: epsilon, delta and Rényi
divergences are rounded up, beta is rounded down. Curves compose with one another; the result is of
the more general kind of the two (`rank`): Gaussian, then Gaussian mixture, then Rényi, then
privacy-loss distribution.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.curves.roots import bracket_root, double_until

if TYPE_CHECKING:
    from sordino.privacy.curves.loss_distributions import LossCurve

COMPARED_AT = (*(10.0**exponent for exponent in range(-12, 0)), 0.2, 0.5)
_GOLDEN = (math.sqrt(5) - 1) / 2
# Largest epsilon whose exponential is still a number.
_STEEPEST = 700.0
# Slopes of the supporting lines of a picture: those steeper than e^12 cannot be seen.
_DRAWN_AT = 12 * np.linspace(0, 1, 97) ** 2


class Curve(abc.ABC):
    """What an adversary can learn at most: delta as a function of epsilon, and what follows.

    Attributes:
        rank: How general the kind of curve is.
        mu: The Gaussian parameter, where the curve is Gaussian.
        total_variation: The total variation between the noise and the law whose curve is `law`. All
            answers of this curve count it.
    """

    rank: ClassVar[int]
    mu: float | None = None
    total_variation: float = 0.0

    @property
    def law(self) -> Curve:
        """The curve of the law that the noise is near to; mostly the curve itself."""
        return self

    @abc.abstractmethod
    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns an upper bound on delta at each epsilon >= 0; nonincreasing.

        Args:
            epsilons: The epsilons, each of at least 0.

        Returns:
            Delta at each of them, from 0 to 1.
        """

    @abc.abstractmethod
    def rdp(self, order: float) -> float:
        """Returns an upper bound on the Rényi divergence of this order, in both directions.

        Args:
            order: The order of the divergence, of at least 1; may be infinite.

        Returns:
            The divergence; infinity where none is known.
        """

    @abc.abstractmethod
    def repeat(self, times: int) -> Curve:
        """Returns the curve of `times` such releases, each of which may depend on those before.

        Args:
            times: The number of releases; 0 reveals nothing.

        Returns:
            A curve of the same kind.
        """

    @abc.abstractmethod
    def _absorb(self, other: Curve) -> Curve:
        """Returns the composition with a curve of the same or a lower rank."""

    @abc.abstractmethod
    def losses(self, interval: float) -> LossCurve:
        """Returns this curve as a privacy-loss distribution, never more private than it.

        Args:
            interval: The spacing of the grid, of which losses are multiples.

        Returns:
            A curve that is never below this one.
        """

    def compose(self, other: Curve) -> Curve:
        """Returns the curve of this release together with another, which may depend on it.

        Dong, Roth and Su 2022, Thm 3.2.

        Args:
            other: The curve of the other release.

        Returns:
            A curve of the more general kind of the two.
        """
        lower, higher = sorted((self, other), key=lambda curve: curve.rank)
        return higher._absorb(lower)

    def delta(self, epsilon: float) -> float:
        """Returns the smallest delta known to hold at `epsilon`.

        Args:
            epsilon: Epsilon of at least 0.

        Returns:
            Delta, rounded up.
        """
        checks.require_nonnegative(epsilon=epsilon)
        found = self.deltas(np.array([epsilon]))
        return float(found[0])

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon known to hold at `delta`; infinity where none does.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            Epsilon, rounded up.
        """
        checks.require_delta(delta)
        return self._epsilon_above(0.0, delta)

    def _epsilon_above(self, floor: float, delta: float) -> float:
        """Returns the same, known to be at least `floor`."""
        if self.delta(floor) <= delta:
            return floor
        top = double_until(lambda epsilon: self.delta(epsilon) <= delta, max(1.0, 2 * floor))
        if math.isinf(top):
            return math.inf
        target = math.log(delta)
        return bracket_root(lambda epsilon: _safe_log(self.delta(epsilon)) - target, floor, top)[1]

    def beta(self, alpha: float) -> float:
        """Returns the least false negative rate at a false positive rate: the trade-off function.

        Args:
            alpha: The false positive rate of the test.

        Returns:
            The false negative rate, rounded down.
        """
        checks.require_probability(alpha=alpha)
        return supporting_beta(self.delta, alpha)

    def betas(self, alphas: np.ndarray) -> np.ndarray:
        """Returns a lower bound on `beta` at each alpha, for pictures.

        All lie above the same few supporting lines, which is much quicker.

        Args:
            alphas: The false positive rates.

        Returns:
            A false negative rate for each.
        """
        room = 1 - self.deltas(_DRAWN_AT) - 2.0**-51
        rates = np.asarray(alphas, dtype=float)[:, None]
        steep = room - np.exp(_DRAWN_AT) * rates
        flat = np.exp(-_DRAWN_AT) * (room - rates)
        lines = np.maximum(steep, flat).max(axis=1)
        betas: np.ndarray = np.maximum(0.0, lines) * (1 - 2.0**-50)
        return betas

    def is_at_most(self, other: Curve, *, at: Sequence[float] = COMPARED_AT) -> bool:
        """Returns whether this curve promises at least as much as the other at every delta.

        Args:
            other: The curve that this one is compared with.
            at: The deltas at which epsilons are compared.

        Returns:
            Whether no epsilon of this curve is above that of the other.
        """
        return all(self.epsilon(delta) <= other.epsilon(delta) for delta in at)


def supporting_beta(delta: Callable[[float], float], alpha: float) -> float:
    """Returns the trade-off function above all supporting lines of a delta curve.

    beta(alpha) = sup over epsilon >= 0 of 1 - delta - e^epsilon alpha and of
    e^-epsilon (1 - delta - alpha) (Dong, Roth and Su 2022, Prop. 2.12). Written over all real
    epsilon it is concave in e^epsilon, so golden section finds the supremum; where it stops early
    the line it stops at is still a valid bound, only a lower one.

    Args:
        delta: The curve, valid in both directions.
        alpha: The false positive rate of the test.

    Returns:
        The false negative rate, rounded down.

    Example:
        >>> from sordino.privacy.curves import gaussian
        >>> round(supporting_beta(lambda epsilon: gaussian.delta(1.0, epsilon), 0.05), 6)
        0.740489
    """

    def line(epsilon: float) -> float:
        """Returns the value at alpha of a line that the trade-off curve lies above.

        Args:
            epsilon: The logarithm of the line's slope.
        """
        # Less what rounding the differences can add.
        value = 1 - delta(abs(epsilon)) - 2.0**-51
        if epsilon >= 0:
            return value - math.exp(epsilon) * alpha
        return math.exp(epsilon) * (value - alpha)

    # Above log(1/alpha) a line is negative. Below, a slope of e^-epsilon < beta/1 cannot support;
    # start wide enough for any float.
    low = -_STEEPEST
    high = min(_STEEPEST, -_safe_log(alpha))
    inner = high - _GOLDEN * (high - low)
    outer = low + _GOLDEN * (high - low)
    at_inner = line(inner)
    at_outer = line(outer)
    best = max(0.0, line(0.0), at_inner, at_outer)
    while high - low > 1e-9 * (1 + abs(low)):
        # A tie below 0 is underflow: the peak lies to the right.
        if at_inner < at_outer or (at_inner == at_outer and inner < 0):
            low = inner
            inner = outer
            at_inner = at_outer
            outer = low + _GOLDEN * (high - low)
            at_outer = line(outer)
        else:
            high = outer
            outer = inner
            at_outer = at_inner
            inner = high - _GOLDEN * (high - low)
            at_inner = line(inner)
        best = max(best, at_inner, at_outer)
    return best * (1 - 2.0**-50)


def _safe_log(value: float) -> float:
    """Returns the logarithm of a number of at least 0."""
    if value > 0:
        return math.log(value)
    return -math.inf
