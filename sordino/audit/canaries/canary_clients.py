"""Estimates the privacy of a client from one training with canary clients. It is never a bound.

A canary's update is a random direction of the allowed length. In many dimensions such directions
are nearly orthogonal to one another and to all honest work, so each canary is a separate
experiment, and how far the model moved along it is its score (Andrew, Kairouz, Oh, Oprea, McMahan
and Suriyakumar 2024, "One-shot empirical privacy estimation for federated learning"). Scores of
canaries that took part and of directions nobody used are fitted by two Gaussians, and epsilon is
that of telling these apart.

No lower bound with a confidence follows from these numbers, by Clopper and Pearson or otherwise,
because the canaries share one training and are not independent runs of it. Such bounds are in
`one_run_bounds`, where every canary has a separate coin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.roots import bracket_root, double_until
from sordino.protocol.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NormalFit:
    """Describes a Gaussian that was fitted to scores.

    Attributes:
        mean: The mean of the Gaussian.
        deviation: The standard deviation of the Gaussian.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        checks.require_positive(deviation=self.deviation)
        if not math.isfinite(self.mean):
            raise UserError(f"mean = {self.mean!r}: expected a finite number.")


@dataclass(frozen=True, kw_only=True)
class CanaryEstimate:
    """Holds an estimate for adding or removing the update of one client.

    Replacing it by another would move the sum twice as far.

    Attributes:
        mu: The distance of the two means, in standard deviations of an unused direction.
        epsilon: The epsilon at `delta` of telling the two Gaussians apart, as published. It depends
            on the fitted width, whose error matters in the tails: for Gaussian noise and 1000
            canaries it is 4 % (mu = 4) to 15 % (mu = 1/2) too large on average.
        epsilon_of_mu: The epsilon at `delta` of Gaussian noise with this mu: steadier, since only
            the mean is fitted.
        delta: The delta that goes with epsilon.
        canaries: The number of canaries that took part.
        seen: The Gaussian fitted to the canaries' scores.
        unseen: The Gaussian of unused directions.
        adjacency: The kind of neighbours that the estimate is about.
        kind: "estimate", since it is no bound.
    """

    mu: float
    epsilon: float
    epsilon_of_mu: float
    delta: float
    canaries: int
    seen: NormalFit
    unseen: NormalFit
    adjacency: str = "add-or-remove"
    kind: str = "estimate"


def find_cosines(move: ArrayLike, directions: ArrayLike) -> np.ndarray:
    """Returns the cosine of a model's move with each direction.

    Args:
        move: How far the model moved.
        directions: One direction per row.

    Returns:
        The cosines; all 0 if the model did not move.

    Raises:
        UserError: Shapes that do not fit, or numbers that are not finite.

    Example:
        >>> find_cosines([3.0, 4.0], [[1.0, 0.0], [0.0, -2.0]]).tolist()
        [0.6, -0.8]
    """
    moved = np.asarray(move, dtype=float)
    towards = np.asarray(directions, dtype=float)
    if moved.ndim != 1 or towards.ndim != 2 or towards.shape[1] != moved.size or towards.size == 0:
        raise UserError(
            f"move and directions: shapes {moved.shape} and {towards.shape}; expected (d,) and "
            "(k, d) with k, d of at least 1."
        )
    lengths = np.linalg.norm(towards, axis=1)
    finite = np.isfinite(moved).all() and np.isfinite(lengths).all()
    if not finite or not (lengths > 0).all():
        raise UserError(
            "move and directions: expected finite numbers, and no direction of length 0."
        )
    length = np.linalg.norm(moved)
    if length == 0:
        return np.zeros(len(towards))
    return np.asarray(towards @ (moved / length) / lengths)


def find_largest_cosines(moves: ArrayLike, directions: ArrayLike) -> np.ndarray:
    """Returns for each direction the largest cosine with any round's move.

    This is the score of an adversary that sees every round.

    Args:
        moves: One round per row.
        directions: One direction per row.

    Raises:
        UserError: No rounds, or shapes that do not fit.

    Example:
        >>> moves = [[1.0, 0.0], [0.0, 1.0]]
        >>> find_largest_cosines(moves, [[1.0, 1.0], [-1.0, 0.0]]).round(3).tolist()
        [0.707, 0.0]
    """
    rounds = np.asarray(moves, dtype=float)
    if rounds.ndim != 2 or len(rounds) == 0:
        raise UserError(
            f"moves: shape {rounds.shape}; expected one row for each round, at least one."
        )
    return np.asarray(np.max([find_cosines(move, directions) for move in rounds], axis=0))


