"""The rule bezier: the point of udp-fl's Eq. 6, its public draw, what it costs, and what it does not go together with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from sordino import (
    Assumptions,
    Bezier,
    Constant,
    FedAvg,
    Gaussian,
    Identity,
    Laplace,
    Poisson,
    StageWise,
    UserError,
    audit,
    resume,
    train,
)
from sordino.audit.repeated_work import TableWork
from sordino.federation.client import ClientWork
from sordino.federation.rules.bezier_steps import bezier_update
from sordino.federation.setup import prepare
from sordino.papers.applied import published_bounds
from sordino.privacy.certify import certify
from sordino.privacy.upload_sensitivity import price_uploads
from sordino.protocol import ClientBudget, Protocol
from sordino.randomness import Key, Purpose
from sordino.uniform_words import unit_interval
from tests.audit.pairs import linear_pair
from tests.support import toy_dataset, toy_protocol

STEPS = {"steps": 3, "batch": 6, "clip": 1.0, "schedule": Constant(rate=0.25)}
RULE, VOUCHED = Bezier(**STEPS), Assumptions(smoothness=4.0)


def protocol_of(rule: FedAvg = RULE, **changes: object) -> Protocol:
    return toy_protocol(**{"local": rule, "assumptions": VOUCHED, **changes})


def printed(w: np.ndarray, v: np.ndarray, r: float, step: np.ndarray) -> np.ndarray:
    """Eq. 6 with the theta of Eq. 5, whose 1/L is this vector."""
    theta = 1.2 * step + 1.1 * w - 0.1 * v
    return (1 - r) ** 2 * v + 2 * (r - r**2) * theta + r**2 * w


def test_the_point_is_that_of_equation_6() -> None:
    """One step of 1/L from w to v: the theorem's 1/L, with the direction that it lacks, is that step itself."""
    generator = np.random.default_rng(1)
    for r in (0.0, 0.1, 0.5, 0.83, 1.0):
        w, gradient, smoothness = generator.normal(size=4), generator.normal(size=4), 3.0
        v = w - gradient / smoothness
        found = bezier_update(torch.from_numpy(w), torch.from_numpy(v), r).numpy()
        np.testing.assert_allclose(found, printed(w, v, r, -gradient / smoothness), atol=1e-14)


def test_an_upload_lies_on_the_curve_of_its_round_which_all_clients_share() -> None:
    silent = protocol_of(noise=Gaussian(sigma=0.0))
    setup = prepare(silent, data=toy_dataset(), model="logistic")
    plain = replace(setup, protocol=replace(silent, local=FedAvg(**STEPS)))
    start, shares = setup.initial_weights(), np.empty((4, 5))
    for t in range(4):
        for client in range(5):
            whole, point = (
                ClientWork(s).upload(client=client, round_index=t, weights=start).vector - start
                for s in (plain, setup)
            )
            shares[t, client] = point @ whole / (whole @ whole)
            np.testing.assert_allclose(point, shares[t, client] * whole, atol=1e-6)
    places = [
        float(unit_interval(setup.draw_key.stream(Purpose.CURVE, round_index=t).words(1))[0])
        for t in range(4)
    ]
    expected = [printed(np.zeros(1), np.ones(1), r, np.ones(1))[0] for r in places]
    np.testing.assert_allclose(shares, np.repeat(np.array(expected)[:, None], 5, axis=1), atol=1e-5)


def test_places_are_uniform_and_fresh_in_every_round_and_training() -> None:
    key = Key.from_seed(3)
    by_round = np.concatenate(
        [unit_interval(key.stream(Purpose.CURVE, round_index=t).words(1)) for t in range(2000)]
    )
    by_training = unit_interval(key.stream(Purpose.CURVE).words(1, 2000))
    for places in (by_round, by_training):
        assert stats.kstest(places, "uniform").pvalue > 1e-3
        assert stats.kstest(places**1.2, "uniform").pvalue < 1e-6
        assert len(set(places.tolist())) == 2000


