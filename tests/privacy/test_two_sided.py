"""The pair of a unit that is drawn unseen and replaced: against dp_accounting, numerical integrals and random shifts."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy.amplification import subsampling
from sordino.privacy.amplification.two_sided import find_two_sided_deltas, price_two_sided
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.privacy.curves.loss_direction import connect_dots
from sordino.protocol import (
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Mean,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
)

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reach", "rate", "steps"), [(0.5, 0.1, 100), (1.0, 0.02, 500), (2.0, 0.3, 5)]
)
def test_the_pair_is_that_of_dp_accounting(reach: float, rate: float, steps: int) -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1 / reach, sampling_prob=rate, neighboring_relation=REPLACE, use_connect_dots=True
    ).self_compose(steps)
    ours = price_two_sided(reach=reach, rate=rate, steps=steps)
    for delta in (1e-3, 1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        assert ours.epsilon(delta) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def exact_delta(epsilon: float, u: np.ndarray, v: np.ndarray, rate: float) -> float:
    """Integrates (p - e^epsilon q)+ over a plane, for any two shifts in it."""
    line = np.linspace(-9, 9, 721)
    x, y = np.meshgrid(line, line)

    def density(shift: np.ndarray) -> np.ndarray:
        return np.exp(-((x - shift[0]) ** 2 + (y - shift[1]) ** 2) / 2) / (2 * np.pi)

    nothing = (1 - rate) * density(np.zeros(2))
    excess = nothing + rate * density(u) - np.exp(epsilon) * (nothing + rate * density(v))
    return float(np.maximum(excess, 0.0).sum() * (line[1] - line[0]) ** 2)


@given(
    st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(0.0, np.pi), st.floats(0.0, np.pi),
    st.floats(0.01, 0.99), st.floats(0.0, 3.0),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_two_shifts_are_told_apart_better(
    long: float, short: float, angle: float, other: float, rate: float, epsilon: float
) -> None:
    u = long * np.array([np.cos(angle), np.sin(angle)])
    v = short * np.array([np.cos(other), np.sin(other)])
    reach = max(long, short, 1e-3)
    limit = float(find_two_sided_deltas(np.array([epsilon]), reach=reach, rate=rate)[0])
    assert exact_delta(epsilon, u, v, rate) <= limit + 1e-6


@given(st.floats(0.05, 2.5), st.floats(0.01, 0.99), st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_it_is_never_above_the_bound_that_counts_both_ways(
    reach: float, rate: float, steps: int
) -> None:
    tight = price_two_sided(reach=reach, rate=rate, steps=steps, interval=1e-3)
    loose = subsampling.compose_fixed_batches(mu=2 * reach, rate=rate, steps=steps, interval=1e-3)
    assert tight.epsilon(1e-5) <= loose.epsilon(1e-5) + 1e-3
    epsilons = np.linspace(0, 5, 11)
    one = subsampling.find_sampled_deltas(epsilons, mu=2 * reach, rate=rate)
    assert (
        find_two_sided_deltas(epsilons, reach=reach, rate=rate) <= one * (1 + 1e-9) + 1e-15
    ).all()


@pytest.mark.slow
def test_poisson_batches_are_priced_by_it_where_a_record_is_replaced() -> None:
    rule = NoisySgd(steps=5, batch=16, clip=1.0, schedule=Constant(rate=0.1), sampling="poisson")
    protocol = Protocol(
        clients=10,
        rounds=20,
        local=rule,
        noise=Gaussian(multiplier=1.0),
        privacy=Privacy(adjacency="replace-one"),
        data=Data(name="digits", records=100),
    )
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.16, neighboring_relation=REPLACE, use_connect_dots=True
    ).self_compose(100)
    found = certify(protocol)
    assert found.method == "subsampled steps"
    assert found.epsilon(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=2e-3)
    added = certify(replace(protocol, privacy=Privacy()))
    assert added.epsilon(1e-5) < found.epsilon(1e-5)


@pytest.mark.slow
def test_clients_that_are_drawn_unseen_are_priced_by_it_where_one_is_replaced() -> None:
    rule = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))  # moves by 1
    protocol = Protocol(
        clients=20,
        rounds=50,
        participation=Poisson(rate=0.25),
        aggregation=Mean(denominator="fixed"),
        local=rule,
        noise=Gaussian(sigma=0.1, where="server"),
    )
    (hidden,) = [
        bound
        for bound in find_bounds(pose_question(protocol, "rounds", "client", None, None))
        if bound.method == "hidden Poisson sampling"
    ]
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        0.1 * 5 / 0.5, sampling_prob=0.25, neighboring_relation=REPLACE, use_connect_dots=True
    ).self_compose(50)
    assert hidden.curve.epsilon(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=2e-3)


def test_dots_that_are_far_apart_keep_all_their_mass() -> None:
    """What lies between two losses is at the upper one, whatever e^gap is: no mass is no number."""
    heights = np.array([0.75, 0.5, 0.25])
    with np.errstate(all="raise", under="ignore"):
        masses, infinite = connect_dots(heights, np.array([0.0, 5000.0, 10000.0]))
    assert masses == pytest.approx([0.25, 0.25], rel=1e-12)
    assert infinite == 0.25
