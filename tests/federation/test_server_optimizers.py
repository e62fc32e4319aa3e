"""Server optimizers: steps as torch and the papers have them, resumed bit for bit, free of charge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import (
    Assumptions,
    Constant,
    Median,
    NoisySgd,
    Scaffold,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
    StageWise,
    certify,
    resume,
    train,
    train_many,
)
from sordino.audit.auditing import audit
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.round import play_training
from sordino.federation.server_optimizers import move_model
from sordino.federation.setup import prepare
from sordino.federation.store.run_folder import RunFolder
from sordino.papers.applied import published_bounds
from sordino.protocol import Gaussian, ServerOptimizer, dumps, loads
from tests.engines.test_resume import interrupted
from tests.support import toy_dataset, toy_protocol

KINDS: tuple[ServerOptimizer, ...] = (
    ServerMomentum(rate=0.7, momentum=0.8),
    ServerAdam(rate=0.01, beta1=0.8, beta2=0.9, tau=1e-3),
    ServerAdaGrad(rate=0.1, tau=1e-2),
    ServerYogi(rate=0.01, beta1=0.8, beta2=0.9, tau=1e-3),
)
EVERY = pytest.mark.parametrize("rule", KINDS, ids=lambda rule: rule.tag)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs and audits without a folder are written here."""
    monkeypatch.chdir(tmp_path)


def follow(rule: ServerOptimizer, updates: np.ndarray) -> np.ndarray:
    """The models after each of some joined updates."""
    weights = np.zeros(updates.shape[1:])
    kept: dict[str, np.ndarray] = {}
    models = []
    for update in updates:
        weights, kept = move_model(rule, weights, weights + update, kept)
        models.append(weights)
    return np.stack(models)


TORCH: dict[type, Any] = {
    ServerMomentum: lambda w: torch.optim.SGD([w], lr=0.7, momentum=0.8),
    ServerAdam: lambda w: torch.optim.Adam([w], lr=0.01, betas=(0.8, 0.9), eps=1e-3),
    ServerAdaGrad: lambda w: torch.optim.Adagrad([w], lr=0.1, eps=1e-2),
}


@pytest.mark.parametrize("rule", KINDS[:3], ids=lambda rule: rule.tag)
def test_steps_are_those_of_torch_on_the_negative_update(rule: ServerOptimizer) -> None:
    updates = np.random.default_rng(1).normal(size=(6, 11)) * 0.1
    weights = torch.zeros(11, dtype=torch.float64, requires_grad=True)
    optimizer = TORCH[type(rule)](weights)
    models = []
    for update in updates:
        weights.grad = torch.from_numpy(-update)
        optimizer.step()
        models.append(weights.detach().numpy().copy())
    np.testing.assert_allclose(follow(rule, updates), np.stack(models), rtol=1e-9, atol=1e-12)


def test_squares_of_yogi_change_by_steps_of_one_size() -> None:
    """Algorithm 2 of Reddi et al., coordinate by coordinate, with the first rounds corrected."""
    rule = KINDS[3]
    updates = np.random.default_rng(2).normal(size=(6, 5)) * 0.1
    for coordinate in range(5):
        w = m = v = 0.0
        for t, delta in enumerate(updates[:, coordinate].tolist(), 1):
            m = 0.8 * m + 0.2 * delta
            if delta**2 > v:
                v = v + 0.1 * delta**2
            elif delta**2 < v:
                v = v - 0.1 * delta**2
            w += 0.01 * (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)) ** 0.5 + 1e-3)
        assert follow(rule, updates)[-1, coordinate] == pytest.approx(w, rel=1e-9)


@EVERY
def test_a_round_without_an_update_changes_neither_model_nor_moments(rule: ServerOptimizer) -> None:
    updates = np.random.default_rng(3).normal(size=(4, 7)) * 0.1
    paused = np.insert(updates, 2, 0.0, axis=0)
    found = follow(rule, paused)
    assert np.array_equal(found[2], found[1])
    assert np.array_equal(np.delete(found, 2, axis=0), follow(rule, updates))


@EVERY
def test_a_row_of_a_table_has_the_bits_of_the_training_alone(rule: ServerOptimizer) -> None:
    updates = np.random.default_rng(4).normal(size=(5, 3, 13)) * 0.1
    updates[2, 1] = 0.0
    table = follow(rule, updates)
    for row in range(3):
        assert np.array_equal(table[:, row], follow(rule, updates[:, row]))


