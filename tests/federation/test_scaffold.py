"""SCAFFOLD: control variates from noisy uploads, against a plain reimplementation; what they cost, which is nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import (
    Constant,
    FedAvg,
    FixedSize,
    Gaussian,
    Laplace,
    Scaffold,
    UserError,
    resume,
    train,
)
from sordino.federation.broadcast_state import ControlVariates
from sordino.federation.client import ClientWork
from sordino.federation.setup import prepare
from sordino.federation.state import State
from sordino.privacy.certify import certify
from tests.support import toy_dataset, toy_protocol

RULE = Scaffold(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))


def vector(state: dict[str, torch.Tensor] | None) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in (state or {}).values()])


def test_a_training_follows_the_published_recursion(tmp_path: Path) -> None:
    """c_k <- c_k - c + (x - y_k)/(K eta), c <- c + (sum of changes)/N, written down from the paper with the uploads of each round."""
    protocol = toy_protocol(local=RULE, participation=FixedSize(size=3), rounds=4)
    run = train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "run", workers=1)
    setup = prepare(run.protocol, data=toy_dataset(), model="logistic")
    from sordino.federation.attendance import draw_participants

    weights, work = setup.initial_weights(), ClientWork(setup)
    common, own = np.zeros(weights.size), np.zeros((5, weights.size))
    for t in range(4):
        chosen = draw_participants(setup.protocol, round_index=t, key=setup.draw_key)
        table = np.concatenate([weights[None], (common - own).astype(np.float32)])
        uploads = {
            int(k): work.upload(client=int(k), round_index=t, weights=table).vector.astype(
                np.float64
            )
            for k in chosen
        }
        changes = {k: -common + (weights - y) / (3 * 0.3) for k, y in uploads.items()}
        for k, change in changes.items():
            own[k] += change
        common = common + sum(changes.values()) / 5
        weights = np.mean(list(uploads.values()), axis=0).astype(np.float32)
    final = np.concatenate([value.numpy().ravel() for value in (run.state or {}).values()])
    np.testing.assert_allclose(np.sort(final), np.sort(weights), atol=1e-5)


def test_a_correction_shifts_every_step_and_nothing_else() -> None:
    setup = prepare(
        toy_protocol(local=RULE, noise=Gaussian(sigma=0.0)), data=toy_dataset(), model="logistic"
    )
    plain = replace(
        setup,
        protocol=replace(
            setup.protocol, local=FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))
        ),
    )
    weights = setup.initial_weights()
    table = np.zeros((6, weights.size), np.float32)
    table[0] = weights
    still = ClientWork(setup).upload(client=2, round_index=0, weights=table).vector
    np.testing.assert_array_equal(
        still, ClientWork(plain).upload(client=2, round_index=0, weights=weights).vector
    )
    table[3] = 1e4  # so large that the clipped gradients hardly matter
    moved = ClientWork(setup).upload(client=2, round_index=0, weights=table).vector
    np.testing.assert_allclose(moved - weights, -1e4 * 0.9, atol=1.0)


def test_control_variates_of_all_clients_average_to_the_common_one() -> None:
    protocol = toy_protocol(local=RULE)
    kept = {"controls": np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)}
    controls = ControlVariates(protocol, State(weights=np.zeros(4, np.float32), round=0, kept=kept))
    assert np.abs(controls.broadcast(np.zeros(4, np.float32))[1:].sum(axis=0)).max() < 1e-5


def test_resuming_keeps_the_control_variates(tmp_path: Path) -> None:
    protocol = toy_protocol(local=RULE)
    whole = train(
        protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "whole", workers=2
    )

    def stop(metrics: object) -> None:
        if metrics.round == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            protocol,
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "cut",
            workers=1,
            on_round=stop,
        )
    again = resume(tmp_path / "cut", data=toy_dataset(), model="logistic", workers=1)
    np.testing.assert_array_equal(vector(whole.state), vector(again.state))


def test_the_server_s_price_is_that_of_fedavg_and_other_views_have_it_too() -> None:
    plain = toy_protocol(local=FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3)))
    scaffold = toy_protocol(local=RULE)
    assert certify(scaffold).epsilon(1e-5) == certify(plain).epsilon(1e-5)
    for view in ("rounds", "coalition:2", "final"):
        assert certify(scaffold, view).epsilon(1e-5) == certify(plain).epsilon(1e-5)
    in_l1 = toy_protocol(local=replace(RULE, clip_norm="l1"), noise=Laplace(scale=1.0))
    assert certify(in_l1, "rounds").epsilon(1e-5) == certify(in_l1).epsilon(1e-5)


def test_what_would_make_control_variates_cost_is_refused() -> None:
    for changes in ({"channel": "shuffler"}, {"noise": Gaussian(sigma=1.0, where="server")}):
        with pytest.raises(UserError, match="scaffold"):
            toy_protocol(local=RULE, **changes)
