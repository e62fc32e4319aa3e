"""Canary clients: what one training with them suggests about the privacy of a client. An estimate, never a bound.

A canary's update is a random direction of the allowed length. In many dimensions such directions are nearly orthogonal to one another
and to all honest work, so each canary is its own experiment, and how far the model moved along it is its score (Andrew, Kairouz, Oh,
Oprea, McMahan and Suriyakumar 2024, "One-shot empirical privacy estimation for federated learning"). Scores of canaries that took part
and of directions nobody used are fitted by two Gaussians, and epsilon is that of telling these apart.

No lower bound with a confidence comes from these numbers, by Clopper and Pearson or otherwise: the canaries share one training and are
not independent runs of it. `one_run` has such bounds, since there every canary has a coin of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, log_ndtr

from sordino.privacy import checks, gaussian
from sordino.privacy.roots import bracket, grown
from sordino.protocol.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Bell:
    """A Gaussian: its mean and its standard deviation."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        checks.positive(deviation=self.deviation)
        if not math.isfinite(self.mean):
            raise UserError(f"mean = {self.mean!r}: expected a finite number.")


@dataclass(frozen=True, kw_only=True)
class CanaryEstimate:
    """What canary clients suggest: adding or removing the update of one such client (not replacing it by another: twice that far).

    Attributes:
        mu: how far apart the two means are, in standard deviations of an unseen direction.
        epsilon: at `delta`, of telling the two Gaussians apart, as published. The width of the scores is fitted too, and far out in the
            tails its error weighs: for Gaussian noise and 1000 canaries it is 4 % (mu = 4) to 15 % (mu = 1/2) too large on average.
        epsilon_of_mu: at `delta`, of Gaussian noise with this mu: steadier, since only the mean is fitted.
        canaries: how many took part.
        seen, unseen: the fitted Gaussians.
    """

    mu: float
    epsilon: float
    epsilon_of_mu: float
    delta: float
    canaries: int
    seen: Bell
    unseen: Bell
    adjacency: str = "add-or-remove"
    kind: str = "estimate"


def cosines(move: ArrayLike, directions: ArrayLike) -> np.ndarray:
    """The cosine of a model's move with each direction; 0 where the model did not move, since that shows nothing.

    Example:
        >>> cosines([3.0, 4.0], [[1.0, 0.0], [0.0, -2.0]]).tolist()
        [0.6, -0.8]
    """
    moved, towards = np.asarray(move, dtype=float), np.asarray(directions, dtype=float)
    if moved.ndim != 1 or towards.ndim != 2 or towards.shape[1] != moved.size or towards.size == 0:
        raise UserError(
            f"move and directions: shapes {moved.shape} and {towards.shape}; expected (d,) and (k, d) with k, d of at least 1."
        )
    lengths = np.linalg.norm(towards, axis=1)
    if not (np.isfinite(moved).all() and np.isfinite(lengths).all() and (lengths > 0).all()):
        raise UserError(
            "move and directions: expected finite numbers, and no direction of length 0."
        )
    length = np.linalg.norm(moved)
    return towards @ (moved / length) / lengths if length > 0 else np.zeros(len(towards))


def largest_cosines(moves: ArrayLike, directions: ArrayLike) -> np.ndarray:
    """For each direction the largest cosine with any round's move: the score when every round is seen.

    Example:
        >>> largest_cosines([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 0.0]]).round(3).tolist()
        [0.707, 0.0]
    """
    rounds = np.asarray(moves, dtype=float)
    if rounds.ndim != 2 or len(rounds) == 0:
        raise UserError(
            f"moves: shape {rounds.shape}; expected one row for each round, at least one."
        )
    return np.max([cosines(move, directions) for move in rounds], axis=0)


def unseen_tail(cosine: ArrayLike, *, dimension: int) -> np.ndarray:
    """The exact probability that a random direction nobody used has at least this cosine: its square is Beta(1/2, (d - 1)/2).

    For large d it is that of N(0, 1/d), which has the same mean and variance at any d (Andrew et al. 2024, Thm 3.1 and 3.2).

    Example:
        >>> unseen_tail([0.0, 0.5], dimension=3).round(12).tolist()  # uniform on [-1, 1] (Archimedes)
        [0.5, 0.25]
    """
    checks.whole(at_least=2, dimension=dimension)
    value = np.asarray(cosine, dtype=float)
    if not (np.abs(value) <= 1).all():
        raise UserError("cosine: expected numbers from -1 to 1.")
    beyond = betainc((dimension - 1) / 2, 0.5, 1 - value**2) / 2
    return np.where(value >= 0, beyond, 1 - beyond)