def estimate_final(scores: ArrayLike, *, dimension: int, delta: float = 1e-5) -> CanaryEstimate:
    """Returns the estimate from the final model alone.

    An unused direction is N(0, 1/d). The estimate is right in the limit of many dimensions and far
    fewer canaries (Andrew et al. 2024, Thm 3.3): with k canaries and noise sigma on their sum the
    model's length grows, and mu shrinks, by (1 + k / (d sigma^2))^(1/2).

    Args:
        scores: The cosines of the model's move with the canaries.
        dimension: The number of parameters.
        delta: The delta that goes with epsilon.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> estimate = estimate_final(0.02 + 0.01 * draws.standard_normal(500), dimension=10_000)
        >>> abs(estimate.mu - 2) < 0.1, estimate.kind
        (True, 'estimate')
    """
    checks.require_whole(at_least=2, dimension=dimension)
    unseen = NormalFit(mean=0.0, deviation=dimension**-0.5)
    return _estimate(_fit_normal("scores", scores), unseen, np.size(scores), delta)


def estimate_all_rounds(
    scores: ArrayLike, unseen: ArrayLike, *, delta: float = 1e-5
) -> CanaryEstimate:
    """Returns the estimate of an adversary that sees every round's model.

    Args:
        scores: The largest cosines with the canaries.
        unseen: The largest cosines with fresh directions that nobody used.
        delta: The delta that goes with epsilon.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((2, 5000))
        >>> abs(estimate_all_rounds(3 + draws[0], draws[1]).mu - 3) < 0.2
        True
    """
    seen = _fit_normal("scores", scores)
    return _estimate(seen, _fit_normal("unseen", unseen), np.size(scores), delta)


def find_epsilon_between(one: NormalFit, other: NormalFit, delta: float) -> float:
    """Returns the smallest epsilon of telling two Gaussians apart, in both directions.

    Args:
        one: A Gaussian.
        other: Another one.
        delta: The delta that goes with epsilon.

    Example:
        >>> one = NormalFit(mean=0.0, deviation=1.0)
        >>> other = NormalFit(mean=1.0, deviation=1.0)
        >>> round(find_epsilon_between(one, other, 1e-5), 6)
        4.377178
    """
    checks.require_delta(delta)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        """Returns by how much the larger log delta passes the target.

        Args:
            epsilon: Where delta is computed.
        """
        return max(_log_delta(one, other, epsilon), _log_delta(other, one, epsilon)) - target

    if excess(0.0) <= 0:
        return 0.0
    return bracket_root(excess, 0.0, double_until(lambda epsilon: excess(epsilon) <= 0, 1.0))[1]


def _estimate(
    seen: NormalFit,
    unseen: NormalFit,
    canaries: int,
    delta: float,
) -> CanaryEstimate:
    mu = max(0.0, (seen.mean - unseen.mean) / unseen.deviation)
    return CanaryEstimate(
        mu=mu,
        epsilon=find_epsilon_between(seen, unseen, delta),
        epsilon_of_mu=gaussian.epsilon(mu, delta),
        delta=delta,
        canaries=canaries,
        seen=seen,
        unseen=unseen,
    )


def _fit_normal(name: str, scores: ArrayLike) -> NormalFit:
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or values.size < 2 or not np.isfinite(values).all():
        raise UserError(f"{name}: expected at least two finite numbers, one for each direction.")
    spread = float(values.std(ddof=1))
    if spread == 0:
        raise UserError(
            f"{name}: all are {values[0]:g}; expected different scores, one for each direction."
        )
    return NormalFit(mean=float(values.mean()), deviation=spread)


def _log_delta(one: NormalFit, other: NormalFit, epsilon: float) -> float:
    """Returns log of P[A] - e^epsilon Q[A] for P = `one`, Q = `other`.

    A is the set on which the log of the densities' ratio exceeds epsilon. In units of Q that log is
    a y^2 + b y + c + epsilon, so A lies outside the two roots (P wider) or between them (P
    narrower).
    """
    shift = (one.mean - other.mean) / other.deviation
    width = one.deviation / other.deviation
    a = (1 - width**-2) / 2
    b = shift / width**2
    c = -math.log(width) - (shift / width) ** 2 / 2 - epsilon
    discriminant = b * b - 4 * a * c
    if discriminant <= 0:
        return -math.inf
    # If the widths are equal the far root is infinite; this order of operations keeps all digits of
    # the near one.
    half_sum = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    far = math.copysign(math.inf, half_sum)
    if a != 0:
        far = half_sum / a
    left, right = sorted((far, c / half_sum))
    log_one = _log_mass((left - shift) / width, (right - shift) / width, outside=a >= 0)
    log_other = _log_mass(left, right, outside=a >= 0)
    gap = epsilon + log_other - log_one
    if gap >= 0:
        return -math.inf
    return log_one + math.log(-math.expm1(gap))


def _log_mass(left: float, right: float, *, outside: bool) -> float:
    """Returns log of the standard normal probability outside or inside an interval."""
    if outside:
        return float(np.logaddexp(log_ndtr(left), log_ndtr(-right)))
    # In the lower tail differences keep their digits.
    if left + right > 0:
        left, right = -right, -left
    more = float(log_ndtr(right))
    less = float(log_ndtr(left))
    if less >= more:
        return -math.inf
    return more + math.log(-math.expm1(less - more))
