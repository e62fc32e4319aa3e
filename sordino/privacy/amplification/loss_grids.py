"""The privacy losses of rounds with secret minibatches, put on a grid and added up.

`hidden_batches` has the statement that the rounds rest on (docs/theory.md#a14).

All rounds share q, and so the points epsilon' at which Gaussian curves are needed: one table of
deltas, a row for every mu, serves them all. Where there are too many values of mu, each is split
between two neighbouring rows. With F(mu) = delta_mu(epsilon), F''/F' = epsilon^2/mu^3 - mu/4 >=
-mu/4 at every epsilon >= 0, so that F is a convex function of -e^(-bend mu) with bend = max mu / 4,
and a split that keeps the mean of e^(-bend mu) never promises too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.fft import next_fast_len, rfft

from sordino.privacy.amplification import subsampling
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.loss_direction import (
    ROUND_OFF,
    Direction,
    find_window,
    invert_transform,
    raise_to_power,
)
from sordino.privacy.curves.roots import bracket_root

# Share of the variance of the sum of losses that the grid may add to it.
_ADDED = 1 / 1600
# Dots in a factor of e of the loss.
_DOTS = 64
# Dots in a mu, at least.
_TAIL_DOTS = 50
# Values of mu up to which none is split.
_EXACT = 96
# Ratio of two neighbouring values of mu, where there are more.
_RATIO = 1.015
# Share of the sum of mu^2 that values split between 0 and the smallest row may have.
_SMALL = 1e-5
# Mass of infinite loss that the rounds may have together.
_LEFT = 1e-17
# Multiples of the interval up to the largest loss of a round.
_LONGEST = 1 << 15
# Points of Fourier transforms in memory.
_AT_ONCE = 1 << 22
# Exponents whose exponential is a number.
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenRounds:
    """Rounds that may use a record, unseen; a round that does is mu-GDP with a random mu.

    Attributes:
        mus: The values of mu, one row per round.
        masses: The probability of each mu of a round, given that the record is used.
        counts: How often each round occurs.
        rate: The probability that the record is used, given that the client takes part.
        probability: The probability that the client takes part, which may be seen.
    """

    mus: np.ndarray
    masses: np.ndarray
    counts: np.ndarray
    rate: float
    probability: float

    @property
    def share(self) -> float:
        """Probability that a round uses the record."""
        return self.rate * self.probability

    def amplified_loss(self, loss: float) -> float:
        """Returns the loss of a round whose release has this loss where the record is used.

        Args:
            loss: Loss of the release.

        Returns:
            log(1 + q (e^loss - 1)), which is smaller.
        """
        if loss >= _LARGEST_EXPONENT:
            return loss
        return math.log1p(self.rate * math.expm1(loss))

    def profiles(self, epsilons: np.ndarray, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns delta of every round at each epsilon, a round a row.

        Args:
            epsilons: Epsilons of at least 0.
            nodes: The values of mu.
            weights: The share of every round on each of these values, as `split_over_nodes` says.

        Returns:
            The bound of docs/theory.md#a14.
        """
        table = subsampling.find_many_deltas(epsilons, mus=nodes, rate=self.rate)
        return np.asarray(self.probability * (weights @ table))


def spread_points(furthest: float, count: int) -> np.ndarray:
    """Returns 0 and points up to the furthest loss, in a geometric progression."""
    growing = np.geomspace(1e-7, 1.0, count)
    return np.concatenate([[0.0], furthest * growing])


