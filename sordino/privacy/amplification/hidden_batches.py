"""Rounds whose minibatches nobody sees: the draw hides the record (docs/theory.md#a14).

Given the past, a round in which the record is first used at step k moves the release by at
most s(k). It is used at all with probability q = 1 - (1 - B/n)^K, and otherwise moves nothing. By
the advanced joint convexity of the hockey stick (Balle, Barthe and Gaboardi 2018, Thm 2) the round
has delta(epsilon) <= q E[delta_mu(epsilon') | used], with e^epsilon' = 1 + (e^epsilon - 1)/q, in
both directions; docs/theory.md has the proof. Here that profile becomes a privacy-loss distribution
by connecting dots, round by round, and rounds are added up by one product of Fourier transforms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp

from sordino.privacy.amplification.cohorts import Cohort
from sordino.privacy.amplification.loss_grids import (
    HiddenRounds,
    choose_loss_grid,
    convolve_rounds,
    split_over_nodes,
    spread_points,
)
from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import PERFECT
from sordino.privacy.curves.loss_direction import (
    Direction,
    connect_dots,
)
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.privacy.similar_rounds import join_similar_rounds

# Mu of a round above which a draw hides next to nothing, and grids grow.
STRONGEST = 25.0
# Mu of a round below which rounding would be all that a grid shows.
WEAKEST = 1e-9
# By how much a group of rounds may raise the sum of mu^2.
_SLACK = 2e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenCurve(LossCurve):
    """The composition of rounds with secret minibatches.

    Their Rényi divergences are finite, though the loss distribution ends with an infinite loss.

    Attributes:
        rounds: The rounds that are composed.
    """

    rounds: HiddenRounds

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: the smaller of two bounds on every round, which add up.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        checks.require_order(order)
        if math.isinf(order):
            return math.inf
        rounds = self.rounds
        nodes, weights = split_over_nodes(rounds.mus, rounds.masses, rounds.counts)
        known = _divergences_of_known(rounds, nodes, weights, order)
        hidden = _divergences_of_profiles(rounds, nodes, weights, order)
        # Either bound holds by itself; one whose moments overflow is not a number and says nothing.
        smaller = np.fmin(known, hidden)
        total = float(rounds.counts @ smaller)
        # No bound was found: accountants would take a value that is not a number for a price of 0.
        return math.inf if math.isnan(total) else total


def _divergences_of_known(
    rounds: HiddenRounds,
    nodes: np.ndarray,
    weights: np.ndarray,
    order: float,
) -> np.ndarray:
    """Returns the divergence of every round as if batches were known: moments average."""
    squares = np.square(nodes)
    if order == 1:
        return np.asarray(rounds.share * (weights @ squares) / 2)
    exponents = order * (order - 1) / 2 * squares
    with np.errstate(divide="ignore"):
        terms = np.log(weights) + exponents
    used = logsumexp(terms, axis=1) + math.log(rounds.share)
    unused = -math.inf
    if rounds.share < 1:
        unused = math.log1p(-rounds.share)
    log_moments = np.logaddexp(unused, used)
    return np.asarray(log_moments / (order - 1))


def _divergences_of_profiles(
    rounds: HiddenRounds,
    nodes: np.ndarray,
    weights: np.ndarray,
    order: float,
) -> np.ndarray:
    """Returns the divergence of every round from its delta curve.

    e^((a-1) D) = 1 + a (a-1) integral of (e^((a-1) x) + e^(-a x)) delta(x). Chords lie above delta
    up to a loss beyond which next to nothing is left; the rest is added in closed form.
    """
    top = float(nodes[-1])
    furthest = rounds.amplified_loss(top * ((order + 0.5) * top + 10))
    points = spread_points(furthest, 3000)
    profiles = rounds.profiles(points, nodes, weights)
    heights = np.minimum.accumulate(profiles, axis=1)
    if order == 1:
        slopes = np.diff(points) * (1 + np.exp(-points[:-1]))
        inside = heights[:, :-1] @ slopes
        return np.asarray(inside + heights[:, -1] * (1 + furthest))
    masses, left = connect_dots(heights, points)
    losses = points[1:]
    opposite = masses @ np.exp(-losses)
    no_loss = np.maximum(0.0, 1 - masses.sum(axis=1) - opposite)
    with np.errstate(divide="ignore"):
        log_masses = np.log(masses)
        gains = log_masses + (order - 1) * losses
        gains_reversed = log_masses - order * losses
        # What the last height adds if it stays.
        last = np.log(left) + math.log(2 * order) + (order - 1) * furthest
        stays = np.log(no_loss)
    # What lies beyond the last point.
    beyond = math.log(2 * rounds.share * order) + order * (order - 1) / 2 * top**2
    beyond += float(log_ndtr(-10 - top))
    parts = [
        gains,
        gains_reversed,
        last[:, None],
        stays[:, None],
        np.full((len(no_loss), 1), beyond),
    ]
    logs = logsumexp(np.concatenate(parts, axis=1), axis=1)
    logs = np.maximum(logs, 0.0)
    return np.asarray(logs / (order - 1) * (1 + 1e-12))


def hidden_curve(
    shifts: np.ndarray,
    counts: np.ndarray,
    *,
    sigma: float,
    cohort: Cohort,
    use: np.ndarray,
) -> Curve | None:
    """Returns the composition of rounds with secret minibatches.

    Args:
        shifts: How far the upload can move if the record is first used at step k, one row per round
            and one column per k.
        counts: How often each round occurs.
        sigma: The standard deviation of each participant's noise.
        cohort: The honest participants, who may be seen.
        use: The probability of each first use, as `cohorts.first_use` returns it.

    Returns:
        The curve, or None where noise is so weak that the draw hides next to nothing, or so strong
        that nothing needs hiding.

    Example:
        >>> from sordino.privacy.amplification.cohorts import first_use
        >>> use = first_use(batch=32, records=600, steps=1)
        >>> alone = Cohort.everyone(clients=1)
        >>> curve = hidden_curve(
        ...     np.array([[1.0]]), np.array([600]), sigma=1.0, cohort=alone, use=use
        ... )
        >>> round(curve.epsilon(1e-5), 2)  # C_q(G_1), 600 times
        10.68
    """
    return _compose_cached(
        shifts.astype(float).tobytes(),
        shifts.shape,
        counts.astype(np.int64).tobytes(),
        sigma,
        cohort,
        use.tobytes(),
    )


# Several views ask for the same curve; arrays come as bytes because a cache needs values.
@lru_cache(maxsize=32)
def _compose_cached(
    shifts: bytes,
    shape: tuple[int, int],
    counts: bytes,
    sigma: float,
    cohort: Cohort,
    use: bytes,
) -> Curve | None:
    """Returns `hidden_curve` of arrays given as bytes."""
    rows = np.frombuffer(shifts).reshape(shape)
    often = np.frombuffer(counts, dtype=np.int64)
    used = np.frombuffer(use)
    rate = float(used.sum())
    never_moves = rows.max(initial=0.0) == 0 or often.sum() == 0
    if never_moves or rate == 0 or cohort.probability == 0:
        return PERFECT
    if sigma == 0 or min(cohort.counts) == 0:
        return None
    rows, often = join_similar_rounds(rows, often, slack=_SLACK)
    # The noise of all honest participants adds up, so that its deviation grows with the root.
    honest = np.array(cohort.counts, dtype=float)
    scales = 1 / (sigma * np.sqrt(honest))
    mus = np.multiply.outer(rows, scales)
    mus = mus.reshape(len(rows), -1)
    if not WEAKEST <= mus.max() <= STRONGEST:
        return None
    given_use = used / rate
    masses = np.multiply.outer(given_use, np.array(cohort.masses)).ravel()
    rounds = HiddenRounds(
        mus=mus,
        masses=masses / masses.sum(),
        counts=often,
        rate=min(rate, 1.0),
        probability=cohort.probability,
    )
    direction = _add_losses(rounds)
    return HiddenCurve(directions=(direction,), rounds=rounds)


def _add_losses(rounds: HiddenRounds) -> Direction:
    """Returns the privacy losses of all rounds together."""
    nodes, weights = split_over_nodes(rounds.mus, rounds.masses, rounds.counts)
    interval, dots = choose_loss_grid(rounds, nodes, weights)
    losses = dots * interval
    heights = np.clip(rounds.profiles(losses, nodes, weights), 0.0, 1.0)
    # Connecting dots needs a curve that never rises, not even by rounding.
    heights = np.minimum.accumulate(heights * (1 + 1e-12), axis=1)
    masses, infinite = connect_dots(heights, losses)
    return convolve_rounds(
        dots,
        masses,
        infinite,
        rounds.counts,
        interval,
    )
