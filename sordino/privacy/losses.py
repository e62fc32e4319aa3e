"""Curves given by a privacy-loss distribution, always discretised pessimistically.

For curves that neither a Gaussian nor a mixture of Gaussians describes, above all subsampling. The distribution is built from
the delta curve alone, by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, Alg. 1): between two points
of the grid the chord lies above the true, convex curve, so the discretised release is never more private than the true one.

Releases are composed by fast Fourier transform, in a window that the sum of losses leaves with a negligible probability (Chernoff).
What may lie above the window, or be misplaced by rounding, counts as infinite loss; what lies below it is counted above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

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
ROUND_OFF = (
    2.0**-52
)  # mass a fast Fourier transform may misplace for each fold, charged as infinite loss
_TAIL = 1e-16  # probability of leaving the window of a sum of losses, at either end
_STEEPEST = 600.0  # exponents of moments that are still numbers
_COARSEST = 0.1  # a wider grid would say little
_WIDEST = 1200.0  # losses whose exponentials fit into floats around their middle


class GridTooFine(UserError):
    """A curve spreads over more privacy losses than a grid can hold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LossCurve(Curve):
    """The curve of a privacy-loss distribution; where the two directions differ, the worse one counts.

    Attributes:
        directions: Removing and adding, or one of them where they are the same; on one grid.

    Example:
        >>> from sordino.privacy.curves import GaussianCurve
        >>> both = GaussianCurve(mu=0.6).losses(1e-3).compose(GaussianCurve(mu=0.8))
        >>> round(both.epsilon(1e-5), 3)
        4.377
    """

    rank: ClassVar[int] = 3
    directions: tuple[Direction, ...]

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
        dots = np.arange(0, _reach(deltas, interval * gap) + 1) * gap
        heights = np.minimum.accumulate(np.clip(deltas(dots * interval), 0.0, 1.0))
        masses, infinite = connected_dots(heights, dots * interval)
        return cls(directions=(mirrored(dots, masses, infinite, interval),))

    @classmethod
    def from_distribution(cls, distribution: PrivacyLossDistribution) -> LossCurve:
        """The curve of a distribution of dp_accounting."""
        held = {
            id(pmf): pmf.to_dense_pmf() for pmf in (distribution._pmf_remove, distribution._pmf_add)
        }
        return cls(
            directions=tuple(
                Direction(
                    pmf._lower_loss,
                    pmf._discretization,
                    np.asarray(pmf._probs),
                    float(pmf._infinity_mass),
                )
                for pmf in held.values()
            )
        )

    @property
    def distribution(self) -> PrivacyLossDistribution:
        """The same for functions of dp_accounting."""
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        return PrivacyLossDistribution(
            *(
                pld_pmf.DensePLDPmf(one.interval, one.lowest, one.masses, one.infinite, True)
                for one in self.directions
            )
        )

    @property
    def interval(self) -> float:
        """The grid of the privacy losses."""
        return self.directions[0].interval

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`."""
        return np.max(
            [direction.deltas(np.asarray(epsilons, dtype=float)) for direction in self.directions],
            axis=0,
        )

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`; solved exactly on the grid, where e^epsilon enters linearly."""
        checks.proper_delta(delta)
        return max(direction.epsilon(delta) for direction in self.directions)

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`; infinite as soon as any mass is charged as infinite loss."""
        checks.order(order)
        return max(direction.rdp(order) for direction in self.directions)

    def repeat(self, times: int) -> LossCurve:
        """See `Curve.repeat`; by one fast Fourier transform."""
        checks.whole(at_least=0, times=times)
        if times == 0:
            return LossCurve(directions=(nothing(self.interval),))
        if times == 1:
            return self
        return LossCurve(
            directions=tuple(added([(direction, times)]) for direction in self.directions)
        )

    def mixed_with_nothing(self, probability: float) -> LossCurve:
        """The curve when this release happens with `probability`, visibly, and otherwise nothing is released (THEORY C3).

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> round(GaussianCurve(mu=1.0).losses(1e-3).mixed_with_nothing(0.3).delta(1.0), 5)
            0.03808
        """
        return self.mixed_with(LossCurve(directions=(nothing(self.interval),)), probability)

    def mixed_with(self, other: LossCurve, probability: float) -> LossCurve:
        """Returns the curve when this release happens with `probability` and the other one otherwise, visibly; on the same grid."""
        checks.probability(probability=probability)
        count = max(len(self.directions), len(other.directions))
        pairs = zip(self.directions * count, other.directions * count, strict=False)
        return LossCurve(
            directions=tuple(one.mixed_with(two, probability) for one, two in list(pairs)[:count])
        )

    def charged(self, mass: float) -> LossCurve:
        """The same with `mass` added to delta at every epsilon.

        Example:
            >>> from sordino.privacy.curves import GaussianCurve
            >>> round(GaussianCurve(mu=1.0).losses(1e-3).charged(0.1).delta(1.0), 5)
            0.22694
        """
        checks.probability(mass=mass)
        return LossCurve(directions=tuple(one.charged(mass) for one in self.directions))

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`."""
        if math.isclose(interval, self.interval, rel_tol=1e-12):
            return self
        return LossCurve(directions=tuple(one.on_grid(interval) for one in self.directions))

    def _absorb(self, other: Curve) -> LossCurve:
        interval = (
            max(self.interval, other.interval) if isinstance(other, LossCurve) else self.interval
        )
        while True:
            try:
                mine = self.losses(interval).directions
                theirs = other.losses(interval).directions
                break
            except GridTooFine:
                if interval > _COARSEST:
                    raise
                interval *= 2
        count = max(len(mine), len(theirs))
        pairs = zip(mine * count, theirs * count, strict=False)
        return LossCurve(
            directions=tuple(added([(one, 1), (two, 1)]) for one, two in list(pairs)[:count])
        )


class Direction:
    """One direction of a privacy-loss distribution: masses on successive multiples of an interval, from the `lowest`, and at infinity."""

    def __init__(self, lowest: int, interval: float, masses: np.ndarray, infinite: float) -> None:
        self.lowest = int(lowest)
        self.interval = float(interval)
        self.masses = np.maximum(masses, 0.0)
        self.infinite = min(1.0, infinite)

    @cached_property
    def losses(self) -> np.ndarray:
        """The losses that the masses lie on."""
        return (np.arange(self.masses.size) + self.lowest) * self.interval

    @cached_property
    def _middle(self) -> float:
        return float(self.losses[0] + self.losses[-1]) / 2

    @cached_property
    def _tails(self) -> np.ndarray:
        return np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)

    @cached_property
    def _weights(self) -> np.ndarray | None:
        """Sums of mass e^-loss over the same tails, relative to the middle; without them each delta is a sum of its own."""
        if self.losses[-1] - self.losses[0] > _WIDEST:
            return None
        weighted = self.masses * np.exp(self._middle - self.losses)
        return np.append(np.cumsum(weighted[::-1])[::-1], 0.0)

    def charged(self, mass: float) -> Direction:
        """The same with more infinite loss."""
        return Direction(self.lowest, self.interval, self.masses, self.infinite + mass)

    def on_grid(self, interval: float) -> Direction:
        """The same on another grid: every mass is split between its two neighbours, which connects the dots of delta.

        Example:
            >>> fine = Direction(1, 0.5, np.ones(1), 0.0).on_grid(1.0)
            >>> fine.masses.round(4).tolist(), round(float(np.dot(fine.masses, np.exp(-fine.losses))), 6)
            ([0.3775, 0.6225], 0.606531)
        """
        below = np.floor(self.losses / interval).astype(np.int64)
        up = np.expm1(below * interval - self.losses) / math.expm1(-interval)
        up = np.clip(up * (1 + 1e-12), 0.0, 1.0)
        lowest = int(below[0])
        size = int(below[-1]) + 2 - lowest
        masses = np.bincount(below - lowest, weights=self.masses * (1 - up), minlength=size)
        masses += np.bincount(below + 1 - lowest, weights=self.masses * up, minlength=size)
        return Direction(lowest, interval, masses, self.infinite)

    def mixed_with(self, other: Direction, probability: float) -> Direction:
        """The same with `probability`, and else the other, which is on the same grid."""
        lowest = min(self.lowest, other.lowest)
        highest = max(self.lowest + self.masses.size, other.lowest + other.masses.size)
        masses = np.zeros(highest - lowest)
        masses[self.lowest - lowest :][: self.masses.size] += probability * self.masses
        masses[other.lowest - lowest :][: other.masses.size] += (1 - probability) * other.masses
        infinite = probability * self.infinite + (1 - probability) * other.infinite
        return Direction(lowest, self.interval, masses, infinite)

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


def connected_dots(heights: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, Any]:
    """Connects the dots of delta curves: the masses of the positive losses, and what is left as infinite loss.

    Args:
        heights: Delta at every loss, along the last axis; nonincreasing and convex in e^loss.
        losses: From 0 on, increasing.

    Returns:
        Masses of all losses but 0, and the infinite mass, for every curve.

    Example:
        >>> masses, infinite = connected_dots(np.array([0.5, 0.1]), np.array([0.0, 1.0]))
        >>> round(float(masses[0]) * (1 - math.exp(-1)) + float(infinite), 6)
        0.5
    """
    gaps = np.diff(losses)
    # Slopes in e^loss, times e^loss at the left end of every chord; the last, constant piece has none.
    slopes = np.diff(heights, axis=-1) / np.expm1(gaps)
    masses = -slopes * np.exp(gaps)
    masses[..., :-1] += slopes[..., 1:]
    return np.maximum(masses, 0.0), heights[..., -1]


def mirrored(dots: np.ndarray, masses: np.ndarray, infinite: float, interval: float) -> Direction:
    """The direction of a symmetric pair, whose loss -x has e^-x times the mass of x; what is left has no loss.

    Args:
        dots: Multiples of `interval`, from 0 on.
        masses: Those of all dots but the first, as `connected_dots` gives them.
        infinite: The mass of infinite loss.
        interval: The grid.

    Example:
        >>> mirrored(np.array([0, 1]), np.array([0.5]), 0.0, 1.0).masses.round(3).tolist()
        [0.184, 0.316, 0.5]
    """
    top = int(dots[-1])
    whole = np.zeros(2 * top + 1)
    opposite = masses * np.exp(-dots[1:] * interval)
    whole[top + dots[1:]] = masses
    whole[top - dots[1:]] = opposite
    whole[top] = max(0.0, 1 - float(masses.sum() + opposite.sum()) - infinite)
    return Direction(-top, interval, whole, infinite)


def nothing(interval: float) -> Direction:
    """No loss, for certain."""
    return Direction(0, interval, np.ones(1), 0.0)


def added(parts: Sequence[tuple[Direction, int]]) -> Direction:
    """The law of the sum of independent losses, each part so many times.

    Example:
        >>> coin = Direction(0, 1.0, np.array([0.5, 0.5]), 0.0)
        >>> added([(coin, 2)]).masses.round(6).tolist()
        [0.25, 0.5, 0.25]
    """
    interval = parts[0][0].interval
    count = sum(times for _, times in parts)
    bottom = sum(times * part.lowest for part, times in parts)
    top = sum(times * (part.lowest + part.masses.size - 1) for part, times in parts)
    low, high = window(
        [(part.losses, part.masses[None, :], np.array([times])) for part, times in parts]
    )
    first = max(bottom, math.floor(low / interval))
    last = min(top, math.ceil(high / interval))
    size = next_fast_len(max(last - first + 1, *(part.masses.size for part, _ in parts)), True)
    transform = np.ones(size // 2 + 1, dtype=complex)
    for part, times in parts:
        one = rfft(part.masses, size)
        transform *= one if times == 1 else one**times
    finite = -math.expm1(sum(times * math.log1p(-part.infinite) for part, times in parts))
    return unwrapped(transform, size, bottom, (first, last), interval, finite + count * ROUND_OFF)


def unwrapped(
    transform: np.ndarray,
    size: int,
    bottom: int,
    ends: tuple[int, int],
    interval: float,
    infinite: float,
) -> Direction:
    """A sum of losses from its Fourier transform.

    Args:
        transform: Of the sum, whose lowest possible multiple stands at 0.
        size: Length of the circle that the transform lives on.
        bottom: The lowest possible multiple of the sum.
        ends: The first and the last multiple of the window.
        interval: The grid.
        infinite: The mass of infinite loss, to which both tails of the window are added.
    """
    first, last = ends
    masses = np.maximum(irfft(transform, size), 0.0)
    masses = np.roll(masses, -((first - bottom) % size))[: max(last - first + 1, 1)]
    return Direction(first, interval, masses, infinite + 2 * _TAIL)


def window(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[float, float]:
    """Ends between which a sum of independent losses lies, but for a probability of `_TAIL` on either side (Chernoff).

    Args:
        parts: Losses, masses on them with a law in every row, and how often each law occurs.

    Example:
        >>> low, high = window([(np.array([-1.0, 1.0]), np.array([[0.5, 0.5]]), np.array([100]))])
        >>> high < 100 and low == -high
        True
    """
    steepest = max(float(np.abs(losses).max(initial=0.0)) for losses, _, _ in parts)
    variance = sum(float(counts @ (masses @ np.square(losses))) for losses, masses, counts in parts)
    if steepest == 0 or variance == 0:
        return 0.0, 0.0
    usual = math.sqrt(-2 * math.log(_TAIL) / variance)
    tilts = np.minimum(usual * np.geomspace(1 / 64, 64, 37), _STEEPEST / steepest)
    ends = []
    for tilt in (-tilts, tilts):
        logs = np.zeros(tilt.size)
        for losses, masses, counts in parts:
            with np.errstate(divide="ignore"):
                logs += counts @ np.log(masses @ np.exp(np.multiply.outer(losses, tilt)))
        ends.append(float(np.min((logs - math.log(_TAIL)) / tilts)))
    return -ends[0], ends[1]
