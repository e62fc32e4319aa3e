"""From two samples of scores to lower bounds: what can be told apart must have been revealed.

A test says "neighbour" when a score reaches a threshold. The threshold is chosen on one half of the trainings and its two error rates
are counted on the other half, each with a one-sided upper limit of Clopper and Pearson. Whatever the mechanism is, no (epsilon, delta)
below log((1 - delta - FNR) / FPR) can then be true of it, and no mu-GDP below the mu whose trade-off curve passes through the point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, expit, ndtri
from scipy.stats import norm

from sordino.privacy.curves import Curve
from sordino.protocol import InvalidValue, UserError

CONFIDENCE = 0.95  # of the numbers shown
REFUTING = 0.9999  # of "refuted"
FIRM = 1 - (1 - REFUTING) / 2  # of each of the two tests that may refute


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Scores of trainings on the data set and on its neighbour, in two halves; a high score speaks for the neighbour."""

    choosing: tuple[np.ndarray, np.ndarray]
    judging: tuple[np.ndarray, np.ndarray]

    @property
    def trainings(self) -> int:
        """Trainings a side by which the test is judged."""
        return min(len(side) for side in self.judging)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits of the two error rates of one test, together at some confidence."""

    false_positive: float
    false_negative: float

    @property
    def mu(self) -> float:
        """The smallest Gaussian parameter that these rates allow; 0 where they show nothing."""
        return max(0.0, float(-ndtri(self.false_positive) - ndtri(self.false_negative)))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at `delta` that these rates allow, free of assumptions; 0 where they show nothing."""
        pairs = (
            (self.false_positive, self.false_negative),
            (self.false_negative, self.false_positive),
        )
        return max(
            0.0,
            *(
                math.log((1 - delta - missed) / wrong) if 1 - delta > missed else 0.0
                for wrong, missed in pairs
            ),
        )

    def contradicts(self, curve: Curve) -> bool:
        """Whether a mechanism with this trade-off curve could not have had such rates; the curve holds in both directions."""
        one_way = self.false_negative < curve.beta(self.false_positive)
        other_way = self.false_positive < curve.beta(self.false_negative)
        return bool(one_way or other_way)


def upper_limit(errors: np.ndarray | int, trials: int, miss: float) -> np.ndarray:
    """One-sided upper limit of Clopper and Pearson on an error rate: it is too low with probability at most `miss`.

    Example:
        >>> float(upper_limit(0, 100, 0.025).round(6)), float(upper_limit(100, 100, 0.025))
        (0.036217, 1.0)
    """
    counted = np.asarray(errors, dtype=float)
    inside = betaincinv(np.minimum(counted + 1, trials), np.maximum(trials - counted, 1), 1 - miss)
    return np.where(counted >= trials, 1.0, inside)


