"""A clip that follows a private quantile: as Andrew et al. have it, counted under noise, and paid for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import (
    Constant,
    Data,
    DpSgd,
    Gaussian,
    Protocol,
    SecureAggregation,
    ServerAdam,
    SordinoError,
    certify,
    resume,
    train,
)
from sordino.audit.auditing import audit
from sordino.engines.torch_engine import TorchEngine
from sordino.federation import round as rounds
from sordino.federation.assignment import minibatches
from sordino.federation.client import ClientWork
from sordino.federation.round import RoundRecord, play_training
from sordino.federation.setup import Setup, prepare
from sordino.flower.agreement import refuse_unsupported
from sordino.native.native_engine import NativeEngine
from sordino.protocol import AdaptiveClip
from tests.engines.test_resume import interrupted
from tests.privacy.test_lots import central
from tests.support import toy_dataset, toy_protocol

FOLLOW = AdaptiveClip(quantile=0.7, rate=0.5, weight=0.2)
RULE = DpSgd(batch=6, clip=0.2, schedule=Constant(rate=0.5), adaptive=FOLLOW)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs without a folder are written here."""
    monkeypatch.chdir(tmp_path)


def plan(**changes: Any) -> Protocol:
    return toy_protocol(**{"local": RULE, "noise": Gaussian(multiplier=0.0), **changes})


def ready(protocol: Protocol) -> Setup:
    return prepare(protocol, data=toy_dataset(), model="logistic")


def rounds_of(setup: Setup, count: int, engine: type = TorchEngine) -> list[RoundRecord]:
    with engine(setup, workers=1) as made:
        return list(play_training(setup, made, count))


