"""Audits of what is trained with other noise, at the server and behind a shuffler: close to the bound, never past it.

Epsilon at delta = 1e-5 is shown by what happens once in a hundred thousand trainings; so for curves that are neither pure nor Gaussian
it is asked how near the curve the test came (`attained`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sordino import (
    Constant,
    Custom,
    FedAvg,
    Gaussian,
    Laplace,
    Mean,
    Model,
    Poisson,
    Protocol,
    Staircase,
)
from sordino.audit.auditing import audit
from sordino.protocol import Privacy

STEP = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0))
IN_L1 = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0), clip_norm="l1")
UPDATE = FedAvg(steps=2, batch=1, clip=0.5, schedule=Constant(rate=1.0), clip_target="update")
SERVER = Gaussian(sigma=0.25, where="server")

CASES = {
    "laplace": (Protocol(clients=3, rounds=1, local=IN_L1, noise=Laplace(scale=1.0)), "server", 0.9),
    "staircase": (
        Protocol(clients=3, rounds=1, local=STEP, noise=Staircase(step=1.0, width=1.0), model=Model(name="x", parameters=3)),
        "server", 0.85,
    ),
    "custom": (
        Protocol(
            clients=3,
            rounds=1,
            local=IN_L1,
            noise=Custom(factory="sordino.mechanisms.custom_noise:logistic"),
            model=Model(name="x", parameters=1),
        ),
        "server", 0.3,
    ),
    "server": (Protocol(clients=4, rounds=3, local=UPDATE, noise=SERVER), "rounds", 0.9),
    "both": (
        Protocol(clients=4, rounds=3, local=UPDATE, noise=Gaussian(sigma=0.25, server_sigma=0.2, where="both")), "coalition:1", 0.9,
    ),
    "shuffled": (Protocol(clients=12, rounds=1, local=IN_L1, noise=Laplace(scale=0.5), channel="shuffler"), "server", 0.5),
}  # fmt: skip
HIDDEN = Protocol(
    clients=4,
    rounds=3,
    local=UPDATE,
    noise=SERVER,
    participation=Poisson(rate=0.5),
    aggregation=Mean(denominator="fixed"),
)
TRAININGS = 16_384


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_an_audit_shows_no_more_than_was_promised(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    protocol, view, tightness = CASES[name]
    protocol = replace(protocol, seed=1)
    finding = audit(protocol, view, "client", trainings=TRAININGS, workers=1)
    assert not finding.contradicted
    assert tightness < finding.tightness <= 1.02


@pytest.mark.parametrize(("adjacency", "attained"), [("add-or-remove", 0.82), ("replace-one", 0.7)])
def test_hidden_participation_is_weighed_by_its_mixture(
    adjacency: str, attained: float, tmp_path: Path
) -> None:
    """A removed client is the pair that the bound is made of; of a replaced one C_q in both directions is no pair at all."""
    protocol = replace(HIDDEN, seed=1, privacy=Privacy(adjacency=adjacency))
    finding = audit(
        protocol, "rounds", "client", trainings=6000, workers=1, folder=tmp_path / "audit"
    )
    assert not finding.contradicted
    assert attained < finding.attained < 1.04
    assert ("absent or present" in finding.description) == (adjacency == "add-or-remove")


@pytest.mark.soak
@pytest.mark.parametrize(
    "noise",
    [Gaussian(sigma=1.0), Laplace(scale=1.0), Staircase(step=1.0, width=1.0)],
    ids=lambda noise: noise.tag,
)
@pytest.mark.parametrize("parameters", [1, 10])
def test_every_sampler_passes_in_one_dimension_and_in_ten(
    noise, parameters: int, tmp_path: Path
) -> None:
    protocol = Protocol(
        seed=2,
        clients=3,
        rounds=1,
        local=STEP,
        noise=noise,
        model=Model(name="x", parameters=parameters),
    )
    finding = audit(
        protocol, "server", "client", trainings=TRAININGS, workers=1, folder=tmp_path / "audit"
    )
    assert not finding.contradicted
    assert finding.residuals is not None
    # In ten dimensions epsilon hangs on the few rarest scores: over five seeds Laplace showed .32 to .63.
    assert (0.9 if parameters == 1 else 0.3) < finding.tightness < 1.02
    assert 0.65 < finding.attained < 1.02
