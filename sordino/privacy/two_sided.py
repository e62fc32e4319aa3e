"""Replacing a unit that is in a release only with probability q, unseen: Poisson batches, and clients that are drawn unseen.

Without noise the unit adds u or v, each of norm at most r, or nothing. The worst case is u = -v on the sphere (docs/theory.md, A14):
(1 - q) N(0, 1) + q N(r, 1) against (1 - q) N(0, 1) + q N(-r, 1), in units of the noise. Its mirror image is the pair in the other
direction, so one curve holds for both.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from sordino.privacy import checks
from sordino.privacy.curves import PERFECT, Curve, GaussianCurve
from sordino.privacy.losses import LossCurve
from sordino.privacy.subsampled import suitable_interval

_ROUNDING = 2.0**-44  # relative error that sums and tails of normal laws may have, charged
_LARGEST = 600.0  # epsilon whose exponential is still far from overflow; delta beyond is at most that there


def two_sided(
    *,
    reach: float,
    rate: float,
    steps: int = 1,
    rounds: int = 1,
    probability: float = 1.0,
    interval: float | None = None,
) -> Curve:
    """Returns the composition of steps that replace a unit which each of them holds with probability `rate`, unseen.

    Args:
        reach: Largest norm of what the unit adds, over the standard deviation of the noise.
        rate: Probability that a step holds the unit.
        steps: Steps of a round.
        rounds: Number of rounds.
        probability: That a round takes place, visibly.
        interval: Grid of the privacy losses.

    Example:
        >>> round(two_sided(reach=0.5, rate=0.1, steps=100).epsilon(1e-5), 2)
        4.37
    """
    checks.not_negative(reach=reach)
    checks.probability(rate=rate, probability=probability)
    checks.whole(at_least=0, steps=steps, rounds=rounds)
    if 0 in (reach, rate, steps, rounds, probability):
        return PERFECT
    if math.isinf(reach):
        return GaussianCurve(mu=math.inf)
    grid = interval or suitable_interval(mu=2 * reach, rate=rate, steps=steps * rounds)
    one = LossCurve.from_profile(
        lambda epsilons: deltas(epsilons, reach=reach, rate=rate), interval=grid
    ).repeat(steps)
    if probability < 1:
        one = one.mixed_with_nothing(probability)
    return one.repeat(rounds)


def deltas(epsilons: np.ndarray, *, reach: float, rate: float) -> np.ndarray:
    """Returns delta of one step at each epsilon >= 0, in closed form, rounded up.

    The likelihood ratio grows along the line, so the best test accuses beyond a point z; with a = e^epsilon, c = (a - 1)(1 - q) it solves
    q e^(rz - r^2/2) = c + a q e^(-rz - r^2/2), and delta = q P(Z > z - r) - a q P(Z > z + r) - c P(Z > z).

    Example:
        >>> deltas(np.array([0.0, 1.0]), reach=0.5, rate=1.0).round(6).tolist()  # mu = 1
        [0.382925, 0.126937]
    """
    capped = np.minimum(np.asarray(epsilons, dtype=float), _LARGEST)
    growth = np.exp(capped)
    common = np.expm1(capped) * (1 - rate)
    weight = rate * math.exp(-(reach**2) / 2)
    root = np.sqrt(common**2 + 4 * growth * weight**2)
    point = (np.log(common + root) - math.log(2 * weight)) / reach
    gained = rate * ndtr(reach - point)
    lost = np.exp(np.log(rate) + capped + log_ndtr(-reach - point)) + common * ndtr(-point)
    return np.maximum(gained - lost, 0.0) + _ROUNDING * gained
