"""Personal models without noise: no history of rounds taken part in moves an upload further than what is priced."""

import itertools
import math

import numpy as np
import pytest

from sordino.privacy.amplification.personal_state import carries_noiseless_state, find_upload_shifts
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.participation_caps import all_caps
from sordino.privacy.spending import certify_clients
from sordino.privacy.upload_sensitivity import price_uploads, rates_of_rounds
from sordino.protocol import (
    Attention,
    ClientBudget,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Identity,
    Iid,
    Interpolate,
    NoisySgd,
    NoPersonalization,
    Poisson,
    Protocol,
    StageWise,
)


def plan(own=NoPersonalization(), schedule=Constant(rate=0.3), rounds=5, **changes) -> Protocol:  # noqa: B008 - frozen values
    local = FedAvg(steps=2, batch=4, clip=1.5, schedule=schedule)
    data = Data(name="toy", partition=Iid(), records=40)
    settings = {
        "clients": 6,
        "rounds": rounds,
        "local": local,
        "noise": Gaussian(sigma=2.0),
        "data": data,
        "personalization": own,
    }
    return Protocol(**{**settings, **changes})


def furthest(protocol: Protocol, taken: tuple[int, ...]) -> dict[int, float]:
    """Step by step: how far the uploads of the rounds taken part in can be apart, gradients being opposite in every step."""
    own, rule, apart, found = protocol.personalization, protocol.local, 0.0, {}
    share = 1 - own.alpha if isinstance(own, Interpolate) else 0.0
    for t in taken:
        helper = share * apart
        now = helper if own.pull is None else apart
        for rate in rule.schedule.rates(round=t, steps=rule.steps):
            pulled = rate * (own.pull or 0.0)
            now = abs(1 - pulled) * now + pulled * helper + 2 * rule.clip * rate
        found[t] = apart = now
    return found


OWN = [
    Interpolate(alpha=0.1),
    Interpolate(alpha=0.9),
    Interpolate(alpha=0.4, pull=0.7),
    Identity(pull=0.5),
    Identity(pull=9.0),
]


@pytest.mark.parametrize("schedule", [Constant(rate=0.3), StageWise(rate=0.3)])
@pytest.mark.parametrize("own", OWN, ids=str)
def test_no_history_moves_an_upload_further(own, schedule) -> None:
    protocol = plan(own, schedule)
    priced = find_upload_shifts(protocol, rates_of_rounds(protocol, np.arange(5)))
    for size in range(1, 6):
        first = sorted(priced[:size])
        for taken in itertools.combinations(range(5), size):
            found = furthest(protocol, taken)
            assert all(found[t] <= priced[t] * (1 + 1e-12) for t in taken)
            # So few rounds cost at most what the first ones do: client budgets rest on it.
            assert all(
                a <= b * (1 + 1e-12) for a, b in zip(sorted(found.values()), first, strict=True)
            )
    if isinstance(schedule, Constant) and (own.pull or 0) < 1:
        assert [furthest(protocol, tuple(range(5)))[t] for t in range(5)] == pytest.approx(priced)


def test_what_starts_from_released_models_costs_what_fedavg_costs() -> None:
    bare = certify(plan(), "server").epsilon(1e-5)
    for own in (Identity(), Attention(own=0.5), Interpolate(alpha=1.0)):
        assert not carries_noiseless_state(plan(own))
        assert certify(plan(own), "server").epsilon(1e-5) == bare
    for own in OWN:
        assert carries_noiseless_state(plan(own))
        assert certify(plan(own), "server").epsilon(1e-5) > bare


def test_own_models_of_noisy_sgd_carry_nothing_without_noise() -> None:
    local = NoisySgd(steps=2, batch=4, clip=1.5, schedule=Constant(rate=0.3))
    settings = {"local": local, "noise": Gaussian(multiplier=1.0)}
    found = [certify(plan(own, **settings)).epsilon(1e-5) for own in (NoPersonalization(), *OWN)]
    assert len(set(found)) == 1


def test_only_bounds_that_hold_with_a_memory_are_used() -> None:
    prices = price_uploads(plan(OWN[0]), np.arange(5), "record", 40)
    assert prices.first_used is None
    assert prices.dynamics == ()
    assert certify(plan(OWN[0]), "final").method == "composition"


@pytest.mark.parametrize("participation", [{}, {"participation": Poisson(rate=0.5)}])
def test_weak_and_strong_are_one_and_all_other_clients(participation) -> None:
    protocol = plan(**participation)
    assert certify(protocol, "weak").epsilon(1e-5) == certify(protocol, "coalition:1").epsilon(1e-5)
    assert certify(protocol, "strong").epsilon(1e-5) == certify(protocol, "coalition:5").epsilon(
        1e-5
    )
    shown = plan(Attention(own=0.5), **participation)
    assert certify(shown, "weak").epsilon(1e-5) == certify(shown, "server").epsilon(1e-5)


@pytest.mark.parametrize("own", OWN, ids=str)
def test_a_client_spends_by_the_rounds_that_it_took_part_in(own) -> None:
    sizes = (40,) * 6
    first = certify(plan(own, StageWise(rate=0.3), 8), rounds=range(3))
    budget = first.epsilon(1e-5) * (1 + 1e-6)
    mine = tuple(ClientBudget(id=k, epsilon=budget) for k in range(6))
    protocol = plan(own, StageWise(rate=0.3), 8, participation=Poisson(rate=0.5), client=mine)
    cap = all_caps(protocol, sizes)[0]
    assert cap == 3
    for first in (0, 8 - cap):
        taken = tuple(range(first, first + cap))
        charges = [RoundCharged(round=t, clients=(0,)) for t in taken]
        opened = Opened(protocol="x", generator="y", noise="seeded")
        found = certify_clients(protocol, [opened, *charges], sizes=sizes)[0]
        exact = math.sqrt(sum(moved**2 for moved in furthest(protocol, taken).values())) / 2.0
        assert exact * (1 - 1e-9) <= found.mu
        # A round that a client was not drawn for has not changed what it keeps.
        assert found.epsilon(1e-5) <= budget
