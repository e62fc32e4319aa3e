"""Calibration: never past the target, and close to it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino
from sordino.privacy import noise_search
from sordino.privacy.bounds.question import Bound
from sordino.privacy.bounds.shared_noise import find_shared_bounds
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.protocol import (
    Assumptions,
    ClientBudget,
    Constant,
    Data,
    FedAvg,
    FedProx,
    Gaussian,
    Poisson,
    Protocol,
    StageWise,
    UserError,
)
from sordino.protocol.file import read_protocol

EXAMPLES = Path(sordino.__file__).parent / "examples"
LOCAL = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
BASE = Protocol(clients=50, rounds=60, local=LOCAL, noise=Gaussian(sigma=1.0))
RULES = [
    LOCAL,
    replace(LOCAL, schedule=StageWise(rate=3.0)),
    FedProx(steps=4, batch=2, clip=9.0, schedule=Constant(rate=0.4), proximal=3.0),
]


@pytest.mark.slow
@given(
    st.floats(0.01, 50), st.sampled_from([1e-3, 1e-5, 1e-9]), st.sampled_from(["server", "rounds", "coalition:3", "final"]),
    st.sampled_from(RULES), st.integers(1, 2000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_epsilon_is_never_passed_and_met_within_a_percent(
    epsilon, delta, view, rule, rounds
) -> None:
    found = calibrate(replace(BASE, local=rule, rounds=rounds), view, epsilon=epsilon, delta=delta)
    reached = certify(found.protocol, view, delta=delta).epsilon(delta)
    assert reached <= epsilon
    assert reached >= 0.99 * epsilon
    assert found.achieved == reached


@pytest.mark.parametrize(
    "protocol",
    [
        replace(BASE, data=Data(name="x", records=600)),
        replace(BASE, participation=Poisson(rate=0.2)),
    ],
)
def test_mixtures_are_calibrated_too(protocol) -> None:
    found = calibrate(protocol, "rounds", epsilon=3.0)
    assert 2.97 <= certify(found.protocol, "rounds").epsilon(1e-5) <= 3.0


def test_a_trade_off_point_and_an_advantage_are_met_from_the_safe_side() -> None:
    point = calibrate(BASE, "rounds", beta=0.8, at_alpha=0.05)
    assert 0.8 <= point.guarantee.beta(0.05) <= 0.802
    gain = calibrate(BASE, "rounds", advantage=0.1)
    assert 0.099 <= gain.guarantee.delta(0.0) <= 0.1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, "one target"),
        ({"epsilon": 1.0, "advantage": 0.1}, "one target"),
        ({"beta": 0.5}, "one target"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 1.0, "delta": 2.0}, "delta"),
        ({"beta": 0.9, "at_alpha": 0.2}, "coin"),
        ({"advantage": 1.5}, "advantage"),
        ({"advantage": 0.0}, "no noise is enough"),
    ],
)
def test_targets_that_cannot_be_met_are_refused(target, words) -> None:
    with pytest.raises(UserError, match=words):
        calibrate(BASE, "rounds", **target)


def test_what_is_found_has_all_labels_and_what_holds_without_what_was_vouched() -> None:
    vouched = replace(
        BASE,
        assumptions=Assumptions(smoothness=0.1),
        local=replace(BASE.local, schedule=StageWise(rate=0.1)),
    )
    found = calibrate(vouched, "final", epsilon=1.0)
    document = found.as_document()
    assert document["assumptions"] == ["every minibatch loss is 0.1-smooth"]
    assert {"kind", "adjacency", "method", "mu", "view", "unit", "delta"} <= set(document)
    plain = certify(replace(found.protocol, assumptions=Assumptions()), "final")
    assert found.guarantee.unconditional is not None
    assert found.guarantee.unconditional.epsilon(1e-5) == pytest.approx(
        plain.epsilon(1e-5), rel=1e-9
    )
    assert plain.epsilon(1e-5) > 1.0


def test_noise_that_clients_find_from_their_own_budgets_is_not_searched_for() -> None:
    own = replace(
        BASE,
        client=tuple(
            ClientBudget(id=client, epsilon=2.0, mechanism="gaussian")
            for client in range(BASE.clients)
        ),
    )
    with pytest.raises(UserError, match="their own noise"):
        calibrate(own, epsilon=3.0)


@pytest.mark.parametrize("name", ["attacked", "dp-sgd", "nbafl", "shuffler", "wind-scaffold"])
def test_a_calibration_asks_for_few_prices(name, monkeypatch) -> None:
    asked = []
    evaluated = []

    def count_prices(question):
        bounds = list(find_shared_bounds(question))
        asked.append(len(bounds))
        return bounds

    def count_values(target, curve):
        evaluated.append(curve)
        return find_distance(target, curve)

    find_distance = noise_search.Target.distance
    monkeypatch.setattr(noise_search, "find_shared_bounds", count_prices)
    monkeypatch.setattr(noise_search.Target, "distance", count_values)
    protocol = read_protocol(EXAMPLES / f"{name}.toml")
    calibrate(protocol, "rounds", epsilon=4.0)
    assert len(asked) <= 10
    # Bounds that another one undercut are left alone once there is noise that suffices.
    assert len(evaluated) <= len(asked) + 4 * max(asked)


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.floats(0.3, 30))
@settings(max_examples=50, deadline=None)
def test_bounds_that_are_left_alone_would_not_have_changed_the_noise(mus, epsilon) -> None:
    target = noise_search.make_target(epsilon)

    def list_bounds(size):
        return [Bound(curve=GaussianCurve(mu=mu / size), method="m", lines=()) for mu in mus]

    distances = noise_search.Distances(target)
    for size in (1.0, 4.0, 2.0, 3.0, 2.5, 0.2):
        every = min(target.distance(bound.curve) for bound in list_bounds(size))
        assert distances.find_least(size, list_bounds(size)) == every
