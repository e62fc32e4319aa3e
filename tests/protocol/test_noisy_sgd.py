"""The rule noisy-sgd, its noise, personal models and the views of PriFedSync, as a file says them."""

import pytest

from sordino.protocol import (
    Attention,
    Constant,
    Decay,
    FedAvg,
    FedProx,
    Gaussian,
    Identity,
    Interpolate,
    NoisySgd,
    NoPersonalization,
    Privacy,
    Protocol,
    UserError,
    View,
    dumps,
    loads,
    override_keys,
)

TEXT = """
[federation]
clients = 100
rounds = 93
participation = { poisson = 0.5 }
personalization = { interpolate = 0.1 }
[local]
rule = "noisy-sgd"
steps = 38
batch = 16
clip = 1.0
schedule = { kind = "decay", rate = 0.005, factor = 0.99, every = 320 }
sampling = "fixed"
optimizer = "adam"
clip-norm = "l2"
weight-decay = 0.0005
[noise]
mechanism = "gaussian"
multiplier = 1.0
"""


def test_a_file_says_what_the_values_say() -> None:
    schedule = Decay(rate=0.005, factor=0.99, every=320)
    local = NoisySgd(
        steps=38, batch=16, clip=1, schedule=schedule, optimizer="adam", weight_decay=0.0005
    )
    protocol = loads(TEXT)
    assert protocol.local == local
    assert protocol.noise == Gaussian(multiplier=1.0)
    assert protocol.personalization == Interpolate(alpha=0.1)
    assert loads(dumps(protocol)) == protocol


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"none"', NoPersonalization()),
        ('"identity"', Identity()),
        ("{ identity = { pull = 0.5 } }", Identity(pull=0.5)),
        ("{ interpolate = 0.25 }", Interpolate(alpha=0.25)),
        ("{ interpolate = { alpha = 0.25, pull = 2 } }", Interpolate(alpha=0.25, pull=2.0)),
        ("{ attention = 0.3 }", Attention(own=0.3)),
        ("{ attention = { own = 0.3, sharpness = 1 } }", Attention(own=0.3, sharpness=1.0)),
    ],
)
def test_personal_models_in_short_and_in_full(written, value) -> None:
    protocol = override_keys(loads(TEXT), [f"federation.personalization={written}"])
    assert protocol.personalization == value
    assert loads(dumps(protocol)) == protocol
    assert protocol.keeps_models == (value != NoPersonalization())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("noise.sigma=1.0", ["multiplier", "sigma"]),
        ("noise.multiplier=-1", ["noise.multiplier", "at least 0"]),
        ("local.sampling=weekly", ["local.sampling", "fixed", "poisson"]),
        ("local.optimizer=lion", ["local.optimizer", "adagrad"]),
        ("local.clip-norm=l3", ["local.clip-norm", "l1"]),
        (
            "federation.personalization.interpolate=0",
            ["federation.personalization.interpolate.alpha", "above 0"],
        ),
        (
            "federation.personalization.interpolate=1.5",
            ["federation.personalization.interpolate.alpha", "at most 1"],
        ),
        ("federation.personalization=all", ["federation.personalization", "identity"]),
        ("privacy.adjacency=add-or-remove", ["privacy.adjacency", "poisson"]),
        ("local.rule=fedavg", ["unknown key"]),
    ],
)
def test_a_mistake_is_named(override, words) -> None:
    with pytest.raises(UserError) as caught:
        override_keys(loads(TEXT), [override])
    for word in words:
        assert word in str(caught.value)


def some(rule: type = NoisySgd, **changes: object) -> Protocol:
    options = {"proximal": 0.1} if rule is FedProx else {}
    local = rule(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1), **options)
    noise = Gaussian(multiplier=1.0) if rule is NoisySgd else Gaussian(sigma=1.0)
    return Protocol(**{"clients": 3, "rounds": 2, "local": local, "noise": noise, **changes})


def test_each_rule_has_its_own_noise() -> None:
    some(NoisySgd), some(FedAvg)
    with pytest.raises(UserError, match="multiplier"):
        some(NoisySgd, noise=Gaussian(sigma=1.0))
    with pytest.raises(UserError, match="sigma"):
        some(FedAvg, noise=Gaussian(multiplier=1.0))
    with pytest.raises(UserError, match="sigma"):
        Gaussian()


def test_the_pull_of_fedprox_and_a_helper_are_not_mixed() -> None:
    with pytest.raises(UserError, match="personalization"):
        some(FedProx, personalization=Identity())
    assert some(FedAvg, personalization=Identity()).keeps_models


def test_neighbours_are_what_suits_the_sampling() -> None:
    poisson = NoisySgd(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1), sampling="poisson")
    assert some().adjacency == some(FedAvg).adjacency == "replace-one"
    assert some(local=poisson).adjacency == "add-or-remove"
    assert some(local=poisson, privacy=Privacy(adjacency="replace-one")).adjacency == "replace-one"
    assert (some().local.noise_unit, poisson.noise_unit) == (2.0, 1.0)


def test_a_rate_falls_every_so_many_steps_and_never_below_zero() -> None:
    schedule = Decay(rate=1.0, factor=0.5, every=4)
    assert [rate for t in range(3) for rate in schedule.rates(round=t, steps=3)] == [
        1,
        1,
        1,
        1,
        0.5,
        0.5,
        0.5,
        0.5,
        0.25,
    ]
    assert schedule.at(round=10**6, step=0, steps=3) == 0.0


def test_weak_and_strong_are_views() -> None:
    assert View.parse("weak") == View.WEAK
    assert str(View.STRONG) == "strong"
    with pytest.raises(UserError):
        View.parse("weak:2")
