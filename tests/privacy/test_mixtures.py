"""Mixtures over participation and first use, against Monte Carlo, closed forms and convolved privacy losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.privacy.amplification.cohorts import Cohort, first_use, round_curve
from sordino.privacy.curves import gaussian, sum_law
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.mixtures import (
    GaussianMixtureCurve,
    compose_mixtures,
    mix_gaussians,
)
from sordino.privacy.sensitivity import first_used
from sordino.protocol.errors import UserError
from tests.oracles.conversions import binomial_delta

USE = first_use(batch=32, records=600, steps=5)


def simulated_delta(squares: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Mean and standard error of delta over simulated draws, by the textbook formula."""
    mu = np.sqrt(squares[squares > 0])
    deltas = np.zeros(squares.size)
    deltas[: mu.size] = stats.norm.cdf(-epsilon / mu + mu / 2) - np.exp(
        epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)
    )
    return float(deltas.mean()), float(deltas.std() / math.sqrt(deltas.size))


def simulated_first_hits(
    rng: np.random.Generator, rates: np.ndarray, *, honest: int, runs: int
) -> np.ndarray:
    """Sum over rounds of squared shifts, drawing every step's batch; `rates` has one row per round."""
    total = np.zeros(runs)
    for row in rates:
        drawn = rng.random((runs, row.size)) < 32 / 600
        reached = np.maximum.accumulate(drawn, axis=1)
        total += (2 * reached @ row) ** 2 / honest
    return total


@pytest.mark.slow
def test_first_hits_agree_with_simulated_training() -> None:
    curve = round_curve(
        first_used([0.1] * 5, 1.0), sigma=1.0, cohort=Cohort.everyone(clients=50), use=USE
    ).repeat(600)
    assert curve.epsilon(1e-5) == pytest.approx(5.317, abs=0.01)
    assert gaussian.epsilon(math.sqrt(600 / 50), 1e-5) == pytest.approx(20.13, abs=0.01)
    squares = simulated_first_hits(
        np.random.default_rng(0), np.full((600, 5), 0.1), honest=50, runs=20_000
    )
    for epsilon in (0.05, 0.5, 1.5, 3.0):
        mean, error = simulated_delta(squares, epsilon)
        assert curve.delta(epsilon) == pytest.approx(mean, abs=5 * error)


@pytest.mark.slow
def test_falling_rates_are_priced_round_by_round() -> None:
    rates = np.outer(0.4 / np.arange(1, 201), np.ones(5))
    rounds = [
        round_curve(first_used(row, 1.0), sigma=1.0, cohort=Cohort.everyone(clients=5), use=USE)
        for row in rates
    ]
    curve = compose_mixtures(rounds)
    squares = simulated_first_hits(np.random.default_rng(1), rates, honest=5, runs=40_000)
    for epsilon in (0.05, 0.5, 2.0):
        mean, error = simulated_delta(squares, epsilon)
        assert curve.delta(epsilon) == pytest.approx(mean, abs=5 * error + 1e-5)


@pytest.mark.slow
def test_six_hundred_different_rounds_lie_between_their_mean_and_their_worst_case() -> None:
    cohort = Cohort.poisson(clients=50, rate=0.3)
    rounds = [
        round_curve(first_used([0.1 / t] * 5, 1.0), sigma=0.1, cohort=cohort, use=USE)
        for t in range(1, 601)
    ]
    certain = [
        round_curve(first_used([0.1 / t] * 5, 1.0)[:1], sigma=0.1, cohort=cohort.alone())
        for t in range(1, 601)
    ]
    assert 0 < compose_mixtures(rounds).epsilon(1e-5) < compose_mixtures(certain).epsilon(1e-5)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 3.139), (1000, 23.39)])
def test_visible_participation_as_printed_in_the_theory(rounds: int, expected: float) -> None:
    assert mix_gaussians([0.0, 1.0], [0.99, 0.01]).repeat(rounds).epsilon(1e-5) == pytest.approx(
        expected, abs=0.006
    )