def limits_at(
    sides: tuple[np.ndarray, np.ndarray], thresholds: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of false positive and false negative rates at some thresholds, jointly at this confidence."""
    zero, one = (np.sort(side) for side in sides)
    miss = (1 - confidence) / 2
    alarms = len(zero) - np.searchsorted(zero, thresholds, side="left")
    missed = np.searchsorted(one, thresholds, side="left")
    return upper_limit(alarms, len(zero), miss), upper_limit(missed, len(one), miss)


def measured(
    scores: Scores, goal: str, confidence: float = CONFIDENCE, delta: float = 1e-5
) -> Limits:
    """The error rates of the test that is best for a goal, "mu" or "epsilon": chosen on one half, counted on the other.

    Example:
        >>> draws = np.random.default_rng(1).standard_normal((4, 5000))
        >>> scores = Scores(choosing=(draws[0], draws[1] + 3), judging=(draws[2], draws[3] + 3))
        >>> 2.8 < measured(scores, "mu").mu < 3.0
        True
    """
    chosen, judged = ordered(scores.choosing), ordered(scores.judging)
    thresholds = np.unique(np.concatenate(chosen))
    if len(thresholds) > CANDIDATES:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, CANDIDATES).astype(int)]
    alarms, missed = limits_at(chosen, thresholds, confidence)
    if goal == "mu":
        worth = favoured(chosen, thresholds, -ndtri(alarms) - ndtri(missed))
    elif goal == "epsilon":
        with np.errstate(divide="ignore", invalid="ignore"):
            both = [
                np.log(np.maximum(1 - delta - b, 0) / a)
                for a, b in ((alarms, missed), (missed, alarms))
            ]
        worth = np.maximum(*both)
    else:
        raise InvalidValue("goal", goal, '"mu" or "epsilon"')
    best = thresholds[[int(np.argmax(worth))]]
    alarm, miss = limits_at(judged, best, confidence)
    return Limits(false_positive=float(alarm[0]), false_negative=float(miss[0]))


CANDIDATES = 20_000  # thresholds that are looked at
STEADY = 10  # errors of either kind, below which their number in the other half is mostly luck
CLEARLY = 1.15  # how much better than the balanced threshold another must look


def favoured(
    sides: tuple[np.ndarray, np.ndarray], thresholds: np.ndarray, worth: np.ndarray
) -> np.ndarray:
    """What thresholds are worth, with those set back that look good by luck and would not keep it in the other half.

    The threshold that errs equally often on both sides is the best one for a Gaussian and the steadiest for all; another must be
    clearly better, and have errors enough of both kinds that they will recur.
    """
    zero, one = (np.sort(side) for side in sides)
    alarms = len(zero) - np.searchsorted(zero, thresholds, side="left")
    missed = np.searchsorted(one, thresholds, side="left")
    balanced = int(np.argmin(np.maximum(alarms, missed)))
    better = (worth > CLEARLY * max(worth[balanced], 0.0)) & (np.minimum(alarms, missed) >= STEADY)
    better[balanced] = True
    return np.where(better, worth, -np.inf)


def ordered(sides: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Scores without NaN: a training that failed speaks for neither, and counts as the lowest."""
    zero, one = (np.where(np.isnan(side), -np.inf, side) for side in sides)
    if len(zero) == 0 or len(one) == 0:
        raise UserError("there are no scores: train at least once on either side.")
    return zero, one


def most_shown(trainings: int, confidence: float = CONFIDENCE) -> float:
    """The largest lower bound on mu that so many trainings a side can give: that of a test which never errs.

    Example:
        >>> round(most_shown(5000), 2), round(most_shown(5000, REFUTING), 2)
        (6.36, 5.76)
    """
    limit = float(upper_limit(0, trainings, (1 - confidence) / 2))
    return Limits(false_positive=limit, false_negative=limit).mu


def expected_bound(mu: float, trainings: int, confidence: float = CONFIDENCE) -> float:
    """The lower bound to be expected where the truth is mu-GDP and the test is the best one.

    Example:
        >>> 2.85 < expected_bound(3.0, 5000) < 2.95
        True
    """
    if math.isinf(mu):
        return most_shown(trainings, confidence)
    errors = trainings * norm.cdf(-mu / 2)
    limit = float(upper_limit(errors, trainings, (1 - confidence) / 2))
    return min(
        Limits(false_positive=limit, false_negative=limit).mu, most_shown(trainings, confidence)
    )


def expected_epsilon(mu: float, delta: float, trainings: int, confidence: float) -> float:
    """The lower bound on epsilon to be expected where the truth is mu-GDP, by the best of some tests.

    Example:
        >>> 2.5 < expected_epsilon(1.0, 1e-5, 100_000, 0.95) < 4.38
        True
    """
    miss = (1 - confidence) / 2
    alarms = np.geomspace(1 / trainings, 0.5, 40)
    missed = norm.cdf(norm.isf(alarms) - mu) if math.isfinite(mu) else np.zeros_like(alarms)
    wrong = upper_limit(alarms * trainings, trainings, miss)
    left = upper_limit(missed * trainings, trainings, miss)
    return max(
        Limits(false_positive=float(one), false_negative=float(other)).epsilon(delta)
        for one, other in zip(wrong, left, strict=True)
    )


def trainings_needed(mu: float, share: float = 0.0, confidence: float = CONFIDENCE) -> int:
    """The fewest trainings a side that can be expected to show more than this share of mu.

    Example:
        >>> trainings_needed(3.0), trainings_needed(0.1) > 2000
        (7, True)
    """
    if not mu > 0:
        raise InvalidValue("mu", mu, "a number above 0: nothing can be shown of what is not there")
    low, high = 0, 1
    while expected_bound(mu, high, confidence) <= share * min(mu, 1e9):
        low, high = high, high * 2
        if high > 1 << 60:
            raise UserError(f"no number of trainings shows {share:g} of mu = {mu:g}.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if expected_bound(mu, middle, confidence) > share * min(mu, 1e9)
            else (middle, high)
        )
    return high


def gaussian_like(curve: Curve) -> float:
    """The Gaussian parameter that reveals as much to the best balanced test as a curve of any kind.

    A test that errs with probability a on either side has a >= (1 - delta) / (1 + e^epsilon) for every epsilon, and the best one attains
    the largest of these; as a function of e^epsilon there is one peak.

    Example:
        >>> from sordino.privacy.curves import GaussianCurve
        >>> round(gaussian_like(GaussianCurve(mu=2.0)), 6)
        2.0
    """
    if curve.mu is not None:
        return curve.mu
    low, high, least = 0.0, 300.0, 0.0
    for _ in range(6):
        epsilons = np.linspace(low, high, 33)
        errors = (1 - curve.deltas(epsilons)) * expit(-epsilons)
        best, least = int(np.argmax(errors)), max(least, float(errors.max()))
        low, high = epsilons[max(best - 1, 0)], epsilons[min(best + 1, 32)]
    return float(-2 * ndtri(max(least, 1e-300)))
