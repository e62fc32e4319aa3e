"""Curves given by a privacy-loss distribution: dp_accounting's, always discretised pessimistically.

For curves that neither a Gaussian nor a mixture of Gaussians describes, above all subsampling. The distribution is built from
the delta curve alone, by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, Alg. 1): between two points
of the grid the chord lies above the true, convex curve, so the discretised release is never more private than the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino.privacy import checks
from sordino.privacy.curves import Curve
from sordino.privacy.roots import bracket
from sordino.protocol.errors import UserError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-4  # the usual grid of privacy losses
NEGLIGIBLE = (
    1e-18  # delta at which the grid of one release ends; what lies beyond becomes infinite loss
)
_MOST_DOTS = 1 << 21
_ROUND_OFF = (
    2.0**-52
)  # mass a fast Fourier transform may misplace for each fold, charged as infinite loss
_COARSEST = 0.1  # a wider grid would say little
_WIDEST = 1200.0  # losses whose exponentials fit into floats around their middle


class GridTooFine(UserError):
    """A curve spreads over more privacy losses than a grid can hold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LossCurve(Curve):
    """The curve of a privacy-loss distribution; where the two directions differ, the worse one counts.

    Example:
        >>> from sordino.privacy.curves import GaussianCurve
        >>> both = GaussianCurve(mu=0.6).losses(1e-3).compose(GaussianCurve(mu=0.8))
        >>> round(both.epsilon(1e-5), 3)
        4.377
    """

    rank: ClassVar[int] = 3
    distribution: PrivacyLossDistribution

    @classmethod
    def from_profile(
        cls, deltas: Callable[[np.ndarray], np.ndarray], *, interval: float = INTERVAL, gap: int = 1
    ) -> LossCurve:
        """The symmetric distribution through the points of a delta curve that holds in both directions.

        Args:
            deltas: Delta at each epsilon >= 0, nonincreasing, convex in e^epsilon, valid in both directions.
            interval: Losses are multiples of it.
            gap: Only every `gap`-th multiple carries a dot: coarser, still valid, and cheaper where `deltas` is dear.

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> curve = LossCurve.from_profile(GaussianCurve(mu=1.0).deltas, interval=1e-3)
            >>> round(curve.epsilon(1e-5), 4)
            4.3772
        """
        checks.positive(interval=interval)
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution

        dots = np.arange(0, _reach(deltas, interval * gap) + 1) * gap
        epsilons = dots * interval
        upper = np.minimum.accumulate(np.clip(deltas(epsilons), 0.0, 1.0))
        # In the other direction, and for e^-epsilon: delta(-eps) = 1 - e^-eps (1 - delta(eps)), by symmetry of the pair.
        lower = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * upper[:0:-1]
        profile = np.minimum.accumulate(np.concatenate([np.minimum(lower, 1.0), upper]))
        if gap == 1:
            pmf = _connected(profile, int(dots[-1]), interval)
        else:
            pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
                interval, np.concatenate([-dots[:0:-1], dots]), profile
            ).to_dense_pmf()
        return cls(distribution=privacy_loss_distribution.PrivacyLossDistribution(pmf))

    @property
    def interval(self) -> float:
        """The grid of the privacy losses."""
        return self._directions[0].interval

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`."""
        return np.max(
            [direction.deltas(np.asarray(epsilons, dtype=float)) for direction in self._directions],
            axis=0,
        )

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`; solved exactly on the grid, where e^epsilon enters linearly."""
        checks.proper_delta(delta)
        return max(direction.epsilon(delta) for direction in self._directions)

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`; infinite as soon as any mass is charged as infinite loss."""
        checks.order(order)
        return max(direction.rdp(order) for direction in self._directions)

    def repeat(self, times: int) -> LossCurve:
        """See `Curve.repeat`; by one fast Fourier transform."""
        checks.whole(at_least=0, times=times)
        if times == 0:
            return LossCurve(distribution=_identity(self.interval))
        if times == 1:
            return self
        return LossCurve(
            distribution=_charged(self.distribution.self_compose(times), times * _ROUND_OFF)
        )

    def mixed_with_nothing(self, probability: float) -> LossCurve:
        """The curve when this release happens with `probability`, visibly, and otherwise nothing is released (THEORY C3).

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> round(GaussianCurve(mu=1.0).losses(1e-3).mixed_with_nothing(0.3).delta(1.0), 5)
            0.03808
        """
        return self.mixed_with(LossCurve(distribution=_identity(self.interval)), probability)

    def mixed_with(self, other: LossCurve, probability: float) -> LossCurve:
        """Returns the curve when this release happens with `probability` and the other one otherwise, visibly; on the same grid."""
        checks.probability(probability=probability)
        # dp_accounting can only mix distributions stored the same way.
        return LossCurve(
            distribution=_dense(self.distribution).compute_mixture(
                _dense(other.distribution), probability
            )
        )

    def charged(self, mass: float) -> LossCurve:
        """The same with `mass` added to delta at every epsilon.

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> round(GaussianCurve(mu=1.0).losses(1e-3).charged(0.1).delta(1.0), 5)
            0.22694
        """
        checks.probability(mass=mass)
        return LossCurve(distribution=_charged(self.distribution, mass))

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`."""
        if math.isclose(interval, self.interval, rel_tol=1e-12):
            return self
        return LossCurve.from_profile(self.deltas, interval=interval)

    def _absorb(self, other: Curve) -> LossCurve:
        interval = (
            max(self.interval, other.interval) if isinstance(other, LossCurve) else self.interval
        )
        while True:
            try:
                mine, theirs = self.losses(interval), other.losses(interval)
                break
            except GridTooFine:
                if interval > _COARSEST:
                    raise
                interval *= 2
        return LossCurve(
            distribution=_charged(
                _dense(mine.distribution).compose(_dense(theirs.distribution)), _ROUND_OFF
            )
        )

    @cached_property
    def _directions(self) -> tuple[_Direction, ...]:
        """Adding and removing, or one of them where they are the same."""
        held = self.distribution
        distinct = {id(pmf): pmf.to_dense_pmf() for pmf in (held._pmf_remove, held._pmf_add)}
        return tuple(
            _Direction(
                pmf._lower_loss,
                pmf._discretization,
                np.asarray(pmf._probs),
                float(pmf._infinity_mass),
            )
            for pmf in distinct.values()
        )


class _Direction:
    """One direction of a privacy-loss distribution as arrays, with the tails that delta is read from."""

    def __init__(self, lowest: int, interval: float, masses: np.ndarray, infinite: float) -> None:
        self.interval, self.masses, self.infinite = (
            float(interval),
            np.maximum(masses, 0.0),
            infinite,
        )
        self.losses = (np.arange(masses.size) + lowest) * self.interval
        self._middle = float(self.losses[0] + self.losses[-1]) / 2
        self._tails = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        # Sums of mass e^-loss over the same tails, relative to the middle; without them each delta is a sum of its own.
        self._weights: np.ndarray | None = None
        if self.losses[-1] - self.losses[0] <= _WIDEST:
            weighted = self.masses * np.exp(self._middle - self.losses)
            self._weights = np.append(np.cumsum(weighted[::-1])[::-1], 0.0)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Infinite mass + sum of mass (1 - e^(epsilon - loss))_+ at each epsilon, rounded up."""
        first = np.searchsorted(self.losses, epsilons, side="right")
        if self._weights is None:
            pairs = zip(first.tolist(), epsilons.tolist(), strict=True)
            found = np.array(
                [
                    -np.dot(self.masses[at:], np.expm1(epsilon - self.losses[at:]))
                    for at, epsilon in pairs
                ]
            )
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                found = self._tails[first] - np.where(
                    first < self.losses.size,
                    np.exp(epsilons - self._middle) * self._weights[first],
                    0.0,
                )
        rounding = (
            self.losses.size * 2.0**-53 * self._tails[first]
        )  # what adding up that many masses can lose
        return np.clip(self.infinite + found + rounding, 0.0, 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with delta(epsilon) <= delta; between two losses delta is linear in e^epsilon."""
        if self.infinite > delta:
            return math.inf
        if float(self.deltas(np.zeros(1))[0]) <= delta:
            return 0.0
        # Delta at the last loss is the infinite mass: at most delta.
        low, high = int(np.searchsorted(self.losses, 0.0, side="right")) - 1, self.losses.size - 1
        while high - low > 1:
            middle = (low + high) // 2
            enough = float(self.deltas(self.losses[middle : middle + 1])[0]) <= delta
            low, high = (low, middle) if enough else (middle, high)
        bottom, top = (
            max(0.0, float(self.losses[low]) if low >= 0 else 0.0),
            float(self.losses[high]),
        )
        return bracket(
            lambda epsilon: float(self.deltas(np.array([epsilon]))[0]) - delta, bottom, top
        )[1]

    def rdp(self, order: float) -> float:
        """The Rényi divergence; infinite as soon as any mass is charged as infinite loss."""
        if self.infinite > 0:
            return math.inf
        losses, masses = self.losses[self.masses > 0], self.masses[self.masses > 0]
        if math.isinf(order):
            return float(losses[-1])
        if order == 1:
            return float(np.dot(masses, losses))
        return float(np.logaddexp.reduce(np.log(masses) + (order - 1) * losses)) / (order - 1)


def _reach(deltas: Callable[[np.ndarray], np.ndarray], step: float) -> int:
    """How many steps until delta is negligible."""
    count = 16
    while float(deltas(np.array([count * step]))[0]) > NEGLIGIBLE:
        count *= 2
        if count > _MOST_DOTS:
            raise GridTooFine(
                f"a privacy loss beyond {count * step / 2:g} does not fit a grid of {step:g}: add noise, or widen the grid."
            )
    low = count // 2
    while count - low > 1:
        middle = (low + count) // 2
        low, count = (
            (low, middle)
            if float(deltas(np.array([middle * step]))[0]) <= NEGLIGIBLE
            else (middle, count)
        )
    return count


def _connected(profile: np.ndarray, top: int, interval: float) -> object:
    """Connect the dots on a gapless grid from -top to top, without the detour over a dictionary that dp_accounting takes."""
    from dp_accounting.pld import pld_pmf

    steps, growth = np.diff(profile), math.expm1(interval)
    masses = np.empty_like(profile)
    masses[0] = 1 - profile[0] + steps[0] / growth
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(interval)) / growth
    masses[-1] = -steps[-1] / -math.expm1(-interval)
    return pld_pmf.DensePLDPmf(interval, -top, np.maximum(masses, 0.0), float(profile[-1]), True)


def _identity(interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.identity(interval)


def _dense(distribution: PrivacyLossDistribution) -> PrivacyLossDistribution:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    remove, add = distribution._pmf_remove, distribution._pmf_add
    return PrivacyLossDistribution(
        remove.to_dense_pmf(), None if add is remove else add.to_dense_pmf()
    )


def _charged(distribution: PrivacyLossDistribution, mass: float) -> PrivacyLossDistribution:
    """The same distribution with `mass` added as infinite loss."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    def charge(pmf: pld_pmf.PLDPmf) -> pld_pmf.PLDPmf:
        dense = pmf.to_dense_pmf()
        masses = np.maximum(dense._probs, 0.0)
        return pld_pmf.DensePLDPmf(
            dense._discretization,
            dense._lower_loss,
            masses,
            min(1.0, dense._infinity_mass + mass),
            True,
        )

    remove, add = distribution._pmf_remove, distribution._pmf_add
    return PrivacyLossDistribution(charge(remove), None if add is remove else charge(add))
