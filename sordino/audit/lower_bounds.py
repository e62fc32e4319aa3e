"""Turns two samples of scores into lower bounds: what can be told apart was revealed.

A test answers "neighbour" when a score reaches a threshold. The threshold is chosen on one half of
the trainings, and its two error rates are counted on the other half, each with a one-sided upper
limit by Clopper and Pearson. Whatever the mechanism is, it satisfies no (epsilon, delta) with an
epsilon below log((1 - delta - FNR) / FPR), and no mu-GDP below the mu whose trade-off curve passes
through the point of the two rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from sordino.privacy.curves.curve import Curve
from sordino.protocol import InvalidValue, UserError

Sides = tuple[np.ndarray, np.ndarray]  # scores on the data set, scores on its neighbour
# Returns an upper limit of an error rate from the number of errors, the number of trials, the
# probability with which it may be too low, and the rate on the half that chose the test.
RateLimit = Callable[[np.ndarray | float, int, float, np.ndarray | float], np.ndarray]

# The confidence of the numbers that are shown.
CONFIDENCE = 0.95
# The confidence that the verdict "refuted" needs.
REFUTING = 0.9999
# Two tests may refute a bound, one chosen for mu and one for epsilon: each gets half of the error.
FIRM = 1 - (1 - REFUTING) / 2
# The most thresholds that are tried.
CANDIDATES = 20_000
# With fewer errors of a kind, their number in the other half is mostly luck.
STEADY = 10
# How many times better than the balanced threshold another must look.
CLEARLY = 1.15


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Holds the scores of an audit's trainings; a high score speaks for the neighbour.

    Attributes:
        choosing: Scores of the half on which the threshold is chosen.
        judging: Scores of the half on which its errors are counted.
    """

    choosing: Sides
    judging: Sides

    @property
    def trainings(self) -> int:
        """Trainings per side by which the test is judged."""
        return min(len(side) for side in self.judging)


@dataclass(frozen=True, kw_only=True)
class ErrorLimits:
    """Holds upper limits of the two error rates of one test, which hold jointly.

    Attributes:
        false_positive: The limit of the probability to answer "neighbour" on the data set.
        false_negative: The limit of the probability to answer "data set" on the neighbour.
    """

    false_positive: float
    false_negative: float

    @property
    def mu(self) -> float:
        """The smallest Gaussian parameter that these rates allow; 0 if they show nothing."""
        return max(0.0, float(-ndtri(self.false_positive) - ndtri(self.false_negative)))

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon that these rates allow, whatever the mechanism.

        Args:
            delta: The delta that goes with it.

        Returns:
            A lower bound on epsilon; 0 if the rates show nothing.
        """
        best = 0.0
        # The definition holds in both directions, so each rate may play either part.
        for wrong, missed in (
            (self.false_positive, self.false_negative),
            (self.false_negative, self.false_positive),
        ):
            if 1 - delta > missed and wrong == 0:
                return math.inf
            if 1 - delta > missed:
                best = max(best, math.log((1 - delta - missed) / wrong))
        return best

    def contradicts(self, curve: Curve) -> bool:
        """Returns whether no mechanism with this trade-off curve could have such error rates.

        Args:
            curve: A trade-off curve, which holds in both directions.
        """
        one_way = self.false_negative < curve.beta(self.false_positive)
        other_way = self.false_positive < curve.beta(self.false_negative)
        return bool(one_way or other_way)


def limit_error_rate(errors: np.ndarray | float, trials: int, miss: float) -> np.ndarray:
    """Returns the one-sided upper limit of Clopper and Pearson on an error rate.

    Args:
        errors: The number of errors that were counted.
        trials: The number of trials.
        miss: The probability with which the limit may be too low.

    Example:
        >>> float(limit_error_rate(0, 100, 0.025).round(6))
        0.036217
        >>> float(limit_error_rate(100, 100, 0.025))
        1.0
    """
    counted = np.asarray(errors, dtype=float)
    inside = betaincinv(np.minimum(counted + 1, trials), np.maximum(trials - counted, 1), 1 - miss)
    return np.where(counted >= trials, 1.0, inside)


def limit_once(
    errors: np.ndarray | float, trials: int, miss: float, seen: np.ndarray | float
) -> np.ndarray:
    """Returns the limit for a number of trials that was fixed beforehand.

    Args:
        errors: The number of errors that were counted.
        trials: The number of trials.
        miss: The probability with which the limit may be too low.
        seen: The error rate on the half that chose the test, which is not used.
    """
    return limit_error_rate(errors, trials, miss)


def count_errors(sides: Sides, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of false alarms and misses of each threshold.

    Args:
        sides: Scores on the data set and on its neighbour.
        thresholds: Scores from which on a test says "neighbour".
    """
    zero = np.sort(sides[0])
    one = np.sort(sides[1])
    alarms = len(zero) - np.searchsorted(zero, thresholds, side="left")
    missed = np.searchsorted(one, thresholds, side="left")
    return alarms, missed