def norms_of(setup: Setup, weights: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """The gradients of single examples, by torch's own differentiation."""
    work = ClientWork(setup)
    found = []
    for row in rows.tolist():
        work.model.load(torch.from_numpy(weights))
        chosen = torch.tensor([row])
        work.model.loss_gradient(
            setup.train.inputs(chosen), setup.train.y.index_select(0, chosen), work.loss
        )
        found.append(work.model.gradients.double().numpy().copy())
    return found


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_rounds_follow_the_published_recursion(engine: type) -> None:
    """C <- C exp(-rate (share within - quantile)), and a step on gradients clipped to C."""
    setup = ready(plan())
    clip = float(np.float32(0.2))
    seen = []
    for record in rounds_of(setup, 4, engine):
        before = record.before.weights
        total = np.zeros(before.size)
        counted = 0.0
        for client in range(5):
            (lot,) = minibatches(setup, client=client, round_index=record.task.round_index)
            for gradient in norms_of(setup, before, lot):
                norm = np.linalg.norm(gradient)
                total += gradient * min(1.0, clip / norm)
                counted += 0.5 if norm <= clip else -0.5
        expected = before - 0.5 * total / (5 * 6)
        np.testing.assert_allclose(record.after.weights, expected, atol=3e-6)
        share = min(1.0, max(0.0, 0.5 + counted / (5 * 6)))
        clip *= math.exp(-0.5 * (share - 0.7))
        seen.append(clip)
        assert record.after.kept["clip"] == pytest.approx(clip, rel=1e-6)
    assert len(set(seen)) == 4


def test_the_clip_finds_the_quantile() -> None:
    rule = replace(RULE, clip=0.01, schedule=Constant(rate=1e-6))
    setup = ready(plan(local=rule))
    last = rounds_of(setup, 60)[-1].after
    norms = [
        np.linalg.norm(one)
        for client in range(5)
        for one in norms_of(setup, last.weights, setup.parts[client])
    ]
    assert np.mean(np.array(norms) <= last.kept["clip"][0]) == pytest.approx(0.7, abs=0.1)


def test_counts_are_under_noise_of_the_promised_size() -> None:
    """An example counts a half; its multiplier is z over the weight, in shares of five clients."""
    silent = ClientWork(ready(plan()))
    noisy = ClientWork(ready(plan(noise=Gaussian(multiplier=3.0))))
    start = silent.setup.initial_weights()
    stack = np.stack([start, np.full_like(start, 0.2)])
    left = []
    for t in range(200):
        one = silent.upload(client=1, round_index=t, weights=stack).count
        other = noisy.upload(client=1, round_index=t, weights=stack).count
        assert one is not None
        assert other is not None
        left.append(float(other[0] - one[0]))
    expected = 0.5 * 3.0 / 0.2 / math.sqrt(5)
    assert np.std(left) == pytest.approx(expected, rel=0.15)


PRICED = Protocol(
    clients=10,
    rounds=200,
    local=replace(RULE, clip=0.7),
    noise=Gaussian(multiplier=1.1),
    data=Data(name="digits", records=120),
)


@pytest.mark.parametrize("view", ["rounds", "server"])
def test_the_count_is_paid_for(view: str) -> None:
    """Two sides of a right angle: 1/z^2 of the gradients and (weight/z)^2 of the count."""
    plan = replace(PRICED, noise=Gaussian(multiplier=4.0))
    together = (4.0**-2 + (4.0 / 0.2) ** -2) ** -0.5
    if view == "server":
        together /= math.sqrt(10)
    expected = central(together, 0.05, 200)
    found = certify(plan, view).epsilon(1e-5)
    assert found == pytest.approx(expected, rel=1e-3)
    still = replace(plan, local=replace(plan.local, adaptive=None))
    assert certify(still, view).epsilon(1e-5) < found


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_resumed_run_ends_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    protocol = plan(noise=Gaussian(multiplier=1.0), rounds=6, server=ServerAdam(rate=0.05))
    interrupted(tmp_path / "a", after=4, protocol=protocol, engine=engine)
    again = resume(tmp_path / "a", data=toy_dataset())
    whole = train(
        protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "b", engine=engine, workers=1
    )
    for name, value in (whole.state or {}).items():
        assert torch.equal(value, (again.state or {})[name])


GAME = Protocol(
    seed=2,
    clients=3,
    rounds=3,
    local=DpSgd(batch=6, clip=0.5, adaptive=FOLLOW),
    noise=Gaussian(multiplier=0.7),
    data=Data(name="digits", records=16),
)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["rounds", "coalition:1"])
def test_the_worst_case_comes_close_to_the_price(view: str, tmp_path: Path) -> None:
    found = audit(GAME, view, trainings=6000, folder=tmp_path / "audit", workers=1)
    assert 0.75 < found.attained < 1.04
    assert not found.contradicted
    assert found.residuals is not None
    assert found.engine is not None
    assert found.engine.verdict == "equal"


@pytest.mark.slow
def test_a_step_that_is_longer_than_the_clip_says_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fitting = audit(GAME, "rounds", trainings=200, folder=tmp_path / "a", workers=1)
    assert not fitting.contradicted
    original = rounds.find_step_rate
    monkeypatch.setattr(
        rounds, "find_step_rate", lambda protocol, state: original(protocol, state) * 1.01
    )
    broken = audit(GAME, "rounds", trainings=200, folder=tmp_path / "b", workers=1)
    assert broken.contradicted


@pytest.mark.parametrize(
    "changes",
    [
        {"channel": SecureAggregation(threshold=2)},
        {"noise": Gaussian(multiplier=1.0, where="server")},
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SordinoError, match=r"adaptive|fixed clip"):
        replace(PRICED, **changes)


def test_machines_refuse_it_in_a_sentence() -> None:
    with pytest.raises(SordinoError, match=r"local.adaptive"):
        refuse_unsupported(PRICED)


def test_no_count_leaves_a_client_whose_clip_stays() -> None:
    setup = ready(plan(local=replace(RULE, adaptive=None)))
    record = rounds_of(setup, 1)[0]
    assert all(one.count is None for one in record.uploads)
    assert record.task.broadcast.ndim == 1