def split_over_nodes(
    mus: np.ndarray,
    masses: np.ndarray,
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a few values of mu, and how much of every round lies on each.

    They are never less harmful than the given ones.

    Args:
        mus: The values of mu, one row per round.
        masses: The probability of each mu of a round.
        counts: How often each round occurs.

    Returns:
        Increasing values, the first of which may be 0, and a row of masses for every round.

    Example:
        >>> nodes, weights = split_over_nodes(
        ...     np.array([[1.0, 2.0]]), np.array([0.25, 0.75]), np.ones(1)
        ... )
        >>> nodes.tolist(), weights.tolist()
        ([1.0, 2.0], [[0.25, 0.75]])
    """
    rows = np.arange(len(mus))[:, None]
    found = np.unique(mus)
    if found.size <= _EXACT:
        weights = np.zeros((len(mus), found.size))
        columns = np.searchsorted(found, mus)
        np.add.at(weights, (rows, columns), masses)
        return found, weights
    squares = counts[:, None] * masses * np.square(mus)
    nodes = _choose_nodes(mus, squares)
    left = np.searchsorted(nodes, mus, side="right") - 1
    left = np.clip(left, 0, nodes.size - 2)
    # The split of the top of this module: the mean of e^(-bend mu) is kept.
    bend = float(nodes[-1]) / 4
    gaps = nodes[left + 1] - nodes[left]
    beyond = mus - nodes[left]
    up = np.expm1(-bend * beyond) / np.expm1(-bend * gaps)
    up = np.clip(up * (1 + 1e-12), 0.0, 1.0)
    weights = np.zeros((len(mus), nodes.size))
    np.add.at(weights, (rows, left), masses * (1 - up))
    np.add.at(weights, (rows, left + 1), masses * up)
    return nodes, weights


def _choose_nodes(mus: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Returns 0 and a geometric grid of mu over all values but the least harmful."""
    values = mus.ravel()
    order = np.argsort(values)
    below = np.cumsum(squares.ravel()[order]) / squares.sum()
    first = int(np.searchsorted(below, _SMALL))
    first = min(first, order.size - 1)
    smallest = float(values[order[first]])
    top = float(mus.max())
    ratios = math.log(top / smallest) / math.log(_RATIO)
    steps = max(1, math.ceil(ratios))
    growing = np.geomspace(smallest, top, steps + 1)
    nodes = np.concatenate([[0.0], growing])
    # A progression ends at its top but for rounding, and no mu may lie above the last node.
    nodes[-1] = top
    return nodes


def choose_loss_grid(
    rounds: HiddenRounds,
    nodes: np.ndarray,
    weights: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Returns the interval of the losses, and the multiples of it on which dots lie.

    A loss between two multiples of h is split between them, which adds a variance of at most h^2/4,
    and of at most h |loss|. What that adds up to is held against the variance of the whole sum. It
    is 2 KL for a Gaussian pair, and for others of that size, where
    KL = integral of delta(epsilon) (1 + e^-epsilon).

    Args:
        rounds: The rounds that are composed.
        nodes: The values of mu.
        weights: The share of every round on each of these values.

    Returns:
        The interval, and increasing multiples from 0 on.
    """
    number = float(rounds.counts.sum())
    top = float(nodes[-1])
    unreached = _LEFT / (rounds.share * number)
    furthest = rounds.amplified_loss(_gaussian_reach(top, unreached))
    points = spread_points(furthest, 160)
    profiles = rounds.profiles(points, nodes, weights)
    integrands = profiles * (1 + np.exp(-points))
    variances = 2 * np.trapezoid(integrands, points, axis=1)
    deviations = np.sqrt(variances)
    allowed = _ADDED * float(rounds.counts @ variances)

    def find_allowance(interval: float) -> float:
        """Returns how much more a grid of the interval may add.

        Args:
            interval: The distance between neighbouring losses.
        """
        added = np.minimum(interval**2 / 4, interval * deviations)
        return allowed - float(rounds.counts @ added)

    interval = furthest
    if find_allowance(furthest) < 0:
        # At h^2/4 for every round the variance would just be allowed.
        certain = 2 * math.sqrt(allowed / number)
        interval, _ = bracket_root(find_allowance, certain / 2, furthest)
    interval = max(interval, furthest / _LONGEST)
    return interval, _spread_dots(furthest / interval, top / interval)


def _gaussian_reach(mu: float, mass: float) -> float:
    """Returns the epsilon beyond which a mu-GDP release has a delta of at most `mass`."""
    if mass >= 1:
        return 0.0
    return gaussian.epsilon(mu, mass)


def _spread_dots(furthest: float, strongest: float) -> np.ndarray:
    """Returns multiples of the interval up to the furthest: all near 0, fewer where losses grow.

    Spacings grow with the loss, up to a fraction of the strongest mu.
    """
    widest = max(1.0, strongest / _TAIL_DOTS)
    near = min(float(_DOTS), furthest)
    even = min(max(near, widest * _DOTS), furthest)
    dots = [np.arange(math.ceil(near) + 1, dtype=float)]
    if even > near:
        growing = math.ceil(_DOTS * math.log(even / near))
        dots.append(near * np.exp(np.arange(1, growing + 1) / _DOTS))
    if furthest > even:
        further = math.ceil((furthest - even) / widest)
        dots.append(even + widest * np.arange(1, further + 1))
    dots.append(np.array([math.ceil(furthest)], dtype=float))
    return np.unique(np.concatenate(dots).astype(np.int64))


def convolve_rounds(
    dots: np.ndarray,
    masses: np.ndarray,
    infinite: np.ndarray,
    counts: np.ndarray,
    interval: float,
) -> Direction:
    """Returns the sum of the losses of all rounds, by a product of Fourier transforms.

    Args:
        dots: Multiples of the interval from 0 on.
        masses: Those of all dots but the first as `connect_dots` gives them, a round a row; every
            round is the same in both directions.
        infinite: The mass of infinite loss of every round.
        counts: How often each round occurs.
        interval: The spacing of the grid.

    Returns:
        The law of the sum, which is the same in both directions.
    """
    points = dots[1:] * interval
    # A loss of -x has e^-x times the mass of x, and what is left has no loss.
    opposite = masses * np.exp(-points)
    no_loss = 1 - masses.sum(axis=1) - opposite.sum(axis=1) - infinite
    no_loss = np.maximum(0.0, no_loss)
    signed = np.concatenate([-points[::-1], [0.0], points])
    laws = np.concatenate([opposite[:, ::-1], no_loss[:, None], masses], axis=1)
    low, high = find_window([(signed, laws, counts)])
    rounds = int(counts.sum())
    furthest = int(dots[-1])
    extreme = rounds * furthest
    first = max(-extreme, math.floor(low / interval))
    last = min(extreme, math.ceil(high / interval))
    size = next_fast_len(max(last - first + 1, 2 * furthest + 1), True)
    # A negative multiple is at the end of the circle.
    negative = (-dots[:0:-1]) % size
    positive = dots[1:] % size
    places = np.concatenate([negative, [0], positive])
    transform = np.ones(size // 2 + 1, dtype=complex)
    pieces = max(1, len(counts) * size // _AT_ONCE)
    for some in np.array_split(np.arange(len(counts)), pieces):
        whole = np.zeros((len(some), size))
        whole[:, places] = laws[some]
        factors = rfft(whole, axis=1)
        for factor, times in zip(factors, counts[some].tolist(), strict=True):
            transform *= raise_to_power(factor, times)
    log_finite = float(counts @ np.log1p(-infinite))
    outside = -math.expm1(log_finite) + rounds * ROUND_OFF
    return invert_transform(
        transform,
        size,
        0,
        (first, last),
        interval,
        outside,
    )