def estimate_final(scores: ArrayLike, *, dimension: int, delta: float = 1e-5) -> CanaryEstimate:
    """The estimate from the final model alone, `scores` being its `cosines` with the canaries.

    An unseen direction is N(0, 1/d). The estimate is right in the limit of many dimensions and far fewer canaries (Andrew et al. 2024,
    Thm 3.3): with k canaries and noise sigma on their sum the model's length grows, and mu shrinks, by (1 + k / (d sigma^2))^(1/2).

    Example:
        >>> draws = np.random.default_rng(0)
        >>> estimate = estimate_final(0.02 + 0.01 * draws.standard_normal(500), dimension=10_000)
        >>> abs(estimate.mu - 2) < 0.1, estimate.kind
        (True, 'estimate')
    """
    checks.whole(at_least=2, dimension=dimension)
    return _estimate(
        _fitted("scores", scores), Bell(mean=0.0, deviation=dimension**-0.5), np.size(scores), delta
    )


def estimate_all_rounds(
    scores: ArrayLike, unseen: ArrayLike, *, delta: float = 1e-5
) -> CanaryEstimate:
    """The estimate when every round's model is seen: `largest_cosines` with the canaries, and with fresh directions nobody used.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((2, 5000))
        >>> abs(estimate_all_rounds(3 + draws[0], draws[1]).mu - 3) < 0.2
        True
    """
    return _estimate(_fitted("scores", scores), _fitted("unseen", unseen), np.size(scores), delta)


def epsilon_between(one: Bell, other: Bell, delta: float) -> float:
    """The smallest epsilon at which the two Gaussians are (epsilon, delta)-indistinguishable, in both directions.

    Example:
        >>> round(epsilon_between(Bell(mean=0.0, deviation=1.0), Bell(mean=1.0, deviation=1.0), 1e-5), 6)
        4.377178
    """
    checks.proper_delta(delta)
    target = math.log(delta)

    def above(epsilon: float) -> float:
        return max(_log_delta(one, other, epsilon), _log_delta(other, one, epsilon)) - target

    if above(0.0) <= 0:
        return 0.0
    return bracket(above, 0.0, grown(lambda epsilon: above(epsilon) <= 0, 1.0))[1]


def _estimate(seen: Bell, unseen: Bell, canaries: int, delta: float) -> CanaryEstimate:
    mu = max(0.0, (seen.mean - unseen.mean) / unseen.deviation)
    return CanaryEstimate(
        mu=mu,
        epsilon=epsilon_between(seen, unseen, delta),
        epsilon_of_mu=gaussian.epsilon(mu, delta),
        delta=delta,
        canaries=canaries,
        seen=seen,
        unseen=unseen,
    )


def _fitted(name: str, scores: ArrayLike) -> Bell:
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or values.size < 2 or not np.isfinite(values).all():
        raise UserError(f"{name}: expected at least two finite numbers, one for each direction.")
    spread = float(values.std(ddof=1))
    if spread == 0:
        raise UserError(
            f"{name}: all are {values[0]:g}; expected scores that differ, one for each direction."
        )
    return Bell(mean=float(values.mean()), deviation=spread)


def _log_delta(one: Bell, other: Bell, epsilon: float) -> float:
    """log of P[A] - e^epsilon Q[A] for P = `one`, Q = `other` and A where the log of their densities' ratio is above epsilon.

    In units of Q that ratio is a y^2 + b y + c, so that A lies outside its two roots (P wider) or between them (P narrower).
    """
    shift, width = (one.mean - other.mean) / other.deviation, one.deviation / other.deviation
    a, b = (1 - width**-2) / 2, shift / width**2
    c = -math.log(width) - (shift / width) ** 2 / 2 - epsilon
    discriminant = b * b - 4 * a * c
    if discriminant <= 0:
        return -math.inf
    # The root far out may be infinite, where the widths are equal; this order of operations loses no digits of the near one.
    sum_of = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    far = sum_of / a if a != 0 else math.copysign(math.inf, sum_of)
    left, right = sorted((far, c / sum_of))
    of_one = _log_mass((left - shift) / width, (right - shift) / width, outside=a >= 0)
    of_other = _log_mass(left, right, outside=a >= 0)
    gap = epsilon + of_other - of_one
    return of_one + math.log(-math.expm1(gap)) if gap < 0 else -math.inf


def _log_mass(left: float, right: float, *, outside: bool) -> float:
    """log of the standard normal probability outside or inside an interval."""
    if outside:
        return float(np.logaddexp(log_ndtr(left), log_ndtr(-right)))
    low, high = (
        (left, right) if left + right <= 0 else (-right, -left)
    )  # in the lower tail, where differences keep their digits
    more, less = float(log_ndtr(high)), float(log_ndtr(low))
    return more + math.log(-math.expm1(less - more)) if less < more else -math.inf
