"""Secure aggregation and grids in a protocol: what a file says, what is chosen, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sordino.protocol import (
    Constant,
    Direct,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    InvalidValue,
    Model,
    Protocol,
    SecureAggregation,
    Shuffler,
    UserError,
    dumps,
    loads,
    override_keys,
)
from sordino.protocol.grids import Grid, choose_grid, ladder_parameter

RULE = FedAvg(steps=5, batch=8, clip=2.0, schedule=Constant(rate=0.1))
MODEL = Model(name="logistic", parameters=650)


def plan(**given: Any) -> Protocol:
    given = {"clients": 10, "rounds": 3, "local": RULE, "noise": Gaussian(sigma=0.1), **given}
    return Protocol(**given)


@pytest.mark.parametrize("channel", [
    Direct(),
    Shuffler(),
    SecureAggregation(threshold=8),
    SecureAggregation(threshold=8, colluders=2, bits=32),
])  # fmt: skip
def test_a_channel_comes_back_from_its_file(channel) -> None:
    assert loads(dumps(plan(channel=channel))).channel == channel


def test_a_channel_may_be_given_by_its_name() -> None:
    assert plan(channel="shuffler") == plan(channel=Shuffler())
    assert plan().channel == plan(channel="direct").channel == Direct()
    text = dumps(plan()).replace(
        'channel = "direct"', "channel = { secure-aggregation = { threshold = 8, colluders = 2 } }"
    )
    assert loads(text).channel == SecureAggregation(threshold=8, colluders=2)


@pytest.mark.parametrize(("changes", "words"), [
    (["federation.channel.secure-aggregation.threshold=1"], ["threshold = 1", "at least 2"]),
    (["federation.channel.secure-aggregation.threshold=11"], ["threshold = 11", "clients = 10"]),
    (
        ["federation.channel.secure-aggregation.threshold=8",
         "federation.channel.secure-aggregation.colluders=8"],
        ["colluders = 8", "below the threshold"],
    ),
    (
        ["federation.channel.secure-aggregation.threshold=8",
         "federation.channel.secure-aggregation.bits=48"],
        ["bits = 48", "32 or 64"],
    ),
    (["federation.channel=secure-aggregation"], ["secure-aggregation", "threshold is missing"]),
    (["noise.digits=13"], ["noise.digits = 13", "1 to 12"]),
    (["noise.arithmetic=rational"], ["noise.arithmetic", "integers", "floats"]),
])  # fmt: skip
def test_what_is_not_allowed_is_refused_by_its_key(changes, words) -> None:
    with pytest.raises(UserError) as refused:
        override_keys(plan(), changes)
    for word in words:
        assert word in str(refused.value)


def test_a_threshold_that_no_round_reaches_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at most the 4 clients that take part"):
        plan(channel=SecureAggregation(threshold=8), participation=FixedSize(size=4))


def test_only_integers_have_a_grid_and_a_grid_needs_the_model() -> None:
    assert plan().grid is None
    for changes in (
        {"noise": Gaussian(sigma=0.1, arithmetic="integers")},
        {"channel": SecureAggregation(threshold=8)},
    ):
        assert plan(**changes).release.integers
        with pytest.raises(UserError, match=r"model\.parameters is missing"):
            plan(**changes).grid  # noqa: B018
        assert math.isclose(plan(model=MODEL, **changes).grid.sigma, 0.1)


def test_a_release_says_that_it_is_a_share_of_a_secure_sum() -> None:
    channel = SecureAggregation(threshold=8, colluders=1)
    assert plan(channel=channel).release.secure_sum == channel
    assert plan(channel="shuffler").release.secure_sum is None


@pytest.mark.parametrize(("rule", "reach"), [
    (RULE, 5 * 0.1 * 2.0),
    (FedAvg(steps=5, batch=8, clip=2.0, schedule=Constant(rate=0.1), clip_target="update"), 2.0),
    (FedProx(steps=2, batch=8, clip=2.0, schedule=Constant(rate=0.5), proximal=1.0), 0.5 * 1 + 1.0),
])  # fmt: skip
def test_a_release_says_how_far_an_update_reaches(rule, reach) -> None:
    assert math.isclose(plan(local=rule).release.reach, reach)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("contributions", [2, 100])
def test_the_largest_updates_and_twelve_deviations_of_noise_fit_the_modulus(bits, contributions):
    grid = choose_grid(
        sigma=0.1, reach=1.0, contributions=contributions, coordinates=650, bits=bits
    )
    noise = 12 * math.sqrt(contributions) * ladder_parameter(grid.digits)
    worst = contributions * (1.0 * grid.scale + 1) + noise
    assert worst <= 2 ** (bits - 2)
    # The next finer grid is not needed, or does not fit.
    finer = 8 * worst
    assert math.sqrt(650) <= 1e-4 * grid.parameter or finer > 2 ** (bits - 2)


def test_a_grid_is_refused_that_is_too_fine_for_the_modulus_or_too_coarse_for_the_noise() -> None:
    with pytest.raises(InvalidValue, match=r"noise\.digits = 9: .*does not fit 32 bits"):
        choose_grid(sigma=0.1, reach=1.0, contributions=10, coordinates=650, bits=32, digits=9)
    with pytest.raises(InvalidValue, match=r"noise\.digits = 1: expected more.*650 coordinates"):
        choose_grid(sigma=0.1, reach=1.0, contributions=10, coordinates=650, digits=1)


@pytest.mark.parametrize("bits", [32, 64])
def test_without_noise_a_grid_is_as_fine_as_the_modulus_allows(bits) -> None:
    grid = choose_grid(sigma=0.0, reach=3.0, contributions=10, coordinates=650, bits=bits)
    assert grid.parameter == 0
    assert 3.0 * grid.scale <= grid.largest_coordinate
    assert grid.scale >= min(2.0**30, grid.largest_coordinate / 16)


def test_the_price_of_discrete_noise_is_that_of_a_little_less_normal_noise() -> None:
    grid = Grid(scale=64.0, digits=1, bits=64, contributions=1)
    assert math.isclose(grid.sigma, 1.0)
    assert math.isclose(grid.priced_sigma**2, 1.0 - (6 / 64) ** 2)
