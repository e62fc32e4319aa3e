"""Budgets: how far they go, what was realised, and that client caps hold for every history of participation."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy.certify import certify
from sordino.privacy.curves import gaussian
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.privacy.spending import certify_clients, find_affordable_rounds, find_repeated_rounds
from sordino.protocol import (
    Budget,
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Poisson,
    Protocol,
    StageWise,
)

LOCAL = FedAvg(steps=2, batch=4, clip=1.0, schedule=StageWise(rate=0.5))
BASE = Protocol(clients=6, rounds=30, local=LOCAL, noise=Gaussian(sigma=1.0))


@pytest.mark.parametrize("schedule", [Constant(rate=0.2), StageWise(rate=0.5)])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 8.0, 100.0])
def test_a_budget_is_used_up_to_the_last_round_that_fits(schedule, epsilon) -> None:
    protocol = replace(BASE, local=replace(LOCAL, schedule=schedule))
    reach = find_affordable_rounds(protocol, Budget(epsilon=epsilon))
    prices = [certify(protocol, "server", rounds=range(t)).epsilon(1e-5) for t in range(31)]
    assert reach.rounds == max(t for t in range(31) if prices[t] <= epsilon)
    assert reach.spent == prices[reach.rounds]
    if reach.rounds < 30:
        assert reach.next == prices[reach.rounds + 1]
        assert f"after {reach.rounds} rounds" in reach.message


def test_rounds_that_were_paid_for_twice_leave_less() -> None:
    protocol = replace(BASE, local=replace(LOCAL, schedule=Constant(rate=0.2)))
    budget = Budget(epsilon=12.0)
    fresh = Opened(protocol="9f2c", generator="chacha20", noise="fresh")
    events = [
        fresh,
        RoundCharged(round=0, clients=(0,)),
        RoundCharged(round=0, clients=(0,), attempt=1),
        RoundCharged(round=1, clients=(0,)),
    ]
    assert find_repeated_rounds(events, next_round=2) == [0]
    assert find_repeated_rounds(events, next_round=1) == [0, 1]
    assert find_repeated_rounds([replace(fresh, noise="seeded"), *events[1:2]], next_round=0) == []
    assert (
        find_affordable_rounds(protocol, budget, repeated=[0, 0]).rounds
        == find_affordable_rounds(protocol, budget).rounds - 2
    )


def test_the_realised_bound_counts_the_rounds_a_client_was_in() -> None:
    events = [RoundCharged(round=t, clients=(0, 1) if t < 3 else (1, 2, 3)) for t in range(5)]
    server = certify_clients(BASE, events, "server")
    shifts = [2 * 2 * 0.5 / (t + 1) for t in range(5)]
    assert server[0].mu == pytest.approx(math.sqrt(sum(s**2 for s in shifts[:3])))
    assert server[1].mu == pytest.approx(math.sqrt(sum(s**2 for s in shifts)))
    assert server[5].mu == 0.0
    rounds = certify_clients(BASE, events, "rounds")
    assert rounds[1].mu == pytest.approx(
        math.sqrt(sum(s**2 / (2 if t < 3 else 3) for t, s in enumerate(shifts)))
    )
    coalition = certify_clients(BASE, events, "coalition:2")
    assert coalition[1].mu == pytest.approx(math.sqrt(sum(s**2 for s in shifts)))


def test_with_everyone_in_every_round_realised_is_planned() -> None:
    protocol = replace(BASE, data=Data(name="x", records=40))
    events = [RoundCharged(round=t, clients=tuple(range(6))) for t in range(30)]
    for view in ("server", "rounds", "coalition:1", "final"):
        assert certify_clients(protocol, events, view)[3].epsilon(1e-5) == pytest.approx(
            certify(protocol, view).epsilon(1e-5), rel=1e-6
        )


def test_the_planned_bound_with_random_participation_is_below_the_worst_realised_one() -> None:
    protocol = replace(
        BASE, participation=Poisson(rate=0.1), local=replace(LOCAL, schedule=Constant(rate=0.3))
    )
    always = [RoundCharged(round=t, clients=(0,)) for t in range(30)]
    assert certify(protocol, "server").epsilon(1e-5) < certify_clients(protocol, always, "server")[
        0
    ].epsilon(1e-5)


@given(
    st.floats(0.5, 30.0),
    st.sampled_from([Constant(rate=0.2), StageWise(rate=0.5)]),
    st.integers(0, 10**6),
)
@settings(max_examples=30, deadline=None)
def test_no_choice_of_rounds_within_a_cap_passes_the_clients_budget(
    epsilon, schedule, seed
) -> None:
    import random

    protocol = replace(BASE, local=replace(LOCAL, schedule=schedule))
    cap = find_capped_rounds(protocol, ClientBudget(id=0, epsilon=epsilon))
    chosen = random.Random(seed).sample(range(30), cap)
    mu = math.sqrt(sum((2 * sum(schedule.rates(round=t, steps=2))) ** 2 for t in chosen))
    assert gaussian.epsilon(mu, 1e-5) <= epsilon * (1 + 1e-9)
    if cap < 30:
        worst = math.sqrt(
            sum((2 * sum(schedule.rates(round=t, steps=2))) ** 2 for t in range(cap + 1))
        )
        assert gaussian.epsilon(worst, 1e-5) > epsilon


def test_all_pairs_of_rounds_cost_at_most_the_first_two() -> None:
    costs = [
        certify(BASE, "server", rounds=pair).mu for pair in itertools.combinations(range(6), 2)
    ]
    assert max(costs) == certify(BASE, "server", rounds=range(2)).mu


def test_a_client_of_everyone_has_realised_the_last_iterate_too() -> None:
    """Under weight decay the last model forgets; the composition of the rounds, which was taken for realised, is far above."""
    rule = ClippedGlm(steps=5, clip=1.0, schedule=Constant(rate=0.5), weight_decay=0.1)
    protocol = replace(BASE, local=rule, rounds=300, data=Data(name="x", records=40))
    events = [RoundCharged(round=t, clients=tuple(range(6))) for t in range(300)]
    found = certify_clients(protocol, events, "final")[0].epsilon(1e-5)
    assert found == pytest.approx(certify(protocol, "final").epsilon(1e-5), rel=1e-9)
    assert found < 0.5 * certify_clients(protocol, events, "rounds")[0].epsilon(1e-5)
