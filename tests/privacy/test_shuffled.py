"""The clones bound over rounds and random batches: against enumeration of the two laws, and against what post-processing shows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy import stats

from sordino import (
    ClientBudget,
    Constant,
    Everyone,
    FedAvg,
    FixedSize,
    Gaussian,
    Laplace,
    Mean,
    Model,
    Poisson,
    Protocol,
    StageWise,
    Staircase,
)
from sordino.privacy.amplification import shuffling
from sordino.privacy.bounds.shuffled import bound_clones
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.renyi import convex_profile
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.spending import certify_clients
from sordino.protocol import InvalidValue, View
from tests.oracles.shuffled_rounds import price_shuffled_round


def plan(noise: object, *, clients: int = 1000, rounds: int = 1, **changes: object) -> Protocol:
    local = FedAvg(
        steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0), clip_norm="l1"
    )  # moves by 1
    settings = {
        "clients": clients,
        "rounds": rounds,
        "local": local,
        "noise": noise,
        "channel": "shuffler",
    }
    return Protocol(**{**settings, **changes})  # type: ignore[arg-type]


def clones_law(
    local: float, others: int, rate: float
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Both laws of one round, by enumerating C, A and D."""
    keep = math.exp(local) / (1 + math.exp(local))
    laws: tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]] = Counter(), Counter()
    for c in range(others + 1):
        for a in range(c + 1):
            mass = stats.binom.pmf(c, others, rate) * stats.binom.pmf(a, c, 0.5)
            for d, chance in ((1, keep), (0, 1 - keep)):
                laws[0][a + d, c - a + 1 - d] += mass * chance
                laws[1][a + 1 - d, c - a + d] += mass * chance
    return laws


def exact_delta(
    epsilon: float,
    laws: tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]],
    rounds: int,
    part: float,
) -> float:
    """Hockey stick of the composed rounds, each of which happens with probability `part`."""
    pairs = [(part * laws[0][key], part * laws[1][key]) for key in laws[0]] + [(1 - part, 1 - part)]
    total = 0.0
    for chosen in itertools.product(pairs, repeat=rounds):
        p, q = math.prod(one[0] for one in chosen), math.prod(one[1] for one in chosen)
        total += max(0.0, p - math.exp(epsilon) * q)
    return total


@pytest.mark.parametrize(("participation", "others", "share", "part"), [
    (None, 7, 1.0, 1.0), (Poisson(rate=0.4), 7, 0.4, 0.4), (FixedSize(size=6), 5, 1.0, 0.75),
])  # fmt: skip
def test_two_rounds_of_pure_noise_by_enumeration(
    participation: object, others: int, share: float, part: float
) -> None:
    changes = {"participation": participation} if participation is not None else {}
    protocol = plan(Laplace(scale=1.0), clients=8, rounds=2, **changes)
    (bound,) = bound_clones(_question(protocol))
    laws = clones_law(1.0, others, share * math.exp(-1.0))
    for epsilon in (0.3, 0.7, 1.2):
        exact = exact_delta(epsilon, laws, 2, part)
        assert exact <= bound.curve.delta(epsilon) <= 1.02 * exact + 1e-12


def _question(protocol: Protocol, view: str = "server") -> object:
    from sordino.privacy.bounds.question import pose_question

    return pose_question(protocol, view, "client", None, None)


def test_one_round_is_the_vector_s_value_and_never_above_the_local_epsilon() -> None:
    assert certify(plan(Laplace(scale=1.0))).epsilon(1e-6) == pytest.approx(
        shuffling.find_shuffled_epsilon(1e-6, local=1.0, clients=1000), rel=2e-3
    )
    assert certify(plan(Laplace(scale=1.0))).method == "shuffled clones"
    alone = plan(Laplace(scale=1.0), clients=1)
    assert certify(alone).epsilon(1e-6) == certify(replace(alone, channel="direct")).epsilon(1e-6)


