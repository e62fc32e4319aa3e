"""Lower bounds from one training into which many canaries were sown.

Each of m slots of the data holds one of two records, by a fair coin of its own (replace-one neighbours). After one training every
slot has a score, and the auditor guesses k of the coins, k fixed beforehand: the highest scores are guessed 1, the lowest 0, on the
others he abstains (Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"). All rests on one inequality for
the number C of right guesses. Turning the coin of a slot makes a right guess there a wrong one and C one less, for the same output;
privacy compares the two events and, averaged over slots and coins, for every set T of counts and with p_c = P[C = c],

    sum over c in T of c p_c  <=  m F( sum over c in T of (k - c + 1) p_(c-1) / m ).        (*)

F(x) is the largest probability, under one record, of an event that has probability x under the other: e^epsilon x + delta, or
1 - f(x) for a trade-off function f. `p_value` is the exact consequence of the first, `refutes` a consequence of the second.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, betaln, expit, xlogy

from sordino.privacy import checks, gaussian
from sordino.privacy.curves import GaussianCurve
from sordino.privacy.roots import bracket, grown
from sordino.protocol.errors import InvalidValue, UserError

_ROUNDING = 1e-9  # relative, far above what floating point can cost here, and taken off every bound
_VANISHED = 1e-290
_FEWEST = 20  # guesses: with less, even a mechanism that hides nothing shows little


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How the guessing went: `correct` of `guesses` were right; there were `canaries` slots, guessed or not."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        checks.whole(at_least=1, canaries=self.canaries, guesses=self.guesses)
        checks.whole(at_least=0, correct=self.correct)
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
class OneRun:
    """What one training shows, at least.

    Attributes:
        mu_lower: with this confidence the training is mu-GDP for no smaller mu; 0 where nothing is shown.
        epsilon_lower: with this confidence it is (epsilon, delta)-private for no smaller epsilon, if `assumptions` hold.
        delta: at which epsilon is meant.
        confidence: that the bound is true, over the coins and the training.
        canaries, guesses, correct: what the bound was computed from.
        method: by which theorem.
        assumptions: what `epsilon_lower` needs; empty for a bound that holds for any mechanism.
        kind: what sort of number this is.
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


