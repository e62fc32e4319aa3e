"""Laplace and staircase noise by loss distributions: against integrals, enumeration of draws and dp_accounting."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import Bound, pose_question
from sordino.privacy.certify import certify
from sordino.protocol import (
    Constant,
    Data,
    FedAvg,
    Laplace,
    Model,
    Poisson,
    Protocol,
    StageWise,
    Staircase,
)

DELTAS = (1e-2, 1e-5, 1e-9)
LINE = np.linspace(-60.0, 60.0, 1_200_001)


def plan(*, rounds=1, steps=1, records=None, noise=None, parameters=None, **changes) -> Protocol:
    """Uploads of which each moves by at most 1 in the l1 norm."""
    settings = {
        "clients": 5,
        "rounds": rounds,
        "local": FedAvg(
            steps=steps,
            batch=1 if records is None else 2,
            clip=0.5 / steps,
            schedule=Constant(rate=1.0),
            clip_norm="l1" if parameters is None else "l2",
        ),
        "noise": noise or Laplace(scale=1.0),
        "data": None if records is None else Data(name="digits", records=records),
        "model": None if parameters is None else Model(name="logistic", parameters=parameters),
        **changes,
    }
    return Protocol(**settings)


def bounds_by_method(protocol: Protocol) -> dict[str, list[Bound]]:
    found: dict[str, list[Bound]] = {}
    for bound in find_bounds(pose_question(protocol, "server", "record", None, None)):
        found.setdefault(bound.method, []).append(bound)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "rounds"), [(1.0, 1), (0.3, 7), (4.0, 60), (20.0, 1000)])
def test_composed_laplace_is_that_of_dp_accounting(scale: float, rounds: int) -> None:
    curve = bounds_by_method(plan(rounds=rounds, noise=Laplace(scale=scale)))["loss composition"][0]
    grid = {"value_discretization_interval": 1e-3 / scale}
    exact = privacy_loss_distribution.from_laplace_mechanism(
        scale, pessimistic_estimate=False, **grid
    ).self_compose(rounds)
    above = privacy_loss_distribution.from_laplace_mechanism(scale, **grid).self_compose(rounds)
    for delta in DELTAS:
        found = curve.curve.epsilon(delta)
        assert exact.get_epsilon_for_delta(delta) * (1 - 1e-9) <= found
        assert found <= above.get_epsilon_for_delta(delta) * (1 + 1e-4)


def laplace(x: np.ndarray, at: float = 0.0) -> np.ndarray:
    return np.exp(-np.abs(x - at)) / 2


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.trapezoid(np.maximum(first - np.exp(epsilon) * second, 0.0), LINE))


def test_a_shift_of_two_coordinates_is_never_worse_than_of_one() -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(-25, 25, 2001)
    for _ in range(12):
        total = float(rng.uniform(0.2, 3))
        first = total * float(rng.uniform(0, 1))
        epsilon = float(rng.uniform(0, total))
        before = np.multiply.outer(laplace(x), laplace(x))
        after = np.multiply.outer(laplace(x, first), laplace(x, total - first))
        gain = np.maximum(before - np.exp(epsilon) * after, 0.0)
        delta = float(np.trapezoid(np.trapezoid(gain, x, axis=1), x))
        assert delta <= -np.expm1((epsilon - total) / 2) + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_a_round_with_secret_batches_is_never_below_exact_laws(steps: int) -> None:
    """Any update given the first use, no further from the others than the steps that are left allow."""
    rng = np.random.default_rng(steps)
    records = 8
    curve = bounds_by_method(plan(steps=steps, records=records))["secret batches"][0].curve
    rate = 2 / records
    use = rate * (1 - rate) ** np.arange(steps)
    reach = 1 - np.arange(steps) / steps
    for trial in range(12):
        law = [(1 - use.sum()) * laplace(LINE) for _ in range(2)]
        for chance, far in zip(use, reach, strict=True):
            # Neither from the unused round nor from one another further away than `far`.
            one = far * float(rng.uniform(-1, 1)) if trial else far
            other = far * float(rng.uniform(max(-1, one / far - 1), min(1, one / far + 1)))
            law[0] = law[0] + chance * laplace(LINE, one)
            law[1] = law[1] + chance * laplace(LINE, other if trial else 0.0)
        for epsilon in (0.0, 0.05, 0.2, 0.5):
            for pair in (law, law[::-1]):
                assert hockey_stick(*pair, epsilon) <= curve.delta(epsilon) * (1 + 1e-5) + 1e-7


def test_the_worst_round_of_one_step_attains_the_bound() -> None:
    records, rate = 8, 0.25
    curve = bounds_by_method(plan(records=records))["secret batches"][0].curve
    with_record = (1 - rate) * laplace(LINE) + rate * laplace(LINE, 1.0)
    for epsilon in (0.0, 0.1, 0.3):
        exact = hockey_stick(with_record, laplace(LINE), epsilon)
        assert exact == pytest.approx(curve.delta(epsilon), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 20])
def test_one_coordinate_of_a_staircase_is_priced_exactly(rounds: int) -> None:
    """The loss has three values: the sum over rounds is a walk, enumerated here."""
    noise = Staircase(step=0.5, width=1.0)
    protocol = plan(rounds=rounds, noise=noise, parameters=1)
    curve = bounds_by_method(protocol)["loss composition"][0].curve
    x = np.linspace(-40, 40, 800_001)
    nu = noise.falls_at

    def density(at: np.ndarray) -> np.ndarray:
        return np.exp(-noise.step * np.floor(np.abs(at) + 1 - nu))

    mass = density(x) / np.trapezoid(density(x), x)
    loss = np.rint(np.log(density(x) / density(x - 1.0)) / noise.step)
    step = x[1] - x[0]
    one = np.array([float(mass[loss == k].sum() * step) for k in (-1, 0, 1)])
    walk = np.ones(1)
    for _ in range(rounds):
        walk = np.convolve(walk, one)
    losses = noise.step * np.arange(-rounds, rounds + 1)
    for epsilon in (0.1, 0.4, 2.0):
        exact = float(walk @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        assert exact * (1 - 1e-3) <= curve.delta(epsilon) <= exact * (1 + 2e-3) + 1e-9


@pytest.mark.parametrize(
    "protocol",
    [
        plan(rounds=40, noise=Laplace(scale=3.0)),
        plan(rounds=40, steps=3, records=30),
        plan(rounds=40, records=30, participation=Poisson(rate=0.4)),
        plan(rounds=40, noise=Staircase(step=0.3, width=1.0), parameters=1),
        plan(
            rounds=300,
            local=FedAvg(steps=1, batch=1, clip=0.5, schedule=StageWise(rate=1.0), clip_norm="l1"),
        ),
    ],
)
def test_the_promise_is_never_above_the_renyi_bound(protocol: Protocol) -> None:
    promised = certify(protocol).curve
    renyi = bounds_by_method(protocol)["Rényi composition"][0].curve
    for delta in DELTAS:
        assert promised.epsilon(delta) <= renyi.epsilon(delta) * (1 + 1e-12)
    assert promised.rdp(2.0) <= renyi.rdp(2.0)


def test_where_the_worst_shift_is_not_known_renyi_divergences_are_added_up() -> None:
    for noise in (Laplace(scale=1.0), Staircase(step=0.3, width=1.0)):
        assert "loss composition" not in bounds_by_method(plan(noise=noise, parameters=2))
