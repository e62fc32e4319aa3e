"""The price of sums: what is promised with secure aggregation, before a run and after it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest

from sordino import calibrate, certify
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger_lines import Missed, RoundCharged
from sordino.privacy.spending import certify_clients, certify_run, find_affordable_rounds
from sordino.protocol import (
    Bezier,
    Budget,
    Constant,
    Data,
    Everyone,
    FedAvg,
    FixedSize,
    Gaussian,
    InvalidValue,
    Mean,
    Model,
    Protocol,
    SecureAggregation,
    UserError,
    View,
)

RULE = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
MODEL = Model(name="logistic", parameters=650)


def plan(threshold: int = 20, colluders: int = 3, **given: Any) -> Protocol:
    return Protocol(**{
        "clients": 20, "rounds": 10, "local": RULE, "noise": Gaussian(sigma=0.1), "model": MODEL,
        "channel": SecureAggregation(threshold=threshold, colluders=colluders), **given,
    })  # fmt: skip


def mu_by_hand(protocol: Protocol, honest: int, shift: float = 2 * 2 * 0.1) -> float:
    """mu of A12's theorem, with r = 6, per round, composed over rounds."""
    grid = protocol.grid
    assert grid is not None
    moved = shift + math.sqrt(650) / grid.scale
    noise = math.sqrt(honest * 0.1**2 - (6 / grid.scale) ** 2)
    return moved / noise * math.sqrt(protocol.rounds)


@pytest.mark.parametrize(("threshold", "view", "honest"), [
    (20, "server", 20),
    (14, "server", 14),
    (14, "server:3", 11),
    (14, "rounds", 20),
    (14, "final", 20),
    (14, "coalition:3", 17),
])  # fmt: skip
def test_the_price_is_that_of_as_many_honest_contributions_as_are_certain(
    threshold, view, honest
) -> None:
    protocol = plan(threshold)
    found = certify(protocol, view, "client").mu
    exact = mu_by_hand(protocol, honest)
    # Safe-sided: (r/g)^2 is taken off every client's variance and not off their sum's.
    assert exact <= found <= exact * (1 + 1e-8)


def test_with_everybody_needed_the_server_learns_what_the_models_tell() -> None:
    fine = plan(noise=Gaussian(sigma=0.1, digits=10))
    server = certify(fine, "server").epsilon(1e-5)
    assert math.isclose(server, certify(fine, "rounds").epsilon(1e-5), rel_tol=1e-12)
    floats = replace(fine, channel="direct", noise=Gaussian(sigma=0.1))
    assert abs(server - certify(floats, "rounds").epsilon(1e-5)) < 1e-6
    assert certify(floats, "server").epsilon(1e-5) > 3 * server


def test_secret_minibatches_amplify_against_the_server_too() -> None:
    data = Data(name="digits", records=40)
    server = certify(plan(data=data), "server").epsilon(1e-5)
    rounds = certify(plan(data=data, channel="direct"), "rounds").epsilon(1e-5)
    assert math.isclose(server, rounds, rel_tol=2e-3)
    assert server >= rounds


@pytest.mark.parametrize("view", ["rounds", "final", "coalition:2", "weak"])
@pytest.mark.parametrize("participation", [Everyone(), FixedSize(size=16)])
def test_who_sees_models_learns_no_more_than_the_server_with_as_many_helpers(
    view, participation
) -> None:
    protocol = plan(14, participation=participation)
    helpers = View.parse(view).colluders or (1 if view == "weak" else 0)
    helped = f"server:{helpers}" if helpers else "server"
    assert certify(protocol, view).epsilon(1e-5) <= certify(protocol, helped).epsilon(1e-5) + 1e-9


def test_a_coalition_as_large_as_the_threshold_leaves_a_client_its_own_noise() -> None:
    protocol = plan(
        2,
        0,
        clients=4,
        rounds=2,
        noise=Gaussian(sigma=1.0),
        participation=FixedSize(size=3),
        aggregation=Mean(weights="records"),
        data=Data(name="digits", sizes=(10, 20, 30, 40)),
    )
    found = {k: certify(protocol, f"coalition:{k}").epsilon(1e-5) for k in (1, 2, 3)}
    assert found[1] == found[2] == found[3] == certify(protocol, "strong").epsilon(1e-5)
    assert math.isfinite(found[1])


