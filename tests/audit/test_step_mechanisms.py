"""Audits of Laplace and staircase noise in every step: the promise holds, the noise has its law, and broken noise is caught."""

from __future__ import annotations

import pytest

from sordino.audit.game import WorstCaseGame
from sordino.audit.verdict import Finding
from sordino.protocol import (
    ClientBudget,
    Constant,
    Data,
    Gaussian,
    Laplace,
    Mean,
    Model,
    Noise,
    NoisySgd,
    Protocol,
    Staircase,
    View,
)
from tests.audit import broken_steps as broken
from tests.audit.broken import found, under


def plan(noise: Noise, norm: str, sampling: str = "poisson", **changes) -> Protocol:
    rule = NoisySgd(
        steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1), sampling=sampling, clip_norm=norm
    )
    data, model = Data(name="digits", records=8), Model(name="mlp", parameters=10)
    return Protocol(clients=3, rounds=2, local=rule, noise=noise, data=data, model=model, **changes)


def play(protocol: Protocol, trainings: int = 1500) -> Finding:
    return found(
        WorstCaseGame(
            protocol=protocol,
            view=View.SERVER,
            unit="record",
            trainings=trainings,
            seed=5,
            rounds=protocol.rounds,
            sizes=(8, 8, 8),
        ),
        kept=300,
    )


@pytest.mark.parametrize(
    ("noise", "norm", "sampling", "attained"),
    [
        (Laplace(scale=0.7), "l1", "poisson", 0.6),
        (Laplace(scale=0.7), "l1", "fixed", 0.6),
        (Laplace(scale=0.7), "l2", "poisson", 0.5),
        (Staircase(step=1.0, width=1.0), "l2", "poisson", 0.5),
    ],
    ids=lambda value: getattr(value, "tag", str(value)),
)
def test_a_promise_about_any_noise_in_steps_holds_and_is_nearly_reached(
    noise, norm, sampling, attained
) -> None:
    finding = play(plan(noise, norm, sampling))
    assert finding.verdict != "refuted"
    assert attained < finding.attained < 1.05
    assert not finding.residuals.failed


@pytest.mark.parametrize("breaks", [broken.noise_halved, broken.same_noise_in_every_step])
def test_broken_laplace_noise_in_steps_is_caught(breaks) -> None:
    with under(breaks):
        finding = play(plan(Laplace(scale=0.7), "l2"), trainings=400)
    assert finding.residuals.failed


def test_a_gaussian_stand_in_of_the_same_deviation_is_caught() -> None:
    def stand_in(total, noise, batch, stream):
        return broken.noisy_mean(total, Gaussian(sigma=2**0.5 * noise.scale), batch, stream)

    with under(broken.means(stand_in)):
        finding = play(plan(Laplace(scale=0.7), "l2"), trainings=400)
    assert finding.residuals.failed


@pytest.mark.parametrize("changes", [{}, {"penalty": True, "aggregation": Mean(weights="noise")}])
def test_the_client_with_the_weakest_promise_is_attacked_under_its_own_noise(changes) -> None:
    wishes = [(1.0, "gaussian"), (6.0, "laplace"), (3.0, "gaussian")]
    budgets = tuple(
        ClientBudget(id=client, epsilon=epsilon, delta=1e-5, mechanism=mechanism)
        for client, (epsilon, mechanism) in enumerate(wishes)
    )
    finding = play(plan(Gaussian(multiplier=1.0), "l2", client=budgets, **changes))
    assert finding.certified.epsilon(1e-5) == pytest.approx(6.0, rel=1e-3)
    assert "Laplace" in finding.residuals.law
    assert 0.4 < finding.attained < 1.05
