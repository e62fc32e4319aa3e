"""Clients with budgets and mechanisms of their own: the noise found, the caps, the worst client, the penalty's price."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sordino import (
    ClientBudget,
    Constant,
    Data,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Laplace,
    Model,
    Protocol,
    UserError,
)
from sordino.mechanisms import mechanism_of
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.mechanism_comparison import mechanism_table
from sordino.privacy.own_noise import own_protocol, pull_of, with_found_noise
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.privacy.spending import certify_clients
from sordino.protocol import InvalidValue, dumps, loads

BUDGETS = (
    ClientBudget(id=0, epsilon=2.0, mechanism="laplace"),
    ClientBudget(id=1, epsilon=8.0, mechanism="gaussian"),
    ClientBudget(id=2, epsilon=4.0, mechanism="staircase", delta=1e-6),
    ClientBudget(id=3, epsilon=1.0),
)


def plan(**changes: object) -> Protocol:
    local = FedAvg(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5))  # moves by 1
    settings: dict[str, object] = {
        "clients": 4, "rounds": 10, "local": local, "noise": Gaussian(sigma=20.0),
        "model": Model(name="mlp", parameters=50), "client": BUDGETS,
        "data": Data(name="digits", records=4),  # one batch: the record is in every step
    }  # fmt: skip
    return Protocol(**{**settings, **changes})  # type: ignore[arg-type]


def test_every_client_gets_the_least_noise_that_keeps_its_budget() -> None:
    protocol = plan()
    for budget in BUDGETS[:3]:
        alone = own_protocol(protocol, budget)
        assert alone.noise.tag == budget.mechanism
        assert certify(alone, delta=budget.delta).epsilon(budget.delta) <= budget.epsilon
        less = replace(own_protocol(protocol, replace(budget, epsilon=budget.epsilon * 1.02)))
        assert mechanism_of(less.noise).deviation < mechanism_of(alone.noise).deviation
        assert certify(less, delta=budget.delta).epsilon(budget.delta) > budget.epsilon
        assert find_capped_rounds(protocol, budget) == 10
    assert own_protocol(protocol, BUDGETS[3]).noise == protocol.noise


def test_the_worst_client_counts_in_every_view() -> None:
    protocol = plan()
    worst = certify(own_protocol(protocol, BUDGETS[1]))
    for view in ("server", "rounds", "coalition:2", "final"):
        guarantee = certify(protocol, view)
        assert guarantee.method == "harmonizer"
        assert guarantee.epsilon(1e-5) == pytest.approx(worst.epsilon(1e-5))
        assert guarantee.delta(3.0) == pytest.approx(
            max(certify(own_protocol(protocol, one)).delta(3.0) for one in BUDGETS)
        )
        assert guarantee.beta(0.1) == pytest.approx(
            min(certify(own_protocol(protocol, one)).beta(0.1) for one in BUDGETS)
        )


def test_a_client_whose_noise_is_too_small_is_dropped_when_its_budget_is_spent() -> None:
    tight = replace(BUDGETS[0], noise=1.0)
    protocol = plan(client=(tight, *BUDGETS[1:]))
    cap = find_capped_rounds(protocol, tight)
    loud = replace(own_protocol(protocol, tight), rounds=10)
    assert loud.noise == Laplace(scale=1.0)
    prices = [certify(loud, rounds=range(count)).epsilon(1e-5) for count in (cap, cap + 1)]
    assert 0 <= cap < 10
    assert prices[0] <= 2.0 < prices[1]
    assert certify(protocol).epsilon(1e-5) <= 8.0


def test_noise_is_made_for_the_rounds_that_can_be_expected() -> None:
    often, seldom = plan(), plan(participation=FixedSize(size=1), rounds=10)
    for budget in BUDGETS[:3]:
        assert (
            mechanism_of(own_protocol(seldom, budget).noise).deviation
            < mechanism_of(own_protocol(often, budget).noise).deviation
        )
        cap = find_capped_rounds(seldom, budget)
        assert math.ceil(2.5 + 3 * math.sqrt(10 * 0.25 * 0.75)) <= cap <= 10


def test_the_penalty_is_a_pull_to_a_public_model_and_is_priced_so() -> None:
    protocol = plan(penalty=True)
    assert [pull_of(protocol, budget) for budget in BUDGETS] == [0.75, 0.0, 0.5, 0.875]
    alone = own_protocol(protocol, BUDGETS[3])
    assert isinstance(alone.local, FedProx)
    # 2V (eta (1 - eta lambda) + eta), eta = 1/2, V = 1/2
    shift = 0.5 * (1 - 0.5 * 0.875) + 0.5
    assert certify(alone).mu == pytest.approx(shift * math.sqrt(10) / 20.0)
    near = plan(
        penalty=True,
        local=FedProx(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5), proximal=0.25),
    )
    assert own_protocol(near, BUDGETS[2]).local.proximal == 0.75  # type: ignore[union-attr]


def test_the_pull_does_not_make_public_minibatches_secret() -> None:
    """With batches that the adversary knows, a record that is in one step of two costs as if nothing hid it."""
    local = FedAvg(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5), minibatches="public")
    data = Data(name="digits", records=64)
    alone = own_protocol(plan(penalty=True, local=local, data=data), BUDGETS[3])
    assert alone.local.minibatches == "public"  # type: ignore[union-attr]
    assert "secret" not in certify(alone).method


def test_what_was_realised_is_priced_client_by_client() -> None:
    protocol = plan()
    events = [
        Opened(protocol="x", generator="y", noise="seeded"),
        RoundCharged(round=0, clients=(0, 1)),
        RoundCharged(round=1, clients=(1,)),
    ]
    found = certify_clients(protocol, events, "rounds")
    for client, rounds in ((0, [0]), (1, [0, 1])):
        alone = own_protocol(protocol, BUDGETS[client])
        assert found[client].epsilon(1e-5) == pytest.approx(
            certify(alone, rounds=rounds).epsilon(1e-5)
        )
        assert str(found[client].view) == "rounds"
    assert found[2].epsilon(1e-5) == 0


def test_the_found_noise_is_spelled_out_and_changes_nothing() -> None:
    protocol = plan()
    resolved = with_found_noise(protocol, [4] * 4)
    assert [budget.noise is None for budget in resolved.client] == [False, False, False, True]
    assert loads(dumps(resolved)) == resolved
    assert certify(resolved).epsilon(1e-5) == pytest.approx(certify(protocol).epsilon(1e-5))
    assert with_found_noise(resolved, [40] * 4) == resolved


@pytest.mark.parametrize(("dimension", "best"), [(1, "staircase"), (1000, "gaussian")])
def test_the_table_marks_the_least_noise_in_the_model_s_dimension(
    dimension: int, best: str
) -> None:
    rows = mechanism_table(
        plan(client=(), rounds=1, model=Model(name="mlp", parameters=dimension)), epsilon=4.0
    )
    assert [row.mechanism for row in rows if row.best] == [best]
    # docs/theory.md#b3 at epsilon = 4: 1.081, .3536, .2703 at d = 1
    if dimension == 1:
        assert [row.deviation for row in rows] == [
            pytest.approx(1.081, rel=2e-3),
            pytest.approx(0.3536, rel=6e-3),
            pytest.approx(0.2703, rel=6e-3),
        ]


def test_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="client 3 has no budget"):
        plan(client=BUDGETS[:3])
    with pytest.raises(UserError, match="client 0 has no budget"):
        plan(client=(), penalty=True)
    with pytest.raises(InvalidValue, match="epsilon = 0"):
        ClientBudget(id=0, epsilon=0)
    with pytest.raises(InvalidValue, match="mechanism with it"):
        ClientBudget(id=0, epsilon=1, noise=1.0)
    with pytest.raises(InvalidValue, match="mechanism"):
        ClientBudget(id=0, epsilon=1, mechanism="gausian")
    with pytest.raises(InvalidValue, match="shuffler"):
        plan(channel="shuffler")
    with pytest.raises(UserError, match=r"model.parameters"):
        certify(plan(model=None))
    with pytest.raises(UserError, match=r"model.parameters"):
        mechanism_table(plan(client=(), model=None), epsilon=1.0)
