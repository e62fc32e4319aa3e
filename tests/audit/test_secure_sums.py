"""Audits of integers and of secure sums: what the server learns at least, and faults of the noise that are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sordino import Gaussian, Protocol, SecureAggregation, audit
from sordino.audit.fewest_contributions import leave_fewest
from sordino.audit.noise.low_bit_tests import examine_low_bits
from sordino.audit.observation import describe_beyond_view
from sordino.federation import integer_uploads
from sordino.mechanisms.discrete_gaussian import draw_integers
from sordino.protocol import Constant, Data, FedAvg, Mean, Model, View
from sordino.randomness import Key, Purpose

RULE = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
STREAM = Key.from_seed(8).stream(Purpose.UPLOAD_NOISE)


def plan(**given: object) -> Protocol:
    settings = {
        "seed": 5,
        "clients": 5,
        "rounds": 2,
        "local": RULE,
        "noise": Gaussian(sigma=0.25, digits=4),
        "model": Model(name="logistic", parameters=2),
        "channel": SecureAggregation(threshold=4, colluders=2),
    }
    return Protocol(**{**settings, **given})


@pytest.mark.slow
@pytest.mark.parametrize("view", ["server", "server:2"])
def test_the_server_learns_almost_what_is_promised_and_never_more(tmp_path, view) -> None:
    found = audit(plan(), view, trainings=2000, folder=tmp_path / "audit", workers=1)
    assert found.mu_lower <= found.certified.mu
    assert found.tightness > 0.9
    assert found.verdict == "holds"
    assert found.residuals.failed == ()
    assert found.given == ""


def test_a_promise_is_audited_with_the_fewest_who_open_a_sum() -> None:
    sizes = (4, 9, 5, 6, 3)
    weighed = plan(aggregation=Mean(weights="records"), data=Data(name="toy", sizes=sizes))
    left, known = leave_fewest(weighed, View.SERVER, sizes)
    assert (left.clients, known) == (4, (9, 6, 5, 3))
    assert leave_fewest(plan(), View.ROUNDS, None)[0].clients == 5


def test_the_server_of_secure_sums_is_given_no_more_than_it_sees() -> None:
    assert describe_beyond_view(plan(), View.SERVER) == ""
    assert describe_beyond_view(plan(), View.parse("server:2")) == ""


def biased_low_bit(stream, trainings, count, digits):
    noise = draw_integers(stream, trainings, count, digits)
    # One in ten odd integers becomes even.
    chosen = np.random.default_rng(1).random(noise.shape) < 0.1
    return np.where(chosen, noise & ~1, noise)


def truncated_tail(stream, trainings, count, digits):
    limit = 3.5 * 33027
    return np.clip(draw_integers(stream, trainings, count, digits), -limit, limit).astype(np.int64)


def smaller_parameter(stream, trainings, count, digits):
    return (draw_integers(stream, trainings, count, digits) * 31) // 32


FAULTS = {
    biased_low_bit: "lowest bits",
    truncated_tail: "largest of values",
    smaller_parameter: "standard deviation",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_sampler_is_caught(tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setattr(integer_uploads, "draw_integers", fault)
    found = audit(plan(), "server", trainings=2000, folder=tmp_path / "audit", workers=1)
    assert FAULTS[fault] in {test.name for test in found.residuals.failed}


def test_integers_on_the_direct_channel_are_tested_as_integers(tmp_path) -> None:
    direct = plan(channel="direct", noise=Gaussian(sigma=0.7, arithmetic="integers"), model=None)
    found = audit(direct, "server", trainings=300, folder=tmp_path / "audit", workers=1)
    assert found.mu_lower <= found.certified.mu
    assert found.residuals.law.startswith("discrete gaussian")
    assert found.residuals.failed == ()


@pytest.mark.parametrize("digits", [1, 2, 5])
def test_the_test_of_the_lowest_bits_passes_the_sampler_and_sees_a_stuck_bit(digits) -> None:
    noise = draw_integers(STREAM, 1, 40_000, digits)
    parameter = {1: 64.0, 2: 516.0, 5: 264214.0}[digits]
    assert examine_low_bits(noise, parameter).p > 1e-4
    assert examine_low_bits(noise & ~2, parameter).p < 1e-12
    assert examine_low_bits(np.where(noise % 16 == 0, noise + 1, noise), parameter).p < 1e-12


def test_replaying_weighted_shares_leaves_the_noise(tmp_path) -> None:
    weighed = plan(
        aggregation=Mean(weights="records"),
        data=Data(name="toy", sizes=(4, 8, 8, 4, 4)),
        local=replace(RULE, batch=4),
    )
    found = audit(weighed, "server", trainings=300, folder=tmp_path / "audit", workers=1)
    assert found.residuals.failed == ()
    assert found.mu_lower <= found.certified.curve.epsilon(0.1) + 10


def test_a_canary_is_found_in_sums_under_the_noise_that_is_promised(tmp_path) -> None:
    """Clients send shares of integers, which the adversary and the replay read as models."""
    protocol = plan(
        clients=3,
        local=replace(RULE, batch=16),
        noise=Gaussian(sigma=0.2),
        channel=SecureAggregation(threshold=2),
        data=Data(name="digits"),
        model=Model(name="logistic"),
    )
    found = audit(
        protocol,
        "server",
        "client",
        canary="mislabelled",
        trainings=25,
        folder=tmp_path / "audit",
        workers=1,
    )
    assert found.residuals.failed == ()
    assert found.mu_lower > 0.4
    assert not found.contradicted
