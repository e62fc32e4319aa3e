"""Laplace, staircase, subsampling and shuffling against integration, enumeration and other libraries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from sordino.mechanisms.laplace_noise import laplace_divergence, laplace_divergence_l2
from sordino.mechanisms.staircase_density import StaircaseDensity
from sordino.papers import udp_fl
from sordino.privacy.amplification import shuffling, subsampling
from sordino.privacy.curves import gaussian, renyi
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.renyi import RenyiCurve
from sordino.protocol.errors import UserError
from tests.oracles import amplification, convergent_dp
from tests.oracles.clones import clones_rdp
from tests.oracles.shuffled_rounds import price_shuffled_round

LogDensity = Callable[[float], float]


def integrated(order: float, first: LogDensity, second: LogDensity, cuts: Iterable[float]) -> float:
    """Rényi divergence of two densities, given as logarithms, by quadrature between break points."""

    def value(x: float) -> float:
        p, q = first(x), second(x)
        return math.exp(p) * (p - q) if order == 1 else math.exp(order * p + (1 - order) * q)

    total = sum(
        integrate.quad(value, low, high, limit=300)[0]
        for low, high in itertools.pairwise(sorted(set(cuts)))
    )
    return total if order == 1 else math.log(total) / (order - 1)


def normal(x: float) -> float:
    return -x * x / 2 - math.log(2 * math.pi) / 2


@pytest.mark.parametrize("order", [1, 1.2, 2, 5.5, 20])
@pytest.mark.parametrize(("shift", "scale"), [(1.0, 1.0), (0.3, 2.0), (4.0, 1.5)])
def test_laplace_divergence_by_quadrature(order: float, shift: float, scale: float) -> None:
    def log_density(x: float) -> float:
        return -abs(x) / scale - math.log(2 * scale)

    exact = integrated(
        order, log_density, lambda x: log_density(x - shift), [-60 * scale, 0.0, shift, 60 * scale]
    )
    assert laplace_divergence(order, shift, scale) == pytest.approx(exact, rel=1e-7)


def test_laplace_divergence_of_small_shifts_loses_no_digits() -> None:
    for x in (1e-3, 1e-6, 1e-12, 1e-150):
        assert laplace_divergence(3.0, x, 1.0) == pytest.approx(3 / 2 * x * x, rel=2e-3)
    assert laplace_divergence_l2(3.0, 1.0, 1.0, 10**12) == pytest.approx(1.5, rel=1e-5)
    assert laplace_divergence(math.inf, 2.0, 4.0) == 0.5
    assert laplace_divergence(1e9, 1.0, 1.0) == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    order=st.floats(1.1, 40),
    raw=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_no_shift_vector_exceeds_the_even_spread(order: float, raw: list[float], seed: int) -> None:
    vector = np.array(raw) + 1e-6
    vector /= np.linalg.norm(vector)
    noise = StaircaseDensity(step=1.3, width=1.0, nu=0.1 + 0.8 * seed / 99)
    for one, bound in (
        (
            lambda s: laplace_divergence(order, s, 0.7),
            laplace_divergence_l2(order, 1.0, 0.7, len(raw)),
        ),
        (lambda s: noise.divergence(order, s), noise.divergence_l2(order, 1.0, len(raw))),
    ):
        assert sum(one(float(s)) for s in vector) <= bound * (1 + 1e-9)
    simplex = vector / vector.sum()
    assert sum(noise.divergence(order, float(s)) for s in simplex) <= noise.divergence_l1(
        order, 1.0, len(raw)
    ) * (1 + 1e-9)


def staircase_density(noise: StaircaseDensity) -> LogDensity:
    def log_density(x: float) -> float:
        return math.log(noise.height) - noise.step * sum(
            1 for k in range(70) if (k + noise.nu) * noise.width <= abs(x)
        )

    return log_density


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise",
    [StaircaseDensity(step=1.0, width=1.0, nu=0.3), StaircaseDensity(step=0.7, width=0.5, nu=0.8)],
)
def test_staircase_against_its_density(noise: StaircaseDensity) -> None:
    density = staircase_density(noise)
    edges = [sign * (k + noise.nu) * noise.width for k in range(-90, 90) for sign in (1, -1)]
    reach = 60 * noise.width
    for shift in (0.1, 0.35, 0.49, 1.3):
        points = [*edges, *(edge + shift for edge in edges), 0.0, shift]
        for order in (1, 2.5):
            cuts = [-reach, reach, *(point for point in points if -reach < point < reach)]
            exact = integrated(order, density, lambda x, shift=shift: density(x - shift), cuts)
            assert noise.divergence(order, shift) == pytest.approx(exact, rel=1e-6)
    cuts = sorted({0.0, reach, *(edge for edge in edges if 0 < edge < reach)})
    for power, moment in zip((1, 2), noise.moments(), strict=True):
        pieces = [
            integrate.quad(lambda x, p=power: x**p * math.exp(density(x)), low, high)[0]
            for low, high in itertools.pairwise(cuts)
        ]
        assert moment == pytest.approx(2 * sum(pieces), rel=1e-6)


def test_the_exact_staircase_lies_below_its_renyi_bound_and_far_above_the_published_claim() -> None:
    noise = StaircaseDensity.usual(step=1.0, width=1.0)
    for dimension in (1, 10, 1000):
        exact = noise.epsilon_at_least(1e-5, clip=1.0, dimension=dimension)
        assert exact <= RenyiCurve.from_divergence(
            lambda order, d=dimension: noise.divergence_l2(order, 1.0, d)
        ).epsilon(1e-5)
    assert noise.epsilon_at_least(1e-5, clip=1.0, dimension=1000) > 40


def test_staircase_losses_by_enumeration() -> None:
    noise = StaircaseDensity(step=0.8, width=1.0, nu=0.4)
    up = noise.jump_probability(1.0 / math.sqrt(3))
    values = {1: up, -1: up * math.exp(-noise.step), 0: 1 - up - up * math.exp(-noise.step)}
    epsilon = noise.epsilon_at_least(1e-2, clip=1.0, dimension=3)
    delta = 0.0
    for losses in itertools.product(values, repeat=3):
        mass = math.prod(values[loss] for loss in losses)
        delta += mass * max(0.0, -math.expm1(epsilon - noise.step * sum(losses)))
    assert delta == pytest.approx(1e-2, rel=1e-9)


@pytest.mark.parametrize("clip", [1.2, -1.0, math.nan])
def test_a_staircase_narrower_than_the_clip_is_refused(clip: float) -> None:
    with pytest.raises(UserError):
        StaircaseDensity(step=1.0, width=1.0, nu=0.3).divergence_l2(2.0, clip, 10)


@pytest.mark.parametrize("mu", [0.5, 1.5])
@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("order", [2, 5])
def test_subsampled_divergence_by_quadrature(mu: float, rate: float, order: int) -> None:
    def mixed(x: float) -> float:
        return float(np.logaddexp(math.log1p(-rate) + normal(x), math.log(rate) + normal(x - mu)))

    cuts = [-20.0, 0.0, mu, order * mu, 20 + order * mu]
    found = renyi.amplify_divergence(order, rate, lambda order: gaussian.rdp(mu, order))
    assert found == pytest.approx(integrated(order, mixed, normal, cuts), rel=1e-6)
    assert integrated(order, normal, mixed, cuts) <= found * (1 + 1e-9)
    assert found <= amplification.zhu_wang(order, rate, lambda order: gaussian.rdp(mu, order)) * (
        1 + 1e-12
    )


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.02), (2.0, 0.3), (0.3, 0.9)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_one_subsampled_step_by_quadrature(mu: float, rate: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return (1 - rate - math.exp(epsilon)) * stats.norm.pdf(x) + rate * stats.norm.pdf(x - mu)

    crossing = (math.log((math.expm1(epsilon) + rate) / rate) + mu * mu / 2) / mu
    exact = integrate.quad(excess, crossing, crossing + 15 + mu, limit=400, epsabs=1e-14)[0]
    assert subsampling.find_sampled_deltas(np.array([epsilon]), mu=mu, rate=rate)[
        0
    ] == pytest.approx(exact, rel=1e-6)


def test_subsampling_lies_between_poisson_sampling_and_no_sampling() -> None:
    for delta in (1e-8, 1e-4):
        without = GaussianCurve(mu=1.0).repeat(200).epsilon(delta)
        fixed = subsampling.compose_fixed_batches(mu=1.0, rate=0.05, steps=200).epsilon(delta)
        one_sided = subsampling.compose_poisson_batches(
            multiplier=1.0, rate=0.05, steps=200
        ).epsilon(delta)
        assert one_sided < fixed < without
    assert subsampling.compose_fixed_batches(mu=1.0, rate=1.0, steps=9).mu == 3
    assert subsampling.compose_fixed_batches(mu=1.0, rate=0.0, steps=9).mu == 0


def test_few_steps_cost_more_than_the_central_limit_says() -> None:
    from sordino.papers.prifedsync import theorem_2_limit

    limit = theorem_2_limit(batch=1, records=100, steps=100, rounds=1, sigma=0.6)
    certified = subsampling.compose_fixed_batches(mu=1 / 0.6, rate=0.01, steps=100).epsilon(1e-5)
    assert certified == pytest.approx(3.921, abs=1e-3)
    assert gaussian.epsilon(limit, 1e-5) == pytest.approx(2.173, abs=1e-3)


def test_poisson_sampling_agrees_with_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(
        0.9, sampling_prob=0.03, value_discretization_interval=1e-3
    ).self_compose(300)
    ours = subsampling.compose_poisson_batches(multiplier=0.9, rate=0.03, steps=300, interval=1e-3)
    for delta in (1e-7, 1e-3):
        assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), abs=1e-6)


def test_participation_of_a_subsampling_client_is_a_visible_coin() -> None:
    one = subsampling.compose_fixed_batches(mu=1.0, rate=0.1, steps=5)
    mixed = subsampling.compose_fixed_rounds(mu=1.0, rate=0.1, steps=5, rounds=1, probability=0.3)
    for epsilon in (0.1, 1.0):
        assert mixed.delta(epsilon) == pytest.approx(0.3 * one.delta(epsilon), rel=1e-6)
    whole = subsampling.compose_fixed_rounds(mu=1.0, rate=1.0, steps=4, rounds=1, probability=0.3)
    assert whole.delta(1.0) == pytest.approx(0.3 * gaussian.delta(2.0, 1.0), rel=1e-9)


def cloned(local: float, clients: int) -> dict[tuple[int, int], tuple[float, float]]:
    """The two laws of the clones argument, drawn out coin by coin."""
    laws: dict[tuple[int, int], list[float]] = {}
    clone, keep = math.exp(-local), math.exp(local) / (1 + math.exp(local))
    for kinds in itertools.product(("none", "zero", "one"), repeat=clients - 1):
        mass = math.prod(1 - clone if kind == "none" else clone / 2 for kind in kinds)
        zeros, ones = kinds.count("zero"), kinds.count("one")
        for answer, first, second in ((0, keep, 1 - keep), (1, 1 - keep, keep)):
            entry = laws.setdefault((zeros + (answer == 0), ones + (answer == 1)), [0.0, 0.0])
            entry[0] += mass * first
            entry[1] += mass * second
    return {seen: (first, second) for seen, (first, second) in laws.items()}


@pytest.mark.parametrize("local", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("clients", [1, 2, 6])
def test_clones_by_enumeration(local: float, clients: int) -> None:
    laws = cloned(local, clients).values()
    for epsilon in (0.0, 0.2, 0.9 * local):
        exact = sum(max(0.0, p - math.exp(epsilon) * q) for p, q in laws)
        found = shuffling.find_shuffled_delta(epsilon, local=local, clients=clients)
        assert exact * (1 - 1e-12) <= found == pytest.approx(exact, rel=1e-9, abs=1e-15)
    for order in (1.5, 2, 9):
        exact = math.log(sum(p**order * q ** (1 - order) for p, q in laws)) / (order - 1)
        assert clones_rdp(order, local=local, clients=clients) == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_clones_at_an_order_where_rare_cohorts_decide() -> None:
    """Summed in logarithms over every number of clones: no window, no allowance."""
    order, local, clients = 64, 2.0, 1000
    keep, logs = 1 / (1 + math.exp(-local)), []
    for count in range(clients):
        seen = np.arange(count + 2)
        first = keep * stats.binom.pmf(seen - 1, count, 0.5) + (1 - keep) * stats.binom.pmf(
            seen, count, 0.5
        )
        second = (1 - keep) * stats.binom.pmf(seen - 1, count, 0.5) + keep * stats.binom.pmf(
            seen, count, 0.5
        )
        inside = (first > 0) & (second > 0)
        moment = order * np.log(first[inside]) + (1 - order) * np.log(second[inside])
        logs.append(
            stats.binom.logpmf(count, clients - 1, math.exp(-local)) + np.logaddexp.reduce(moment)
        )
    exact = float(np.logaddexp.reduce(logs)) / (order - 1)
    assert clones_rdp(order, local=local, clients=clients) == pytest.approx(exact, rel=1e-8)


def test_shuffling_is_sandwiched() -> None:
    for local, clients in ((1.0, 1000), (0.5, 200)):
        found = shuffling.find_shuffled_epsilon(1e-6, local=local, clients=clients)
        assert shuffling.find_shuffled_delta(found, local=local, clients=clients) <= 1e-6
        assert found <= amplification.clones_closed_form(delta=1e-6, local=local, clients=clients)
        for order in (2, 16):
            exact = udp_fl.shuffled_randomized_response(order=order, local=local, clients=clients)
            assert exact <= clones_rdp(order, local=local, clients=clients) <= local
    assert shuffling.find_shuffled_delta(1.0, local=1.0, clients=10) == 0
    assert shuffling.find_shuffled_epsilon(0.9, local=1.0, clients=10) == 0


def test_shuffled_rounds_compose() -> None:
    one = price_shuffled_round(local=1.0, clients=500, interval=1e-3)
    assert one.epsilon(1e-6) == pytest.approx(
        shuffling.find_shuffled_epsilon(1e-6, local=1.0, clients=500), rel=1e-2
    )
    assert one.epsilon(1e-6) >= shuffling.find_shuffled_epsilon(1e-6, local=1.0, clients=500)
    by_renyi = renyi.RenyiCurve.from_divergence(
        lambda order: clones_rdp(order, local=1.0, clients=500), orders=(2, 4, 8, 16, 32)
    ).repeat(30)
    assert one.repeat(30).epsilon(1e-6) < by_renyi.epsilon(1e-6)


def test_published_bounds_that_the_exact_values_refute() -> None:
    from sordino.papers import convergent, prifedsync

    common = {"rounds": 100, "steps": 5, "rate": 0.1, "clip": 1.0, "clients": 50, "sigma": 1.0}
    assert convergent.theorem_3a(**common, smoothness=1.0) < convergent_dp.linear_fedavg_mu(
        **common
    )
    prox = {"rounds": 1000, "clip": 1.0, "proximal": 1.0, "clients": 50, "sigma": 1.0}
    assert convergent.theorem_4(**prox, smoothness=0.5) < convergent_dp.linear_fedprox_mu(
        **prox, steps=20, rate=0.5
    )
    assert udp_fl.lemma_2(order=64, gamma=2.0, clients=1000) < udp_fl.shuffled_randomized_response(
        order=64, local=2.0, clients=1000
    )
    assert prifedsync.theorem_1_total_variation(
        probability=0.5, rounds=2
    ) < prifedsync.reach_probability(probability=0.5, rounds=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: laplace_divergence(0.5, 1.0, 1.0),
        lambda: laplace_divergence(2.0, -1.0, 1.0),
        lambda: StaircaseDensity(step=0.0, width=1.0, nu=0.3),
        lambda: StaircaseDensity(step=1.0, width=1.0, nu=1.3),
        lambda: subsampling.compose_fixed_batches(mu=1.0, rate=1.1),
        lambda: subsampling.compose_fixed_batches(mu=math.nan, rate=0.1),
        lambda: subsampling.compose_poisson_batches(multiplier=-1.0, rate=0.1),
        lambda: shuffling.find_shuffled_delta(0.1, local=math.inf, clients=5),
        lambda: shuffling.find_shuffled_epsilon(1.0, local=1.0, clients=5),
        lambda: shuffling.find_shuffled_delta(0.1, local=1.0, clients=0),
        lambda: renyi.convert_to_epsilon(1.0, 0.1, 1e-5),
        lambda: renyi.amplify_divergence(1, 0.1, lambda order: order),
    ],
)
def test_nonsense_is_refused(call: object) -> None:
    with pytest.raises(UserError):
        call()  # type: ignore[operator]
