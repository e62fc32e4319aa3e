"""dp-sgd: the mean of uploads is the step of central DP-SGD, in both engines, resumed bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import Constant, DpSgd, Gaussian, ServerAdam, StageWise, UserError, resume, train
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.assignment import minibatches
from sordino.federation.client import ClientWork
from sordino.federation.round import RoundRecord, play_training
from sordino.federation.setup import Setup, prepare
from sordino.native.native_engine import NativeEngine
from sordino.protocol import Protocol
from tests.engines.test_resume import interrupted
from tests.support import toy_dataset, toy_protocol

RULE = DpSgd(batch=6, clip=0.4, schedule=Constant(rate=0.5))


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


def clipped_gradients(setup: Setup, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The sum of clipped gradients, one example at a time, by torch's own differentiation."""
    work = ClientWork(setup)
    total = np.zeros(weights.size)
    for row in rows.tolist():
        work.model.load(torch.from_numpy(weights))
        chosen = torch.tensor([row])
        work.model.loss_gradient(
            setup.train.inputs(chosen), setup.train.y.index_select(0, chosen), work.loss
        )
        gradient = work.model.gradients.double().numpy()
        total += gradient * min(1.0, RULE.clip / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_a_round_is_one_step_on_the_lot_of_all_clients(sampling: str, engine: type) -> None:
    setup = ready(plan(local=replace(RULE, sampling=sampling)))
    for record in rounds_of(setup, 3, engine):
        before = record.before.weights
        total = np.zeros(before.size)
        for client in range(5):
            (lot,) = minibatches(setup, client=client, round_index=record.task.round_index)
            total += clipped_gradients(setup, before, lot)
        expected = before - 0.5 * total / (5 * 6)
        np.testing.assert_allclose(record.after.weights, expected, atol=3e-6)


def test_the_rate_of_a_round_is_the_servers() -> None:
    setup = ready(plan(local=replace(RULE, schedule=StageWise(rate=0.8))))
    for record in rounds_of(setup, 3):
        move = record.joined - record.before.weights
        rate = 0.8 / (record.task.round_index + 1)
        expected = record.before.weights + rate * move
        np.testing.assert_allclose(record.after.weights, expected, atol=1e-6)


@pytest.mark.parametrize("where", ["client", "server"])
def test_the_noise_of_the_whole_sum_is_multiplier_times_clip(where: str) -> None:
    silent = ready(plan())
    noisy = ready(plan(noise=Gaussian(multiplier=3.0, where=where)))
    left = []
    for seed in range(30):
        one = rounds_of(replace(silent, training=seed), 1)[0].joined.astype(np.float64)
        other = rounds_of(replace(noisy, training=seed), 1)[0].joined
        left.append((other - one) * 5 * 6)
    deviation = float(np.std(left))
    assert deviation == pytest.approx(3.0 * 0.4, rel=0.08)
    # The test would notice a share that is not divided by the root of the number of clients.
    assert deviation < 1.2 * 1.3 < 1.2 * np.sqrt(5)


def test_an_uploads_noise_is_one_share() -> None:
    silent = ClientWork(ready(plan()))
    noisy = ClientWork(ready(plan(noise=Gaussian(multiplier=3.0))))
    weights = silent.setup.initial_weights()
    left = []
    for t in range(40):
        one = silent.upload(client=1, round_index=t, weights=weights).vector
        left.append(noisy.upload(client=1, round_index=t, weights=weights).vector - one)
    assert float(np.std(left)) * 6 == pytest.approx(1.2 / np.sqrt(5), rel=0.08)


def test_one_coin_decides_for_every_record_of_the_federation() -> None:
    parts = (np.arange(10), np.arange(10, 40), np.arange(40, 120), np.arange(120, 120))
    setup = ready(plan(clients=3, local=replace(RULE, batch=8)))
    setup = replace(setup, parts=parts[:3], protocol=replace(setup.protocol, data=None))
    often = [
        sum(len(minibatches(setup, client=client, round_index=t)[0]) for t in range(300))
        / (300 * len(parts[client]))
        for client in range(3)
    ]
    # B over the mean of 40 records, whatever a client has.
    assert often == pytest.approx([0.2] * 3, abs=0.02)


def test_a_lot_of_more_records_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match=r"Lower local.batch to 24"):
        ready(plan(local=replace(RULE, batch=25)))


@pytest.mark.parametrize("server", [None, ServerAdam(rate=0.05)])
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_resumed_run_ends_with_the_same_bits(server: Any, engine: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"noise": Gaussian(multiplier=1.0), "rounds": 6}
    if server is not None:
        changes["server"] = server
    protocol = plan(**changes)
    interrupted(tmp_path / "a", after=4, protocol=protocol, engine=engine)
    again = resume(tmp_path / "a", data=toy_dataset())
    whole = train(
        protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "b", engine=engine, workers=1
    )
    for name, value in (whole.state or {}).items():
        assert torch.equal(value, (again.state or {})[name])


def test_it_learns_under_noise(tmp_path: Path) -> None:
    protocol = plan(rounds=40, noise=Gaussian(multiplier=1.0), server=ServerAdam(rate=0.1))
    run = train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "a")
    assert run.engine == "native"
    assert run.metrics["accuracy"][-1] > 0.8
