"""A privacy curve: everything one promise says, whether asked as (epsilon, delta), trade-off, Rényi divergence or mu.

Every curve is an upper bound, so every answer errs on the safe side: epsilon, delta and Rényi divergences are rounded up, beta
is rounded down. Curves compose with one another; the result is of the more general kind of the two (`rank`):
Gaussian, then Gaussian mixture, then Rényi, then privacy-loss distribution.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino.privacy import checks, gaussian
from sordino.privacy.roots import bracket, grown

if TYPE_CHECKING:
    from sordino.privacy.losses import LossCurve

COMPARED_AT = (*(10.0**exponent for exponent in range(-12, 0)), 0.2, 0.5)
_GOLDEN = (math.sqrt(5) - 1) / 2
_STEEPEST = 700.0  # e^epsilon is still a number
_DRAWN_AT = 12 * np.linspace(0, 1, 97) ** 2  # lines that are steeper than e^12 cannot be seen


class Curve(abc.ABC):
    """What an adversary can learn, at most: `delta` as a function of epsilon, and all that follows from it."""

    rank: ClassVar[int]
    mu: float | None = None  # the Gaussian parameter, where the curve is Gaussian

    @abc.abstractmethod
    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """An upper bound on delta at each epsilon >= 0; nonincreasing."""

    @abc.abstractmethod
    def rdp(self, order: float) -> float:
        """An upper bound on the Rényi divergence of this order, in both directions."""

    @abc.abstractmethod
    def repeat(self, times: int) -> Curve:
        """The curve of `times` such releases, each of which may depend on the ones before."""

    @abc.abstractmethod
    def _absorb(self, other: Curve) -> Curve:
        """The composition with a curve of the same or a lower rank."""

    @abc.abstractmethod
    def losses(self, interval: float) -> LossCurve:
        """This curve as a privacy-loss distribution on multiples of `interval`, never more private than this curve."""

    def compose(self, other: Curve) -> Curve:
        """The curve of this release together with another, which may depend on it (Dong, Roth and Su 2022, Thm 3.2)."""
        lower, higher = sorted((self, other), key=lambda curve: curve.rank)
        return higher._absorb(lower)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at `epsilon`."""
        checks.not_negative(epsilon=epsilon)
        return float(self.deltas(np.array([epsilon]))[0])

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at `delta`; infinity where none does."""
        checks.proper_delta(delta)
        return self._epsilon_above(0.0, delta)

    def _epsilon_above(self, floor: float, delta: float) -> float:
        """The same, known to be at least `floor`."""
        if self.delta(floor) <= delta:
            return floor
        top = grown(lambda epsilon: self.delta(epsilon) <= delta, max(1.0, 2 * floor))
        if math.isinf(top):
            return math.inf
        return bracket(lambda epsilon: _log(self.delta(epsilon)) - math.log(delta), floor, top)[1]

    def beta(self, alpha: float) -> float:
        """The least false negative rate of a test whose false positive rate is `alpha`: the trade-off function."""
        checks.probability(alpha=alpha)
        return supporting_beta(self.delta, alpha)

    def betas(self, alphas: np.ndarray) -> np.ndarray:
        """A lower bound on `beta` at each alpha, for pictures: above the same few supporting lines for all, which is much quicker."""
        room = 1 - self.deltas(_DRAWN_AT) - 2.0**-51
        alphas = np.asarray(alphas, dtype=float)[:, None]
        lines = np.maximum(room - np.exp(_DRAWN_AT) * alphas, np.exp(-_DRAWN_AT) * (room - alphas))
        return np.maximum(0.0, lines.max(axis=1)) * (1 - 2.0**-50)

    def is_at_most(self, other: Curve, *, at: Sequence[float] = COMPARED_AT) -> bool:
        """Whether this curve promises at least as much as the other at every delta of `at`."""
        return all(self.epsilon(delta) <= other.epsilon(delta) for delta in at)


def supporting_beta(delta: Callable[[float], float], alpha: float) -> float:
    """The trade-off function above all supporting lines of a delta curve that holds in both directions.

    beta(alpha) = sup over epsilon >= 0 of 1 - delta - e^epsilon alpha and of e^-epsilon (1 - delta - alpha) (Dong, Roth and Su
    2022, Prop. 2.12). Written over all real epsilon it is concave in e^epsilon, so golden section finds the supremum; where
    it stops early the line it stops at is still a valid bound, only a lower one.

    Example:
        >>> round(supporting_beta(lambda epsilon: gaussian.delta(1.0, epsilon), 0.05), 6)
        0.740489
    """

    def line(epsilon: float) -> float:
        value = 1 - delta(abs(epsilon)) - 2.0**-51  # less what rounding the differences can add
        return (
            value - math.exp(epsilon) * alpha
            if epsilon >= 0
            else math.exp(epsilon) * (value - alpha)
        )

    # Above log(1/alpha) a line is negative. Below, a slope of e^-epsilon < beta/1 cannot support; start wide enough for any float.
    low, high = -_STEEPEST, min(_STEEPEST, -_log(alpha))
    inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_inner, at_outer = line(inner), line(outer)
    best = max(0.0, line(0.0), at_inner, at_outer)
    while high - low > 1e-9 * (1 + abs(low)):
        if at_inner < at_outer or (
            at_inner == at_outer and inner < 0
        ):  # a tie below 0 is underflow: the peak lies to the right
            low, inner, at_inner = inner, outer, at_outer
            outer = low + _GOLDEN * (high - low)
            at_outer = line(outer)
        else:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - _GOLDEN * (high - low)
            at_inner = line(inner)
        best = max(best, at_inner, at_outer)
    return best * (1 - 2.0**-50)


@dataclass(frozen=True, kw_only=True)
class GaussianCurve(Curve):
    """The curve of a mu-GDP release: mu = 0 reveals nothing, an infinite mu promises nothing.

    Example:
        >>> twice = GaussianCurve(mu=3.0).compose(GaussianCurve(mu=4.0))
        >>> twice.mu, round(twice.epsilon(1e-5), 4)
        (5.0, 33.1037)
    """

    rank: ClassVar[int] = 0
    mu: float = field()

    def __post_init__(self) -> None:
        checks.not_negative(mu=self.mu)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`."""
        return np.exp(gaussian.log_deltas(self.mu, epsilons))

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`."""
        return gaussian.epsilon(self.mu, delta)

    def beta(self, alpha: float) -> float:
        """See `Curve.beta`."""
        return gaussian.beta(self.mu, alpha)

    def betas(self, alphas: np.ndarray) -> np.ndarray:
        """See `Curve.betas`; here `beta` is quick."""
        return np.array(
            [gaussian.beta(self.mu, alpha) for alpha in np.asarray(alphas, dtype=float).tolist()]
        )

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`."""
        return gaussian.rdp(self.mu, order)

    def repeat(self, times: int) -> GaussianCurve:
        """See `Curve.repeat`."""
        checks.whole(at_least=0, times=times)
        return GaussianCurve(mu=self.mu * math.sqrt(times) if times else 0.0)

    def is_at_most(self, other: Curve, *, at: Sequence[float] = COMPARED_AT) -> bool:
        """See `Curve.is_at_most`; two Gaussian curves never cross."""
        return self.mu <= other.mu if other.mu is not None else super().is_at_most(other, at=at)

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`."""
        from sordino.privacy.losses import LossCurve

        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> GaussianCurve:
        """GDP adds in squares (Dong, Roth and Su 2022, Cor. 3.3)."""
        return GaussianCurve(mu=math.hypot(self.mu, other.mu or 0.0))


PERFECT = GaussianCurve(mu=0.0)
NOTHING = GaussianCurve(mu=math.inf)


def composed(curves: Sequence[Curve]) -> Curve:
    """All the curves composed, from the most special kind to the most general.

    Example:
        >>> composed([GaussianCurve(mu=1.0)] * 9).mu
        3.0
    """
    total: Curve = PERFECT
    for curve in sorted(curves, key=lambda curve: curve.rank):
        total = total.compose(curve)
    return total


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
