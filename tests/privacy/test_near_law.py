"""Noise that is only near its law: what it costs, by the exact law of the draws as they are made."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pytest

from sordino import certify
from sordino.mechanisms.discrete_gaussian import LARGEST_DIGIT, count_probabilities
from sordino.privacy.curves.gaussian_curve import GaussianCurve, compose_curves
from sordino.privacy.curves.near_law import NearLawCurve, allow_distance
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Constant, FedAvg, Gaussian, Model, Protocol, View
from sordino.sweeps.tuning_price import price_all_runs, price_selection


@cache
def law_of_draws() -> tuple[list[int], int]:
    """Returns how many of 2^128 numbers of keystream are each draw of one digit, and the largest draw."""
    return count_probabilities()[0], LARGEST_DIGIT


def exact_delta(shift: int, epsilon: float) -> float:
    """Returns the delta of one draw against the same draw moved by a shift, by a sum over all values.

    In 60 digits: no formula of the price is used.
    """
    counts, most = law_of_draws()
    with localcontext() as context:
        context.prec = 60
        odds = Decimal(epsilon).exp()
        total = Decimal(0)
        for value in range(-most, most + 1):
            other = counts[value + shift + most] if value + shift <= most else 0
            total += max(Decimal(0), counts[value + most] - odds * other)
        return float(total / 2**128)


def one_draw(sigma: float) -> Protocol:
    """Returns a federation in which one number is sent once, moves by 1, and gets noise of one digit."""
    rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
    noise = Gaussian(sigma=sigma, arithmetic="integers", digits=1)
    model = Model(name="logistic", parameters=1)
    return Protocol(clients=2, rounds=1, local=rule, noise=noise, model=model)


@pytest.mark.parametrize("inverse", [1, 3, 5, 8, 10, 11, 12, 13])
def test_what_is_promised_holds_for_the_noise_that_is_drawn(inverse: int) -> None:
    # Little noise moves a draw to where the other one is never found: at 1/13 of the move no draw
    # leaves a doubt.
    found = certify(one_draw(1 / inverse), "server")
    grid = one_draw(1 / inverse).grid
    assert grid is not None
    shift = round(grid.scale)
    for delta in (0.1, 1e-5, 1e-9):
        epsilon = found.epsilon(delta)
        if math.isfinite(epsilon):
            assert exact_delta(shift, epsilon) <= delta
    for epsilon in (0.0, 1.0, 10.0, 40.0, 60.0, 80.0, 100.0, 107.55, 400.0):
        assert exact_delta(shift, epsilon) <= found.delta(epsilon)


def test_little_noise_on_one_number_is_not_promised_an_epsilon_that_is_false() -> None:
    # As if the law had no end, epsilon would be 107.55; the draws' own delta is .027 there.
    found = certify(one_draw(1 / 11), "server")
    assert round(found.curve.law.epsilon(1e-5), 2) == 107.55
    assert 0.02 < exact_delta(64 * 11, 107.55) < 0.03
    assert found.epsilon(1e-5) == math.inf
    assert found.explain().splitlines()[-1].startswith("Noise is drawn from its law up to")


def test_a_promise_of_ordinary_size_does_not_change() -> None:
    found = certify(one_draw(1.0), "server")
    assert found.epsilon(1e-5) == pytest.approx(found.curve.law.epsilon(1e-5), rel=1e-11)
    assert found.epsilon(1e-5) >= found.curve.law.epsilon(1e-5)


def two_coins(move: float, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns two laws of three outcomes, each `distance` from randomised response in total variation.

    What is moved goes where it hurts most: each law gets an outcome that the other one never has.
    """
    first = np.array([0.5 + move, 0.5 - move, 0.0, 0.0])
    second = np.array([0.5 - move, 0.5 + move, 0.0, 0.0])
    # From outcomes that the other law likes better.
    first -= np.array([0.0, distance, -distance, 0.0])
    second -= np.array([distance, 0.0, 0.0, -distance])
    return first, second