def default_split(canaries: int) -> tuple[int, int]:
    """How many of the highest and of the lowest scores to guess: a tenth each, but 20 guesses together where there are so many slots.

    A fixed rule, so that it cannot have been chosen by the outcome. A tenth is near the best for mu from 1/2 to 2 and 1000 canaries;
    where nearly every guess will be right, guess more.

    Example:
        >>> default_split(1000), default_split(15)
        ((100, 100), (8, 7))
    """
    checks.whole(at_least=1, canaries=canaries)
    guesses = max(canaries // 5, min(canaries, _FEWEST))
    return guesses - guesses // 2, guesses // 2


def tally(scores: ArrayLike, coins: ArrayLike, *, high: int, low: int) -> Tally:
    """Guesses 1 for the `high` highest scores and 0 for the `low` lowest, and counts the right ones; of equal scores the later is higher.

    Example:
        >>> tally([0.1, 2.0, -1.0, 0.3], [0, 1, 0, 0], high=1, low=2)
        Tally(canaries=4, guesses=3, correct=3)
    """
    seen, truth = np.asarray(scores, dtype=float), np.asarray(coins)
    if seen.ndim != 1 or seen.shape != truth.shape:
        raise UserError(
            f"scores and coins: shapes {seen.shape} and {truth.shape}; expected two lists of the same length."
        )
    if not np.isfinite(seen).all():
        raise UserError(
            f"scores: {seen[~np.isfinite(seen)][0]!r} is among them; expected finite numbers. Give a slot without one a 0."
        )
    if not np.isin(truth, (0, 1)).all():
        raise UserError("coins: expected a 0 or a 1 for each slot.")
    checks.whole(at_least=0, high=high, low=low)
    if not 1 <= high + low <= seen.size:
        raise UserError(
            f"high = {high}, low = {low}: expected at least one guess and at most one for each of the {seen.size} canaries."
        )
    order = np.argsort(seen, kind="stable")
    right = np.count_nonzero(truth[order[seen.size - high :]] == 1) + np.count_nonzero(
        truth[order[:low]] == 0
    )
    return Tally(canaries=seen.size, guesses=high + low, correct=int(right))


def p_value(result: Tally, *, epsilon: float, delta: float) -> float:
    """The largest probability that an (epsilon, delta)-private training gives so many right guesses, or more; rounded up.

    With W binomial in k trials of probability q = e^epsilon / (1 + e^epsilon) and v right guesses it is

        P[W >= v]  +  m delta P[W >= v] P[W < v] / (v P[W = v]).

    Randomized response attains the first term (Steinke et al. 2023, Thm 5.2), and where delta is small the second is attained too.
    The published one, 2 m delta max_i P[v > W >= v - i] / i, is more than twice that if the value is at most 1/2; near 1 it can be less.
    Proof: Stein's equation of the binomial, c y_c - e^epsilon (k - c) y_(c+1) = 1{c >= v} - P[W >= v], is solved by
    y_c = P[W >= v] P[W < c] / (c P[W = c]) up to c = v and by y_c = P[W < v] P[W >= c] / (c P[W = c]) from there on, which rises up to
    v and falls after it (the binomial is log-concave). The mean of the equation over C, arranged by y, is
    P[C >= v] - P[W >= v] = sum of y_c (c p_c - e^epsilon (k - c + 1) p_(c-1)) <= y_v m delta, by (*).

    Example:
        >>> round(p_value(Tally(canaries=1, guesses=1, correct=1), epsilon=0.0, delta=0.1), 6)  # (1 + delta) / 2
        0.55
    """
    checks.finite(epsilon=epsilon)
    checks.proper_delta(delta)
    if result.correct == 0:
        return 1.0
    correct, others = result.correct, result.guesses - result.correct
    lie = float(expit(-epsilon))
    tail, rest = float(betaincc(others + 1, correct, lie)), float(betainc(others + 1, correct, lie))
    mass = math.exp(
        xlogy(others, lie)
        - correct * math.log1p(math.exp(-epsilon))
        - betaln(correct + 1, others + 1)
        - math.log1p(result.guesses)
    )
    if mass > _VANISHED:
        ratio = tail / mass
    elif tail > 0.5:
        return 1.0
    else:  # both are too small for floats; the terms of the tail fall faster than this geometric series
        ratio = 1 / (1 - others * math.exp(epsilon) / (correct + 1))
    worst = tail + result.canaries * delta * ratio * rest / correct
    return min(1.0, worst * (1 + _ROUNDING))


def epsilon_bound(result: Tally, *, delta: float = 1e-5, confidence: float = 0.95) -> OneRun:
    """The largest epsilon that the tally refutes at `delta`, for any mechanism; mu follows, since mu-GDP would have promised it.

    Example:
        >>> shown = epsilon_bound(Tally(canaries=1000, guesses=200, correct=190))
        >>> round(shown.epsilon_lower, 2), round(shown.mu_lower, 2)
        (2.4, 0.59)
    """
    checks.proper_delta(delta)
    level = math.log(_miss(confidence))

    def surprise(epsilon: float) -> float:
        return level - math.log(
            max(p_value(result, epsilon=epsilon, delta=delta), sys.float_info.min)
        )

    lower = 0.0
    if surprise(0.0) > 0:
        lower, _ = bracket(surprise, 0.0, grown(lambda epsilon: surprise(epsilon) <= 0, 1.0))
    mu = gaussian.mu_from(lower, delta) if lower > 0 else 0.0
    return _shown(
        result, mu, lower, delta, confidence, "one run, exact count (Steinke et al. 2023)"
    )


def refutes(result: Tally, tradeoff: Callable[[float], float], *, confidence: float = 0.95) -> bool:
    """Whether so many right guesses contradict a trade-off function that holds in both directions, such as the `beta` of a curve.

    By the recursion of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run".

    Example:
        >>> seen = Tally(canaries=1000, guesses=200, correct=190)
        >>> refutes(seen, GaussianCurve(mu=0.8).beta), refutes(seen, GaussianCurve(mu=1.0).beta)
        (True, False)
    """
    return bool(_probability_needed(result, tradeoff, _miss(confidence)) > 1 + _ROUNDING)


def mu_bound(result: Tally, *, delta: float = 1e-5, confidence: float = 0.95) -> OneRun:
    """The largest mu whose Gaussian trade-off function the tally refutes: mostly more than `epsilon_bound` shows.

    `epsilon_lower` is read from the Gaussian curve of that mu. It is a lower bound only if the trade-off function of the training is
    Gaussian: that another one is not mu-GDP says nothing about one particular delta. `epsilon_bound` is free of this.

    Example:
        >>> shown = mu_bound(Tally(canaries=1000, guesses=200, correct=190))
        >>> round(shown.mu_lower, 2), round(shown.epsilon_lower, 2)
        (0.91, 3.92)
    """
    checks.proper_delta(delta)
    miss = _miss(confidence)

    def excess(mu: float) -> float:
        return _probability_needed(result, partial(gaussian.beta, mu), miss) - 1 - _ROUNDING

    lower = 0.0
    if excess(0.0) > 0:
        lower, _ = bracket(excess, 0.0, grown(lambda mu: excess(mu) <= 0, 1.0))
    epsilon = GaussianCurve(mu=lower).epsilon(delta) * (1 - _ROUNDING)  # the curve rounds up
    method = "one run, f-DP recursion (Mahloujifar et al. 2024)"
    return _shown(
        result, lower, epsilon, delta, confidence, method, ("the trade-off function is Gaussian",)
    )


def audit_one_run(
    scores: ArrayLike,
    coins: ArrayLike,
    *,
    splits: Sequence[tuple[int, int]] | None = None,
    bound: Callable[..., OneRun] = epsilon_bound,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> OneRun:
    """The bound that one training's scores give.

    Args:
        scores: One number for each slot; high speaks for alternative 1.
        coins: Which alternative each slot held.
        splits: How many highest and lowest scores to guess, as pairs, chosen before the coins are looked at. Of several pairs the best
            bound is returned, and each is computed at its share of what `confidence` leaves (Bonferroni): trying them all at full
            confidence and keeping the best would show leaks that are not there. None: `default_split`.
        bound: `epsilon_bound` or `mu_bound`.
        delta: At which epsilon is meant.
        confidence: Of the result, whichever pair it comes from.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> coins = draws.integers(0, 2, 1000)
        >>> scores = 3 * coins + draws.standard_normal(1000)
        >>> 4 < audit_one_run(scores, coins, splits=[(100, 100), (250, 250)]).epsilon_lower < gaussian.epsilon(3.0, 1e-5)
        True
    """
    miss = _miss(confidence)
    pairs = [default_split(np.size(scores))] if splits is None else list(splits)
    if not pairs:
        raise InvalidValue(
            "splits", splits, "at least one pair (highest, lowest)", "Leave it out for the default."
        )
    found = [
        bound(
            tally(scores, coins, high=high, low=low), delta=delta, confidence=1 - miss / len(pairs)
        )
        for high, low in pairs
    ]
    return replace(max(found, key=lambda one: one.mu_lower), confidence=confidence)


def _probability_needed(result: Tally, tradeoff: Callable[[float], float], miss: float) -> float:
    """How much probability the counts of guesses must share if `correct` or more of them come up with probability `miss`.

    Above 1 there is no such training. For a slot drawn at random, `right` and `wrong` are the probabilities that it is guessed so and
    C >= j. They start with all of `miss` at C = correct, the least demanding way; (*) for T = {j, j + 1, ...} says that `wrong` must
    be at least f(1 - right) one count lower (f is its own inverse), which takes probability there, which adds to `right` in turn.
    """
    guesses, correct, slots = result.guesses, result.correct, result.canaries
    share = guesses / slots
    right, wrong = miss * correct / slots, miss * (guesses - correct) / slots
    for count in range(correct - 1, -1, -1):
        least = tradeoff(min(1.0, math.nextafter(1 - right, 2.0))) * (1 - 1e-12)
        if least <= wrong:
            break
        right, wrong = right + count / (guesses - count) * (least - wrong), least
        if right + wrong > share * (1 + 2 * _ROUNDING):
            break
    return (right + wrong) / share


def _shown(
    result: Tally,
    mu: float,
    epsilon: float,
    delta: float,
    confidence: float,
    method: str,
    assumptions: tuple[str, ...] = (),
) -> OneRun:
    return OneRun(
        mu_lower=mu,
        epsilon_lower=epsilon,
        delta=delta,
        confidence=confidence,
        canaries=result.canaries,
        guesses=result.guesses,
        correct=result.correct,
        method=method,
        assumptions=assumptions,
    )


def _miss(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InvalidValue("confidence", confidence, "a number above 0 and below 1")
    return 1 - confidence