@pytest.mark.parametrize("clones", [1, 7, 700, shuffling._TABLED])
def test_tails_of_a_fair_coin_are_the_same_from_the_table_and_without_it(clones: int) -> None:
    counts = np.arange(clones + 2)
    exact = stats.binom.sf(counts - 1, clones, 0.5)
    np.testing.assert_allclose(
        shuffling._at_least(counts[:, None] * 1.0, np.array([clones]))[:, 0], exact, rtol=1e-11
    )


def test_crowds_too_large_for_the_table_are_priced_as_those_within_it() -> None:
    # The next crowd hides a little more, and nothing jumps where the table ends.
    within, beyond = (
        shuffling.find_shuffled_delta(1e-5, local=0.01, clients=shuffling._TABLED + more)
        for more in (1, 2)
    )
    assert within * 0.99 < beyond <= within


def test_a_random_batch_averages_over_its_size() -> None:
    for epsilon in (0.05, 0.2, 0.5):
        averaged = sum(
            stats.binom.pmf(n, 60, 0.3) * shuffling.find_shuffled_delta(epsilon, local=1.0, clients=n + 1) for n in range(61)
        )  # fmt: skip
        assert shuffling.find_shuffled_delta(
            epsilon, local=1.0, clients=61, share=0.3
        ) == pytest.approx(averaged, rel=1e-9)


def test_gaussian_rounds_are_bounded_between_the_mean_and_the_upload() -> None:
    """The mean is computed from the shuffled uploads, so no bound may promise less than it shows (docs/theory.md#b7)."""
    protocol = plan(Gaussian(sigma=1.0), clients=100_000, rounds=10)
    promised = certify(protocol).epsilon(1e-6)
    shown = GaussianCurve(mu=math.sqrt(10 / 100_000)).epsilon(1e-6)
    assert shown < promised < 0.25 * certify(replace(protocol, channel="direct")).epsilon(1e-6)
    single = certify(replace(protocol, rounds=1)).epsilon(1e-6)
    assert single < promised < 10 * single


def by_hand(epsilon: float, local: float, mu: float, clients: int, rounds: int) -> float:
    """The other way to many rounds: T composed pure clones, and T times the spill of one round, by a hybrid over the rounds."""
    pure = (
        price_shuffled_round(local=local, clients=clients, interval=1e-3)
        .repeat(rounds)
        .delta(epsilon)
    )
    spill = GaussianCurve(mu=mu).delta(local) * (1 + 2 * (clients - 1) * math.exp(-local))
    return pure + (1 + math.exp(epsilon)) * rounds * spill


@pytest.mark.parametrize("rounds", [1, 5, 20])
def test_many_rounds_are_no_worse_than_a_hybrid_over_the_rounds_and_not_too_good(
    rounds: int,
) -> None:
    promised = certify(
        plan(Gaussian(sigma=1.0), clients=100_000, rounds=rounds), delta=1e-6
    ).epsilon(1e-6)
    locals_ = np.linspace(5.5, 8, 11).tolist()
    assert min(by_hand(1.02 * promised, local, 1.0, 100_000, rounds) for local in locals_) >= 0.2e-6
    assert min(by_hand(4 * promised, local, 1.0, 100_000, rounds) for local in locals_) <= 1e-5


def test_a_curve_falls_and_its_epsilon_and_delta_agree() -> None:
    curve = certify(plan(Gaussian(sigma=1.0), clients=100_000, rounds=3), delta=1e-6).curve
    deltas = curve.deltas(np.linspace(0, 40, 500))
    assert (np.diff(deltas) <= 1e-15).all()
    for delta in (1e-3, 1e-6, 1e-8):
        epsilon = curve.epsilon(delta)
        assert (
            curve.delta(epsilon) <= delta * (1 + 1e-9) < curve.delta(epsilon * 0.999) * (1 + 2e-9)
        )
    assert curve.repeat(2).epsilon(1e-6) == pytest.approx(
        certify(plan(Gaussian(sigma=1.0), clients=100_000, rounds=6)).epsilon(1e-6), rel=0.01
    )


