"""Derives lower bounds from one training with many canaries.

Each of m slots of the data holds one of two records, chosen by a fair coin (replace-one
neighbours). After one training every slot has a score, and the auditor guesses k of the coins, with
k fixed beforehand: 1 for the highest scores, 0 for the lowest, and no guess for the others
(Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"). Everything rests
on one inequality for the number C of right guesses. If the coin of a slot is turned and the output
stays the same, a right guess there becomes wrong and C one less. Privacy compares the two events;
averaged over slots and coins, with p_c = P[C = c], it says for every set T of counts

    sum over c in T of c p_c  <=  m F( sum over c in T of (k - c + 1) p_(c-1) / m ).        (*)

F(x) is the largest probability, under one record, of an event that has probability x under the
other: e^epsilon x + delta, or 1 - f(x) for a trade-off function f. `bound_p_value` is the exact
consequence of the first, `refutes_tradeoff` a consequence of the second.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, betaln, expit, xlogy

from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.roots import bracket_root, double_until
from sordino.protocol.errors import InvalidValue, UserError

# The relative safety margin of every bound, far above any rounding error here.
_ROUNDING = 1e-9
# Below this, probabilities are too small for a quotient of floats.
_VANISHED = 1e-290
# With fewer guesses even a mechanism that hides nothing shows little.
_FEWEST = 20


@dataclass(frozen=True, kw_only=True)
class GuessCount:
    """Holds the numbers of guesses of an auditor.

    Attributes:
        canaries: The number of slots, whether guessed or not.
        guesses: The number of slots that were guessed.
        correct: The number of right guesses.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        checks.require_whole(at_least=1, canaries=self.canaries, guesses=self.guesses)
        checks.require_whole(at_least=0, correct=self.correct)
        if self.guesses > self.canaries:
            raise InvalidValue(
                "guesses",
                self.guesses,
                f"at most the {self.canaries} canaries",
                "Guess each canary once at most.",
            )
        if self.correct > self.guesses:
            raise InvalidValue("correct", self.correct, f"at most the {self.guesses} guesses")


@dataclass(frozen=True, kw_only=True)
class OneRunBound:
    """Holds lower bounds that one training shows.

    Attributes:
        mu_lower: With this confidence the training is mu-GDP for no smaller mu; 0 if nothing is
            shown.
        epsilon_lower: With this confidence the training is (epsilon, delta)-private for no smaller
            epsilon, if `assumptions` hold.
        delta: The delta that goes with epsilon.
        confidence: The probability that the bound is true, over the coins and the training.
        canaries: The number of slots, whether guessed or not.
        guesses: The number of slots that were guessed.
        correct: The number of right guesses.
        method: The theorem that was used.
        assumptions: The assumptions of `epsilon_lower`; empty if it holds for any mechanism.
        kind: "measured lower bound".
    """

    mu_lower: float
    epsilon_lower: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    method: str
    assumptions: tuple[str, ...] = ()
    kind: str = "measured lower bound"


