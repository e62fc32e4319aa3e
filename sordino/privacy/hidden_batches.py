"""Rounds whose minibatches nobody sees: the draw hides the record (THEORY A14).

Given the past, a round in which the record is first used at step k moves what is released by at most s(k). It is used at all with
probability q = 1 - (1 - B/n)^K, and otherwise moves nothing. By the advanced joint convexity of the hockey stick (Balle, Barthe and
Gaboardi 2018, Thm 2) the round has delta(epsilon) <= q E[delta_mu(epsilon') | used], with e^epsilon' = 1 + (e^epsilon - 1)/q, in both
directions; docs/theory.md has the proof. Here that profile becomes a privacy-loss distribution by connecting dots, round by round, and
rounds are added up by one product of Fourier transforms.

All rounds share q, and so the points epsilon' at which Gaussian curves are needed: one table of deltas, a row for every mu, serves them
all. Where there are too many values of mu, each is split between two neighbouring rows. With F(mu) = delta_mu(epsilon),
F''/F' = epsilon^2/mu^3 - mu/4 >= -mu/4 at every epsilon >= 0, so that F is a convex function of -e^(-bend mu) with bend = max mu / 4, and
a split that keeps the mean of e^(-bend mu) never promises too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp

from sordino.privacy import checks, gaussian, losses, subsampled
from sordino.privacy.curves import PERFECT, Curve
from sordino.privacy.losses import Direction, LossCurve
from sordino.privacy.participation import Cohort
from sordino.privacy.roots import bracket
from sordino.privacy.uploads import nearly_equal

STRONGEST = 25.0  # mu of a round above which a draw hides next to nothing, and grids grow
WEAKEST = 1e-9  # mu of a round below which rounding would be all that a grid shows
_ADDED = 1 / 1600  # variance of the sum of losses that the grid may add
_DOTS = 64  # dots in a factor of e of the loss
_TAIL_DOTS = 50  # dots in a mu, at least
_EXACT = 96  # values of mu up to which none is split
_RATIO = 1.015  # of two neighbouring values of mu, where there are more
_SMALL = 1e-5  # share of the sum of mu^2 that smaller values may have, and be split between 0 and the smallest row
_SLACK = 2e-5  # by how much a group of rounds may raise the sum of mu^2
_LEFT = 1e-17  # mass of infinite loss that the rounds may have together
_LONGEST = 1 << 15  # multiples of the interval up to the largest loss of a round
_AT_ONCE = 1 << 22  # points of Fourier transforms in memory


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenRounds:
    """Rounds in which a record is used with probability `rate`, unseen, and is then under mu-GDP noise with a random mu.

    Attributes:
        mus: one round a row.
        masses: probability of each mu of a round, given that the record is used.
        counts: how often each round occurs.
        rate: probability that the record is used, given that the client takes part.
        probability: that the client takes part, which may be seen.
    """

    mus: np.ndarray
    masses: np.ndarray
    counts: np.ndarray
    rate: float
    probability: float


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenCurve(LossCurve):
    """The composition of `rounds`; their Rényi divergences are finite, though the loss distribution ends with an infinite loss."""

    rounds: HiddenRounds

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: of every round, from its profile, or what it is where batches are known; they add up."""
        checks.order(order)
        if math.isinf(order):
            return math.inf
        nodes, weights = split_over_nodes(self.rounds.mus, self.rounds.masses, self.rounds.counts)
        share = self.rounds.rate * self.rounds.probability
        if order == 1:
            known = share * (weights @ np.square(nodes)) / 2
            return float(self.rounds.counts @ np.minimum(known, self._from_profile(order)))
        exponents = order * (order - 1) / 2 * np.square(nodes)
        with np.errstate(divide="ignore"):
            logs = logsumexp(np.log(weights) + exponents, axis=1) + math.log(share)
        known = np.logaddexp(math.log1p(-share) if share < 1 else -np.inf, logs) / (order - 1)
        return float(self.rounds.counts @ np.minimum(known, self._from_profile(order)))

    def _from_profile(self, order: float) -> np.ndarray:
        """The divergence of every round: e^((a-1) D) = 1 + a (a-1) integral of (e^((a-1) x) + e^(-a x)) delta(x).

        Chords lie above delta up to a loss beyond which next to nothing is left; what is left there is added in closed form.
        """
        rounds = self.rounds
        nodes, weights = split_over_nodes(rounds.mus, rounds.masses, rounds.counts)
        top = float(nodes[-1])
        beyond = top * ((order + 0.5) * top + 10)
        furthest = math.log1p(rounds.rate * math.expm1(beyond)) if beyond < 600 else beyond
        points = np.concatenate([[0.0], furthest * np.geomspace(1e-7, 1.0, 3000)])
        table = subsampled.deltas_of_many(points, mus=nodes, rate=rounds.rate)
        heights = np.minimum.accumulate(rounds.probability * (weights @ table), axis=1)
        if order == 1:
            slopes = np.diff(points) * (1 + np.exp(-points[:-1]))
            return np.asarray(heights[:, :-1] @ slopes + heights[:, -1] * (1 + furthest))
        masses, left = losses.connected_dots(heights, points)
        share = rounds.rate * rounds.probability
        with np.errstate(divide="ignore"):
            up = np.log(masses) + (order - 1) * points[1:]
            down = np.log(masses) - order * points[1:]
            # What the last height adds if it stays, and what lies beyond it.
            stays = np.log(left) + math.log(2 * order) + (order - 1) * furthest
        ends = math.log(2 * share * order) + order * (order - 1) / 2 * top**2
        ends += float(log_ndtr(-10 - top))
        still = np.maximum(0.0, 1 - masses.sum(axis=1) - masses @ np.exp(-points[1:]))
        with np.errstate(divide="ignore"):
            parts = [up, down, stays[:, None], np.log(still)[:, None]]
        whole = np.concatenate([*parts, np.full((len(still), 1), ends)], axis=1)
        return np.asarray(np.maximum(logsumexp(whole, axis=1), 0.0) / (order - 1) * (1 + 1e-12))


