"""One direction of a privacy-loss distribution, discretised on a grid, and sums of such losses.

The masses come from a delta curve by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and
Manurangsi 2022, Alg. 1): between two points of the grid the chord lies above the true curve, which
is convex in e^epsilon, so the discretised release is never more private than the true one.

Sums are taken by fast Fourier transform in a window that the sum leaves with a negligible
probability (Chernoff). What may lie above the window, or be misplaced by rounding, counts as
infinite loss; what lies below it is counted above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from sordino.privacy.curves.roots import bracket_root, find_first

# Mass that a fast Fourier transform may misplace for each fold, charged as infinite loss.
ROUND_OFF = 2.0**-52
# Probability that a sum of losses leaves its window, at either end.
_TAIL = 1e-16
# Largest exponent of a moment that is still a number.
_STEEPEST = 600.0
# Losses whose exponentials fit into floats around their middle.
_WIDEST = 1200.0
# Between two losses: wider gaps are counted as this one.
_WIDEST_GAP = 700.0
# Losses within a factor of e that are told apart where moments are computed.
_THINNED = 128


class Direction:
    """Masses on successive multiples of an interval, and at infinity.

    Attributes:
        lowest: The multiple on which the first mass lies.
        interval: The spacing of the grid.
        masses: The probabilities under the first of the two laws that are compared.
        infinite: The probability of an infinite loss.
    """

    def __init__(
        self,
        lowest: int,
        interval: float,
        masses: np.ndarray,
        infinite: float,
    ) -> None:
        self.lowest = int(lowest)
        self.interval = float(interval)
        self.masses = np.maximum(masses, 0.0)
        self.infinite = min(1.0, infinite)

    @property
    def highest(self) -> int:
        """The multiple that the last mass lies on."""
        return self.lowest + len(self.masses) - 1

    @cached_property
    def losses(self) -> np.ndarray:
        """The losses that the masses lie on."""
        multiples = np.arange(self.masses.size) + self.lowest
        return multiples * self.interval

    @cached_property
    def _middle(self) -> float:
        """The middle of all losses, relative to which exponentials are taken."""
        ends = float(self.losses[0] + self.losses[-1])
        return ends / 2

    @cached_property
    def _tails(self) -> np.ndarray:
        """The mass from every loss on; 0 beyond the last."""
        return _sum_tails(self.masses)

    @cached_property
    def _weights(self) -> np.ndarray | None:
        """Sums of mass e^-loss over the tails, relative to the middle; None where they overflow."""
        if self.losses[-1] - self.losses[0] > _WIDEST:
            return None
        weighted = self.masses * np.exp(self._middle - self.losses)
        return _sum_tails(weighted)

    def add_infinite_mass(self, mass: float) -> Direction:
        """Returns the direction with more mass at infinite loss.

        Args:
            mass: The probability of an infinite loss that is added.

        Returns:
            A direction whose delta is larger by `mass` at every epsilon.
        """
        infinite = self.infinite + mass
        return Direction(self.lowest, self.interval, self.masses, infinite)

    def move_to_grid(self, interval: float) -> Direction:
        """Returns the direction on another grid, every mass split between two neighbours.

        The split keeps the mean of e^-loss, which is what connecting the dots of delta does.

        Args:
            interval: The spacing of the new grid.

        Returns:
            A direction that is never more private than this one.

        Example:
            >>> fine = Direction(1, 0.5, np.ones(1), 0.0).move_to_grid(1.0)
            >>> kept = float(np.dot(fine.masses, np.exp(-fine.losses)))
            >>> fine.masses.round(4).tolist(), round(kept, 6)
            ([0.3775, 0.6225], 0.606531)
        """
        below = np.floor(self.losses / interval).astype(np.int64)
        up = np.expm1(below * interval - self.losses) / math.expm1(-interval)
        up = np.clip(up * (1 + 1e-12), 0.0, 1.0)
        lowest = int(below[0])
        places = below - lowest
        size = int(below[-1]) + 2 - lowest
        masses_below = self.masses * (1 - up)
        masses_above = self.masses * up
        masses = np.bincount(places, weights=masses_below, minlength=size)
        masses += np.bincount(places + 1, weights=masses_above, minlength=size)
        return Direction(lowest, interval, masses, self.infinite)

    def mix_with(self, other: Direction, probability: float) -> Direction:
        """Returns this law with `probability`, and otherwise the other, which has the same grid.

        Args:
            other: The law that holds otherwise.
            probability: The probability that this law holds.

        Returns:
            The mixture of the two laws.
        """
        otherwise = 1 - probability
        lowest = min(self.lowest, other.lowest)
        highest = max(self.highest, other.highest)
        masses = np.zeros(highest + 1 - lowest)
        start = self.lowest - lowest
        masses[start : start + self.masses.size] += probability * self.masses
        start = other.lowest - lowest
        masses[start : start + other.masses.size] += otherwise * other.masses
        infinite = probability * self.infinite + otherwise * other.infinite
        return Direction(lowest, self.interval, masses, infinite)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns infinite mass + sum of mass (1 - e^(epsilon - loss))_+, rounded up.

        Args:
            epsilons: The epsilons, each of at least 0.

        Returns:
            Delta at each of them.
        """
        first = np.searchsorted(self.losses, epsilons, side="right")
        if self._weights is None:
            found = self._sum_one_by_one(first, epsilons)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                below = np.exp(epsilons - self._middle) * self._weights[first]
            has_losses = first < self.losses.size
            found = self._tails[first] - np.where(has_losses, below, 0.0)
        # What adding up that many masses can lose.
        rounding = self.losses.size * 2.0**-53 * self._tails[first]
        return np.clip(self.infinite + found + rounding, 0.0, 1.0)

    def _sum_one_by_one(self, first: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
        """Returns delta without the infinite mass, where exponentials would overflow otherwise."""
        found = []
        for at, epsilon in zip(first.tolist(), epsilons.tolist(), strict=True):
            shares = np.expm1(epsilon - self.losses[at:])
            found.append(-np.dot(self.masses[at:], shares))
        return np.array(found)

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 at `delta`; between two losses e^epsilon is linear.

        Args:
            delta: The delta to be met.

        Returns:
            Epsilon, rounded up; infinity where the infinite mass is above delta.
        """
        if self.infinite > delta:
            return math.inf
        if self._delta(0.0) <= delta:
            return 0.0
        # Delta at the last loss is the infinite mass, which is at most delta.
        not_positive = int(np.searchsorted(self.losses, 0.0, side="right"))
        high = find_first(
            lambda places: self.deltas(self.losses[places]) <= delta,
            not_positive - 1,
            self.losses.size - 1,
            at_once=1 if self._weights is None else 32,
        )
        bottom = max(0.0, float(self.losses[max(high - 1, 0)]))
        top = float(self.losses[high])
        _, found = bracket_root(lambda epsilon: self._delta(epsilon) - delta, bottom, top)
        return found

    def rdp(self, order: float) -> float:
        """Returns the Rényi divergence; infinite as soon as any mass is charged as infinite.

        Args:
            order: Order of at least 1, which may be infinite.

        Returns:
            The divergence of the discretised law.
        """
        if self.infinite > 0:
            return math.inf
        possible = self.masses > 0
        losses = self.losses[possible]
        masses = self.masses[possible]
        if math.isinf(order):
            return float(losses[-1])
        if order == 1:
            return float(np.dot(masses, losses))
        terms = np.log(masses) + (order - 1) * losses
        return float(np.logaddexp.reduce(terms)) / (order - 1)

    def _delta(self, epsilon: float) -> float:
        """Returns delta at one epsilon."""
        found = self.deltas(np.array([epsilon]))
        return float(found[0])


def _sum_tails(masses: np.ndarray) -> np.ndarray:
    """Returns the sums of masses from each place on, and 0 beyond the last."""
    from_above = np.cumsum(masses[::-1])
    return np.append(from_above[::-1], 0.0)


def no_loss(interval: float) -> Direction:
    """Returns the law of no loss at all.

    Args:
        interval: The spacing of the grid.

    Returns:
        All mass at a loss of 0.
    """
    return Direction(0, interval, np.ones(1), 0.0)


def connect_dots(heights: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, Any]:
    """Connects the dots of delta curves.

    Args:
        heights: Delta at every loss, along the last axis; nonincreasing and convex in e^loss.
        losses: Losses from 0 on, increasing.

    Returns:
        The masses of all losses but 0, and the mass of infinite loss, for every curve.

    Example:
        >>> masses, infinite = connect_dots(np.array([0.5, 0.1]), np.array([0.0, 1.0]))
        >>> round(float(masses[0]) * (1 - math.exp(-1)) + float(infinite), 6)
        0.5
    """
    # Beyond `_WIDEST_GAP` e^gap - 1 is e^gap to every digit, and leaves float64 soon after.
    gaps = np.minimum(np.diff(losses), _WIDEST_GAP)
    # Slopes in e^loss, times e^loss at the left end of every chord; the last, flat piece has none.
    slopes = np.diff(heights, axis=-1) / np.expm1(gaps)
    masses = -slopes * np.exp(gaps)
    masses[..., :-1] += slopes[..., 1:]
    return np.maximum(masses, 0.0), heights[..., -1]


def join_sides(
    interval: float,
    gains: tuple[np.ndarray, np.ndarray, float],
    gains_reversed: tuple[np.ndarray, np.ndarray, float] | None = None,
) -> Direction:
    """Returns one direction of a pair from the positive losses of both of its directions.

    A loss of -x has e^-x times the mass that x has in the other direction; the rest has no loss.

    Args:
        interval: The spacing of the grid.
        gains: Multiples of the interval from 0 on, the masses of all but the first as
            `connect_dots` gives them, and the mass of infinite loss.
        gains_reversed: The same for the other direction; by default the two are the same.

    Returns:
        The law of the loss, negative losses included.

    Example:
        >>> join_sides(1.0, (np.array([0, 1]), np.array([0.5]), 0.0)).masses.round(3).tolist()
        [0.184, 0.316, 0.5]
    """
    dots, masses, infinite = gains
    back_dots, back_masses, _ = gains if gains_reversed is None else gains_reversed
    opposite = back_masses * np.exp(-back_dots[1:] * interval)
    bottom = int(back_dots[-1])
    whole = np.zeros(bottom + int(dots[-1]) + 1)
    whole[bottom + dots[1:]] = masses
    whole[bottom - back_dots[1:]] = opposite
    whole[bottom] = max(0.0, 1 - float(masses.sum() + opposite.sum()) - infinite)
    return Direction(-bottom, interval, whole, infinite)


def convolve_losses(parts: Sequence[tuple[Direction, int]]) -> Direction:
    """Returns the law of a sum of independent losses.

    Args:
        parts: Laws on one grid, and how often each occurs.

    Returns:
        The law of the sum in a window that it hardly ever leaves.

    Example:
        >>> coin = Direction(0, 1.0, np.array([0.5, 0.5]), 0.0)
        >>> convolve_losses([(coin, 2)]).masses.round(6).tolist()
        [0.25, 0.5, 0.25]
    """
    interval = parts[0][0].interval
    count = 0
    bottom = 0
    top = 0
    longest = 0
    log_finite = 0.0
    thin_parts = []
    for part, times in parts:
        count += times
        bottom += times * part.lowest
        top += times * part.highest
        longest = max(longest, part.masses.size)
        log_finite += times * math.log1p(-part.infinite)
        losses, masses = _thin_out(part)
        thin_parts.append((losses, masses, np.array([times])))
    low, high = find_window(thin_parts)
    first = max(bottom, math.floor(low / interval))
    last = min(top, math.ceil(high / interval))
    size = next_fast_len(max(last - first + 1, longest), True)
    # The transform of a sum of independent losses is the product of theirs.
    transform = np.ones(size // 2 + 1, dtype=complex)
    for part, times in parts:
        transform *= raise_to_power(rfft(part.masses, size), times)
    # A sum is infinite as soon as one of its parts is.
    infinite = -math.expm1(log_finite) + count * ROUND_OFF
    return invert_transform(
        transform,
        size,
        bottom,
        (first, last),
        interval,
        infinite,
    )


def raise_to_power(factor: np.ndarray, times: int) -> np.ndarray:
    """Returns a power by repeated squaring, faster and more exactly than by logarithms.

    Args:
        factor: The Fourier transform of one law.
        times: The power, at least 1.

    Example:
        >>> raise_to_power(np.array([1j, 2.0]), 5).tolist()
        [1j, (32+0j)]
    """
    power = factor
    # The binary digits of the exponent from the second on: squared for each, multiplied for a 1.
    for digit in f"{times:b}"[1:]:
        power = power * power
        if digit == "1":
            power = power * factor
    return power


def invert_transform(
    transform: np.ndarray,
    size: int,
    bottom: int,
    ends: tuple[int, int],
    interval: float,
    infinite: float,
) -> Direction:
    """Returns a sum of losses from its Fourier transform.

    Args:
        transform: Transform of the sum, whose lowest possible multiple is at 0.
        size: Length of the circle that the transform lives on.
        bottom: The lowest possible multiple of the sum.
        ends: The first and the last multiple of the window.
        interval: The spacing of the grid.
        infinite: The mass of infinite loss, to which both tails of the window are added.

    Returns:
        The law of the sum in the window.
    """
    first, last = ends
    circle = np.maximum(irfft(transform, size), 0.0)
    # The window may pass the end of the circle, so that it is turned to begin with the window.
    turn = (first - bottom) % size
    length = max(last - first + 1, 1)
    masses = np.roll(circle, -turn)[:length]
    return Direction(first, interval, masses, infinite + 2 * _TAIL)


def find_window(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[float, float]:
    """Returns the ends that a sum of losses passes with a probability of at most `_TAIL` each.

    Args:
        parts: Losses, masses on them with a law in every row, and how often each law occurs.

    Returns:
        The lower and the upper end, by Chernoff's bound at the best of some tilts.

    Example:
        >>> coin = (np.array([-1.0, 1.0]), np.array([[0.5, 0.5]]), np.array([100]))
        >>> low, high = find_window([coin])
        >>> high < 100 and low == -high
        True
    """
    steepest = 0.0
    variance = 0.0
    for losses, masses, counts in parts:
        furthest = float(np.abs(losses).max(initial=0.0))
        steepest = max(steepest, furthest)
        variance += float(counts @ (masses @ np.square(losses)))
    if steepest == 0 or variance == 0:
        return 0.0, 0.0
    # The best tilt of a normal law of this variance, and others around it.
    usual = math.sqrt(-2 * math.log(_TAIL) / variance)
    tilts = usual * np.geomspace(1 / 64, 64, 37)
    tilts = np.minimum(tilts, _STEEPEST / steepest)
    ends = []
    for signed in (-tilts, tilts):
        logs = _log_moments(parts, signed)
        bounds = (logs - math.log(_TAIL)) / tilts
        ends.append(float(np.min(bounds)))
    return -ends[0], ends[1]


def _log_moments(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], tilts: np.ndarray
) -> np.ndarray:
    """Returns log E e^(tilt x) of a sum of losses x at each tilt."""
    logs = np.zeros(tilts.size)
    for losses, masses, counts in parts:
        growth = np.exp(np.multiply.outer(losses, tilts))
        with np.errstate(divide="ignore"):
            logs += counts @ np.log(masses @ growth)
    return logs


def _thin_out(part: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Returns a law on fewer losses, denser near 0, none of whose exponential moments is smaller.

    A mass between two losses that are kept is split between them with its mean unchanged: e^(t x)
    is convex, so its mean does not decrease.
    """
    furthest = max(abs(part.lowest), abs(part.highest), _THINNED)
    growing = math.ceil(_THINNED * math.log(furthest / _THINNED)) + 1
    far = np.geomspace(_THINNED, furthest, growing).astype(np.int64)
    near = np.arange(_THINNED)
    ends = [part.lowest, part.highest]
    nodes = np.unique(np.concatenate([-far, -near, near, far, ends]))
    inside = (nodes >= part.lowest) & (nodes <= part.highest)
    nodes = nodes[inside]
    starts = nodes - part.lowest
    places = np.arange(part.masses.size)
    masses = np.add.reduceat(part.masses, starts)
    # First moments about the node below, which say how much of a piece moves to the one above.
    moments = np.add.reduceat(part.masses * places, starts)
    moments = moments - masses * starts
    up = moments[:-1] / np.diff(nodes)
    kept = masses.copy()
    kept[:-1] -= up
    kept[1:] += up
    kept = np.maximum(kept, 0.0)
    return nodes * part.interval, kept[None, :]
