"""Steps that are pulled to the first model or to zero: what they do, and what they cost (A32)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino import train
from sordino.audit.lower_bounds import measure_error_rates
from sordino.federation.setup import prepare
from sordino.models.flat import FlatModel
from sordino.models.task_losses import cross_entropy
from sordino.papers.applied import published_bounds
from sordino.privacy.certify import certify
from sordino.protocol import (
    Assumptions,
    Bezier,
    Constant,
    FedAvg,
    FedProx,
    Gaussian,
    Interpolate,
    InvalidValue,
    Mean,
    Protocol,
    Scaffold,
    StageWise,
    View,
    dumps,
    loads,
)
from tests.audit.test_game import played, with_mu
from tests.support import toy_dataset, toy_protocol

RATE, ALPHA, DECAY = 0.2, 0.8, 0.3


def anchored(**changes) -> FedProx:
    settings = {
        "steps": 4,
        "batch": 24,
        "clip": 0.5,
        "schedule": Constant(rate=RATE),
        "proximal": ALPHA,
        "anchor": "start",
        "weight_decay": DECAY,
    }
    return FedProx(**settings | changes)


def plan(
    rule, *, rounds: int = 50, smoothness: float | None = None, sigma: float = 1.0
) -> Protocol:
    return Protocol(
        clients=10,
        rounds=rounds,
        local=rule,
        noise=Gaussian(sigma=sigma),
        assumptions=Assumptions(smoothness=smoothness),
    )


def steps_by_hand(setup, rule, start: np.ndarray, first: np.ndarray) -> np.ndarray:
    """One client's full-batch steps, written from the definition."""
    model = FlatModel(setup.module)
    x, y = setup.train.inputs(torch.from_numpy(setup.parts[0])), setup.train.y[setup.parts[0]]
    now = start.astype(np.float64)
    for _ in range(rule.steps):
        model.load(torch.from_numpy(now.astype(np.float32)))
        model.loss_gradient(x, y, cross_entropy)
        slope = model.gradients.double().numpy()
        slope = slope * min(1.0, rule.clip / np.linalg.norm(slope))
        now = now - RATE * (slope + ALPHA * (now - first) + DECAY * now)
    return now


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_both_engines_pull_to_the_first_model_and_to_zero(engine, tmp_path) -> None:
    rule = anchored()
    protocol = toy_protocol(
        clients=1, rounds=3, local=rule, noise=Gaussian(sigma=0.0), assumptions=Assumptions()
    )
    data = toy_dataset(records=24)
    setup = prepare(protocol, data=data, model="mlp")
    first = setup.initial_weights()
    expected = first
    for _ in range(3):
        expected = steps_by_hand(setup, rule, expected, first.astype(np.float64)).astype(np.float32)
    run = train(
        protocol, data=data, model="mlp", engine=engine, folder=tmp_path / engine, report=False
    )
    found = FlatModel(run.model).weights.numpy()
    assert np.abs(found - expected).max() < 2e-5
    # The test has power: a pull to the model of the round ends elsewhere.
    assert np.abs(found - first).max() > 1e-3


def test_with_a_vouched_smoothness_below_the_pull_the_price_converges_in_rounds_and_steps() -> None:
    """Theorem 4 of convergent-dp as it was meant: rho = (|1 - eta p| + eta L)^K < 1."""
    pull = ALPHA + DECAY
    costs = []
    for rounds in (1, 10, 100, 10_000):
        found = certify(plan(anchored(), rounds=rounds, smoothness=0.5), "final").mu
        stretch = (1 - RATE * pull + RATE * 0.5) ** 4
        shift = 2 * 0.5 * RATE * sum((1 - RATE * pull) ** k for k in range(4)) / math.sqrt(10)
        energy = (1 + stretch) * (1 - stretch**rounds) / ((1 - stretch) * (1 + stretch**rounds))
        assert found == pytest.approx(shift * math.sqrt(energy), rel=1e-6)
        costs.append(found)
    assert costs[-1] < 1.01 * costs[-2]
    many_steps = certify(plan(anchored(steps=400), rounds=10_000, smoothness=0.5), "final").mu
    assert many_steps <= 2 * 0.5 / pull / math.sqrt(10) * 1.001