def test_averaging_over_participants_is_not_plugging_in_their_mean() -> None:
    right = (
        round_curve(1.0, sigma=1.0, cohort=Cohort.poisson(clients=50, rate=0.1))
        .repeat(10)
        .epsilon(1e-4)
    )
    plugged = mix_gaussians([0.0, 1 / math.sqrt(50 * 0.1)], [0.9, 0.1]).repeat(10).epsilon(1e-4)
    assert (round(right, 2), round(plugged, 2)) == (2.72, 2.38)


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0.01, 0.99),
    mu=st.floats(0.05, 2.0),
    rounds=st.integers(1, 300),
    epsilon=st.floats(0.0, 8.0),
)
def test_equal_rounds_lie_just_above_the_closed_form(
    rate: float, mu: float, rounds: int, epsilon: float
) -> None:
    composed = mix_gaussians([0.0, mu], [1 - rate, rate]).repeat(rounds).delta(epsilon)
    exact = binomial_delta(epsilon, rate=rate, mu=mu, rounds=rounds)
    assert (
        exact * (1 - 1e-10) <= composed <= exact * 1.03 + 1e-12
    )  # below epsilon 0.1 sums are rounded up
    counts = np.arange(rounds + 1)
    shifts = np.maximum(mu * np.sqrt(counts), 1e-300)
    textbook = stats.norm.cdf(-epsilon / shifts + shifts / 2) - np.exp(
        epsilon + stats.norm.logcdf(-epsilon / shifts - shifts / 2)
    )
    assert exact == pytest.approx(
        float(np.dot(stats.binom.pmf(counts[1:], rounds, rate), textbook[1:])), rel=1e-6, abs=1e-13
    )


@pytest.mark.slow
def test_adding_squares_agrees_with_adding_privacy_losses() -> None:
    one = mix_gaussians([0.0, 0.4, 1.1], [0.6, 0.3, 0.1])
    losses = one.losses(1e-3).repeat(20)
    for delta in (1e-8, 1e-5, 1e-2):
        exact = one.repeat(20).epsilon(delta)
        assert exact * (1 - 1e-6) <= losses.epsilon(delta) <= exact * (1 + 1e-3)


def test_a_mixture_lies_between_its_best_and_its_worst_round() -> None:
    curve = mix_gaussians([0.5, 2.0], [0.9, 0.1]).repeat(7)
    for delta in (1e-6, 1e-2):
        low, high = (
            GaussianCurve(mu=0.5).repeat(7).epsilon(delta),
            GaussianCurve(mu=2.0).repeat(7).epsilon(delta),
        )
        assert low < curve.epsilon(delta) < high
    assert curve.compose(GaussianCurve(mu=1.0)).epsilon(1e-5) > curve.epsilon(1e-5)


def test_divergences_are_exact_moments() -> None:
    curve = mix_gaussians([0.0, 1.0], [0.7, 0.3]).repeat(4)
    for order in (1.5, 2.0, 7.0):
        moment = 0.7 + 0.3 * math.exp(order * (order - 1) / 2)
        assert curve.rdp(order) == pytest.approx(4 * math.log(moment) / (order - 1), rel=1e-10)
    assert curve.rdp(1) == pytest.approx(4 * 0.3 / 2)
    for delta in (1e-8, 1e-4):
        assert curve.epsilon(delta) <= min(
            curve.rdp(order) - math.log(delta) / (order - 1) for order in (2, 3, 4, 6, 8, 12)
        )


def test_without_noise_only_the_chance_of_not_taking_part_is_left() -> None:
    curve = round_curve(1.0, sigma=0.0, cohort=Cohort.poisson(clients=10, rate=0.1)).repeat(3)
    assert curve.delta(50.0) == pytest.approx(1 - 0.9**3, rel=1e-9)
    assert curve.epsilon(0.2) == math.inf
    assert round_curve(0.0, sigma=0.0, cohort=Cohort.everyone(clients=3)).epsilon(1e-9) == 0


