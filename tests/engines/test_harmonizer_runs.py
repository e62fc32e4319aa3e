"""Harmonized runs: each client's own noise, the pull to the leader's last upload, resuming, and the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import ClientBudget, Constant, Gaussian, NoisySgd, resume, train
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.broadcast_state import LeaderModel
from sordino.federation.client import ClientWork
from sordino.federation.setup import Setup, prepare
from sordino.federation.store.run_folder import RunFolder, State
from sordino.mechanisms import mechanism_of
from sordino.privacy.certify import certify
from sordino.randomness import Purpose
from tests.support import toy_dataset, toy_protocol, uploads_of

BUDGETS = tuple(
    ClientBudget(id=k, epsilon=epsilon, mechanism=mechanism)
    for k, (epsilon, mechanism) in enumerate(
        (
            (50.0, "laplace"),
            (80.0, "gaussian"),
            (60.0, "staircase"),
            (70.0, "laplace"),
            (40.0, "gaussian"),
        )
    )
)


def made(**changes: object) -> Setup:
    return prepare(toy_protocol(client=BUDGETS, **changes), data=toy_dataset(), model="logistic")


def test_every_upload_carries_its_client_s_noise() -> None:
    setup = made()
    weights = setup.initial_weights()
    quiet = replace(setup, protocol=replace(setup.protocol, client=(), noise=Gaussian(sigma=0.0)))
    for client in range(5):
        noisy, clean = (
            ClientWork(one).upload(client=client, round_index=1, weights=weights).vector
            for one in (setup, quiet)
        )
        stream = setup.noise_key.stream(Purpose.UPLOAD_NOISE, client=client, round_index=1)
        np.testing.assert_allclose(
            noisy - clean,
            mechanism_of(setup.noises[client]).draw(stream, 1, weights.size)[0],
            atol=1e-5,
        )
    assert [noise.tag for noise in setup.noises] == [
        "laplace",
        "gaussian",
        "staircase",
        "laplace",
        "gaussian",
    ]


def test_the_pull_moves_every_step_towards_the_leader_s_model() -> None:
    setup = made(penalty=True, noise=Gaussian(sigma=0.0))
    quiet = replace(
        setup,
        protocol=replace(
            setup.protocol,
            client=tuple(replace(one, mechanism=None, noise=None) for one in BUDGETS),
        ),
    )
    weights = setup.initial_weights()
    far = weights + 1000.0
    work = ClientWork(quiet)
    rates = quiet.protocol.local.schedule.rates(round=0, steps=3)
    for client, strength in ((4, 0.5), (1, 0.0)):
        plain = work.upload(client=client, round_index=0, weights=weights).vector
        pulled = work.upload(client=client, round_index=0, weights=np.stack([weights, far])).vector
        # the gradients are clipped to 1, so the pull decides: 1000 (1 - prod(1 - eta lambda)), to within all steps
        expected = 1000 * (1 - np.prod([1 - rate * strength for rate in rates]))
        np.testing.assert_allclose(pulled - weights, expected, atol=2.0)
        if strength == 0:
            np.testing.assert_array_equal(pulled, plain)


def test_the_leader_is_the_client_with_the_largest_epsilon_and_its_upload_is_sent_in_the_next_round() -> (
    None
):
    setup = made(penalty=True)
    weights = setup.initial_weights()
    leader = LeaderModel(setup.protocol, State(weights=weights, round=0))
    np.testing.assert_array_equal(leader.broadcast(weights), np.stack([weights, weights]))
    with TorchEngine(setup, workers=1) as engine:
        weighed = leader.broadcast(weights)
        sent = list(uploads_of(engine, round=0, weights=weighed, participants=np.arange(5)))
    for upload in sent:
        leader.note(upload)
    np.testing.assert_array_equal(leader.broadcast(weights)[1], sent[1].vector)
    np.testing.assert_array_equal(leader.kept["leader"], sent[1].vector)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path: Path, workers: int) -> None:
    protocol = toy_protocol(client=BUDGETS, penalty=True)
    whole = train(
        protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "whole", workers=1
    )

    def stop(metrics: object) -> None:
        if metrics.round == 1:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            protocol,
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "cut",
            workers=workers,
            on_round=stop,
        )
    state, _ = RunFolder(tmp_path / "cut").load_checkpoint()
    assert state is not None
    assert (state.round == 0) or ("leader" in state.kept)
    again = resume(tmp_path / "cut", data=toy_dataset(), model="logistic", workers=workers)
    assert all(
        torch.equal((whole.state or {})[name], value) for name, value in (again.state or {}).items()
    )


IN_STEPS = {
    "local": NoisySgd(steps=2, batch=6, clip=1.0, schedule=Constant(rate=0.3), sampling="poisson"),
    "noise": Gaussian(multiplier=1.0),
}


@pytest.mark.parametrize("changes", [{}, IN_STEPS], ids=["on uploads", "in steps"])
def test_a_run_keeps_every_budget_and_says_its_noise(
    changes: dict[str, object], tmp_path: Path
) -> None:
    run = train(
        toy_protocol(client=BUDGETS, **changes),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "run",
        workers=1,
    )
    assert all(budget.noise is not None for budget in run.protocol.client)
    from sordino.privacy.spending import certify_clients

    found = certify_clients(run.protocol, run.ledger, sizes=run.sizes)
    for budget in BUDGETS:
        assert 0.9 * budget.epsilon < found[budget.id].epsilon(1e-5) <= budget.epsilon
    assert certify(run.protocol, sizes=run.sizes).epsilon(1e-5) <= 80.0