def test_colluders_are_no_cover_and_every_round_is_priced_as_the_dearest() -> None:
    protocol = plan(Laplace(scale=1.0), clients=300)
    fewer = certify(replace(protocol, clients=200)).delta(0.3)
    (bound,) = bound_clones(_question(protocol, "coalition:100"))
    assert bound.curve.delta(0.3) == pytest.approx(fewer, rel=1e-6)
    fixed = replace(protocol, participation=FixedSize(size=150))
    (bound,) = bound_clones(_question(fixed, "coalition:100"))
    (alone,) = bound_clones(_question(replace(protocol, clients=50)))
    assert bound.curve.delta(0.3) == pytest.approx(0.5 * alone.curve.delta(0.3), rel=1e-3)
    falling = replace(
        protocol, rounds=4, local=replace(protocol.local, schedule=StageWise(rate=1.0))
    )
    (dearest,) = bound_clones(_question(replace(protocol, rounds=4)))
    assert bound_clones(_question(falling))[0].curve.delta(0.5) == dearest.curve.delta(0.5)


def test_realised_batches_count_the_smallest() -> None:
    protocol = plan(Laplace(scale=1.0), clients=600, participation=Poisson(rate=0.5))
    opened = Opened(protocol="x", generator="y", noise="seeded")
    events = [opened, RoundCharged(round=0, clients=tuple(range(300)))]
    found = certify_clients(protocol, events, View.SERVER, "client", delta=1e-6)
    assert found[0].epsilon(1e-6) == pytest.approx(
        certify(replace(protocol, clients=300, participation=Everyone())).epsilon(1e-6)
    )
    assert found[400].epsilon(1e-6) == 0


@pytest.mark.parametrize("noise", [Gaussian(sigma=1.0), Staircase(step=0.5, width=1.0)])
def test_what_a_shuffler_cannot_hide_is_refused(noise: object) -> None:
    for changes in (
        {"client": (ClientBudget(id=0, epsilon=1.0),)},
        {"aggregation": Mean(weights="records")},
    ):
        with pytest.raises(InvalidValue, match=r"federation.channel = 'shuffler'"):
            plan(noise, model=Model(name="mlp", parameters=3), **changes)
    with pytest.raises(InvalidValue, match="noise at the client"):
        plan(Gaussian(sigma=1.0, where="server"))


@pytest.mark.parametrize("sigma", [0.5, 0.1, 0.02, 1e-3, 1e-5])
def test_weak_noise_behind_a_shuffler_is_no_promise(sigma: float) -> None:
    """Who sees the multiset sees its mean: one client's move over the noise of all of them, by hand, is a lower bound."""
    protocol = plan(Gaussian(sigma=sigma), clients=10)
    mean = GaussianCurve(mu=1.0 / sigma / math.sqrt(10))
    for delta in (1e-3, 1e-6):
        assert certify(protocol, "server", "client", delta=delta).epsilon(delta) >= mean.epsilon(
            delta
        ) * (1 - 1e-9)


def test_chords_of_a_curve_are_those_of_exact_arithmetic_however_far_it_reaches() -> None:
    ends = np.array([0.0, 3.0, 700.0, 1500.0, 9000.0])
    heights = np.array([1.0, 0.9, 0.5, 0.2, 1e-9])
    profile = convex_profile(ends, heights)
    with mpmath.workdps(5000):
        for wanted in (0.0, 1.0, 2.9, 50.0, 699.5, 700.0, 1400.0, 1499.9, 8000.0, 8999.0, 9000.0):
            right = max(1, int(np.searchsorted(ends, wanted)))
            low, high = mpmath.e ** mpmath.mpf(ends[right - 1]), mpmath.e ** mpmath.mpf(ends[right])
            share = (mpmath.e ** mpmath.mpf(wanted) - low) / (high - low)
            exact = heights[right - 1] + (heights[right] - heights[right - 1]) * float(share)
            assert float(profile(np.array([wanted]))[0]) == pytest.approx(exact, rel=1e-9)


def test_noise_beyond_all_measure_has_no_price_and_no_traceback() -> None:
    rule = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
    plan = Protocol(
        clients=20, rounds=50, local=rule, noise=Gaussian(sigma=1e60), channel="shuffler"
    )
    assert certify(plan).epsilon(1e-5) < 1e-12
