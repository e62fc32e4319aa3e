"""Lower bounds against exact binomial sums, multi-precision and brute force; their coverage against its binomial quantile."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sordino.audit.audit_plan import refuse_too_few
from sordino.audit.expected_bounds import (
    count_needed_trainings,
    find_equivalent_mu,
    find_largest_mu,
    predict_mu_bound,
)
from sordino.audit.lower_bounds import (
    REFUTING,
    ErrorLimits,
    Scores,
    limit_both_rates,
    limit_error_rate,
    measure_error_rates,
)
from sordino.privacy.amplification.subsampling import compose_poisson_batches
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.mixtures import mix_gaussians
from sordino.protocol import Constant, FedAvg, Gaussian, Protocol, UserError


def normal_scores(generator: np.random.Generator, mu: float, trainings: int) -> Scores:
    draws = generator.standard_normal((4, trainings))
    return Scores(choosing=(draws[0], draws[1] + mu), judging=(draws[2], draws[3] + mu))


@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from([0.2, 0.025, 5e-5]))
def test_the_upper_limit_is_the_rate_at_which_so_few_errors_are_that_rare(
    errors, trials, miss
) -> None:
    limit = float(limit_error_rate(errors, trials, miss))
    if errors >= trials:
        assert limit == 1.0
        return
    with mpmath.workdps(40):
        rate = mpmath.mpf(limit)
        tail = mpmath.fsum(
            mpmath.binomial(trials, k) * rate**k * (1 - rate) ** (trials - k)
            for k in range(errors + 1)
        )
        assert abs(tail / miss - 1) < 1e-6


def test_thresholds_count_what_a_loop_counts() -> None:
    generator = np.random.default_rng(2)
    zero, one = (
        generator.integers(0, 6, 40).astype(float),
        generator.integers(2, 9, 30).astype(float),
    )
    for threshold in (-1.0, 0.0, 3.0, 8.0, 9.5):
        alarms, missed = sum(s >= threshold for s in zero), sum(s < threshold for s in one)
        high, low = limit_both_rates((zero, one), np.array([threshold]), 0.95)
        assert float(high[0]) == float(limit_error_rate(int(alarms), 40, 0.025))
        assert float(low[0]) == float(limit_error_rate(int(missed), 30, 0.025))


@pytest.mark.soak
@pytest.mark.parametrize("mu", [1.0, 3.0, 5.0])
def test_the_bound_is_tight_and_rarely_too_high(mu) -> None:
    """Of 200 audits no more exceed the truth than the 99.9 % quantile of what 5 % would give; in fact hardly any does."""
    generator = np.random.default_rng(int(mu))
    found = np.array(
        [measure_error_rates(normal_scores(generator, mu, 2000), "mu").mu for _ in range(200)]
    )
    assert (found > mu).sum() <= stats.binom.ppf(0.999, 200, 0.05)
    assert np.median(found) / mu > 0.85
    assert (
        np.quantile(found, 0.02) > 0.75 * mu
    )  # a threshold that was lucky once would fall far below
    assert np.std(found) > 0


def test_epsilon_needs_no_gaussian() -> None:
    """Randomized response tells the truth with probability e^eps / (1 + e^eps): its epsilon is exact, at any delta."""
    generator, epsilon, trainings = np.random.default_rng(3), 2.0, 4000
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    exceeded, shown = 0, []
    for _ in range(100):
        answers = [
            (generator.random(trainings) < share).astype(float)
            for share in (1 - truth, truth, 1 - truth, truth)
        ]
        limits = measure_error_rates(
            Scores(choosing=(answers[0], answers[1]), judging=(answers[2], answers[3])), "epsilon"
        )
        shown.append(limits.epsilon(1e-5))
        exceeded += shown[-1] > epsilon
    assert exceeded <= stats.binom.ppf(0.999, 100, 0.05)
    assert np.median(shown) > 0.9 * epsilon


def test_a_rare_leak_is_seen_by_epsilon_on_whichever_side_it_is() -> None:
    """One side leaks outright with probability 1 %: mu-GDP hardly shows it, epsilon does, in both directions."""
    generator = np.random.default_rng(4)
    for leaky in (0, 1):
        sides = []
        for side in (0, 1, 0, 1):
            scores = generator.standard_normal(5000)
            scores[(generator.random(5000) < 0.01) & (side == leaky)] = (
                50.0 if leaky == 1 else -50.0
            )
            sides.append(scores)
        found = Scores(choosing=(sides[0], sides[1]), judging=(sides[2], sides[3]))
        assert measure_error_rates(found, "epsilon").epsilon(1e-5) > 1.5


def test_equal_sides_show_nothing_and_a_choice_is_not_counted_twice() -> None:
    """Choosing the best of thousands of thresholds would find something in pure noise if it were judged on the same half."""
    generator = np.random.default_rng(5)
    found = [measure_error_rates(normal_scores(generator, 0.0, 300), "mu").mu for _ in range(100)]
    assert sum(value > 0 for value in found) <= stats.binom.ppf(0.999, 100, 0.05)


@given(st.floats(1e-6, 0.6), st.floats(1e-6, 0.6), st.floats(0.01, 8.0))
def test_contradicting_a_gaussian_curve_is_exceeding_its_mu(alarm, missed, mu) -> None:
    limits = ErrorLimits(false_positive=alarm, false_negative=missed)
    if abs(limits.mu - mu) > 1e-6:
        assert limits.contradicts(GaussianCurve(mu=mu)) == (limits.mu > mu)


@given(st.floats(1e-4, 0.4), st.floats(1e-4, 0.4), st.floats(1e-9, 1e-3))
def test_the_measured_epsilon_is_where_the_definition_fails(alarm, missed, delta) -> None:
    """(epsilon, delta)-DP says 1 - FNR <= e^epsilon FPR + delta, both ways round: at the bound one of them holds with equality."""
    limits = ErrorLimits(false_positive=alarm, false_negative=missed)
    epsilon = limits.epsilon(delta)
    gaps = [1 - b - math.exp(epsilon) * a - delta for a, b in ((alarm, missed), (missed, alarm))]
    assert max(gaps) <= 1e-9
    assert epsilon == 0 or abs(max(gaps)) < 1e-9


def test_what_so_many_trainings_can_show() -> None:
    assert abs(find_largest_mu(5000) + 2 * stats.norm.ppf(1 - 0.025 ** (1 / 5000))) < 1e-9
    perfect = Scores(choosing=(np.zeros(100), np.ones(100)), judging=(np.zeros(100), np.ones(100)))
    assert measure_error_rates(perfect, "mu").mu == pytest.approx(find_largest_mu(100))
    assert measure_error_rates(perfect, "mu", REFUTING).mu == pytest.approx(
        find_largest_mu(100, REFUTING)
    )
    assert predict_mu_bound(math.inf, 100) == pytest.approx(find_largest_mu(100))


@pytest.mark.parametrize(("mu", "share"), [(0.2, 0.0), (1.0, 0.5), (3.0, 0.9), (5.0, 0.9)])
def test_the_trainings_needed_are_the_fewest(mu, share) -> None:
    needed = count_needed_trainings(mu, share)
    assert predict_mu_bound(mu, needed) > share * mu
    assert predict_mu_bound(mu, needed - 1) <= share * mu
    generator = np.random.default_rng(6)
    shown = [
        measure_error_rates(normal_scores(generator, mu, needed), "mu").mu / mu for _ in range(40)
    ]
    assert abs(np.median(shown) - share) < 0.35


@pytest.mark.parametrize(
    ("sigma", "advice"),
    [
        (0.0, "At least 6 on each side are needed."),
        (0.001, "At least 6 on each side are needed."),
        (0.1, "At least 8 on each side are needed, 678 to show 90 % of it."),
        (1e10, "too small to be measured by any number of trainings"),
    ],
)
def test_too_few_trainings_are_refused_with_the_number_that_would_do(sigma, advice) -> None:
    rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    plan = Protocol(clients=3, rounds=2, local=rule, noise=Gaussian(sigma=sigma))
    certified = certify(plan, "server", "record", delta=1e-5)
    with pytest.raises(UserError, match="trainings = 5: too few to conclude anything") as refusal:
        refuse_too_few(5, certified)
    assert advice in str(refusal.value)


def test_failed_trainings_and_empty_sides() -> None:
    broken = Scores(
        choosing=(np.array([np.nan, 0.0]), np.array([1.0, np.nan])),
        judging=(np.array([np.nan]), np.array([np.inf])),
    )
    assert math.isfinite(measure_error_rates(broken, "mu").mu)
    with pytest.raises(UserError, match="no scores"):
        measure_error_rates(
            Scores(
                choosing=(np.array([]), np.array([1.0])), judging=(np.array([]), np.array([1.0]))
            ),
            "mu",
        )
    with pytest.raises(UserError, match="above 0"):
        count_needed_trainings(0.0)


@pytest.mark.parametrize(
    "curve",
    [
        mix_gaussians([0.0, 2.5], [0.6, 0.4]).repeat(4),
        compose_poisson_batches(multiplier=0.7, rate=0.3, steps=9),
        mix_gaussians([0.3, 6.0], [0.001, 0.999]),
    ],
    ids=["mixture", "poisson", "loud"],
)
def test_the_balanced_test_errs_equally_often_on_both_sides(curve) -> None:
    error = stats.norm.cdf(-find_equivalent_mu(curve) / 2)
    assert curve.beta(error) == pytest.approx(error, rel=1e-6)
