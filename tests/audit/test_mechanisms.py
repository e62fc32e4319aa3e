"""Audits of what is trained with other noise, at the server and behind a shuffler: close to the bound, never past it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino import Constant, Custom, FedAvg, Gaussian, Laplace, Mean, Model, Poisson, Protocol, Staircase
from sordino.audit.auditing import audit

STEP = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0))
IN_L1 = FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0), clip_norm="l1")
UPDATE = FedAvg(steps=2, batch=1, clip=0.5, schedule=Constant(rate=1.0), clip_target="update")
SERVER = Gaussian(sigma=0.25, where="server")

CASES = {
    "laplace": (Protocol(clients=3, rounds=1, local=IN_L1, noise=Laplace(scale=1.0)), "server", 0.9),
    "staircase": (
        Protocol(clients=3, rounds=1, local=STEP, noise=Staircase(step=1.0, width=1.0), model=Model(name="x", parameters=3)), "server", 0.2,
    ),
    "custom": (
        Protocol(
            clients=3, rounds=1, local=IN_L1, noise=Custom(factory="sordino.privacy.custom:logistic"), model=Model(name="x", parameters=1)
        ),
        "server", 0.3,
    ),
    "server": (Protocol(clients=4, rounds=3, local=UPDATE, noise=SERVER), "rounds", 0.9),
    "both": (
        Protocol(clients=4, rounds=3, local=UPDATE, noise=Gaussian(sigma=0.25, server_sigma=0.2, where="both")), "coalition:1", 0.9,
    ),
    "hidden": (
        Protocol(clients=4, rounds=3, local=UPDATE, noise=SERVER, participation=Poisson(rate=0.5), aggregation=Mean(denominator="fixed")),
        "rounds", 0.1,
    ),
    "shuffled": (Protocol(clients=12, rounds=1, local=IN_L1, noise=Laplace(scale=0.5), channel="shuffler"), "server", 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_audit_shows_no_more_than_was_promised(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    protocol, view, tightness = CASES[name]
    finding = audit(protocol, view, "client", trainings=16_384, workers=1)
    assert not finding.contradicted
    assert tightness < finding.tightness <= 1.02
