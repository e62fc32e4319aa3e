"""Gaussian conversions against multi-precision arithmetic: right to many digits, and never on the optimistic side."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy.curves import gaussian
from sordino.protocol.errors import UserError
from tests.oracles.conversions import mu_from_rates

MUS = [1e-6, 1e-3, 0.019, 0.021, 0.5, 3.0, 30.0, 1e3]
DELTAS = [1e-300, 1e-100, 1e-20, 1e-5, 0.3]


def exact_delta(mu: float, epsilon: float) -> mp.mpf:
    with mp.workdps(450):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2)


def exact_beta(mu: float, alpha: float) -> mp.mpf:
    with mp.workdps(60):
        tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2  # noqa: E731
        guess = (
            mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(alpha))
            if alpha > 1e-15
            else mp.sqrt(-2 * mp.log(alpha))
        )
        quantile = mp.findroot(lambda x: mp.log(tail(x)) - mp.log(alpha), guess)
        return mp.mpf(1) - tail(quantile - mu) if quantile > mu else tail(mu - quantile)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(log_mu=st.floats(-6, 3), a=st.floats(-4, 36))
def test_delta_is_right_and_rounded_up(log_mu: float, a: float) -> None:
    mu = 10.0**log_mu
    epsilon = mu * (a + mu / 2)
    if epsilon < 0:
        return
    ratio = mp.mpf(gaussian.delta(mu, epsilon)) / exact_delta(mu, epsilon)
    assert 1 <= ratio < 1 + 1e-9


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_reaches_delta_and_hardly_less_does(mu: float, delta: float) -> None:
    epsilon = gaussian.epsilon(mu, delta)
    if epsilon == 0:
        assert exact_delta(mu, 0.0) <= delta
        return
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 50.0, 1e5])
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_for_a_target_meets_it_and_hardly_more_does(epsilon: float, delta: float) -> None:
    mu = gaussian.mu_from(epsilon, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-9), epsilon) > delta


@pytest.mark.parametrize("mu", [1e-3, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("alpha", [1e-300, 1e-10, 0.05, 0.5, 0.99, 1 - 1e-9])
def test_beta_is_right_and_rounded_down(mu: float, alpha: float) -> None:
    ratio = mp.mpf(gaussian.beta(mu, alpha)) / exact_beta(mu, alpha)
    assert 1 - 1e-11 < ratio <= 1


@settings(max_examples=100, deadline=None)
@given(mu=st.floats(1e-3, 50), epsilon=st.floats(1e-3, 100))
def test_round_trip_is_never_optimistic(mu: float, epsilon: float) -> None:
    delta = gaussian.delta(mu, epsilon)
    if 1e-300 < delta < 1:  # below, delta itself has few digits left
        assert (
            gaussian.epsilon(mu, delta) <= epsilon * (1 + 1e-9) or delta > 0.99
        )  # there epsilon hardly depends on delta
        assert gaussian.delta(mu, gaussian.epsilon(mu, delta)) <= delta


@settings(max_examples=100, deadline=None)
@given(mu=st.floats(1e-4, 100), factor=st.floats(1.001, 2), epsilon=st.floats(0, 200))
def test_less_noise_never_promises_more(mu: float, factor: float, epsilon: float) -> None:
    assert gaussian.delta(mu, epsilon) <= gaussian.delta(mu * factor, epsilon)
    assert gaussian.epsilon(mu, 1e-6) <= gaussian.epsilon(mu * factor, 1e-6)
    assert gaussian.beta(mu, 0.1) >= gaussian.beta(mu * factor, 0.1)


def test_the_two_extremes() -> None:
    assert (
        gaussian.delta(0.0, 0.0),
        gaussian.epsilon(0.0, 1e-9),
        gaussian.beta(0.0, 0.3),
        gaussian.rdp(0.0, math.inf),
    ) == (0, 0, 0.7, 0)
    assert (
        gaussian.delta(math.inf, 9.0),
        gaussian.epsilon(math.inf, 0.5),
        gaussian.beta(math.inf, 0.3),
    ) == (1, math.inf, 0)
    assert gaussian.mu_from(math.inf, 1e-5) == math.inf
    assert gaussian.epsilon(1e200, 1e-5) == math.inf


def test_rates_and_back() -> None:
    for mu in (0.1, 1.0, 4.0):
        assert mu_from_rates(0.05, gaussian.beta(mu, 0.05)) == pytest.approx(mu, rel=1e-12)
    assert mu_from_rates(0.5, 0.5) == 0
    assert mu_from_rates(0.0, 0.5) == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian.delta(-1.0, 1.0),
        lambda: gaussian.delta(math.nan, 1.0),
        lambda: gaussian.delta(1.0, -0.1),
        lambda: gaussian.epsilon(1.0, 0.0),
        lambda: gaussian.epsilon(1.0, 1.0),
        lambda: gaussian.epsilon(1.0, math.nan),
        lambda: gaussian.mu_from(-1.0, 1e-5),
        lambda: gaussian.beta(1.0, 1.1),
        lambda: gaussian.rdp(1.0, 0.5),
    ],
)
def test_nonsense_is_refused(call: object) -> None:
    with pytest.raises(UserError):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("mu", [1e-6, 1e-10, 1e-12, 1e-14, 1e-30])
def test_tiny_releases_have_numbers_at_every_epsilon(mu: float) -> None:
    epsilons = np.concatenate([[0.0], np.geomspace(1e-14, 1.0, 2000)])
    logs = gaussian.log_deltas(mu, epsilons)
    assert not np.isnan(logs).any()
    near = epsilons / mu < 1e3
    # The density of a normal law at epsilon / mu, times mu, but for what the tail is smaller.
    above = np.log(mu) - np.square(epsilons[near] / mu) / 2
    assert (logs[near] <= above + 1e-6 * np.abs(above)).all()