@pytest.mark.parametrize(
    ("clients", "rate", "colluding"),
    [(50, 0.1, 0), (50, 0.1, 20), (7, 0.9, 6), (3000, 0.01, 1), (5, 1.0, 2)],
)
def test_poisson_cohorts_are_binomial(clients: int, rate: float, colluding: int) -> None:
    cohort = Cohort.poisson(clients=clients, rate=rate, colluding=colluding)
    counts = np.array(cohort.counts)
    expected = stats.binom.pmf(counts - 1, clients - 1 - colluding, rate)
    np.testing.assert_allclose(cohort.masses, expected, rtol=1e-8, atol=1e-15)
    assert (cohort.probability, sum(cohort.masses)) == (rate, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("clients", "size", "colluding"),
    [(50, 10, 0), (50, 10, 20), (10, 10, 3), (10, 1, 5), (10, 4, 9)],
)
def test_fixed_cohorts_are_hypergeometric(clients: int, size: int, colluding: int) -> None:
    cohort = Cohort.fixed(clients=clients, size=size, colluding=colluding)
    expected = stats.hypergeom.pmf(
        np.array(cohort.counts) - 1, clients - 1, clients - 1 - colluding, size - 1
    )
    np.testing.assert_allclose(cohort.masses, expected, rtol=1e-8, atol=1e-15)
    assert cohort.probability == size / clients
    assert cohort.alone().counts == (1,)


def test_more_colluders_never_help_privacy() -> None:
    curves = [
        round_curve(1.0, sigma=1.0, cohort=Cohort.fixed(clients=20, size=8, colluding=k)).repeat(5)
        for k in (0, 3, 10, 19)
    ]
    epsilons = [curve.epsilon(1e-5) for curve in curves]
    assert epsilons == sorted(epsilons)
    server = round_curve(1.0, sigma=1.0, cohort=Cohort.fixed(clients=20, size=8).alone()).repeat(5)
    assert epsilons[-1] == pytest.approx(server.epsilon(1e-5), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=9),
    count=st.integers(1, 60),
    bend=st.sampled_from([math.inf, 0.25, 12.0]),
)
def test_sums_never_shrink_where_that_matters(values: list[float], count: int, bend: float) -> None:
    """E F is never below its exact value for F = 1 - e^(-bend x), the least convex F allowed, nor for any mean at all upwards."""
    masses = np.full(len(values), 1 / len(values))
    law = sum_law.repeat_law(sum_law.make_law(values, masses), count, bend)
    points, weights = law.atoms()
    finite_bend = 1.0 if math.isinf(bend) else bend
    exact = float(np.mean(np.exp(-finite_bend * np.array(values)))) ** count
    assert float(np.dot(weights, np.exp(-finite_bend * points))) <= exact * (1 + 1e-9) + 1e-12
    mean = count * float(np.mean(values))
    assert mean * (1 - 1e-9) - 1e-12 <= float(np.dot(weights, points)) <= mean + 0.05 * count


def test_equal_rounds_are_counted() -> None:
    curve = compose_mixtures([mix_gaussians([0.0, 1.0], [0.5, 0.5]) for _ in range(40)])
    assert [count for _, count in curve.rounds] == [40]
    assert isinstance(curve.repeat(2), GaussianMixtureCurve)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mix_gaussians([1.0], [0.5]),
        lambda: mix_gaussians([1.0, 2.0], [1.0]),
        lambda: mix_gaussians([], []),
        lambda: mix_gaussians([1.0, 2.0], [1.5, -0.5]),
        lambda: first_use(batch=7, records=6, steps=1),
        lambda: Cohort.fixed(clients=3, size=4),
        lambda: Cohort.poisson(clients=3, rate=1.2),
        lambda: Cohort.everyone(clients=3, colluding=3),
        lambda: round_curve([1.0, 0.5], sigma=1.0, cohort=Cohort.everyone(clients=2)),
        lambda: round_curve(1.0, sigma=-1.0, cohort=Cohort.everyone(clients=2)),
        lambda: round_curve(math.nan, sigma=1.0, cohort=Cohort.everyone(clients=2)),
    ],
)
def test_nonsense_is_refused(call: object) -> None:
    with pytest.raises(UserError):
        call()  # type: ignore[operator]