@EVERY
def test_trainings_side_by_side_end_as_each_does_alone(rule: ServerOptimizer) -> None:
    plans = [toy_protocol(server=rule, seed=seed, rounds=3) for seed in (1, 2)]
    together = train_many(plans, data=toy_dataset(), model="logistic")
    for plan, many in zip(plans, together, strict=True):
        alone = train(plan, data=toy_dataset(), model="logistic", workers=1)
        for name, value in (alone.state or {}).items():
            assert torch.equal(value, (many.state or {})[name])


@EVERY
def test_a_resumed_run_ends_with_the_same_bits(rule: ServerOptimizer, tmp_path: Path) -> None:
    protocol = toy_protocol(server=rule, rounds=6)
    interrupted(tmp_path / "a", after=4, protocol=protocol)
    state, _ = RunFolder(tmp_path / "a").load_checkpoint()
    assert state is not None
    assert any(name.startswith("server-") for name in state.kept)
    again = resume(tmp_path / "a", data=toy_dataset())
    whole = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "b", engine="torch")
    for name, value in (whole.state or {}).items():
        assert torch.equal(value, (again.state or {})[name])


def test_a_training_moves_by_the_decaying_sum_of_its_updates(tmp_path: Path) -> None:
    rule = ServerMomentum(rate=1.0, momentum=0.5)
    setup = prepare(toy_protocol(server=rule), data=toy_dataset(), model="logistic")
    total = np.zeros(setup.initial_weights().size)
    with TorchEngine(setup, workers=1) as engine:
        for record in play_training(setup, engine, 4):
            sent = np.mean([upload.vector for upload in record.uploads], axis=0, dtype=np.float64)
            before = record.before.weights
            total = 0.5 * total + (sent - before)
            np.testing.assert_allclose(record.after.weights, before + total, atol=1e-5)


@pytest.mark.parametrize(
    "local",
    [
        None,
        Scaffold(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3)),
        NoisySgd(steps=1, batch=6, clip=1.0, schedule=Constant(rate=0.3)),
    ],
    ids=["fedavg", "scaffold", "noisy-sgd"],
)
@pytest.mark.parametrize("view", ["server", "rounds", "coalition:2"])
def test_what_the_server_makes_of_updates_costs_nothing(local: Any, view: str) -> None:
    changes: dict[str, Any] = {}
    if local is not None:
        changes["local"] = local
    if type(local) is NoisySgd:
        changes["noise"] = Gaussian(multiplier=1.0)
    plain = toy_protocol(**changes)
    moved = replace(plain, server=KINDS[1])
    assert certify(moved, view).epsilon(1e-5) == certify(plain, view).epsilon(1e-5)


def test_bounds_on_the_last_model_rest_on_a_plain_server() -> None:
    """The stage-wise last model is protected by smoothness; under momentum the old updates stay."""
    local = replace(toy_protocol().local, schedule=StageWise(rate=0.3))
    plain = toy_protocol(rounds=200, local=local, assumptions=Assumptions(smoothness=0.1))
    moved = replace(plain, server=ServerMomentum())
    last = certify(plain, "final").epsilon(1e-5)
    every = certify(plain, "rounds").epsilon(1e-5)
    assert last < every
    assert certify(moved, "final").epsilon(1e-5) == every
    assert published_bounds(plain) != {}
    assert published_bounds(moved) == {}


def test_an_enforced_diameter_holds_after_the_servers_step() -> None:
    protocol = toy_protocol(server=ServerMomentum(rate=5.0), assumptions=Assumptions(diameter=0.2))
    setup = prepare(protocol, data=toy_dataset(), model="logistic")
    start = setup.initial_weights()
    with TorchEngine(setup, workers=1) as engine:
        for record in play_training(setup, engine, 3):
            assert np.linalg.norm(record.after.weights - start) <= 0.1
            assert np.linalg.norm(record.joined - start) > 0


@pytest.mark.slow
@EVERY
def test_an_audit_attains_the_price_under_every_server_optimizer(rule: ServerOptimizer) -> None:
    protocol = toy_protocol(server=rule, rounds=3, noise=Gaussian(sigma=0.6))
    finding = audit(protocol, "rounds", trainings=400)
    assert finding.tightness is not None
    assert 0.8 < finding.tightness <= 1.0
    assert ("joined update" in finding.given) == (not rule.invertible)


def test_a_median_may_be_moved_from_as_well() -> None:
    protocol = toy_protocol(server=ServerMomentum(), aggregation=Median())
    run = train(protocol, data=toy_dataset(), model="logistic", workers=1)
    assert np.isfinite(run.metrics["loss"][-1])


@EVERY
def test_the_file_says_every_kind_completely(rule: ServerOptimizer) -> None:
    protocol = toy_protocol(server=rule)
    assert loads(dumps(protocol)).server == rule
    assert f"{{ {rule.tag} = " in dumps(protocol)
    assert 'server = "none"' in dumps(toy_protocol())