def split_guesses(canaries: int) -> tuple[int, int]:
    """Returns how many of the highest and of the lowest scores are guessed by default.

    That is a tenth each, but at least 20 guesses together if there are that many slots. The rule is
    fixed, so that it cannot depend on the outcome. A tenth is nearly optimal for mu from 1/2 to 2
    and 1000 canaries; more guesses are better if nearly all of them will be right.

    Args:
        canaries: The number of slots.

    Example:
        >>> split_guesses(1000), split_guesses(15)
        ((100, 100), (8, 7))
    """
    checks.require_whole(at_least=1, canaries=canaries)
    guesses = max(canaries // 5, min(canaries, _FEWEST))
    return guesses - guesses // 2, guesses // 2


def count_guesses(
    scores: ArrayLike,
    coins: ArrayLike,
    *,
    high: int,
    low: int,
) -> GuessCount:
    """Guesses 1 for the highest scores and 0 for the lowest, and counts the right guesses.

    Args:
        scores: One number for each slot. Of equal scores the later one counts as higher.
        coins: For each slot, 0 or 1.
        high: The number of highest scores that are guessed.
        low: The number of lowest scores that are guessed.

    Raises:
        UserError: Scores and coins that do not fit, or numbers of guesses out of range.

    Example:
        >>> count_guesses([0.1, 2.0, -1.0, 0.3], [0, 1, 0, 0], high=1, low=2)
        GuessCount(canaries=4, guesses=3, correct=3)
    """
    seen = np.asarray(scores, dtype=float)
    truth = np.asarray(coins)
    _check_scores(seen, truth)
    checks.require_whole(at_least=0, high=high, low=low)
    if not 1 <= high + low <= seen.size:
        raise UserError(
            f"high = {high}, low = {low}: expected at least one guess and at most one for each "
            f"of the {seen.size} canaries."
        )
    order = np.argsort(seen, kind="stable")
    right = np.count_nonzero(truth[order[seen.size - high :]] == 1)
    right += np.count_nonzero(truth[order[:low]] == 0)
    return GuessCount(canaries=seen.size, guesses=high + low, correct=int(right))


def _check_scores(scores: np.ndarray, coins: np.ndarray) -> None:
    if scores.ndim != 1 or scores.shape != coins.shape:
        raise UserError(
            f"scores and coins: shapes {scores.shape} and {coins.shape}; expected two lists of "
            "the same length."
        )
    if not np.isfinite(scores).all():
        bad = scores[~np.isfinite(scores)][0]
        raise UserError(
            f"scores: {bad!r} is among them; expected finite numbers. Score an unknown slot by 0."
        )
    if not np.isin(coins, (0, 1)).all():
        raise UserError("coins: expected a 0 or a 1 for each slot.")


def bound_p_value(result: GuessCount, *, epsilon: float, delta: float) -> float:
    """Returns the largest probability of at least this many right guesses, rounded up.

    It is the largest among all (epsilon, delta)-private trainings. With W binomial in k trials of
    probability q = e^epsilon / (1 + e^epsilon) and v right guesses it is

        P[W >= v]  +  m delta P[W >= v] P[W < v] / (v P[W = v]).

    Randomized response attains the first term (Steinke et al. 2023, Thm 5.2), and for small delta
    the second is attained too. The published one, 2 m delta max_i P[v > W >= v - i] / i, is more
    than twice that if the value is at most 1/2; near 1 it can be less.

    Proof: Stein's equation of the binomial,
    c y_c - e^epsilon (k - c) y_(c+1) = 1{c >= v} - P[W >= v], is solved by
    y_c = P[W >= v] P[W < c] / (c P[W = c]) up to c = v and by
    y_c = P[W < v] P[W >= c] / (c P[W = c]) from there on, which rises up to v and falls after it
    (the binomial is log-concave). The mean of the equation over C, arranged by y, is
    P[C >= v] - P[W >= v] = sum of y_c (c p_c - e^epsilon (k - c + 1) p_(c-1)) <= y_v m delta,
    by (*).

    Args:
        result: The guesses.
        epsilon: The epsilon that is tested.
        delta: The delta that goes with it.

    Example:
        >>> result = GuessCount(canaries=1, guesses=1, correct=1)
        >>> round(bound_p_value(result, epsilon=0.0, delta=0.1), 6)  # (1 + delta) / 2
        0.55
    """
    checks.require_finite(epsilon=epsilon)
    checks.require_delta(delta)
    if result.correct == 0:
        return 1.0
    correct = result.correct
    wrong = result.guesses - correct
    lie = float(expit(-epsilon))
    tail = float(betaincc(wrong + 1, correct, lie))
    rest = float(betainc(wrong + 1, correct, lie))
    mass = math.exp(
        xlogy(wrong, lie)
        - correct * math.log1p(math.exp(-epsilon))
        - betaln(correct + 1, wrong + 1)
        - math.log1p(result.guesses)
    )
    if mass > _VANISHED:
        ratio = tail / mass
    elif tail > 0.5:
        return 1.0
    else:
        # Both are too small for floats, but terms of the tail fall faster than a geometric series.
        ratio = 1 / (1 - wrong * math.exp(epsilon) / (correct + 1))
    largest = tail + result.canaries * delta * ratio * rest / correct
    return min(1.0, largest * (1 + _ROUNDING))


def bound_epsilon(
    result: GuessCount, *, delta: float = 1e-5, confidence: float = 0.95
) -> OneRunBound:
    """Returns the largest epsilon that the guesses refute, for any mechanism.

    A bound on mu follows, since mu-GDP would have promised the refuted epsilon.

    Args:
        result: The guesses.
        delta: The delta that goes with epsilon.
        confidence: Confidence of the bound.

    Example:
        >>> shown = bound_epsilon(GuessCount(canaries=1000, guesses=200, correct=190))
        >>> round(shown.epsilon_lower, 2), round(shown.mu_lower, 2)
        (2.4, 0.59)
    """
    checks.require_delta(delta)
    level = math.log(_allowed_error(confidence))

    def surprise(epsilon: float) -> float:
        """Returns how much more surprising the guesses are than the level allows, in logarithms.

        Args:
            epsilon: The bound that is doubted.
        """
        p = bound_p_value(result, epsilon=epsilon, delta=delta)
        return level - math.log(max(p, sys.float_info.min))

    lower = 0.0
    mu = 0.0
    if surprise(0.0) > 0:
        lower, _ = bracket_root(
            surprise, 0.0, double_until(lambda epsilon: surprise(epsilon) <= 0, 1.0)
        )
    if lower > 0:
        mu = gaussian.mu_from(lower, delta)
    return OneRunBound(
        mu_lower=mu,
        epsilon_lower=lower,
        delta=delta,
        confidence=confidence,
        method="one run, exact count (Steinke et al. 2023)",
        **asdict(result),
    )


def refutes_tradeoff(
    result: GuessCount, tradeoff: Callable[[float], float], *, confidence: float = 0.95
) -> bool:
    """Returns whether the guesses contradict a trade-off function.

    It uses the recursion of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy
    in one run".

    Args:
        result: The guesses.
        tradeoff: A trade-off function that holds in both directions, such as the `beta` of a curve.
        confidence: The probability with which a contradiction is real.

    Example:
        >>> seen = GuessCount(canaries=1000, guesses=200, correct=190)
        >>> refutes_tradeoff(seen, GaussianCurve(mu=0.8).beta)
        True
        >>> refutes_tradeoff(seen, GaussianCurve(mu=1.0).beta)
        False
    """
    needed = _probability_needed(result, tradeoff, _allowed_error(confidence))
    return bool(needed > 1 + _ROUNDING)


def bound_mu(result: GuessCount, *, delta: float = 1e-5, confidence: float = 0.95) -> OneRunBound:
    """Returns the largest mu whose Gaussian trade-off function the guesses refute.

    It is usually larger than the one of `bound_epsilon`. `epsilon_lower` is read from the Gaussian
    curve of that mu, and is a lower bound only if the trade-off function of the training is
    Gaussian: that another one is not mu-GDP says nothing about one particular delta.
    `bound_epsilon` does not need this assumption.

    Args:
        result: The guesses.
        delta: The delta that goes with epsilon.
        confidence: Confidence of the bound.

    Example:
        >>> shown = bound_mu(GuessCount(canaries=1000, guesses=200, correct=190))
        >>> round(shown.mu_lower, 2), round(shown.epsilon_lower, 2)
        (0.91, 3.92)
    """
    checks.require_delta(delta)
    miss = _allowed_error(confidence)

    def excess(mu: float) -> float:
        """Returns by how much the probability that the guesses need passes 1.

        Args:
            mu: The bound that is doubted.
        """
        return _probability_needed(result, partial(gaussian.beta, mu), miss) - 1 - _ROUNDING

    lower = 0.0
    if excess(0.0) > 0:
        lower, _ = bracket_root(excess, 0.0, double_until(lambda mu: excess(mu) <= 0, 1.0))
    # The curve rounds up, and a lower bound must not.
    epsilon = GaussianCurve(mu=lower).epsilon(delta) * (1 - _ROUNDING)
    return OneRunBound(
        mu_lower=lower,
        epsilon_lower=epsilon,
        delta=delta,
        confidence=confidence,
        method="one run, f-DP recursion (Mahloujifar et al. 2024)",
        assumptions=("the trade-off function is Gaussian",),
        **asdict(result),
    )


def _probability_needed(
    result: GuessCount, tradeoff: Callable[[float], float], miss: float
) -> float:
    """Returns the total probability of all counts if `correct` or more have probability `miss`.

    No training exists for which it is above 1. For a slot drawn at random, `right` and `wrong` are
    the probabilities that its guess is right, or wrong, and that C >= j. They start with all of
    `miss` at C = correct, which demands least. By (*) for T = {j, j + 1, ...}, `wrong` must be at
    least f(1 - right) one count lower (f is its own inverse); that needs probability at that count,
    which adds to `right` in turn.
    """
    guesses = result.guesses
    share = guesses / result.canaries
    right = miss * result.correct / result.canaries
    wrong = miss * (guesses - result.correct) / result.canaries
    for count in range(result.correct - 1, -1, -1):
        least = tradeoff(min(1.0, math.nextafter(1 - right, 2.0))) * (1 - 1e-12)
        if least <= wrong:
            break
        right += count / (guesses - count) * (least - wrong)
        wrong = least
        if right + wrong > share * (1 + 2 * _ROUNDING):
            break
    return (right + wrong) / share


def _allowed_error(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InvalidValue("confidence", confidence, "a number above 0 and below 1")
    return 1 - confidence