def test_a_server_with_more_helpers_than_are_counted_on_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"server:4.*at most server:3.*colluders = 3"):
        certify(plan(), "server:4")
    with pytest.raises(InvalidValue, match="server without helpers"):
        certify(plan(colluders=0), "server:1")
    direct = plan(channel="direct")
    assert certify(direct, "server:4").mu == certify(direct, "server").mu


def test_the_number_of_parameters_must_be_known() -> None:
    with pytest.raises(UserError, match=r"model\.parameters is missing"):
        certify(plan(model=None), "server")


def charges(*rounds: int) -> list[Any]:
    return [RoundCharged(round=t, clients=tuple(range(20))) for t in rounds]


def test_after_a_run_those_count_who_contributed() -> None:
    protocol = plan(14, rounds=2)
    missed = Missed(round=0, clients=(17, 18, 19), reasons=("gone",) * 3)
    found = certify_clients(protocol, [*charges(0, 1), missed], "server:1", "client")[0].mu
    one = mu_by_hand(replace(protocol, rounds=1), 16)
    two = mu_by_hand(replace(protocol, rounds=1), 19)
    assert math.isclose(found, math.hypot(one, two), rel_tol=1e-7)
    # Before the run only the threshold was certain.
    assert found < certify(protocol, "server:1", "client").mu


def test_a_round_below_the_threshold_was_not_opened_and_counts_as_one_at_it() -> None:
    protocol = plan(14, rounds=1)
    missed = Missed(round=0, clients=tuple(range(10, 20)), reasons=("gone",) * 10)
    found = certify_run(protocol, [*charges(0), missed], "server", "client").mu
    assert math.isclose(found, mu_by_hand(protocol, 14), rel_tol=1e-7)


def test_unequal_clients_weigh_their_updates_and_not_their_noise() -> None:
    sizes = (10,) * 19 + (40,)
    protocol = plan(14, aggregation=Mean(weights="records"), data=Data(name="digits", sizes=sizes))
    found = certify(protocol, "server", "client").mu
    assert math.isclose(found, mu_by_hand(protocol, 14), rel_tol=1e-7)
    # One record: the large client hides it among 40, the small ones weigh a quarter.
    assert certify(protocol, "server").epsilon(1e-5) < certify(
        protocol, "server", "client"
    ).epsilon(1e-5)


def test_integers_on_the_direct_channel_cost_a_little_more_than_floats() -> None:
    floats = plan(channel="direct")
    integers = plan(channel="direct", noise=Gaussian(sigma=0.1, arithmetic="integers"))
    unknown = replace(integers, model=None)
    prices = [certify(one, "server", "client").mu for one in (floats, integers, unknown)]
    assert prices[0] < prices[1] <= prices[2] < prices[0] * (1 + 1e-3)


