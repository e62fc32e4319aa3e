"""Audits of dp-sgd: its worst case attains the price, and a share that is too small is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sordino import Constant, Data, DpSgd, Gaussian, Model, Privacy, Protocol, ServerAdam
from sordino.audit.audit_subject import Subject, add_real_data, certify_subject
from sordino.audit.auditing import audit
from sordino.audit.verdict import Finding
from sordino.federation import upload
from sordino.privacy.curves import gaussian

PLAN = Protocol(
    seed=2,
    clients=4,
    rounds=3,
    local=DpSgd(batch=6, clip=0.5, schedule=Constant(rate=0.7)),
    noise=Gaussian(multiplier=0.7),
    data=Data(name="digits", records=16),
)


def played(protocol: Protocol, folder: Path, view: str, **options: Any) -> Finding:
    return audit(protocol, view, folder=folder / "audit", workers=1, **options)


# What 6,000 trainings show of a sampled Gaussian varies from seed to seed by a tenth.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "view", "least"),
    [
        ({"noise": Gaussian(multiplier=1.4)}, "server", 0.8),
        ({"noise": Gaussian(multiplier=0.9)}, "coalition:2", 0.8),
        ({"noise": Gaussian(multiplier=0.7, where="server")}, "rounds", 0.8),
        ({"server": ServerAdam(rate=0.1)}, "rounds", 0.8),
        ({"privacy": Privacy(adjacency="replace-one")}, "rounds", 0.8),
        ({"local": replace(PLAN.local, sampling="fixed")}, "rounds", 0.7),
    ],
    ids=["server", "coalition", "central", "adam", "replaced", "fixed"],
)
def test_the_worst_case_comes_close_to_the_price(
    changes: dict[str, Any], view: str, least: float, tmp_path: Path
) -> None:
    found = played(replace(PLAN, **changes), tmp_path, view, trainings=6000)
    assert least < found.attained < 1.04
    assert not found.contradicted
    assert found.engine is not None
    assert found.engine.verdict == "equal"


@pytest.mark.slow
def test_with_many_trainings_the_price_is_attained(tmp_path: Path) -> None:
    plan = replace(PLAN, clients=2, rounds=2, noise=Gaussian(multiplier=0.5))
    found = played(plan, tmp_path, "rounds", trainings=20000)
    assert 0.94 <= found.attained < 1.03
    assert found.residuals is not None


@pytest.mark.slow
def test_a_share_that_is_too_small_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As if the noise of the whole sum were divided by the clients, and not by their root."""
    plan = replace(PLAN, noise=Gaussian(multiplier=1.4))
    fitting = played(plan, tmp_path / "a", "rounds", trainings=1500)
    assert not fitting.contradicted
    draw = upload.noisy_upload
    monkeypatch.setattr(
        upload,
        "noisy_upload",
        lambda weights, noise, stream: draw(weights, replace(noise, sigma=noise.sigma / 2), stream),
    )
    broken = played(plan, tmp_path / "b", "rounds", trainings=1500)
    assert broken.contradicted


AMONG_DIGITS = replace(
    PLAN,
    clients=2,
    rounds=12,
    local=replace(PLAN.local, batch=40),
    data=Data(name="digits"),
    model=Model(name="logistic"),
)


@pytest.mark.parametrize("view", ["server", "rounds"])
def test_a_canary_is_compared_with_the_bound_for_lots_that_are_seen(view: str) -> None:
    """Its adversary repeats a client's work and so knows every lot: it may show more than the bound
    for lots that nobody sees."""
    rounds = tuple(range(AMONG_DIGITS.rounds))
    subject = add_real_data(Subject(protocol=AMONG_DIGITS, rounds=rounds), "crafted", None, None)
    told = certify_subject(subject, view, "record", 1e-5, canary="crafted")
    unseen = certify_subject(subject, view, "record", 1e-5)
    sizes = subject.sizes
    assert sizes is not None
    # The server sees single uploads, each under one of two shares of the noise.
    shares = 1 if view == "server" else 2
    move = 1 / (0.7 * (shares / 2) ** 0.5)
    drawn = stats.binom(12, 40 / np.mean(sizes))
    for epsilon in (0.5, 1.0, 2.0):
        exact = sum(
            drawn.pmf(times) * gaussian.delta(move * times**0.5, epsilon) for times in range(1, 13)
        )
        assert unseen.delta(epsilon) < exact <= told.delta(epsilon)


@pytest.mark.slow
def test_a_true_bound_is_not_refuted_by_a_canary_whose_lots_are_known(tmp_path: Path) -> None:
    found = played(AMONG_DIGITS, tmp_path, "server", canary="crafted", trainings=300)
    assert found.given == "the records of every batch"
    assert 0.7 < found.attained < 1
    assert not found.contradicted


def test_a_canary_is_found_under_noise_of_the_server(tmp_path: Path) -> None:
    """The noise of a lot is stated as a multiplier: its size on the mean follows from the lot."""
    plan = replace(AMONG_DIGITS, rounds=1, noise=Gaussian(multiplier=0.2, where="server"))
    found = audit(
        plan,
        "rounds",
        "client",
        canary="mislabelled",
        trainings=25,
        folder=tmp_path / "audit",
        workers=1,
    )
    assert found.mu_lower > 1.5
    assert not found.contradicted