def hidden_curve(
    shifts: np.ndarray,
    counts: np.ndarray,
    *,
    sigma: float,
    cohort: Cohort,
    use: np.ndarray,
) -> Curve | None:
    """The composition of rounds with secret minibatches: one a row of `shifts`, each so many times.

    Args:
        shifts: How far the upload can move if the record is first used at step k, for every k.
        counts: How often each round occurs.
        sigma: Standard deviation of each participant's noise.
        cohort: Who takes part and is honest; may be seen.
        use: Probability of each first use, `participation.first_use`.

    Returns:
        The curve, or None where noise is so weak that the draw hides next to nothing, or so strong that nothing needs hiding.

    Example:
        >>> from sordino.privacy.participation import first_use
        >>> use = first_use(batch=32, records=600, steps=1)
        >>> curve = hidden_curve(np.array([[1.0]]), np.array([600]), sigma=1.0, cohort=Cohort.everyone(clients=1), use=use)
        >>> round(curve.epsilon(1e-5), 2)  # C_q(G_1), 600 times
        10.68
    """
    return _composed(
        shifts.astype(float).tobytes(),
        shifts.shape,
        counts.astype(np.int64).tobytes(),
        sigma,
        cohort,
        use.tobytes(),
    )


@lru_cache(maxsize=32)  # views ask for the same curve
def _composed(
    shifts: bytes, shape: tuple[int, int], counts: bytes, sigma: float, cohort: Cohort, use: bytes
) -> Curve | None:
    moved = np.frombuffer(shifts).reshape(shape)
    often = np.frombuffer(counts, dtype=np.int64)
    used = np.frombuffer(use)
    rate = float(used.sum())
    if moved.max(initial=0.0) == 0 or rate == 0 or cohort.probability == 0 or often.sum() == 0:
        return PERFECT
    if sigma == 0 or min(cohort.counts) == 0:
        return None
    rows, often = nearly_equal(moved, often, slack=_SLACK)
    scales = 1 / (sigma * np.sqrt(np.array(cohort.counts, dtype=float)))
    mus = np.multiply.outer(rows, scales).reshape(len(rows), -1)
    if not WEAKEST <= mus.max() <= STRONGEST:
        return None
    masses = np.multiply.outer(used / rate, np.array(cohort.masses)).ravel()
    rounds = HiddenRounds(
        mus=mus,
        masses=masses / masses.sum(),
        counts=often,
        rate=min(rate, 1.0),
        probability=cohort.probability,
    )
    return HiddenCurve(directions=(added_up(rounds),), rounds=rounds)