def test_the_random_point_of_a_curve_does_not_shrink_what_rounding_moves() -> None:
    rule = Bezier(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    given = {"local": rule, "assumptions": plan().assumptions.__class__(smoothness=10.0)}
    coarse = plan(
        channel="direct", noise=Gaussian(sigma=0.1, arithmetic="integers", digits=2), **given
    )
    found = certify(coarse, "server", "client")
    grid = coarse.grid
    moved = 2 * 0.1 * 121 / 120 + math.sqrt(650) / grid.scale
    assert found.epsilon(1e-5) >= 0.999 * certify_gaussian(
        moved / grid.priced_sigma * math.sqrt(10)
    )


def certify_gaussian(mu: float) -> float:
    from sordino.privacy.curves.gaussian_curve import GaussianCurve

    return GaussianCurve(mu=mu).epsilon(1e-5)


def test_calibrated_noise_meets_its_target_against_the_server() -> None:
    found = calibrate(plan(14), epsilon=4.0, view="server:3")
    assert 3.99 < certify(found.protocol, "server:3").epsilon(1e-5) <= 4.0


def test_the_distance_of_the_sampler_from_its_law_is_in_every_price() -> None:
    found = certify(plan(), "server")
    # 5 digits of 650 parameters of 20 clients in 10 rounds, 2.5e-36 each.
    assert 1e-33 < found.total_variation < 1e-28
    # Both laws that are told apart are off: tests/privacy/test_near_law.py.
    by_hand = 2 * found.total_variation + found.curve.law.delta(0.0)
    assert math.isclose(found.delta(0.0), by_hand, rel_tol=1e-12)
    assert found.delta(500.0) > 1e3 * found.total_variation > found.curve.law.delta(500.0)
    assert math.isinf(found.epsilon(found.total_variation / 2))


def test_all_who_price_count_the_distance_of_the_sampler(monkeypatch) -> None:
    from sordino.privacy import integer_noise

    budgeted = plan(14, rounds=400, noise=Gaussian(sigma=2.0))
    exact = calibrate(plan(14), epsilon=4.0, view="server")
    rounds = find_affordable_rounds(budgeted, Budget(epsilon=1.0)).rounds
    before = certify_run(budgeted, charges(0, 1), "server").epsilon(1e-5)
    # A sampler that is worse than it could be by far.
    monkeypatch.setattr(integer_noise, "bound_total_variation", lambda digits, draws: 1e-12 * draws)
    found = calibrate(plan(14), epsilon=4.0, view="server")
    assert found.value > exact.value
    assert found.achieved == certify(found.protocol, "server").epsilon(1e-5) <= 4.0
    assert find_affordable_rounds(budgeted, Budget(epsilon=1.0)).rounds < rounds
    assert certify_run(budgeted, charges(0, 1), "server").epsilon(1e-5) > before
    realised = certify_clients(budgeted, charges(0, 1), "server")[0]
    assert realised.total_variation == pytest.approx(1e-12 * 650 * 20 * 2)
    advantage = calibrate(plan(14), advantage=0.3, view="server")
    assert advantage.guarantee.delta(0.0) <= 0.3
    least = calibrate(plan(14), beta=0.5, at_alpha=0.1, view="server")
    assert least.guarantee.beta(0.1) >= 0.5


def test_what_rounding_moves_is_not_weighed() -> None:
    """A small client's update counts a quarter; what rounding moves counts in full, after the weight."""
    sizes = (10,) * 19 + (40,)
    weighed = Mean(weights="records")
    model = Model(name="logistic", parameters=36)
    rule = FedAvg(steps=1, batch=1, clip=0.01, schedule=Constant(rate=0.1))
    protocol = plan(
        14, 0, aggregation=weighed, data=Data(name="digits", sizes=sizes), rounds=1, local=rule,
        model=model, noise=Gaussian(sigma=0.1, digits=1),
    )  # fmt: skip
    found = certify(protocol, "server").delta(0.0)
    # One of 10 records is used, or none: how far that moves a small client's upload, by hand.
    grid = protocol.grid
    assert grid is not None
    moved = 0.25 * 2 * 0.1 * 0.01 + math.sqrt(36) / grid.scale
    mu = moved / math.sqrt(14 * 0.1**2 - (6 / grid.scale) ** 2)
    exact = 0.1 * (2 * NormalDist().cdf(mu / 2) - 1)
    assert exact <= found <= 1.02 * exact


def test_a_guarantee_says_that_sums_are_seen() -> None:
    assert "the sum of every round's uploads with the names" in str(certify(plan(), "server"))
    assert "every client's upload" in str(certify(plan(channel="direct"), "server"))
    assert isinstance(certify(plan(), "server:2"), Guarantee)
    assert "noise of a coalition of 2" in str(certify(plan(), "server:2"))
    assert "at least 12 honest clients" in certify(plan(14), "server:2").explain()


def test_an_event_of_dp_accounting_has_the_noise_of_the_sum() -> None:
    event = plan(14).to_dp_event("server", "client")
    one = mu_by_hand(replace(plan(14), rounds=1), 14)
    assert math.isclose(1 / event.event.noise_multiplier, one, rel_tol=1e-7)
