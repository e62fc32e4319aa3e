"""Rates that fall so fast that the price of all rounds together has a limit (A33)."""

import math
from dataclasses import replace

import pytest
from scipy.special import zeta

from sordino.papers.applied import published_bounds
from sordino.privacy.certify import certify
from sordino.protocol import (
    Decay,
    FedAvg,
    Gaussian,
    InvalidValue,
    Protocol,
    StageWise,
    View,
    dumps,
    loads,
)

VIEWS = (View.SERVER, View.ROUNDS, View.coalition(3))


def plan(schedule, rounds: int) -> Protocol:
    local = FedAvg(steps=3, batch=8, clip=1.0, schedule=schedule)
    return Protocol(clients=10, rounds=rounds, local=local, noise=Gaussian(sigma=1.0))


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("power", [0.75, 0.9, 1.0])
def test_powers_above_a_half_cost_no_more_than_zeta_of_twice_the_power(power, view) -> None:
    schedule = StageWise(rate=0.1, power=power)
    one = certify(plan(schedule, 1), view).mu
    many = [certify(plan(schedule, rounds), view).mu / one for rounds in (2, 100, 20_000)]
    assert many[0] == pytest.approx(math.sqrt(1 + 4**-power), rel=1e-9)
    assert many[0] < many[1] < many[2] <= math.sqrt(zeta(2 * power)) * (1 + 1e-6)
    # What is left after T rounds lies between two integrals of t^-2p.
    rest = 20_000 ** (1 - 2 * power) / (2 * power - 1)
    assert many[2] ** 2 == pytest.approx(zeta(2 * power) - rest, rel=1e-4)


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_a_factor_every_round_costs_a_geometric_series(view) -> None:
    schedule = Decay(rate=0.1, factor=0.998, every="round")
    one = certify(plan(schedule, 1), view).mu
    limit = certify(plan(schedule, 20_000), view).mu / one
    assert limit == pytest.approx(1 / math.sqrt(1 - 0.998**2), rel=1e-6)
    assert limit == pytest.approx(15.819, abs=1e-3)


def test_every_step_of_a_round_has_its_rate() -> None:
    schedule = Decay(rate=0.1, factor=0.5, every="round")
    assert schedule.rates(round=3, steps=2) == (0.0125, 0.0125)
    assert StageWise(rate=1.0, power=0.75).rates(round=15, steps=2) == (0.125, 0.125)


def test_the_theorem_about_the_power_one_is_held_against_no_other() -> None:
    assert published_bounds(plan(StageWise(rate=0.1), 5))
    assert not published_bounds(plan(StageWise(rate=0.1, power=0.8), 5))


@pytest.mark.parametrize("power", [0.5, 1.5])
def test_other_powers_are_refused(power) -> None:
    with pytest.raises(InvalidValue, match=r"above 0\.5 and at most 1"):
        StageWise(rate=0.1, power=power)


def test_files_keep_the_word_and_the_power() -> None:
    for schedule in (Decay(rate=0.1, factor=0.9, every="round"), StageWise(rate=0.1, power=0.7)):
        protocol = plan(schedule, 2)
        assert loads(dumps(protocol)) == protocol
    with pytest.raises(InvalidValue, match='or "round"'):
        replace(schedule_of("round"), every="epoch")


def schedule_of(every) -> Decay:
    return Decay(rate=0.1, factor=0.9, every=every)