def test_the_pull_of_a_round_alone_does_not_converge() -> None:
    drifting = anchored(anchor="global", weight_decay=0.0)
    costs = [
        certify(plan(drifting, rounds=rounds, smoothness=0.5), "final").mu for rounds in (100, 400)
    ]
    assert costs[1] == pytest.approx(2 * costs[0], rel=1e-6)


def test_without_smoothness_the_pull_keeps_two_runs_together_for_free() -> None:
    pull = ALPHA + DECAY
    limit = certify(plan(anchored(), rounds=20_000), "final")
    # At worst the last round hides all of the distance 2V/pull under the noise of the mean.
    assert limit.mu <= 2 * 0.5 / pull * math.sqrt(10) * (1 + 1e-9)
    assert limit.mu < certify(plan(anchored(), rounds=20_000), "rounds").mu / 5
    assert "Pulls to public models keep two runs within" in repr(limit)


def test_two_runs_that_share_their_noise_stay_within_what_is_promised() -> None:
    """Gradients of the worst kind: always the clip, away from the other run."""
    generator = np.random.default_rng(1)
    pull = ALPHA + DECAY
    one = other = np.zeros(3)
    furthest = 0.0
    for _ in range(300):
        for _ in range(4):
            apart = one - other
            away = 0.5 * (apart / np.linalg.norm(apart) if apart.any() else np.eye(3)[0])
            one = one - RATE * (-away + pull * one)
            other = other - RATE * (away + pull * other)
        noise = generator.normal(size=3)
        one, other = one + noise, other + noise
        furthest = max(furthest, float(np.linalg.norm(one - other)))
    assert 0.99 * 2 * 0.5 / pull < furthest <= 2 * 0.5 / pull * (1 + 1e-12)


@pytest.mark.parametrize(
    ("smoothness", "least"), [(0.5, 0.8), (None, 0.0)], ids=["vouched", "whatever the loss"]
)
def test_the_worst_case_does_not_pass_the_price_of_an_anchored_pull(smoothness, least) -> None:
    protocol = plan(anchored(batch=1), rounds=8, smoothness=smoothness)
    tuned = with_mu(protocol, View.FINAL, 3.0)
    shown = measure_error_rates(played(tuned, View.FINAL, 2000), "mu").mu
    assert least < shown / 3.0 < 1.05


def test_uploads_under_weight_decay_come_close_to_their_price() -> None:
    rule = FedAvg(steps=3, batch=1, clip=1.0, schedule=StageWise(rate=0.5), weight_decay=0.6)
    tuned = with_mu(plan(rule, rounds=6), View.SERVER, 3.0)
    shown = measure_error_rates(played(tuned, View.SERVER, 2000), "mu").mu
    assert 0.85 < shown / 3.0 < 1.05


def test_what_does_not_go_with_a_fixed_pull_is_refused() -> None:
    shared = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
    for kind in (Scaffold, Bezier):
        with pytest.raises(InvalidValue, match=r"local\.weight-decay"):
            replace(
                plan(kind(**shared, weight_decay=0.1)), assumptions=Assumptions(smoothness=10.0)
            )
    with pytest.raises(InvalidValue, match="participants"):
        replace(
            plan(anchored()),
            noise=Gaussian(sigma=1.0, where="server"),
            aggregation=Mean(denominator="fixed"),
        )
    with pytest.raises(InvalidValue, match="personalization"):
        replace(plan(anchored()), personalization=Interpolate(alpha=0.5))


def test_no_published_theorem_is_held_against_a_fixed_pull() -> None:
    rule = anchored(weight_decay=0.0)
    assert published_bounds(plan(replace(rule, anchor="global"), smoothness=0.5))
    assert not published_bounds(plan(rule, smoothness=0.5))
    assert not published_bounds(plan(anchored(anchor="global"), smoothness=0.5))


def test_a_file_says_the_anchor_and_comes_back() -> None:
    protocol = plan(anchored())
    assert 'anchor = "start"' in dumps(protocol)
    assert loads(dumps(protocol)) == protocol
