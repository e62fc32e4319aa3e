"""Sensitivities against local trainings that try to be as different as they can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy import sensitivity
from sordino.privacy.amplification import contraction
from sordino.protocol.errors import UserError
from tests.oracles import stretches

RATES = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(rates=RATES, proximal=st.floats(0.0, 2.0), first=st.integers(0, 7))
def test_opposite_gradients_attain_the_upload_sensitivity(
    rates: list[float], proximal: float, first: int
) -> None:
    """Two trainings with gradients +-V whose signs are chosen to add up, equal before step `first`."""
    first = min(first, len(rates) - 1)
    clip, one, two = 1.7, 0.0, 0.0
    later = [math.prod(1 - rate * proximal for rate in rates[k + 1 :]) for k in range(len(rates))]
    for k, rate in enumerate(rates):
        gradient = clip * math.copysign(1.0, later[k]) if k >= first else 0.0
        one = (1 - rate * proximal) * one - rate * gradient
        two = (1 - rate * proximal) * two + rate * gradient
    assert abs(one - two) == pytest.approx(
        sensitivity.first_used(rates, clip, proximal=proximal)[first], rel=1e-9, abs=1e-12
    )


def local_training(
    sign: float, *, rates: list[float], batch: int, clip: float, width: float
) -> float:
    """One linear record of gradient sign * V, the others with gradient -V tanh(w / width), each clipped by construction."""
    w = 0.0
    for rate in rates:
        w -= rate * (sign * clip + (batch - 1) * -clip * math.tanh(w / width)) / batch
    return w


def test_larger_batches_do_not_divide_the_sensitivity_of_many_steps() -> None:
    rates, batch = [0.1] * 50, 32
    moved = [
        local_training(sign, rates=rates, batch=batch, clip=1.0, width=1.0) for sign in (1.0, -1.0)
    ]
    difference = abs(moved[0] - moved[1])
    assert difference == pytest.approx(3.97, abs=0.01)
    assert difference > 10 * 2 * sum(rates) / batch
    assert (
        difference
        <= stretches.smooth_upload(rates, 1.0, smoothness=1.0, batch=batch)
        <= sensitivity.bound_upload(rates, 1.0)
    )


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 30),
    rate=st.floats(0.01, 0.5),
    width=st.floats(0.2, 5.0),
    batch=st.integers(1, 40),
)
def test_a_vouched_smoothness_bounds_real_trainings(
    steps: int, rate: float, width: float, batch: int
) -> None:
    moved = [
        local_training(sign, rates=[rate] * steps, batch=batch, clip=1.0, width=width)
        for sign in (1.0, -1.0)
    ]
    bound = stretches.smooth_upload([rate] * steps, 1.0, smoothness=1 / width, batch=batch)
    assert abs(moved[0] - moved[1]) <= bound * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(
    rates=RATES, strong=st.floats(0.0, 1.0), extra=st.floats(0.0, 3.0), proximal=st.floats(0.0, 2.0)
)
def test_quadratic_losses_stretch_no_more_than_allowed(
    rates: list[float], strong: float, extra: float, proximal: float
) -> None:
    for curvature in (strong, strong + extra):
        distance = 1.0
        for rate in rates:
            distance = distance - rate * (curvature * distance + proximal * (distance - 1.0))
        allowed = stretches.fedprox_contraction(
            rates, strong=strong, smoothness=strong + extra, proximal=proximal
        )
        assert (
            abs(distance) <= allowed * (1 + 1e-9) + 1e-12
        )  # a rate that nearly cancels leaves rounding only
        assert (
            allowed
            <= stretches.fedprox_expansion(rates, strong + extra, proximal) * (1 + 1e-9) + 1e-12
        )


def test_fedprox_without_a_pull_is_fedavg() -> None:
    rates = [0.3, 0.1, 0.7]
    assert stretches.fedprox_expansion(rates, 2.0, 0.0) == pytest.approx(
        stretches.fedavg_expansion(rates, 2.0)
    )
    assert sensitivity.bound_upload(rates, 0.5) == pytest.approx(sum(rates))


def clipped_logistic(w: np.ndarray, x: np.ndarray, y: np.ndarray, clip: float) -> np.ndarray:
    """Mean of per-example clipped gradients of log(1 + e^(-y <w, x>))."""
    slopes = -y / (1 + np.exp(y * (x @ w)))
    gradients = slopes[:, None] * x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))).mean(axis=0)


def test_clipped_logistic_regression_contracts_as_promised() -> None:
    rng = np.random.default_rng(0)
    rate, decay, clip = 1.5, 0.1, 0.3
    factor = float(
        contraction.step_factors(
            np.array([rate]),
            decay=decay,
            curvature=contraction.LOGISTIC_CURVATURE,
            feature_norm=2.0,
        )[0]
    )
    x = rng.normal(size=(40, 3))
    x *= (2.0 * rng.random((40, 1)) ** 0.3) / np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.choice([-1.0, 1.0], 40)
    for _ in range(300):
        one, two = rng.normal(size=(2, 3)) * 5
        after = [w - rate * (decay * w + clipped_logistic(w, x, y, clip)) for w in (one, two)]
        assert np.linalg.norm(after[0] - after[1]) <= factor * np.linalg.norm(one - two) * (
            1 + 1e-12
        )


def test_replacing_a_record_of_logistic_regression_moves_a_round_by_at_most_gamma() -> None:
    rng = np.random.default_rng(1)
    rate, decay, clip = 0.8, 0.05, 0.5
    rates = np.full(12, rate)
    factors = contraction.step_factors(rates, decay=decay, curvature=0.25, feature_norm=1.0)
    gamma = float(
        contraction.move_full_batch(contraction.find_moves(rates, factors, clip), records=10)
    )
    for _ in range(50):
        x = rng.normal(size=(10, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = rng.choice([-1.0, 1.0], 10)
        other, labels = x.copy(), y.copy()
        other[0], labels[0] = -x[0], y[0]
        one = two = rng.normal(size=3)
        for _ in range(12):
            one = one - rate * (decay * one + clipped_logistic(one, x, y, clip))
            two = two - rate * (decay * two + clipped_logistic(two, other, labels, clip))
        assert np.linalg.norm(one - two) <= gamma * (1 + 1e-12)


@pytest.mark.parametrize("rates", [[], [-0.1], [math.nan], [math.inf]])
def test_nonsense_is_refused(rates: list[float]) -> None:
    for call in (sensitivity.first_used, stretches.fedavg_expansion):
        with pytest.raises(UserError):
            call(rates, 1.0)