def added_up(rounds: HiddenRounds) -> Direction:
    """The privacy losses of all rounds together."""
    nodes, weights = split_over_nodes(rounds.mus, rounds.masses, rounds.counts)
    interval, dots = grid(rounds, nodes, weights)
    table = subsampled.deltas_of_many(dots * interval, mus=nodes, rate=rounds.rate)
    heights = np.clip(rounds.probability * (weights @ table), 0.0, 1.0)
    heights = np.minimum.accumulate(heights * (1 + 1e-12), axis=1)
    masses, infinite = losses.connected_dots(heights, dots * interval)
    return _convolved(dots, masses, infinite, rounds.counts, interval)


def split_over_nodes(
    mus: np.ndarray, masses: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A few values of mu, and how much of every round lies on each; never less harmful than the given ones.

    Args:
        mus: One round a row.
        masses: Probability of each mu of a round.
        counts: How often each round occurs.

    Returns:
        Increasing values, the first of which may be 0, and a row of masses for every round.

    Example:
        >>> nodes, weights = split_over_nodes(np.array([[1.0, 2.0]]), np.array([0.25, 0.75]), np.ones(1))
        >>> nodes.tolist(), weights.tolist()
        ([1.0, 2.0], [[0.25, 0.75]])
    """
    found = np.unique(mus)
    if found.size <= _EXACT:
        at = np.searchsorted(found, mus)
        weights = np.zeros((len(mus), found.size))
        np.add.at(weights, (np.arange(len(mus))[:, None], at), masses)
        return found, weights
    squares = (counts[:, None] * masses * np.square(mus)).ravel()
    order = np.argsort(mus.ravel())
    below = np.cumsum(squares[order]) / squares.sum()
    top = float(found[-1])
    first = min(int(np.searchsorted(below, _SMALL)), order.size - 1)
    smallest = float(mus.ravel()[order[first]])
    steps = max(1, math.ceil(math.log(top / smallest) / math.log(_RATIO)))
    nodes = np.concatenate([[0.0], np.geomspace(smallest, top, steps + 1)])
    nodes[-1] = top
    left = np.clip(np.searchsorted(nodes, mus, side="right") - 1, 0, nodes.size - 2)
    bend = top / 4
    up = np.expm1(-bend * (mus - nodes[left])) / np.expm1(-bend * (nodes[left + 1] - nodes[left]))
    up = np.clip(up * (1 + 1e-12), 0.0, 1.0)
    weights = np.zeros((len(mus), nodes.size))
    rows = np.arange(len(mus))[:, None]
    np.add.at(weights, (rows, left), masses * (1 - up))
    np.add.at(weights, (rows, left + 1), masses * up)
    return nodes, weights


def grid(rounds: HiddenRounds, nodes: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """The interval of the losses, and the multiples of it on which dots lie: all near 0, fewer where losses are large.

    A loss between two multiples of h is split between them, which adds a variance of at most h^2/4, and of at most h |loss|. What that adds
    up to is held against the variance of the whole sum. It is 2 KL for a Gaussian pair, and for others of that size, where
    KL = integral of delta(epsilon) (1 + e^-epsilon).
    """
    top = float(nodes[-1])
    share = rounds.probability * rounds.rate
    beyond = gaussian_reach(top, _LEFT / (share * float(rounds.counts.sum())))
    furthest = math.log1p(rounds.rate * math.expm1(beyond)) if beyond < 600 else beyond
    points = np.concatenate([[0.0], furthest * np.geomspace(1e-7, 1.0, 160)])
    table = subsampled.deltas_of_many(points, mus=nodes, rate=rounds.rate)
    profiles = rounds.probability * (weights @ table)
    variances = 2 * np.trapezoid(profiles * (1 + np.exp(-points)), points, axis=1)
    allowed = _ADDED * float(rounds.counts @ variances)

    def left(interval: float) -> float:
        added = np.minimum(interval**2 / 4, interval * np.sqrt(variances))
        return allowed - float(rounds.counts @ added)

    certain = 2 * math.sqrt(allowed / float(rounds.counts.sum()))
    interval = bracket(left, certain / 2, furthest)[0] if left(furthest) < 0 else furthest
    interval = max(interval, furthest / _LONGEST)
    return interval, _sparse_dots(furthest / interval, top / interval)


def gaussian_reach(mu: float, mass: float) -> float:
    """The epsilon beyond which a mu-GDP release has a delta of at most `mass`."""
    return gaussian.epsilon(mu, mass) if mass < 1 else 0.0


def _sparse_dots(furthest: float, strongest: float) -> np.ndarray:
    """Multiples of the interval up to the furthest: spacings grow with the loss, up to a fraction of the strongest mu."""
    widest = max(1.0, strongest / _TAIL_DOTS)
    near = min(float(_DOTS), furthest)
    bend = min(max(near, widest * _DOTS), furthest)
    dots = [np.arange(math.ceil(near) + 1, dtype=float)]
    if bend > near:
        growing = math.ceil(_DOTS * math.log(bend / near))
        dots.append(near * np.exp(np.arange(1, growing + 1) / _DOTS))
    if furthest > bend:
        dots.append(bend + widest * np.arange(1, math.ceil((furthest - bend) / widest) + 1))
    return np.unique(np.append(np.concatenate(dots), math.ceil(furthest)).astype(np.int64))


def _convolved(
    dots: np.ndarray,
    masses: np.ndarray,
    infinite: np.ndarray,
    counts: np.ndarray,
    interval: float,
) -> Direction:
    """The sum of the losses of all rounds, by a product of Fourier transforms."""
    points = dots[1:] * interval
    opposite = masses * np.exp(-points)
    still = np.maximum(0.0, 1 - masses.sum(axis=1) - opposite.sum(axis=1) - infinite)
    signed = np.concatenate([-points[::-1], [0.0], points])
    laws = np.concatenate([opposite[:, ::-1], still[:, None], masses], axis=1)
    low, high = losses.window([(signed, laws, counts)])
    rounds = int(counts.sum())
    first = max(-rounds * int(dots[-1]), math.floor(low / interval))
    last = min(rounds * int(dots[-1]), math.ceil(high / interval))
    size = next_fast_len(max(last - first + 1, 2 * int(dots[-1]) + 1), True)
    places = np.concatenate([(-dots[:0:-1]) % size, [0], dots[1:] % size])
    transform = np.ones(size // 2 + 1, dtype=complex)
    for some in np.array_split(np.arange(len(counts)), max(1, len(counts) * size // _AT_ONCE)):
        whole = np.zeros((len(some), size))
        whole[:, places] = laws[some]
        for factor, times in zip(rfft(whole, axis=1), counts[some].tolist(), strict=True):
            transform *= factor if times == 1 else factor**times
    outside = -math.expm1(float(counts @ np.log1p(-infinite)))
    return losses.unwrapped(
        transform, size, 0, (first, last), interval, outside + rounds * losses.ROUND_OFF
    )