def limit_both_rates(
    sides: Sides, thresholds: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns upper limits of the false positive and false negative rates at some thresholds.

    Args:
        sides: Scores on the data set and on its neighbour.
        thresholds: Scores from which on a test says "neighbour".
        confidence: The joint confidence of the two limits of a threshold.
    """
    alarms, missed = count_errors(sides, thresholds)
    miss = (1 - confidence) / 2
    return (
        limit_error_rate(alarms, len(sides[0]), miss),
        limit_error_rate(missed, len(sides[1]), miss),
    )


def measure_error_rates(
    scores: Scores,
    goal: str,
    confidence: float = CONFIDENCE,
    delta: float = 1e-5,
    limit: RateLimit = limit_once,
) -> ErrorLimits:
    """Returns the error rates of the best test: chosen on one half, counted on the other.

    Args:
        scores: Scores of all trainings.
        goal: "mu" or "epsilon": the bound that the test is to make large.
        confidence: The joint confidence of the two limits.
        delta: The delta for the goal "epsilon".
        limit: The function that limits a rate on the half that judges.

    Raises:
        InvalidValue: Another goal.
        UserError: There are no scores on a side.

    Example:
        >>> draws = np.random.default_rng(1).standard_normal((4, 5000))
        >>> scores = Scores(choosing=(draws[0], draws[1] + 3), judging=(draws[2], draws[3] + 3))
        >>> 2.8 < measure_error_rates(scores, "mu").mu < 3.0
        True
    """
    best = choose_threshold(scores.choosing, goal, confidence, delta)
    return limit_errors(scores, best, confidence, limit)


def limit_errors(
    scores: Scores, threshold: float, confidence: float, limit: RateLimit = limit_once
) -> ErrorLimits:
    """Returns limits of the error rates of one test, counted on the half that judges.

    Args:
        scores: Scores of all trainings.
        threshold: The score from which on the test says "neighbour".
        confidence: The joint confidence of the two limits.
        limit: The function that limits a rate.

    Raises:
        UserError: There are no scores on a side.
    """
    found = []
    alone = np.array([threshold])
    chosen = replace_missing_scores(scores.choosing)
    judged = replace_missing_scores(scores.judging)
    counts = zip(count_errors(chosen, alone), count_errors(judged, alone), strict=True)
    for side, (before, errors) in enumerate(counts):
        seen = float(before[0]) / len(chosen[side])
        trials = len(judged[side])
        found.append(float(limit(float(errors[0]), trials, (1 - confidence) / 2, seen)))
    return ErrorLimits(false_positive=found[0], false_negative=found[1])


def choose_threshold(sides: Sides, goal: str, confidence: float, delta: float) -> float:
    """Returns the threshold with the largest bound on the half that chooses.

    Args:
        sides: Scores on the data set and on its neighbour.
        goal: "mu" or "epsilon": the bound that the test is to make large.
        confidence: The joint confidence of the two limits.
        delta: The delta for the goal "epsilon".

    Raises:
        InvalidValue: Another goal.
        UserError: There are no scores on a side.
    """
    sides = replace_missing_scores(sides)
    thresholds = np.unique(np.concatenate(sides))
    if len(thresholds) > CANDIDATES:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, CANDIDATES).astype(int)]
    alarms, missed = limit_both_rates(sides, thresholds, confidence)
    if goal == "mu":
        worth = exclude_lucky_thresholds(sides, thresholds, -ndtri(alarms) - ndtri(missed))
    elif goal == "epsilon":
        with np.errstate(divide="ignore", invalid="ignore"):
            one_way = np.log(np.maximum(1 - delta - missed, 0) / alarms)
            other_way = np.log(np.maximum(1 - delta - alarms, 0) / missed)
        worth = np.maximum(one_way, other_way)
    else:
        raise InvalidValue("goal", goal, '"mu" or "epsilon"')
    return float(thresholds[int(np.argmax(worth))])


def exclude_lucky_thresholds(sides: Sides, thresholds: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Returns the bounds of thresholds, -inf for those whose bound would hardly recur.

    The threshold that errs equally often on both sides is the best one for a Gaussian and the
    steadiest for all. Another must be clearly better and have enough errors of both kinds.

    Args:
        sides: Scores on the data set and on its neighbour.
        thresholds: The candidates.
        worth: The bound of each on these scores.
    """
    alarms, missed = count_errors(sides, thresholds)
    balanced = int(np.argmin(np.maximum(alarms, missed)))
    clearly_better = worth > CLEARLY * max(worth[balanced], 0.0)
    accepted = clearly_better & (np.minimum(alarms, missed) >= STEADY)
    accepted[balanced] = True
    return np.where(accepted, worth, -np.inf)


def replace_missing_scores(sides: Sides) -> Sides:
    """Returns scores without NaN: a training that failed counts as the lowest score.

    Args:
        sides: Scores on the data set and on its neighbour.

    Raises:
        UserError: There are no scores on a side.
    """
    if len(sides[0]) == 0 or len(sides[1]) == 0:
        raise UserError("there are no scores: train at least once on either side.")
    zero = np.where(np.isnan(sides[0]), -np.inf, sides[0])
    one = np.where(np.isnan(sides[1]), -np.inf, sides[1])
    return zero, one
