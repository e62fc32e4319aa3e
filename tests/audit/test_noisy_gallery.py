"""A gallery of broken systems with noisy steps, personal models, control variates and a leader: each is caught, its correct twin is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest

from sordino.audit import game
from sordino.audit.game import WorstCaseGame
from sordino.audit.verdict import Finding
from sordino.protocol import (
    Attention,
    ClientBudget,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Interpolate,
    NoisySgd,
    Protocol,
    Scaffold,
    View,
)
from tests.audit import broken_steps as broken
from tests.audit.broken import Break, found, target_forgets_its_noise, under

SEEDS = (1, 2)
STEPS = {"steps": 3, "batch": 4, "clip": 0.5, "schedule": Constant(rate=0.1)}


def noisy(**changes) -> Protocol:
    rule = NoisySgd(
        **{
            **STEPS,
            "sampling": changes.pop("sampling", "poisson"),
            "optimizer": changes.pop("optimizer", "sgd"),
        }
    )
    data, noise = (
        Data(name="digits", records=16),
        Gaussian(multiplier=changes.pop("multiplier", 0.7)),
    )
    return Protocol(
        **{"clients": 3, "rounds": 3, "local": rule, "noise": noise, "data": data, **changes}
    )


def pulled(*wishes: tuple[float, float]) -> Protocol:
    """Clients with an epsilon, which says how they are pulled, and a sigma of their own."""
    own = (
        ClientBudget(id=client, epsilon=epsilon, mechanism="gaussian", noise=sigma)
        for client, (epsilon, sigma) in enumerate(wishes)
    )
    return Protocol(
        clients=len(wishes),
        rounds=3,
        local=FedAvg(**QUICK),
        noise=Gaussian(sigma=1.0),
        client=tuple(own),
        penalty=True,
    )


QUICK = {"steps": 4, "batch": 2, "clip": 0.5, "schedule": Constant(rate=0.6)}
PROTOCOLS = {
    "poisson": noisy(),
    "fixed": noisy(sampling="fixed"),
    "momentum": noisy(optimizer="momentum"),
    "own": noisy(personalization=Interpolate(alpha=0.3)),
    "carried": Protocol(
        clients=3,
        rounds=4,
        local=FedAvg(**STEPS),
        noise=Gaussian(sigma=0.3),
        personalization=Interpolate(alpha=0.3),
    ),
    "attention": Protocol(
        clients=3,
        rounds=3,
        local=FedAvg(**STEPS),
        noise=Gaussian(sigma=0.2),
        personalization=Attention(own=0.5),
    ),
    "scaffold": Protocol(clients=3, rounds=3, local=Scaffold(**STEPS), noise=Gaussian(sigma=0.2)),
    "led": pulled((2e4, 2.0), (2e4, 2.0), (1e5, 2.0)),
    "pulled": pulled(
        (1e4, 0.9), (1e5, 10.0)
    ),  # the leader hides in much noise; the other counts on the pull to it
}


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A broken system: on which protocol, whether the game must notice, and which tests of the noise must fail."""

    breaks: Break
    on: str
    refuted: bool = True
    noise: set[str] = field(default_factory=set)


MADE_OF_IT = {"post-processing"}
EXHIBITS = {
    "noise missing in one step": Exhibit(
        breaks=broken.noise_missing_in_one_step,
        on="poisson",
        refuted=False,
        noise={"standard deviation by step"},
    ),
    "noise halved": Exhibit(breaks=broken.noise_halved, on="poisson", noise={"standard deviation"}),
    "noise halved, fixed": Exhibit(
        breaks=broken.noise_halved, on="fixed", noise={"standard deviation"}
    ),
    "noise divided twice": Exhibit(
        breaks=broken.noise_divided_twice, on="fixed", noise={"standard deviation"}
    ),
    "same noise in every step": Exhibit(
        breaks=broken.same_noise_in_every_step,
        on="poisson",
        refuted=False,
        noise={"correlation of steps"},
    ),
    "same noise for every client": Exhibit(
        breaks=broken.same_noise_for_every_client,
        on="poisson",
        refuted=False,
        noise={"correlation of clients"},
    ),
    "clip of the batch": Exhibit(breaks=broken.clip_of_the_batch, on="fixed"),
    "clip of the batch, poisson": Exhibit(breaks=broken.clip_of_the_batch, on="poisson"),
    "clip missing": Exhibit(breaks=broken.clip_missing, on="poisson"),
    "divided by the own size": Exhibit(
        breaks=broken.divided_by_the_own_size,
        on="poisson",
        refuted=False,
        noise={"distribution of norms"},
    ),
    "record in every batch": Exhibit(breaks=broken.record_in_every_batch, on="poisson"),
    "same batch in every step": Exhibit(
        breaks=broken.same_batch_in_every_step,
        on="poisson",
        refuted=False,
        noise={"standard deviation by client"},
    ),
    "momentum of clean gradients": Exhibit(
        breaks=broken.momentum_of_clean_gradients, on="momentum", refuted=False, noise=MADE_OF_IT
    ),
    "clean models kept": Exhibit(
        breaks=broken.clean_models_kept, on="own", refuted=False, noise=MADE_OF_IT
    ),
    "clean models sent": Exhibit(
        breaks=broken.clean_models_sent, on="poisson", refuted=False, noise=MADE_OF_IT
    ),
    "carried model sent as it is": Exhibit(
        breaks=target_forgets_its_noise, on="carried", noise={"standard deviation by client"}
    ),
    "control variates of clean models": Exhibit(
        breaks=broken.companions_of_clean_models, on="scaffold", refuted=False, noise=MADE_OF_IT
    ),
    "helpers of clean models": Exhibit(
        breaks=broken.helpers_of_clean_models, on="attention", refuted=False, noise=MADE_OF_IT
    ),
    "leader without noise": Exhibit(
        breaks=broken.companions_of_clean_models, on="led", refuted=False, noise=MADE_OF_IT
    ),
    "pull missing": Exhibit(
        breaks=broken.pull_missing,
        on="pulled",
        refuted=False,
        noise={"standard deviation by client"},
    ),
    "pull missing, as the adversary knows": Exhibit(
        breaks=broken.pull_missing_as_all_know, on="pulled"
    ),
}


@pytest.fixture(autouse=True)
def _less_noise_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(game, "RESIDUALS", 30_000)


def played(name: str, seed: int) -> Finding:
    protocol = PROTOCOLS[name]
    sizes = (
        protocol.data.records if protocol.data is not None else protocol.local.batch,
    ) * protocol.clients
    trainings = 500 if name == "attention" else 1500
    options = {
        "view": View.SERVER,
        "unit": "record",
        "trainings": trainings,
        "seed": seed,
        "rounds": protocol.rounds,
        "sizes": sizes,
    }
    return found(WorstCaseGame(protocol=protocol, **options), kept=400)


@cache
def twin(name: str, seed: int) -> Finding:
    return played(name, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", EXHIBITS)
def test_what_is_broken_is_caught(name: str) -> None:
    exhibit = EXHIBITS[name]
    for seed in SEEDS:
        with under(exhibit.breaks):
            finding = played(exhibit.on, seed)
        failed = {test.name for test in finding.residuals.failed}
        assert finding.contradicted
        assert exhibit.noise <= failed
        assert finding.verdict == "refuted" or not exhibit.refuted


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_correct_twins_are_not(name: str) -> None:
    for seed in SEEDS:
        finding = twin(name, seed)
        assert finding.verdict == "holds"
        assert not finding.contradicted
        assert finding.residuals is not None
        assert finding.attained > 0.5