@pytest.mark.parametrize("distance", [1e-3, 0.05])
@pytest.mark.parametrize("move", [0.1, 0.3])
def test_no_smaller_delta_would_do(move: float, distance: float) -> None:
    from sordino.privacy.curves.loss_distributions import LossCurve

    def law(epsilons: np.ndarray) -> np.ndarray:
        return np.maximum(0.0, 0.5 + move - np.exp(epsilons) * (0.5 - move))

    near = NearLawCurve(exact=LossCurve.from_profile(law, interval=1e-3), total_variation=distance)
    first, second = two_coins(move, distance)
    odds = math.log((0.5 + move) / (0.5 - move))
    for epsilon in (0.0, 0.4 * odds, 0.8 * odds):
        true = float(np.maximum(0.0, first - math.exp(epsilon) * second).sum())
        # The other law of two at this distance that are told apart best of all.
        assert true <= near.delta(epsilon) <= true + 2.5e-3


def test_delta_never_grows_and_epsilon_and_beta_agree_with_it() -> None:
    near = NearLawCurve(exact=GaussianCurve(mu=2.0), total_variation=1e-12)
    grid = np.linspace(0, 400, 801)
    deltas = near.deltas(grid)
    assert (np.diff(deltas) <= 0).all()
    assert (deltas >= GaussianCurve(mu=2.0).deltas(grid)).all()
    for delta in (0.1, 1e-3, 1e-5):
        epsilon = near.epsilon(delta)
        assert near.delta(epsilon) <= delta * (1 + 1e-9)
        assert near.delta(epsilon * (1 - 1e-6)) > delta
    assert near.epsilon(1e-12) == math.inf
    assert near.delta(400.0) > 1e-12
    for alpha in (0.0, 1e-6, 0.1, 0.9):
        assert near.beta(alpha) <= max(0.0, GaussianCurve(mu=2.0).beta(alpha + 1e-12) - 1e-12)
        # The supporting lines of delta are those of beta.
        for epsilon in (0.0, 1.0, 3.0):
            line = 1 - near.delta(epsilon) - math.exp(epsilon) * alpha
            assert near.beta(alpha) >= line - 1e-6
    np.testing.assert_allclose(near.betas(np.array([0.1])), near.beta(0.1), rtol=1e-12)


def test_distances_add_up_and_divergences_of_the_law_are_not_those_of_the_draws() -> None:
    near = NearLawCurve(exact=GaussianCurve(mu=0.3), total_variation=1e-9)
    joined = compose_curves([near.repeat(4), GaussianCurve(mu=0.8), near])
    assert joined.law.mu == pytest.approx(math.hypot(0.3 * math.sqrt(5), 0.8))
    assert joined.total_variation == pytest.approx(5e-9)
    assert joined.mu is None
    assert joined.rdp(2.0) == math.inf
    twice = allow_distance(near, 1e-9)
    assert twice.total_variation == 2e-9
    assert twice.law is near.law


def test_prices_of_sweeps_count_the_distance_of_every_run() -> None:
    def promise(distance: float) -> Guarantee:
        curve = allow_distance(GaussianCurve(mu=0.5), distance)
        return Guarantee(view=View.FINAL, unit="record", method="", curve=curve)

    exact = price_selection([promise(0.0)], 12, 10.0, 1e-5).epsilon
    assert price_selection([promise(0.0), promise(2e-8)], 12, 10.0, 1e-5).epsilon > exact
    assert price_selection([promise(1.1e-6)], 12, 10.0, 1e-5).epsilon == math.inf
    assert price_all_runs([promise(4e-6)] * 3, 1e-5).epsilon == math.inf
    assert math.isfinite(price_all_runs([promise(2e-8)] * 3, 1e-5).epsilon)


def test_a_promise_says_up_to_what_its_parameters_hold() -> None:
    found = certify(one_draw(1.0), "server")
    assert found.mu is not None
    assert f"rho = {found.mu**2 / 2:.3g}"[:8] in str(found)
    assert "up to a total variation of " in str(found)
    assert found.as_document(1e-5)["total_variation"] == found.total_variation > 0
    floats = certify(Protocol(**{**vars(one_draw(1.0)), "noise": Gaussian(sigma=1.0)}), "server")
    assert "total variation" not in str(floats)
    assert floats.as_document(1e-5)["total_variation"] == 0.0