@pytest.mark.parametrize("target", ["step", "update"])
def test_no_upload_moves_farther_than_priced_and_some_nearly_as_far(target: str) -> None:
    """Linear losses, flipped: over many places on the curve the largest move is the price, to a thousandth."""
    protocol = protocol_of(replace(RULE, clip_target=target, clip=0.7))
    pair = linear_pair(protocol, "record", (6,) * 5, Key.from_seed(5), 0.0, 2)
    weights = np.zeros((4096, 2), np.float32)
    low, high = (
        TableWork(setup).work(client=2, round_index=0, weights=weights, first=0).models
        for setup in (pair.zero, pair.one)
    )
    moves = torch.linalg.vector_norm(high - low, dim=1).numpy()
    price = float(price_uploads(protocol, np.arange(1), "record", 6).shifts[0])
    assert 0.999 * price < moves.max() <= price
    assert price == pytest.approx(2 * 0.7 * (0.75 if target == "step" else 1.0) * 121 / 120)
    assert moves.mean() == pytest.approx(
        0.7 * price * 120 / 121, rel=0.05
    )  # the mean of (1 - r)(1 + 1.2 r)


def test_every_view_costs_less_than_slightly_longer_steps_cost() -> None:
    """Gaussian noise is priced as a mixture over the curve (tests/privacy/test_bezier_mixture.py), other noise by its farthest point."""
    longer = replace(STEPS["schedule"], rate=0.25 * 121 / 120)
    changes: dict[str, object]
    for changes in (
        {},
        {"participation": Poisson(rate=0.4)},
        {"noise": Laplace(scale=1.0), "model": None},
    ):
        rule = replace(RULE, clip_norm="l1") if "noise" in changes else RULE
        plain = FedAvg(**{**STEPS, "schedule": longer, "clip_norm": rule.clip_norm})
        for view in ("server", "rounds", "final"):
            found, wanted = (
                certify(protocol_of(r, **changes), view).epsilon(1e-5) for r in (rule, plain)
            )
            if "noise" in changes:
                assert found == pytest.approx(wanted, rel=1e-9)
            else:
                assert 0.5 * wanted < found < wanted


@pytest.mark.slow
def test_an_audit_finds_most_of_what_is_promised_and_no_more() -> None:
    protocol = protocol_of(noise=Gaussian(sigma=1.5), rounds=8)
    found = audit(protocol, "server", "record", trainings=3000, workers=1)
    assert found.epsilon_lower <= found.certified.epsilon(found.delta)
    # A mixture has no mu; the Gaussian with the same advantage has this one.
    alike = 2 * stats.norm.ppf((1 + found.certified.delta(0.0)) / 2)
    assert found.mu_lower > 0.8 * alike


@pytest.mark.parametrize("target", ["step", "update"])
def test_both_engines_go_along_the_same_curves(tmp_path: Path, target: str) -> None:
    states = {}
    for engine in ("torch", "native"):
        rule = replace(RULE, clip_target=target)
        run = train(
            protocol_of(rule),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / engine,
            workers=1,
            engine=engine,
        )
        states[engine] = run.state or {}
    for name, value in states["torch"].items():
        torch.testing.assert_close(value, states["native"][name], atol=1e-5, rtol=1e-5)


def test_resuming_goes_on_along_the_same_curves(tmp_path: Path) -> None:
    protocol = protocol_of()
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
    for name, value in (whole.state or {}).items():
        assert torch.equal(value, (again.state or {})[name])


def test_what_eq_6_needs_and_what_is_not_priced_with_it_is_refused() -> None:
    budgets = tuple(ClientBudget(id=client, epsilon=1.0 + client) for client in range(5))
    refused: list[tuple[dict[str, object], str]] = [
        ({"assumptions": Assumptions()}, "assumptions.smoothness"),
        ({"assumptions": Assumptions(smoothness=0.0)}, "assumptions.smoothness"),
        ({"assumptions": Assumptions(smoothness=5.0)}, "rate = 0.2"),
        ({"local": replace(RULE, schedule=StageWise(rate=0.25))}, "constant"),
        ({"penalty": True, "client": budgets}, "penalty"),
        ({"personalization": Identity()}, "personalization"),
    ]
    for changes, words in refused:
        with pytest.raises(UserError, match=words):
            protocol_of(**changes)  # type: ignore[arg-type]


def test_no_published_bound_speaks_of_it() -> None:
    assert published_bounds(protocol_of(FedAvg(**STEPS))) != {}
    assert published_bounds(protocol_of()) == {}
