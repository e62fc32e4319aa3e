"""Predicts what audits can show: lower bounds to be expected, and the trainings that they need."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, ndtri
from scipy.stats import norm

from sordino.audit.lower_bounds import CONFIDENCE, ErrorLimits, RateLimit, limit_once
from sordino.privacy.curves.curve import Curve
from sordino.protocol import InvalidValue

# The largest number of trainings that is considered when the needed ones are counted.
MOST_TRAININGS = 1 << 60


def limit_faultless_test(
    trainings: int, confidence: float, limit: RateLimit = limit_once
) -> ErrorLimits:
    """Returns the error limits of a test that never errs.

    Args:
        trainings: Trainings per side.
        confidence: The joint confidence of the two limits.
        limit: The function that limits a rate.
    """
    highest = float(limit(0, trainings, (1 - confidence) / 2, 0))
    return ErrorLimits(false_positive=highest, false_negative=highest)


def find_largest_mu(
    trainings: int, confidence: float = CONFIDENCE, limit: RateLimit = limit_once
) -> float:
    """Returns the largest lower bound on mu that a number of trainings can give.

    Args:
        trainings: Trainings per side.
        confidence: The confidence of the bound.
        limit: The function that limits a rate.

    Example:
        >>> round(find_largest_mu(5000), 2), round(find_largest_mu(5000, 0.9999), 2)
        (6.36, 5.76)
    """
    return limit_faultless_test(trainings, confidence, limit).mu


def predict_mu_bound(
    mu: float, trainings: int, confidence: float = CONFIDENCE, limit: RateLimit = limit_once
) -> float:
    """Returns the lower bound on mu to be expected from the best test if the truth is mu-GDP.

    Args:
        mu: The true Gaussian parameter.
        trainings: Trainings per side.
        confidence: The confidence of the bound.
        limit: The function that limits a rate.

    Example:
        >>> 2.85 < predict_mu_bound(3.0, 5000) < 2.95
        True
    """
    largest = find_largest_mu(trainings, confidence, limit)
    if math.isinf(mu):
        return largest
    rate = float(norm.cdf(-mu / 2))
    highest = float(limit(trainings * rate, trainings, (1 - confidence) / 2, rate))
    return min(ErrorLimits(false_positive=highest, false_negative=highest).mu, largest)


def predict_epsilon_bound(
    mu: float,
    delta: float,
    trainings: int,
    confidence: float,
    limit: RateLimit = limit_once,
) -> float:
    """Returns the lower bound on epsilon to be expected if the truth is mu-GDP.

    Args:
        mu: The true Gaussian parameter.
        delta: The delta at which epsilon is measured.
        trainings: Trainings per side.
        confidence: The confidence of the bound.
        limit: The function that limits a rate.

    Returns:
        The largest of the bounds that 40 tests can be expected to show.

    Example:
        >>> 2.5 < predict_epsilon_bound(1.0, 1e-5, 100_000, 0.95) < 4.38
        True
    """
    miss = (1 - confidence) / 2
    alarms = np.geomspace(1 / trainings, 0.5, 40)
    missed = np.zeros_like(alarms)
    if math.isfinite(mu):
        missed = norm.cdf(norm.isf(alarms) - mu)
    wrong = limit(alarms * trainings, trainings, miss, alarms)
    left = limit(missed * trainings, trainings, miss, missed)
    best = 0.0
    for one, other in zip(wrong, left, strict=True):
        limits = ErrorLimits(false_positive=float(one), false_negative=float(other))
        best = max(best, limits.epsilon(delta))
    return best


def count_needed_trainings(
    mu: float, share: float = 0.0, confidence: float = CONFIDENCE
) -> int | None:
    """Returns the fewest trainings per side that can be expected to show a share of mu.

    Args:
        mu: The Gaussian parameter that is promised.
        share: The share of it that is to be exceeded.
        confidence: The confidence of the bound.

    Returns:
        The number; None if 2^60 trainings would not show that much.

    Raises:
        InvalidValue: `mu` is not above 0.

    Example:
        >>> count_needed_trainings(3.0), count_needed_trainings(50.0, 0.9)
        (7, None)
    """
    if not mu > 0:
        raise InvalidValue("mu", mu, "a number above 0: a difference of 0 cannot be detected")
    target = share * min(mu, 1e9)
    low = 0
    high = 1
    while predict_mu_bound(mu, high, confidence) <= target:
        low = high
        high *= 2
        if high > MOST_TRAININGS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if predict_mu_bound(mu, middle, confidence) > target:
            high = middle
        else:
            low = middle
    return high


def find_equivalent_mu(curve: Curve) -> float:
    """Returns the Gaussian parameter that reveals as much to the best balanced test as a curve.

    A test that errs with probability a on either side has a >= (1 - delta) / (1 + e^epsilon) for
    every epsilon, and the best one attains the largest of these limits. They have one peak as a
    function of e^epsilon, so a grid that narrows around the largest value finds it.

    Args:
        curve: A trade-off curve of any kind.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> round(find_equivalent_mu(GaussianCurve(mu=2.0)), 6)
        2.0
    """
    if curve.mu is not None:
        return curve.mu
    low = 0.0
    high = 300.0
    error = 0.0
    for _ in range(6):
        epsilons = np.linspace(low, high, 33)
        errors = (1 - curve.deltas(epsilons)) * expit(-epsilons)
        peak = int(np.argmax(errors))
        error = max(error, float(errors.max()))
        low = epsilons[max(peak - 1, 0)]
        high = epsilons[min(peak + 1, 32)]
    return float(-2 * ndtri(max(error, 1e-300)))
