"""Mixtures of Gaussian curves: who takes part, and when a record is first used, is drawn publicly.

Given all draws the transcript of a run is Gaussian, with mu^2 the sum of the squared shifts of its
rounds. The draws do not depend on the data, so by joint convexity of the hockey stick
delta(epsilon) = E delta_mu(epsilon) over the random sum (docs/theory.md#a10 and #a11): rounds are
composed by adding laws of mu^2, which is cheaper and tighter than adding privacy losses.
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

from sordino.privacy.curves import checks, gaussian, sum_law
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.privacy.curves.roots import bracket_root, double_until
from sordino.privacy.curves.round_family import RoundFamily
from sordino.privacy.curves.sum_law import SumLaw
from sordino.protocol.errors import UserError

# Epsilons above each of which one law of the sum is used.
_FLOORS = (1.0, 0.1, 0.01, 0.001, 0.0)
# Values of mu that are kept when a mixture is turned into a privacy-loss distribution.
_COARSE = 1000
_DOTS = 4000
# Values of mu^2 among which an epsilon is looked for first.
_THIN = 500
# Logarithm of a delta that is as good as 0, to which smaller ones are rounded up.
_SMALLEST_LOG = -200.0


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianMixtureCurve(Curve):
    """The composition of rounds, each Gaussian with a random mu.

    Attributes:
        rounds: The laws of mu^2 of the rounds, and how often each occurs.
        families: Families of many more rounds, each of which has another law.

    Example:
        >>> one = mix_gaussians([0.0, 1.0], [0.99, 0.01])
        >>> round(one.epsilon(1e-5), 3), round(one.repeat(1000).epsilon(1e-5), 2)
        (3.139, 23.39)
    """

    rank: ClassVar[int] = 1
    rounds: tuple[tuple[SumLaw, int], ...]
    families: tuple[RoundFamily, ...] = ()

    # What was computed is kept, since views and searches ask for it again.
    @cached_property
    def _sums(self) -> dict[float, SumLaw]:
        """The law of the sum from each floor on."""
        return {}

    @cached_property
    def _epsilons(self) -> dict[float, float]:
        """Epsilon at each delta."""
        return {}

    def squares(self, epsilon: float) -> SumLaw:
        """Returns the law of mu^2 of all rounds together, valid for delta from `epsilon` on.

        With M = mu^2 and F(M) = delta, d delta/d mu = phi(epsilon/mu - mu/2) gives
        F''/F' = epsilon^2/(2 M^2) - 1/(2 M) - 1/8 >= -(1 + epsilon^-2)/8, which is the bend that
        `sum_law` may assume.

        Args:
            epsilon: The smallest epsilon for which the law is used.

        Returns:
            A law on the safe side for these epsilons.
        """
        floor = next(floor for floor in _FLOORS if epsilon >= floor)
        if floor not in self._sums:
            bend = sum_law.UPWARDS
            if floor > 0:
                bend = (1 + floor**-2) / 8
            parts = []
            for law, count in self.rounds:
                parts.append(sum_law.repeat_law(law, count, bend))
            for family in self.families:
                parts.append(family.add_rounds(bend))
            self._sums[floor] = sum_law.add_all_laws(parts, bend)
        return self._sums[floor]

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        found = []
        for epsilon in np.asarray(epsilons, dtype=float).tolist():
            law = self.squares(epsilon)
            found.append(_expected_delta(law, epsilon))
        return np.array(found)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`; coarse sums of small epsilons are only computed when needed.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        checks.require_delta(delta)
        if delta not in self._epsilons:
            floor = next(floor for floor in _FLOORS if floor == 0 or self.delta(floor) > delta)
            self._epsilons[delta] = self._epsilon_above(floor, delta)
        return self._epsilons[delta]

    def _epsilon_above(self, floor: float, delta: float) -> float:
        """See `Curve`; looked for near the epsilon of a thinner law, which is quick to evaluate."""
        if self.delta(floor) > delta:
            near = self._epsilon_of_thin_law(floor, delta)
            for margin in (1e-7, 1e-4):
                low = near * (1 - margin)
                high = near * (1 + margin)
                if not (floor <= low and math.isfinite(high)):
                    continue
                if self.delta(high) <= delta < self.delta(low):
                    return bracket_root(lambda epsilon: self.delta(epsilon) - delta, low, high)[1]
        return super()._epsilon_above(floor, delta)

    def _epsilon_of_thin_law(self, floor: float, delta: float) -> float:
        """Returns about where a law of fewer values reaches `delta`; infinity where it does not."""
        thin = sum_law.thin_law(self.squares(floor), _THIN)

        def excess(epsilon: float) -> float:
            """Returns by how much the expected delta passes the one asked for.

            Args:
                epsilon: The epsilon at which delta is computed.
            """
            return _expected_delta(thin, epsilon) - delta

        if excess(floor) <= 0:
            return math.inf
        top = double_until(lambda epsilon: excess(epsilon) <= 0, max(1.0, 2 * floor))
        if math.isinf(top):
            return math.inf
        return bracket_root(excess, floor, top)[1]

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: exact, round by round.

        Given the draws it is order mu^2 / 2, and its exponential moments average.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        checks.require_order(order)
        total = 0.0
        for law, count in chain(self.rounds, *(family.laws() for family in self.families)):
            values, masses = law.atoms()
            possible = masses > 0
            values = values[possible]
            masses = masses[possible]
            largest = values.max()
            if math.isinf(order) or math.isinf(largest):
                return math.inf if largest > 0 else 0.0
            if order == 1:
                total += count * float(np.dot(masses, values)) / 2
            else:
                exponents = order * (order - 1) / 2 * values
                log_moment = float(logsumexp(exponents, b=masses))
                total += count * log_moment / (order - 1)
        return max(0.0, total) * (1 + 1e-12)

    def repeat(self, times: int) -> GaussianMixtureCurve:
        """See `Curve.repeat`.

        Args:
            times: How many such releases are composed.
        """
        checks.require_whole(at_least=0, times=times)
        if times == 0:
            return GaussianMixtureCurve(rounds=())
        rounds = tuple((law, count * times) for law, count in self.rounds)
        families = tuple(family.repeat(times) for family in self.families)
        return GaussianMixtureCurve(rounds=rounds, families=families)

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`; over fewer, larger values of mu.

        Args:
            interval: The distance between neighbouring losses of the grid.
        """
        coarse = sum_law.coarsen_law(self.squares(0.0), _COARSE)
        whole = GaussianMixtureCurve(rounds=((coarse, 1),))
        reach = whole.epsilon(1e-15)
        if math.isinf(reach):
            raise UserError(
                "a mixture that may reveal everything has no privacy-loss distribution "
                "on a finite grid."
            )
        gap = max(1, round(reach / _DOTS / interval))
        return LossCurve.from_profile(whole.deltas, interval=interval, gap=gap)

    def _absorb(self, other: Curve) -> GaussianMixtureCurve:
        if isinstance(other, GaussianMixtureCurve):
            return compose_mixtures([self, other])
        return compose_mixtures([self, mix_gaussians([other.mu or 0.0], [1.0])])


