"""Mixtures of Gaussian curves: who takes part, and when a record is first used, is drawn at random and may be seen.

Given all draws the transcript of a run is Gaussian, with mu^2 the sum of the squared shifts of its rounds. The draws do not depend
on the data, so by joint convexity of the hockey stick delta(epsilon) = E delta_mu(epsilon) over the random sum (THEORY A10, A11):
rounds are composed by adding laws of mu^2, which is cheaper and tighter than adding privacy losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from sordino.privacy import checks, gaussian, sums
from sordino.privacy.curves import Curve
from sordino.privacy.families import Family
from sordino.privacy.losses import LossCurve
from sordino.privacy.roots import bracket, grown
from sordino.protocol.errors import UserError

_FLOORS = (1.0, 0.1, 0.01, 0.001, 0.0)  # epsilons above each of which one law of the sum is used
_COARSE = 1000  # values of mu kept when a mixture is turned into a privacy-loss distribution
_DOTS = 4000
_THIN = 500  # values of mu^2 among which an epsilon is looked for first


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianMixtureCurve(Curve):
    """The composition of rounds, each Gaussian with a random mu.

    Attributes:
        rounds: laws of mu^2, and how often each occurs.
        families: many more rounds, each of which has a law of its own.

    Example:
        >>> one = mixture([0.0, 1.0], [0.99, 0.01])
        >>> round(one.epsilon(1e-5), 3), round(one.repeat(1000).epsilon(1e-5), 2)
        (3.139, 23.39)
    """

    rank: ClassVar[int] = 1
    rounds: tuple[tuple[sums.Law, int], ...]
    families: tuple[Family, ...] = ()

    @cached_property
    def _sums(self) -> dict[float, sums.Law]:
        return {}

    @cached_property
    def _epsilons(self) -> dict[float, float]:
        return {}

    def squares(self, epsilon: float) -> sums.Law:
        """The law of mu^2 of all rounds together, valid for delta at `epsilon` and above.

        With M = mu^2 and F(M) = delta, d delta/d mu = phi(epsilon/mu - mu/2) gives
        F''/F' = epsilon^2/(2 M^2) - 1/(2 M) - 1/8 >= -(1 + epsilon^-2)/8, which is the bend that `sums` may assume.
        """
        floor = next(floor for floor in _FLOORS if epsilon >= floor)
        if floor not in self._sums:
            bend = (1 + floor**-2) / 8 if floor > 0 else sums.UPWARDS
            parts = [
                *(sums.times(law, count, bend) for law, count in self.rounds),
                *(family.total(bend) for family in self.families),
            ]
            self._sums[floor] = sums.total(parts, bend)
        return self._sums[floor]

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`."""
        return np.array(
            [
                _expected_delta(self.squares(epsilon), epsilon)
                for epsilon in np.asarray(epsilons, dtype=float).tolist()
            ]
        )

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`; the coarser sums of small epsilons are only computed when needed."""
        checks.proper_delta(delta)
        if delta not in self._epsilons:
            floor = next(floor for floor in _FLOORS if floor == 0 or self.delta(floor) > delta)
            self._epsilons[delta] = self._epsilon_above(floor, delta)
        return self._epsilons[delta]

    def _epsilon_above(self, floor: float, delta: float) -> float:
        """See `Curve`; searched for near the epsilon of a thinner law, since a delta of the full one takes milliseconds."""
        thin = sums.thinned(self.squares(floor), _THIN)

        def excess(epsilon: float) -> float:
            return _expected_delta(thin, epsilon) - delta

        if self.delta(floor) > delta and excess(floor) > 0:
            top = grown(lambda epsilon: excess(epsilon) <= 0, max(1.0, 2 * floor))
            near = bracket(excess, floor, top)[1] if math.isfinite(top) else math.inf
            for margin in (1e-7, 1e-4):
                low, high = near * (1 - margin), near * (1 + margin)
                if (
                    floor <= low
                    and math.isfinite(high)
                    and self.delta(high) <= delta < self.delta(low)
                ):
                    return bracket(lambda epsilon: self.delta(epsilon) - delta, low, high)[1]
        return super()._epsilon_above(floor, delta)

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: given the draws it is order mu^2 / 2, and its exponential moments average; exact, round by round."""
        checks.order(order)
        total = 0.0
        for law, count in chain(self.rounds, *(family.laws() for family in self.families)):
            values, masses = law.atoms()
            values, masses = values[masses > 0], masses[masses > 0]
            if math.isinf(order) or math.isinf(values.max()):
                return math.inf if values.max() > 0 else 0.0
            if order == 1:
                total += count * float(np.dot(masses, values)) / 2
            else:
                total += (
                    count
                    * float(logsumexp(order * (order - 1) / 2 * values, b=masses))
                    / (order - 1)
                )
        return max(0.0, total) * (1 + 1e-12)

    def repeat(self, times: int) -> GaussianMixtureCurve:
        """See `Curve.repeat`."""
        checks.whole(at_least=0, times=times)
        if times == 0:
            return GaussianMixtureCurve(rounds=())
        rounds = tuple((law, count * times) for law, count in self.rounds)
        return GaussianMixtureCurve(
            rounds=rounds, families=tuple(family.repeated(times) for family in self.families)
        )

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`; over fewer, larger values of mu."""
        coarse = sums.coarsened(self.squares(0.0), _COARSE)
        whole = GaussianMixtureCurve(rounds=((coarse, 1),))
        reach = whole.epsilon(1e-15)
        if math.isinf(reach):
            raise UserError(
                "a mixture that may reveal everything has no privacy-loss distribution on a finite grid."
            )
        return LossCurve.from_profile(
            whole.deltas, interval=interval, gap=max(1, round(reach / _DOTS / interval))
        )

    def _absorb(self, other: Curve) -> GaussianMixtureCurve:
        if isinstance(other, GaussianMixtureCurve):
            return composed_mixtures([self, other])
        return composed_mixtures([self, mixture([other.mu or 0.0], [1.0])])


def mixture(mus: Iterable[float], probabilities: Iterable[float]) -> GaussianMixtureCurve:
    """One release that is mu-GDP with a mu drawn publicly from this law.

    Example:
        >>> round(mixture([0.0, 1.0], [0.7, 0.3]).delta(1.0), 10)
        0.0380810213
    """
    return GaussianMixtureCurve(rounds=((sums.law([mu * mu for mu in mus], probabilities), 1),))


def composed_mixtures(curves: Iterable[GaussianMixtureCurve]) -> GaussianMixtureCurve:
    """All the rounds of all the curves; equal rounds are counted, not repeated.

    Example:
        >>> [count for _, count in composed_mixtures([mixture([1.0], [1.0])] * 5).rounds]
        [5]
    """
    found: dict[bytes, tuple[sums.Law, int]] = {}
    families: list[Family] = []
    for curve in curves:
        families += curve.families
        for law, count in curve.rounds:
            key = law.key
            found[key] = (law, count + (found[key][1] if key in found else 0))
    return GaussianMixtureCurve(rounds=tuple(found.values()), families=tuple(families))


def binomial_delta(epsilon: float, *, rate: float, mu: float, rounds: int) -> float:
    """Delta when each of `rounds` rounds happens with probability `rate` and is then mu-GDP: E delta_{mu sqrt(N)}, N ~ Bin(rounds, rate).

    The closed form of THEORY A10, for equal rounds with a fixed number of participants.

    Example:
        >>> round(binomial_delta(0.5, rate=0.01, mu=1.0, rounds=1), 12)
        0.002384217081
    """
    checks.not_negative(epsilon=epsilon, mu=mu)
    checks.probability(rate=rate)
    checks.whole(at_least=1, rounds=rounds)
    from scipy.special import xlog1py, xlogy

    counts = np.arange(rounds + 1)
    log_masses = _log_choose(rounds, counts) + xlogy(counts, rate) + xlog1py(rounds - counts, -rate)
    rounding = 1e-12 + 4 * 2.0**-52 * math.lgamma(
        rounds + 1
    )  # the binomial's logarithms are differences of numbers of that size
    return min(
        1.0,
        float(np.exp(logsumexp(log_masses + gaussian.log_deltas(mu * np.sqrt(counts), epsilon))))
        * (1 + rounding),
    )


def _log_choose(whole: int, part: np.ndarray) -> np.ndarray:
    from scipy.special import gammaln

    return gammaln(whole + 1) - gammaln(part + 1) - gammaln(whole - part + 1)


def _expected_delta(squares: sums.Law, epsilon: float) -> float:
    values, masses = squares.atoms()
    logs = gaussian.log_deltas(np.sqrt(values[masses > 0]) * (1 + 1e-14), epsilon)
    return min(1.0, float(np.dot(masses[masses > 0], np.exp(logs))) * (1 + 1e-12))
