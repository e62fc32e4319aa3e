"""Games with real models: the native kernel and torch train, score and look at noise alike."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from sordino import (
    Constant,
    FedAvg,
    FedProx,
    Gaussian,
    Interpolate,
    Laplace,
    NoisySgd,
    Poisson,
    Scaffold,
    View,
)
from sordino.audit.real_game import CanaryGame
from sordino.native import library
from sordino.native.kernel import Kernel
from sordino.native.library import list_runnable
from tests.support import toy_dataset, toy_protocol

needs_kernel = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")
LOCAL = FedAvg(steps=2, batch=20, clip=0.5, schedule=Constant(rate=0.3))
PLAIN = toy_protocol(clients=4, rounds=3, local=LOCAL, noise=Gaussian(sigma=0.1))

PLAYED = {
    "server": (PLAIN, "server"),
    "rounds": (PLAIN, "rounds"),
    "coalition": (PLAIN, "coalition:2"),
    "final": (PLAIN, "final"),
    "fedprox": (
        replace(
            PLAIN,
            local=FedProx(steps=2, batch=20, clip=0.5, proximal=0.3, schedule=Constant(rate=0.3)),
        ),
        "server",
    ),
    "some take part": (replace(PLAIN, participation=Poisson(rate=0.6)), "server"),
    "shuffler": (replace(PLAIN, channel="shuffler"), "server"),
    "laplace": (
        replace(PLAIN, noise=Laplace(scale=0.1), local=replace(LOCAL, clip_norm="l1")),
        "server",
    ),
    "server's noise": (replace(PLAIN, noise=Gaussian(sigma=0.1, where="server")), "rounds"),
    "scaffold": (
        replace(PLAIN, local=Scaffold(steps=2, batch=20, clip=0.5, schedule=Constant(rate=0.3))),
        "server",
    ),
    "personal models": (replace(PLAIN, personalization=Interpolate(alpha=0.3)), "server"),
}


def smooth(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """No kinks, at which two engines may part. Its weights are drawn by the seed of the protocol."""
    return nn.Sequential(nn.Linear(shape[0], 5), nn.Tanh(), nn.Linear(5, outputs))


def game_of(protocol, view: str) -> CanaryGame:
    settings = {
        "trainings": 10,
        "seed": 5,
        "rounds": 3,
        "canary": "mislabelled",
        "data": toy_dataset(),
        "model": smooth,
    }
    return CanaryGame(protocol=protocol, view=View.parse(view), unit="record", **settings)


@pytest.mark.soak
@needs_kernel
@pytest.mark.parametrize("name", PLAYED)
def test_the_kernel_plays_the_game_that_torch_plays(name, monkeypatch, tmp_path) -> None:
    game = game_of(*PLAYED[name])
    assert game.kernel is not None
    ours = [game.play(chunk) for chunk in game.chunks()]
    monkeypatch.setenv(library.FOLDER, str(tmp_path / "empty"))
    torch_game = game_of(*PLAYED[name])
    assert torch_game.kernel is None
    theirs = [torch_game.play(chunk) for chunk in torch_game.chunks()]
    scores, wanted = (np.concatenate([played.scores for played in side]) for side in (ours, theirs))
    assert len(scores) == 40
    assert np.std(wanted) > 0
    assert np.abs(scores - wanted).max() < 1e-3 * np.std(wanted)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.residuals is None) == (other.residuals is None)
        if one.residuals is not None and other.residuals is not None:
            assert np.allclose(one.residuals, other.residuals, atol=2e-5, equal_nan=True)


@needs_kernel
def test_clients_of_a_round_are_one_call_of_the_kernel(monkeypatch) -> None:
    calls, original = [], Kernel.train

    def watched(self, records, jobs, *, threads) -> None:
        calls.append(len(jobs))
        original(self, records, jobs, threads=threads)

    game = game_of(PLAIN, "server")
    game.prepare()
    monkeypatch.setattr(Kernel, "train", watched)
    last = game.chunks()[-1]  # whose noise is not looked at
    game.play(last)
    assert calls == [4, 1, 1] * 3 * len(
        last.trainings
    )  # all clients, then the attacked one on either data set


def test_noisy_sgd_is_looked_at_step_by_step_and_left_to_torch() -> None:
    rule = NoisySgd(steps=2, batch=20, clip=0.5, schedule=Constant(rate=0.3))
    assert (
        game_of(replace(PLAIN, local=rule, noise=Gaussian(multiplier=1.0)), "server").kernel is None
    )