def mix_gaussians(mus: Iterable[float], probabilities: Iterable[float]) -> GaussianMixtureCurve:
    """Returns the curve of one release that is mu-GDP with a mu drawn publicly.

    Args:
        mus: The values of mu.
        probabilities: The probability of each of them.

    Returns:
        The curve of the mixture.

    Example:
        >>> round(mix_gaussians([0.0, 1.0], [0.7, 0.3]).delta(1.0), 10)
        0.0380810213
    """
    law = sum_law.make_law([mu * mu for mu in mus], probabilities)
    return GaussianMixtureCurve(rounds=((law, 1),))


def compose_mixtures(curves: Iterable[GaussianMixtureCurve]) -> GaussianMixtureCurve:
    """Returns the composition of mixtures; equal rounds are counted, not repeated.

    Args:
        curves: Mixtures of releases that follow one another.

    Returns:
        The curve of all of them.

    Example:
        >>> [count for _, count in compose_mixtures([mix_gaussians([1.0], [1.0])] * 5).rounds]
        [5]
    """
    found: dict[bytes, tuple[SumLaw, int]] = {}
    families: list[RoundFamily] = []
    for curve in curves:
        families += curve.families
        for law, count in curve.rounds:
            key = law.key
            if key in found:
                count += found[key][1]
            found[key] = (law, count)
    return GaussianMixtureCurve(rounds=tuple(found.values()), families=tuple(families))


def _expected_delta(squares: SumLaw, epsilon: float) -> float:
    """Returns E delta_mu(epsilon) over a law of mu^2, rounded up."""
    values, masses = squares.atoms()
    # A root is rounded, so that mu is taken a little larger.
    mus = np.sqrt(values) * (1 + 1e-14)
    logs = gaussian.log_deltas(mus, epsilon)
    # Numbers below the smallest normal float would make the sum ten times slower.
    deltas = np.exp(np.maximum(logs, _SMALLEST_LOG))
    # Not np.dot, which wakes all threads of the linear algebra library for a sum this long.
    mean = float((masses * deltas).sum())
    return min(1.0, mean * (1 + 1e-12))
