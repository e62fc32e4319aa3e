"""Replacing a unit that is in a release with probability q, unseen: Poisson batches and clients.

Without noise the unit adds u or v, each of norm at most r, or nothing. The worst case is u = -v on
the sphere (docs/theory.md#a15): (1 - q) N(0, 1) + q N(r, 1) against (1 - q) N(0, 1) + q N(-r, 1),
in units of the noise. Its mirror image is the pair in the other direction, so one curve holds for
both.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

from sordino.privacy.amplification.subsampling import choose_interval
from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import PERFECT, GaussianCurve
from sordino.privacy.curves.loss_distributions import LossCurve

# Relative error that sums and tails of normal laws may have, charged.
_ROUNDING = 2.0**-44
# Epsilon whose exponential is still far from overflow; delta beyond is at most that there.
_LARGEST = 600.0


@lru_cache(maxsize=4)  # views ask for the same curve; curves are large
def price_two_sided(
    *,
    reach: float,
    rate: float,
    steps: int = 1,
    rounds: int = 1,
    probability: float = 1.0,
    interval: float | None = None,
) -> Curve:
    """Returns the composition of steps each of which holds the replaced unit with some probability.

    Args:
        reach: The largest norm of what the unit adds, over the standard deviation of the noise.
        rate: The probability that a step holds the unit.
        steps: The number of steps in a round.
        rounds: The number of rounds.
        probability: The probability that a round takes place, which may be seen.
        interval: The spacing of the grid of privacy losses; by default one that suits
            the composition.

    Returns:
        A curve that holds in both directions.

    Example:
        >>> round(price_two_sided(reach=0.5, rate=0.1, steps=100).epsilon(1e-5), 2)
        4.37
    """
    checks.require_nonnegative(reach=reach)
    checks.require_probability(rate=rate, probability=probability)
    checks.require_whole(at_least=0, steps=steps, rounds=rounds)
    if 0 in (reach, rate, steps, rounds, probability):
        return PERFECT
    if math.isinf(reach):
        return GaussianCurve(mu=math.inf)
    if interval is None:
        interval = choose_interval(
            mu=2 * reach,
            rate=rate,
            steps=steps * rounds,
        )
    one_step = LossCurve.from_profile(
        lambda epsilons: find_two_sided_deltas(epsilons, reach=reach, rate=rate),
        interval=interval,
    )
    one_round = one_step.repeat(steps)
    if probability < 1:
        one_round = one_round.mix_with_nothing(probability)
    return one_round.repeat(rounds)


def find_two_sided_deltas(epsilons: np.ndarray, *, reach: float, rate: float) -> np.ndarray:
    """Returns delta of one step at each epsilon >= 0, in closed form, rounded up.

    The likelihood ratio grows along the line, so the best test accuses beyond a point z; with
    a = e^epsilon, c = (a - 1)(1 - q) it solves q e^(rz - r^2/2) = c + a q e^(-rz - r^2/2), and
    delta = q P(Z > z - r) - a q P(Z > z + r) - c P(Z > z).

    Args:
        epsilons: The epsilons, each of at least 0.
        reach: The largest norm of what the unit adds, over the standard deviation of the noise.
        rate: The probability that the step holds the unit.

    Returns:
        Delta at each epsilon.

    Example:
        >>> epsilons = np.array([0.0, 1.0])
        >>> # At rate 1 it is the Gaussian curve of mu = 1.
        >>> find_two_sided_deltas(epsilons, reach=0.5, rate=1.0).round(6).tolist()
        [0.382925, 0.126937]
    """
    capped = np.minimum(np.asarray(epsilons, dtype=float), _LARGEST)
    growth = np.exp(capped)
    common = np.expm1(capped) * (1 - rate)
    weight = rate * math.exp(-(reach**2) / 2)
    # The equation for z is quadratic in e^(rz); this is its positive solution.
    root = np.sqrt(common**2 + 4 * growth * weight**2)
    point = (np.log(common + root) - math.log(2 * weight)) / reach
    gained = rate * ndtr(reach - point)
    # In logarithms, since a large e^epsilon meets a tiny tail.
    log_lost = np.log(rate) + capped + log_ndtr(-reach - point)
    lost = np.exp(log_lost) + common * ndtr(-point)
    excess = np.maximum(gained - lost, 0.0)
    deltas: np.ndarray = excess + _ROUNDING * gained
    return deltas
