"""Audits of one training: their bounds against exact enumeration, exact worst cases and simulated mechanisms."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom, norm

from sordino.audit.canaries import canary_clients, one_run_bounds
from sordino.audit.canaries.canary_clients import (
    NormalFit,
    estimate_all_rounds,
    estimate_final,
    find_cosines,
    find_epsilon_between,
    find_largest_cosines,
)
from sordino.audit.canaries.one_run_bounds import (
    GuessCount,
    OneRunBound,
    bound_epsilon,
    bound_mu,
    bound_p_value,
    count_guesses,
    refutes_tradeoff,
    split_guesses,
)
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.protocol.errors import UserError
from tests.oracles.directions import unused_tail
from tests.oracles.one_run_scores import bound_from_scores

BOUNDS = [bound_epsilon, bound_mu]


@pytest.mark.parametrize("module", [one_run_bounds, canary_clients])
def test_the_examples_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


# -- the worst mechanism there is, as a linear program over the law of the number of right guesses --


def worst_law(
    slots: int, guesses: int, correct: int, limits: list[tuple[float, float]]
) -> np.ndarray:
    """The law of C that makes P[C >= correct] largest among all trainings with delta(epsilon) at most as in `limits`.

    It is enough to look at symmetric trainings: draw C, then which slots are guessed and which of these rightly, uniformly. (Any other
    training, hidden behind a random permutation and random exchanges of alternatives, has the same law of C and no less privacy.)
    """
    laws, pairs = guesses + 1, 2 * guesses
    rows, right_sides = [], []
    for number, (epsilon, delta) in enumerate(limits):
        first = laws + pairs * number
        for count in range(1, guesses + 1):
            right, wrong = count / slots, (guesses - count + 1) / slots
            for place, (gain, loss) in enumerate(
                [((count, right), (count - 1, wrong)), ((count - 1, wrong), (count, right))]
            ):
                row = np.zeros(laws + pairs * len(limits))
                row[gain[0]], row[loss[0]], row[first + 2 * count - 2 + place] = (
                    gain[1],
                    -math.exp(epsilon) * loss[1],
                    -1,
                )
                rows.append(row)
                right_sides.append(0.0)
        rows.append(
            np.repeat(np.arange(-1, len(limits)) == number, [laws] + [pairs] * len(limits)).astype(
                float
            )
        )
        right_sides.append(delta)
    place_in_row = np.arange(rows[0].size)
    goal = np.where((place_in_row >= correct) & (place_in_row < laws), -1.0, 0.0)
    total = np.where(place_in_row < laws, 1.0, 0.0)[None]
    solved = linprog(
        goal,
        A_ub=np.array(rows),
        b_ub=right_sides,
        A_eq=total,
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    assert solved.success
    return solved.x[:laws]


def symmetric_training(
    law: np.ndarray, slots: int
) -> dict[tuple[int, ...], dict[tuple[int, ...], float]]:
    """All output probabilities of the symmetric training with this law of C: for every coin vector, of guesses 0, 1 or -1 (none)."""
    guesses = len(law) - 1
    outputs = [
        out
        for out in itertools.product((-1, 0, 1), repeat=slots)
        if sum(guess >= 0 for guess in out) == guesses
    ]
    table = {}
    for coins in itertools.product((0, 1), repeat=slots):
        right = [
            sum(guess == coin for guess, coin in zip(out, coins, strict=True)) for out in outputs
        ]
        table[coins] = {
            out: law[c] / (math.comb(slots, guesses) * math.comb(guesses, c))
            for out, c in zip(outputs, right, strict=True)
        }
    return table


def exact_delta(
    table: dict[tuple[int, ...], dict[tuple[int, ...], float]], epsilon: float
) -> float:
    """The smallest delta at epsilon over all neighbouring coin vectors, by going through every output."""
    worst = 0.0
    for coins, probabilities in table.items():
        for slot in range(len(coins)):
            turned = table[(*coins[:slot], 1 - coins[slot], *coins[slot + 1 :])]
            worst = max(
                worst,
                sum(
                    max(0.0, p - math.exp(epsilon) * turned[out])
                    for out, p in probabilities.items()
                ),
            )
    return worst


@pytest.mark.parametrize(
    ("slots", "guesses", "correct"), [(2, 2, 1), (3, 3, 3), (4, 2, 2), (4, 3, 2)]
)
def test_a_training_that_is_private_by_enumeration_attains_the_p_value(
    slots: int, guesses: int, correct: int
) -> None:
    epsilon, delta = 0.7, 0.01
    law = worst_law(slots, guesses, correct, [(epsilon, delta)])
    assert exact_delta(symmetric_training(law, slots), epsilon) == pytest.approx(delta, abs=1e-7)
    assert bound_p_value(
        GuessCount(canaries=slots, guesses=guesses, correct=correct), epsilon=epsilon, delta=delta
    ) == pytest.approx(law[correct:].sum(), rel=1e-6)


@pytest.mark.parametrize("guesses", [1, 2, 5, 12])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-2])
@pytest.mark.parametrize("abstained", [0, 30])
def test_the_p_value_is_that_of_the_worst_training(
    guesses: int, epsilon: float, delta: float, abstained: int
) -> None:
    slots = guesses + abstained
    for correct in range(1, guesses + 1):
        worst = worst_law(slots, guesses, correct, [(epsilon, delta)])[correct:].sum()
        given_by_formula = bound_p_value(
            GuessCount(canaries=slots, guesses=guesses, correct=correct),
            epsilon=epsilon,
            delta=delta,
        )
        assert worst <= given_by_formula * (1 + 1e-7)
        if given_by_formula < 0.9:
            assert given_by_formula <= worst * (1 + 1e-6)


def published(slots: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The p-value of Steinke et al. 2023, Thm 5.2."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = lambda count: binom.sf(count - 1, guesses, chance)  # noqa: E731
    worst = max((tail(correct - i) - tail(correct)) / i for i in range(1, correct + 1))
    return tail(correct) + 2 * slots * delta * worst


@pytest.mark.slow
@settings(max_examples=120)
@given(
    guesses=st.integers(1, 400),
    more=st.integers(0, 1000),
    share=st.floats(0, 1),
    epsilon=st.floats(0, 6),
    log_delta=st.floats(-8, -2),
)
def test_the_published_value_is_larger_where_it_is_used(
    guesses: int, more: int, share: float, epsilon: float, log_delta: float
) -> None:
    correct, slots, delta = max(1, round(share * guesses)), guesses + more, 10.0**log_delta
    ours = bound_p_value(
        GuessCount(canaries=slots, guesses=guesses, correct=correct), epsilon=epsilon, delta=delta
    )
    theirs, pure = (
        published(slots, guesses, correct, epsilon, delta),
        published(slots, guesses, correct, epsilon, 0.0),
    )
    if theirs <= 0.5 and theirs > pure * (1 + 1e-6):
        assert theirs - pure > 2 * (ours - pure) - 1e-8 * ours


def test_the_published_value_is_too_small_near_one() -> None:
    law = worst_law(2, 2, 1, [(1.0, 1e-4)])
    assert exact_delta(symmetric_training(law, 2), 1.0) <= 1e-4 + 1e-9
    assert law[1:].sum() > published(2, 2, 1, 1.0, 1e-4) + 1e-6


@settings(max_examples=100)
@given(
    guesses=st.integers(1, 300),
    share=st.floats(0, 1),
    more=st.integers(0, 500),
    epsilon=st.floats(0, 8),
    log_delta=st.floats(-12, -1),
)
def test_the_p_value_in_many_digits(
    guesses: int, share: float, more: int, epsilon: float, log_delta: float
) -> None:
    correct, slots, delta = max(1, round(share * guesses)), guesses + more, 10.0**log_delta
    with mp.workdps(60):
        chance = mp.exp(epsilon) / (1 + mp.exp(epsilon))
        law = [
            mp.binomial(guesses, c) * chance**c * (1 - chance) ** (guesses - c)
            for c in range(guesses + 1)
        ]
        tail = mp.fsum(law[correct:])
        exact = tail + slots * mp.mpf(delta) * tail * mp.fsum(law[:correct]) / (
            correct * law[correct]
        )
        value = mp.mpf(
            bound_p_value(
                GuessCount(canaries=slots, guesses=guesses, correct=correct),
                epsilon=epsilon,
                delta=delta,
            )
        )
        assert value == 1 or 1 <= value / exact < 1 + 1e-8
        assert value < 1 or exact > 1 - mp.mpf("1e-8")


def test_where_all_probabilities_vanish_the_p_value_is_still_above_the_exact_one() -> None:
    guesses, correct, delta = 5000, 4900, 1e-5
    with mp.workdps(30):
        law = [mp.binomial(guesses, c) * mp.mpf(2) ** -guesses for c in range(correct, guesses + 1)]
        exact = guesses * mp.mpf(delta) * mp.fsum(law) / (correct * law[0])
    assert (
        1
        <= bound_p_value(
            GuessCount(canaries=guesses, guesses=guesses, correct=correct), epsilon=0.0, delta=delta
        )
        / exact
        < 1.001
    )


# -- coverage and tightness of the bound on epsilon --


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize(("high", "low"), [(3, 3), (2, 1), (0, 5)])
def test_randomized_response_is_covered_by_exact_enumeration(
    epsilon: float, high: int, low: int
) -> None:
    slots, chance, confidence = 6, 1 / (1 + math.exp(-epsilon)), 0.7
    everything = list(itertools.product((0, 1), repeat=slots))
    too_high = 0.0
    bounds: dict[int, float] = {}
    for coins in everything:
        for answers in everything:
            counted = count_guesses(answers, coins, high=high, low=low)
            if counted.correct not in bounds:
                bounds[counted.correct] = bound_epsilon(
                    counted, delta=1e-9, confidence=confidence
                ).epsilon_lower
            if bounds[counted.correct] > epsilon:
                honest = sum(a == b for a, b in zip(coins, answers, strict=True))
                too_high += chance**honest * (1 - chance) ** (slots - honest) / 2**slots
    assert too_high <= 1 - confidence
    assert max(bounds.values()) > 0


def test_the_worst_training_uses_up_the_level_and_no_more() -> None:
    slots, guesses, correct, epsilon, delta = 30, 12, 10, 0.8, 1e-3
    miss = bound_p_value(
        GuessCount(canaries=slots, guesses=guesses, correct=correct), epsilon=epsilon, delta=delta
    ) * (1 + 1e-6)
    law = worst_law(slots, guesses, correct, [(epsilon, delta)])
    counts = [
        GuessCount(canaries=slots, guesses=guesses, correct=count) for count in range(guesses + 1)
    ]
    shown = np.array(
        [bound_epsilon(seen, delta=delta, confidence=1 - miss).epsilon_lower for seen in counts]
    )
    assert 0.999 * miss < law[shown > epsilon].sum() <= miss


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_much_randomized_response_shows_nearly_all_of_epsilon(epsilon: float) -> None:
    slots = 100_000
    correct = round(slots / (1 + math.exp(-epsilon)))
    shown = bound_epsilon(
        GuessCount(canaries=slots, guesses=slots, correct=correct), delta=1e-8
    ).epsilon_lower
    assert 0.97 * epsilon < shown < epsilon


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_lies_where_the_p_value_is_the_level(bound: Callable[..., OneRunBound]) -> None:
    seen = GuessCount(canaries=400, guesses=100, correct=80)
    shown = bound(seen, delta=1e-6, confidence=0.99)
    if bound is bound_epsilon:
        assert bound_p_value(seen, epsilon=shown.epsilon_lower, delta=1e-6) <= 0.01
        assert bound_p_value(seen, epsilon=shown.epsilon_lower + 1e-5, delta=1e-6) > 0.01
        assert (
            gaussian.delta(shown.mu_lower, shown.epsilon_lower)
            <= 1e-6
            < gaussian.delta(shown.mu_lower * 1.001, shown.epsilon_lower)
        )
    else:
        assert refutes_tradeoff(seen, GaussianCurve(mu=shown.mu_lower).beta, confidence=0.99)
        assert not refutes_tradeoff(
            seen, GaussianCurve(mu=shown.mu_lower + 1e-5).beta, confidence=0.99
        )
        assert shown.epsilon_lower == pytest.approx(
            gaussian.epsilon(shown.mu_lower, 1e-6), rel=1e-6
        )


def released(rng: np.random.Generator, mu: float, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """One training: a Gaussian release of every slot."""
    coins = rng.integers(0, 2, slots)
    return mu * coins + rng.standard_normal(slots), coins


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_few_audits_of_a_gaussian_release_show_too_much(mu: float) -> None:
    rng, audits, confidence = np.random.default_rng(1), 150, 0.9
    allowed = binom.ppf(0.999, audits, 1 - confidence)
    too_high = dict.fromkeys(BOUNDS, 0)
    for _ in range(audits):
        scores, coins = released(rng, mu, 100)
        for bound in BOUNDS:
            shown = bound_from_scores(scores, coins, bound=bound, confidence=confidence)
            too_high[bound] += shown.mu_lower > mu or shown.epsilon_lower > gaussian.epsilon(
                mu, 1e-5
            )
    assert max(too_high.values()) <= allowed
    assert (
        mu > 0 or min(too_high.values()) > 0
    )  # with nothing to hide behind, the level is used up in part


def test_a_release_with_half_the_noise_is_refuted() -> None:
    claimed, rng = 1.0, np.random.default_rng(2)
    for _ in range(5):
        honest, broken = released(rng, claimed, 1000), released(rng, 2 * claimed, 1000)
        assert (
            bound_from_scores(*honest, bound=bound_mu).mu_lower
            < claimed
            < bound_from_scores(*broken, bound=bound_mu).mu_lower
        )
        answers = [
            np.where(rng.random(1000) < 1 / (1 + math.exp(-e)), honest[1], 1 - honest[1])
            for e in (1.0, 2.0)
        ]
        bounds = [
            bound_from_scores(answer, honest[1], splits=[(500, 500)]).epsilon_lower
            for answer in answers
        ]
        assert bounds[0] < 1.0 < bounds[1]


def test_choosing_the_best_of_many_numbers_of_guesses_is_paid_for() -> None:
    rng, runs = np.random.default_rng(3), 400
    splits = [(k, k) for k in range(3, 50, 4)]
    free = paid = 0
    for _ in range(runs):
        scores, coins = released(rng, 0.0, 100)
        free += any(
            bound_from_scores(scores, coins, splits=[pair]).epsilon_lower > 0 for pair in splits
        )
        shown = bound_from_scores(scores, coins, splits=splits)
        paid += shown.epsilon_lower > 0
        assert shown.confidence == 0.95
    assert free > binom.ppf(0.999, runs, 0.05) >= paid


# -- the recursion --


@pytest.mark.parametrize(("slots", "guesses"), [(1, 1), (2, 2), (6, 6), (20, 6)])
@pytest.mark.parametrize("mu", [0.4, 1.0, 2.0])
def test_no_gaussian_private_training_is_refuted_and_the_worst_hardly_escapes(
    slots: int, guesses: int, mu: float
) -> None:
    limits = [
        (epsilon, gaussian.delta(mu, epsilon)) for epsilon in np.linspace(0, mu * (4 + mu / 2), 60)
    ]
    for correct in range(1, guesses + 1):
        worst = worst_law(slots, guesses, correct, limits)[correct:].sum()
        seen = GuessCount(canaries=slots, guesses=guesses, correct=correct)
        if worst < 0.98:
            assert not refutes_tradeoff(
                seen, GaussianCurve(mu=mu).beta, confidence=1 - worst * 0.99
            )
            if correct == guesses or worst < 0.3:
                spare = (
                    1.01 if correct == guesses else 1.35
                )  # where all are right the recursion is exact
                assert spare * worst >= 1 or refutes_tradeoff(
                    seen, GaussianCurve(mu=mu).beta, confidence=1 - worst * spare
                )


def test_one_guess_is_refuted_exactly_beyond_the_largest_accuracy() -> None:
    seen, accuracy = (
        GuessCount(canaries=1, guesses=1, correct=1),
        float(mp.ncdf(0.65)),
    )  # of telling N(0, 1) from N(1.3, 1)
    assert refutes_tradeoff(seen, GaussianCurve(mu=1.3).beta, confidence=1 - accuracy - 1e-6)
    assert not refutes_tradeoff(seen, GaussianCurve(mu=1.3).beta, confidence=1 - accuracy + 1e-6)


def test_the_recursion_judges_any_trade_off_function() -> None:
    epsilon = 1.0

    def response(alpha):
        return max(0.0, 1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))

    for correct in range(60, 101):
        seen = GuessCount(canaries=100, guesses=100, correct=correct)
        if refutes_tradeoff(seen, response):
            assert (
                bound_p_value(seen, epsilon=epsilon, delta=1e-15) <= 0.05
            )  # that of the worst one, randomized response
    assert refutes_tradeoff(GuessCount(canaries=100, guesses=100, correct=84), response)


def test_the_recursion_shows_more_of_a_gaussian_than_epsilon_does() -> None:
    rng = np.random.default_rng(4)
    for mu in (1.0, 2.0):
        scores, coins = released(rng, mu, 4000)
        by_recursion, by_epsilon = (
            bound_from_scores(scores, coins, bound=bound).mu_lower
            for bound in (bound_mu, bound_epsilon)
        )
        assert 1.2 * by_epsilon < by_recursion < mu
        assert by_recursion > 0.5 * mu


# -- order --


@settings(max_examples=60)
@given(
    data=st.data(),
    guesses=st.integers(1, 150),
    more=st.integers(0, 300),
    confidence=st.floats(0.5, 0.9999),
)
@pytest.mark.parametrize("bound", BOUNDS)
def test_more_right_guesses_fewer_slots_and_less_confidence_show_more(
    bound: Callable[..., OneRunBound],
    data: st.DataObject,
    guesses: int,
    more: int,
    confidence: float,
) -> None:
    correct = data.draw(st.integers(0, guesses - 1))
    shown = bound(
        GuessCount(canaries=guesses + more, guesses=guesses, correct=correct), confidence=confidence
    )
    better = [
        bound(
            GuessCount(canaries=guesses + more, guesses=guesses, correct=correct + 1),
            confidence=confidence,
        ),
        bound(
            GuessCount(canaries=guesses, guesses=guesses, correct=correct), confidence=confidence
        ),
        bound(
            GuessCount(canaries=guesses + more, guesses=guesses, correct=correct),
            confidence=confidence * 0.9,
        ),
        bound(
            GuessCount(canaries=guesses + more, guesses=guesses, correct=correct),
            confidence=confidence,
            delta=1e-7,
        ),
    ]
    assert all(other.mu_lower >= shown.mu_lower * (1 - 1e-8) for other in better[:3])
    assert all(other.epsilon_lower >= shown.epsilon_lower * (1 - 1e-8) for other in better)
    assert 2 * correct > guesses or shown.epsilon_lower == 0


@settings(max_examples=100)
@given(
    guesses=st.integers(1, 300),
    more=st.integers(0, 300),
    share=st.floats(0, 1),
    low=st.floats(0, 8),
    step=st.floats(0.01, 3),
)
def test_the_p_value_rises_with_epsilon(
    guesses: int, more: int, share: float, low: float, step: float
) -> None:
    seen = GuessCount(canaries=guesses + more, guesses=guesses, correct=round(share * guesses))
    assert bound_p_value(seen, epsilon=low, delta=1e-4) <= bound_p_value(
        seen, epsilon=low + step, delta=1e-4
    ) * (1 + 1e-9)


# -- tallies and refusals --


def test_guesses_are_right_as_counted_by_hand() -> None:
    scores, coins = [5.0, 1.0, 1.0, -2.0, 0.0], [1, 0, 1, 1, 0]
    assert (
        count_guesses(scores, coins, high=2, low=0).correct == 2
    )  # 5.0, and of the two equal ones the later
    assert count_guesses(scores, coins, high=3, low=2).correct == 3
    assert count_guesses(scores, np.array(coins, dtype=bool), high=0, low=1).correct == 0


@pytest.mark.parametrize("canaries", [1, 7, 20, 99, 100, 5000])
def test_the_default_never_guesses_more_than_there_is(canaries: int) -> None:
    high, low = split_guesses(canaries)
    assert 0 <= high - low <= 1
    assert min(canaries, 20) <= high + low <= canaries


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: GuessCount(canaries=10, guesses=0, correct=0),
        lambda: GuessCount(canaries=10, guesses=5, correct=6),
        lambda: GuessCount(canaries=10, guesses=11, correct=6),
        lambda: GuessCount(canaries=10, guesses=5, correct=-1),
        lambda: count_guesses([0.1, math.nan], [0, 1], high=1, low=1),
        lambda: count_guesses([0.1, math.inf], [0, 1], high=1, low=1),
        lambda: count_guesses([0.1, 0.2], [0, 1], high=2, low=1),
        lambda: count_guesses([0.1, 0.2], [0, 1], high=0, low=0),
        lambda: count_guesses([0.1, 0.2], [0, 2], high=1, low=0),
        lambda: count_guesses([0.1, 0.2], [0, 1, 1], high=1, low=0),
        lambda: count_guesses(0.1, 1, high=1, low=0),
        lambda: bound_from_scores([], []),
        lambda: bound_epsilon(GuessCount(canaries=2, guesses=2, correct=2), delta=0.0),
        lambda: bound_epsilon(GuessCount(canaries=2, guesses=2, correct=2), delta=1.0),
        lambda: bound_mu(GuessCount(canaries=2, guesses=2, correct=0), delta=math.nan),
        lambda: bound_mu(GuessCount(canaries=2, guesses=2, correct=2), confidence=1.0),
        lambda: bound_p_value(
            GuessCount(canaries=2, guesses=2, correct=2), epsilon=math.inf, delta=0.1
        ),
        lambda: find_cosines([1.0, 0.0], [[0.0, 0.0]]),
        lambda: find_cosines([1.0, math.nan], [[0.0, 1.0]]),
        lambda: find_cosines([1.0, 0.0], [[0.0, 1.0, 2.0]]),
        lambda: find_cosines(1.0, 1.0),
        lambda: find_largest_cosines([1.0, 0.0], [[1.0, 0.0]]),
        lambda: unused_tail(1.1, dimension=5),
        lambda: unused_tail(0.1, dimension=1),
        lambda: estimate_final([0.1, 0.1], dimension=100),
        lambda: estimate_final([0.1], dimension=100),
        lambda: estimate_final([0.1, math.nan], dimension=100),
        lambda: estimate_final([0.1, 0.2], dimension=100, delta=0.0),
        lambda: estimate_all_rounds([0.1, 0.2], 0.3),
    ],
)
def test_mistakes_are_refused(mistake: Callable[[], object]) -> None:
    with pytest.raises(UserError, match="expected"):
        mistake()


# -- canary clients --


def federation(
    rng: np.random.Generator, *, canaries: int, dimension: int, sigma: float, rounds: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Moves of a model whose server adds noise to the sum of unit updates: of canaries, and of 20 honest clients."""
    directions = rng.standard_normal((canaries, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    honest = rng.standard_normal((20, dimension)) + 0.3 * rng.standard_normal(dimension)
    honest /= np.linalg.norm(honest, axis=1, keepdims=True)
    total = directions.sum(axis=0) + honest.sum(axis=0)
    return np.array(
        [total + sigma * rng.standard_normal(dimension) for _ in range(rounds)]
    ), directions


@pytest.mark.parametrize("mu", [1.0, 3.0])
def test_canary_clients_recover_mu(mu: float) -> None:
    rng, runs, canaries, dimension = np.random.default_rng(8), 6, 250, 8000
    estimates = []
    for _ in range(runs):
        moves, directions = federation(rng, canaries=canaries, dimension=dimension, sigma=1 / mu)
        estimates.append(estimate_final(find_cosines(moves[0], directions), dimension=dimension))
    longer = math.sqrt(1 + canaries * mu**2 / dimension)  # in finitely many dimensions
    assert longer < 1.2
    assert np.mean([one.mu for one in estimates]) == pytest.approx(
        mu / longer, abs=4 / math.sqrt(runs * canaries)
    )
    assert {one.kind for one in estimates} == {"estimate"}


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_scores_that_are_exactly_gaussian_give_the_epsilon_of_their_mu(mu: float) -> None:
    scores = mu + norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    estimate = estimate_final(scores / 100, dimension=10_000)
    assert estimate.mu == pytest.approx(mu)
    assert estimate.epsilon == pytest.approx(gaussian.epsilon(mu, 1e-5), rel=0.01)
    assert estimate.epsilon_of_mu == pytest.approx(gaussian.epsilon(mu, 1e-5))
    assert estimate_all_rounds(scores, scores - mu).epsilon == pytest.approx(
        gaussian.epsilon(mu, 1e-5), rel=0.01
    )


def test_every_round_seen_shows_more_than_the_last_one() -> None:
    rng = np.random.default_rng(6)
    moves, directions = federation(rng, canaries=200, dimension=4000, sigma=1.0, rounds=8)
    fresh = rng.standard_normal((200, 4000))
    every = estimate_all_rounds(
        find_largest_cosines(moves, directions), find_largest_cosines(moves, fresh)
    )
    last = estimate_final(find_cosines(moves[-1], directions), dimension=4000)
    assert last.mu < every.mu < math.sqrt(8)  # no more than the composition of all rounds
    assert every.unseen.mean > 0 == last.unseen.mean
    assert find_largest_cosines(moves[:1], fresh) == pytest.approx(
        fresh @ moves[0] / np.linalg.norm(fresh, axis=1) / np.linalg.norm(moves[0])
    )


def test_directions_nobody_used_show_nothing() -> None:
    rng = np.random.default_rng(7)
    moves, _ = federation(rng, canaries=10, dimension=4000, sigma=0.1)
    estimate = estimate_final(
        find_cosines(moves[0], rng.standard_normal((400, 4000))), dimension=4000
    )
    assert estimate.mu < 4 / math.sqrt(400)
    assert find_cosines(np.zeros(4), np.eye(4)).tolist() == [0.0] * 4


@pytest.mark.parametrize("dimension", [2, 3, 4, 11, 500])
def test_the_law_of_an_unseen_direction(dimension: int) -> None:
    density = lambda x: (1 - x * x) ** ((mp.mpf(dimension) - 3) / 2)  # noqa: E731
    for cosine in (-0.7, -0.1, 0.0, 0.05, 0.3, 0.9):
        exact = mp.quad(density, [cosine, (1 + cosine) / 2, 1]) / (
            2 * mp.quad(density, [0, 0.1, 0.5, 1])
        )
        assert float(unused_tail(cosine, dimension=dimension)) == pytest.approx(
            float(exact), rel=1e-6
        )


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(1.0, 1.0), (1.0, 1.2), (2.0, 0.8), (0.0, 1.5), (-3.0, 1 + 1e-9), (0.3, 0.5), (8.0, 1.1)],
)
@pytest.mark.parametrize("delta", [1e-6, 1e-2])
def test_epsilon_between_two_bells_is_that_of_the_integral(
    mean: float, deviation: float, delta: float
) -> None:
    unseen, seen = (
        NormalFit(mean=5.0, deviation=3.0),
        NormalFit(mean=5.0 + 3 * mean, deviation=3 * deviation),
    )
    epsilon = find_epsilon_between(seen, unseen, delta)
    y = np.linspace(-45, 45, 2_000_001)
    one = np.exp(-(((y - mean) / deviation) ** 2) / 2) / deviation
    other = np.exp(-(y**2) / 2)
    scale = math.exp(epsilon)
    sums = [
        np.maximum(p - scale * q, 0).sum() * (y[1] - y[0]) / math.sqrt(2 * math.pi)
        for p, q in ((one, other), (other, one))
    ]
    assert max(sums) == pytest.approx(delta, rel=1e-4)
    assert epsilon == find_epsilon_between(unseen, seen, delta)


def test_equal_bells_are_never_told_apart() -> None:
    assert (
        find_epsilon_between(
            NormalFit(mean=1.0, deviation=2.0), NormalFit(mean=1.0, deviation=2.0), 1e-9
        )
        == 0
    )
    assert find_epsilon_between(
        NormalFit(mean=0.0, deviation=1.0), NormalFit(mean=60.0, deviation=1.0), 1e-5
    ) == pytest.approx(gaussian.epsilon(60.0, 1e-5))
