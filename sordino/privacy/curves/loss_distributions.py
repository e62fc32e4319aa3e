"""Curves given by a privacy-loss distribution, always discretised pessimistically.

For curves that neither a Gaussian nor a mixture of Gaussians describes, above all subsampling. The
distribution is built from the delta curve alone and composed by fast Fourier transform; see
`loss_direction` for why neither step promises too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.loss_direction import (
    Direction,
    connect_dots,
    convolve_losses,
    join_sides,
    no_loss,
)
from sordino.privacy.curves.roots import find_first
from sordino.protocol.errors import UserError

# The usual grid of privacy losses.
INTERVAL = 1e-4
# Delta at which the grid of one release ends; what lies beyond becomes infinite loss.
NEGLIGIBLE = 1e-18
_MOST_DOTS = 1 << 21
# A wider grid would say little.
_COARSEST = 0.1

Profile = Callable[[np.ndarray], np.ndarray]


class GridTooFine(UserError):
    """A curve spreads over more privacy losses than a grid can hold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LossCurve(Curve):
    """The curve of a privacy-loss distribution; where the two directions differ, the worse counts.

    Attributes:
        directions: The directions of removing and adding, on one grid; only one where they are the
            same.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> both = GaussianCurve(mu=0.6).losses(1e-3).compose(GaussianCurve(mu=0.8))
        >>> round(both.epsilon(1e-5), 3)
        4.377
    """

    rank: ClassVar[int] = 3
    directions: tuple[Direction, ...]

    @classmethod
    def from_profile(
        cls, deltas: Profile, *, interval: float = INTERVAL, gap: int = 1
    ) -> LossCurve:
        """Returns the symmetric distribution through the points of a delta curve.

        Args:
            deltas: Delta at each epsilon >= 0, nonincreasing, convex in e^epsilon, valid in both
                directions.
            interval: The spacing of the grid, of which losses are multiples.
            gap: Only every `gap`-th multiple carries a dot: coarser, still valid, and cheaper where
                `deltas` is dear.

        Example:
            >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
            >>> curve = LossCurve.from_profile(GaussianCurve(mu=1.0).deltas, interval=1e-3)
            >>> round(curve.epsilon(1e-5), 4)
            4.3772
        """
        checks.require_positive(interval=interval)
        gains = _discretize(deltas, interval, gap)
        return cls(directions=(join_sides(interval, gains),))

    @classmethod
    def from_profiles(
        cls, removing: Profile, adding: Profile, *, interval: float = INTERVAL
    ) -> LossCurve:
        """Returns the distribution of a pair whose two directions differ.

        Args:
            removing: Delta at each epsilon >= 0 of the first law against the second; nonincreasing
                and convex in e^epsilon.
            adding: Delta at each epsilon >= 0 of the second law against the first.
            interval: The spacing of the grid, of which losses are multiples.
        """
        checks.require_positive(interval=interval)
        forward = _discretize(removing, interval, 1)
        backward = _discretize(adding, interval, 1)
        return cls(
            directions=(
                join_sides(interval, forward, backward),
                join_sides(interval, backward, forward),
            )
        )

    @property
    def interval(self) -> float:
        """The grid of the privacy losses."""
        return self.directions[0].interval

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        wanted = np.asarray(epsilons, dtype=float)
        deltas: np.ndarray = np.max(
            [direction.deltas(wanted) for direction in self.directions], axis=0
        )
        return deltas

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`; solved exactly on the grid, where e^epsilon enters linearly.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        checks.require_delta(delta)
        return max(direction.epsilon(delta) for direction in self.directions)

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`; infinite as soon as any mass is charged as infinite loss.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        checks.require_order(order)
        return max(direction.rdp(order) for direction in self.directions)

    def repeat(self, times: int) -> LossCurve:
        """See `Curve.repeat`; by one fast Fourier transform.

        Args:
            times: How many such releases are composed.
        """
        checks.require_whole(at_least=0, times=times)
        if times == 0:
            return LossCurve(directions=(no_loss(self.interval),))
        if times == 1:
            return self
        repeated = [convolve_losses([(direction, times)]) for direction in self.directions]
        return LossCurve(directions=tuple(repeated))

    def mix_with_nothing(self, probability: float) -> LossCurve:
        """Returns the curve of this release with `probability`, and of no release otherwise.

        Whether it happens may be seen (docs/theory.md#c3).

        Args:
            probability: The probability that the release happens.

        Returns:
            The curve of the mixture.

        Example:
            >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
            >>> curve = GaussianCurve(mu=1.0).losses(1e-3).mix_with_nothing(0.3)
            >>> round(curve.delta(1.0), 5)
            0.03808
        """
        return self.mix_with(LossCurve(directions=(no_loss(self.interval),)), probability)

    def mix_with(self, other: LossCurve, probability: float) -> LossCurve:
        """Returns the curve of this release with `probability` and of the other one otherwise.

        Args:
            other: A curve on the same grid.
            probability: The probability that this release happens, which may be seen.
        """
        checks.require_probability(probability=probability)
        mixed = [
            one.mix_with(two, probability)
            for one, two in _pair_directions(self.directions, other.directions)
        ]
        return LossCurve(directions=tuple(mixed))

    def add_infinite_mass(self, mass: float) -> LossCurve:
        """Returns the same with `mass` added to delta at every epsilon.

        Args:
            mass: The probability of an infinite loss that is added.

        Returns:
            The curve with larger deltas.

        Example:
            >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
            >>> curve = GaussianCurve(mu=1.0).losses(1e-3).add_infinite_mass(0.1)
            >>> round(curve.delta(1.0), 5)
            0.22694
        """
        checks.require_probability(mass=mass)
        return LossCurve(directions=tuple(one.add_infinite_mass(mass) for one in self.directions))

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`.

        Args:
            interval: The distance between neighbouring losses of the grid.
        """
        if math.isclose(interval, self.interval, rel_tol=1e-12):
            return self
        return LossCurve(directions=tuple(one.move_to_grid(interval) for one in self.directions))

    def _absorb(self, other: Curve) -> LossCurve:
        if other.mu == 0:
            return self
        interval = self.interval
        if isinstance(other, LossCurve):
            interval = max(interval, other.interval)
        while True:
            try:
                mine = self.losses(interval).directions
                theirs = other.losses(interval).directions
                break
            except GridTooFine:
                if interval > _COARSEST:
                    raise
                interval *= 2
        composed = [
            convolve_losses([(one, 1), (two, 1)]) for one, two in _pair_directions(mine, theirs)
        ]
        return LossCurve(directions=tuple(composed))


def _pair_directions(
    mine: tuple[Direction, ...], theirs: tuple[Direction, ...]
) -> list[tuple[Direction, Direction]]:
    """Returns removing with removing and adding with adding; a single direction is both."""
    count = max(len(mine), len(theirs))
    return [(mine[at % len(mine)], theirs[at % len(theirs)]) for at in range(count)]


def _discretize(deltas: Profile, interval: float, gap: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the dots of a profile, the masses of all but the first, and the infinite mass."""
    dots = np.arange(0, _count_dots(deltas, interval * gap) + 1) * gap
    heights = np.minimum.accumulate(np.clip(deltas(dots * interval), 0.0, 1.0))
    masses, infinite = connect_dots(heights, dots * interval)
    return dots, masses, float(infinite)


def _count_dots(deltas: Profile, step: float) -> int:
    """Returns how many steps it takes until delta is negligible."""

    def are_negligible(counts: np.ndarray) -> np.ndarray:
        """Returns whether next to no mass lies beyond some steps of the grid.

        Args:
            counts: The numbers of steps.
        """
        return deltas(counts * step) <= NEGLIGIBLE

    count = 16
    while not are_negligible(np.array([count]))[0]:
        count *= 2
        if count > _MOST_DOTS:
            raise GridTooFine(
                f"a privacy loss beyond {count * step / 2:g} does not fit a grid of {step:g}: "
                "add noise, or widen the grid."
            )
    return find_first(are_negligible, count // 2, count)
