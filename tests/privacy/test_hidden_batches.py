"""Secret minibatches (docs/theory.md#a14), against laws that are known exactly, and against every other bound."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sordino import certify
from sordino.privacy.amplification.cohorts import Cohort, first_use, rounds_curve
from sordino.privacy.amplification.hidden_batches import hidden_curve
from sordino.privacy.amplification.loss_grids import split_over_nodes
from sordino.privacy.amplification.subsampling import compose_fixed_batches
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.spending import certify_clients, find_affordable_rounds
from sordino.protocol import (
    Assumptions,
    Bezier,
    Budget,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Interpolate,
    Mean,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    StageWise,
)

ALONE = Cohort.everyone(clients=1)


def profile(p: np.ndarray, q: np.ndarray, grid: np.ndarray, epsilon: float) -> float:
    """The hockey stick of two densities on a grid."""
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), grid))


@given(
    batch=st.integers(1, 3),
    records=st.integers(4, 12),
    steps=st.integers(1, 3),
    move=st.floats(0.2, 3.0),
    fall=st.floats(0.3, 1.0),
    pulls=st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_no_round_with_unseen_batches_is_worse(batch, records, steps, move, fall, pulls) -> None:
    """Clipped steps of any kind in one dimension: given which steps draw the record, an upload is normal around a sum of steps. Until
    the first draw steps agree; from then on anything within the clip may follow, which here a random table of pulls decides."""
    rates = move * fall ** np.arange(steps)
    grid = np.linspace(-4 * move * steps - 9, 4 * move * steps + 9, 6001)
    rate = batch / records
    densities = np.zeros((2, grid.size))
    for drawn in itertools.product((0, 1), repeat=steps):
        chance = math.prod(rate if hit else 1 - rate for hit in drawn)
        for side in (0, 1):
            used, mean = False, 0.0
            for k, hit in enumerate(drawn):
                used = used or bool(hit)
                sign = 1.0 if side else -1.0
                mean += rates[k] / 2 * (sign if used else pulls[k])
            densities[side] += chance * norm.pdf(grid, mean)
    shifts = np.cumsum(rates[::-1])[::-1][None, :]
    use = first_use(batch=batch, records=records, steps=steps)
    curve = hidden_curve(shifts, np.ones(1), sigma=1.0, cohort=ALONE, use=use)
    for epsilon in (0.0, 0.05, 0.3, 1.0, 2.5):
        for p, q in (densities, densities[::-1]):
            assert curve.delta(epsilon) >= profile(p, q, grid, epsilon) - 1e-9


@pytest.mark.parametrize(
    ("mu", "rate", "rounds"),
    [(1.0, 32 / 600, 600), (0.3, 1 / 500, 40), (4.0, 0.3, 3), (2.0, 0.01, 1), (0.5, 0.5, 10_000)],
)
def test_one_step_is_subsampling_without_replacement(mu, rate, rounds) -> None:
    curve = hidden_curve(
        np.array([[mu]]), np.array([rounds]), sigma=1.0, cohort=ALONE, use=np.array([rate])
    )
    interval = 5e-6 if rate < 0.005 else 1e-4
    exact = compose_fixed_batches(mu=mu, rate=rate, steps=rounds, interval=interval)
    for delta in (1e-3, 1e-5, 1e-8):
        assert curve.epsilon(delta) == pytest.approx(exact.epsilon(delta), rel=3e-3, abs=1e-6)


def test_one_round_is_the_theorem_itself() -> None:
    shifts, use = np.array([[1.5, 1.0, 0.4]]), np.array([0.1, 0.09, 0.081])
    curve = hidden_curve(shifts, np.ones(1), sigma=1.0, cohort=ALONE, use=use)
    for epsilon in (0.0, 0.1, 0.7, 2.0, 4.0):
        apart = math.log1p(math.expm1(epsilon) / use.sum())
        parts = [GaussianCurve(mu=mu).delta(apart) for mu in shifts[0]]
        expected = float(np.dot(use, parts))
        assert expected <= curve.delta(epsilon) <= expected * 1.01 + 1e-12


@pytest.mark.parametrize("falling", [lambda t: 1 / (t + 1), lambda t: 0.97**t, lambda t: 1 + t % 3])
def test_rounds_that_differ_are_added_up_as_loss_distributions_are(falling) -> None:
    rounds = 40
    use = first_use(batch=3, records=20, steps=2)
    shifts = np.array([[falling(t) * 1.2, falling(t) * 0.5] for t in range(rounds)])
    curve = hidden_curve(shifts, np.ones(rounds), sigma=2.0, cohort=ALONE, use=use)
    total = None
    for row in shifts:

        def deltas(epsilons: np.ndarray, row=row) -> np.ndarray:
            apart = np.log1p(np.expm1(epsilons) / use.sum())
            parts = [
                norm.cdf(-apart / mu + mu / 2) - np.exp(apart) * norm.cdf(-apart / mu - mu / 2)
                for mu in row / 2.0
            ]
            return np.maximum(np.tensordot(use, parts, axes=1), 0.0)

        one = LossCurve.from_profile(deltas, interval=1e-3)
        total = one if total is None else total.compose(one)
    for delta in (1e-3, 1e-5, 1e-7):
        assert curve.epsilon(delta) == pytest.approx(total.epsilon(delta), rel=5e-3)


@pytest.mark.slow
@given(
    st.lists(st.floats(0.0, 5.0), min_size=200, max_size=400),
    st.floats(0.0, 4.0),
)
@settings(max_examples=40, deadline=None)
def test_split_values_of_mu_never_promise_more(values, epsilon) -> None:
    mus = np.array([values]) + 1e-3
    masses = np.full(mus.shape[1], 1 / mus.shape[1])
    nodes, weights = split_over_nodes(mus, masses, np.ones(1))
    assert weights.sum() == pytest.approx(1.0)
    exact = np.mean([GaussianCurve(mu=mu).delta(epsilon) for mu in mus[0]])
    split = weights[0] @ np.array([GaussianCurve(mu=mu).delta(epsilon) for mu in nodes])
    assert split >= exact * (1 - 1e-9)
    assert split <= exact * 1.02 + 1e-6


RULES = st.sampled_from([FedAvg, FedProx, Scaffold, Bezier])
SCHEDULES = st.sampled_from([Constant, Cyclic, StageWise, Continuous])
PARTICIPATIONS = st.one_of(
    st.just(Everyone()),
    st.floats(0.05, 0.95).map(lambda rate: Poisson(rate=rate)),
    st.integers(1, 6).map(lambda size: FixedSize(size=size)),
)


@st.composite
def protocols(draw) -> Protocol:
    kind = draw(RULES)
    more = {"proximal": draw(st.sampled_from([0.0, 0.3, 3.0]))} if kind is FedProx else {}
    records = draw(st.integers(2, 60))
    rate = draw(st.floats(0.01, 0.5))
    bezier = kind is Bezier  # whose steps are 1/L
    rule = kind(
        steps=draw(st.integers(1, 6)),
        batch=draw(st.integers(1, records)),
        clip=draw(st.floats(0.1, 2.0)),
        schedule=Constant(rate=rate) if bezier else draw(SCHEDULES)(rate=rate),
        clip_target=draw(st.sampled_from(["step", "update"])),
        **more,
    )
    return Protocol(
        clients=6,
        rounds=draw(st.sampled_from([1, 3, 40])),
        local=rule,
        noise=Gaussian(sigma=draw(st.floats(0.05, 3.0))),
        participation=draw(PARTICIPATIONS),
        data=Data(name="digits", records=records),
        assumptions=Assumptions(smoothness=1 / rate if bezier else None),
    )


VIEWS = ("server", "rounds", "coalition:2", "final")


@pytest.mark.slow
@given(protocols(), st.sampled_from(VIEWS), st.floats(1e-8, 1e-2))
@settings(max_examples=80, deadline=None)
def test_never_more_is_promised_away_than_where_batches_are_known(protocol, view, delta) -> None:
    known = replace(protocol, local=replace(protocol.local, minibatches="public"))
    secret = certify(protocol, view, delta=delta).epsilon(delta)
    assert secret <= certify(known, view, delta=delta).epsilon(delta) * (1 + 1e-9)


@given(protocols(), st.sampled_from(VIEWS), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_no_test_on_simulated_rounds_passes_the_bound(protocol, view, seed) -> None:
    """The likelihood ratio of linear losses, by who does not know the batches, over simulated rounds: a lower limit at 99.99 %."""
    protocol = replace(protocol, rounds=min(protocol.rounds, 3))
    assume(not isinstance(protocol.local, (Bezier, Scaffold)) and view != "coalition:2")
    guarantee = certify(protocol, view)
    generator, many = np.random.default_rng(seed), 4000
    rule, m = protocol.local, protocol.clients
    rate = rule.batch / protocol.data.records
    taking = protocol.participation
    scores = [np.zeros(many), np.zeros(many)]
    for t in range(protocol.rounds):
        rates = np.array(rule.schedule.rates(round=t, steps=rule.steps))
        alpha = getattr(rule, "proximal", 0.0)
        left = np.cumprod(np.append(1.0, np.abs(1 - rates * alpha)[:0:-1]))[::-1]
        steps = 2 * rule.clip * rates * left
        patterns = np.array(list(itertools.product((0, 1), repeat=rule.steps)))
        chances = np.prod(np.where(patterns == 1, rate, 1 - rate), axis=1)
        moves = patterns @ steps
        if rule.clip_target == "update":
            moves = 2 * rule.clip * patterns.max(axis=1)
        if isinstance(taking, Everyone):
            chance, others = 1.0, np.full(many, m)
        elif isinstance(taking, Poisson):
            chance, others = taking.rate, 1 + generator.binomial(m - 1, taking.rate, size=many)
        else:
            chance, others = taking.size / m, np.full(many, taking.size)
        hidden_by = 1 if view == "server" else others
        noise = protocol.noise.sigma * np.sqrt(hidden_by) * np.ones(many)
        for side in (0, 1):
            here = generator.random(many) < chance
            drawn = generator.choice(len(moves), size=many, p=chances)
            seen = noise * generator.standard_normal(many) + (moves[drawn] if side else 0.0)
            ratio = np.stack(
                [
                    np.log(chances[k] + 1e-300) + (seen * move - move**2 / 2) / noise**2
                    for k, move in enumerate(moves)
                ]
            )
            scores[side] += np.where(here, np.logaddexp.reduce(ratio, axis=0), 0.0)
    slack = 4.2 * math.sqrt(0.5 / many)  # a test fixed beforehand, each rate within 99.99 %
    for threshold in (0.0, 0.5, 2.0):
        alarms, found = (float((score > threshold).mean()) for score in scores)
        for p, q in ((found, alarms), (1 - alarms, 1 - found)):
            for epsilon in (0.0, 0.5, 1.5):
                lower = p - slack - math.exp(epsilon) * (q + slack)
                assert lower <= guarantee.delta(epsilon)


def test_a_record_is_not_hidden_by_draws_that_are_public_or_left_behind_in_a_client() -> None:
    rule = FedAvg(steps=2, batch=1, clip=1.0, schedule=Constant(rate=0.1))
    data = Data(name="digits", records=50)
    protocol = Protocol(clients=4, rounds=5, local=rule, noise=Gaussian(sigma=1.0), data=data)
    assert certify(protocol).method == "secret batches"
    public = replace(protocol, local=replace(rule, minibatches="public"))
    assert certify(public).method == "first-hit mixture"
    carried = replace(protocol, personalization=Interpolate(alpha=0.5))
    assert certify(carried).method == "composition"
    assert certify(protocol, unit="client").method == "composition"


def test_steps_on_batches_that_are_known_are_not_amplified() -> None:
    rule = NoisySgd(steps=4, batch=8, clip=1.0, schedule=Constant(rate=0.1))
    data = Data(name="digits", records=80)
    secret = Protocol(clients=4, rounds=5, local=rule, noise=Gaussian(multiplier=1.0), data=data)
    public = replace(secret, local=replace(rule, minibatches="public"))
    assert certify(secret).method == "subsampled steps"
    known = certify(public)
    assert known.method == "known batches"
    hits = np.arange(21)
    chances = [math.comb(20, h) * 0.1**h * 0.9 ** (20 - h) for h in hits]
    expected = sum(
        chance * GaussianCurve(mu=math.sqrt(h)).delta(1.0)
        for h, chance in zip(hits.tolist(), chances, strict=True)
        if h > 0
    )
    assert known.delta(1.0) == pytest.approx(expected, rel=1e-6)


def test_budgets_and_what_was_realised_count_the_secret_draw() -> None:
    rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    protocol = Protocol(
        clients=10,
        rounds=50,
        local=rule,
        noise=Gaussian(sigma=0.3),
        participation=Poisson(rate=0.5),
        data=Data(name="digits", records=40),
    )
    public = replace(protocol, local=replace(rule, minibatches="public"))
    budget = Budget(epsilon=2.0)
    assert (
        find_affordable_rounds(protocol, budget).rounds
        > find_affordable_rounds(public, budget).rounds
    )
    events = [Opened(protocol="x", generator="y", noise="seeded")]
    events += [RoundCharged(round=t, clients=(0, 1, 2 + t % 5)) for t in range(20)]
    for view in ("server", "rounds"):
        secret = certify_clients(protocol, events, view)[0]
        assert secret.method == "secret batches"
        assert secret.epsilon(1e-5) < certify_clients(public, events, view)[0].epsilon(1e-5)
        count = 1 if view == "server" else 3
        exact = compose_fixed_batches(mu=0.2 / 0.3 / math.sqrt(count), rate=0.1, steps=20)
        assert secret.epsilon(1e-5) == pytest.approx(exact.epsilon(1e-5), rel=3e-3)
    central = replace(
        protocol, noise=Gaussian(sigma=0.05, where="server"), aggregation=Mean(weights="equal")
    )
    assert certify_clients(central, events, "rounds")[0].method == "secret batches"


def test_a_draw_of_clients_is_mixed_in() -> None:
    shifts, use = np.array([[0.8]]), np.array([0.2])
    cohort = Cohort.poisson(clients=8, rate=0.3)
    curve = hidden_curve(shifts, np.ones(1), sigma=1.0, cohort=cohort, use=use)
    for epsilon in (0.0, 0.2, 1.0):
        apart = math.log1p(math.expm1(epsilon) / 0.2)
        parts = [
            mass * GaussianCurve(mu=0.8 / math.sqrt(count)).delta(apart)
            for count, mass in zip(cohort.counts, cohort.masses, strict=True)
        ]
        expected = 0.3 * 0.2 * sum(parts)
        assert expected <= curve.delta(epsilon) <= expected * 1.01 + 1e-12


def test_weak_noise_is_left_to_other_bounds() -> None:
    shifts, use = np.array([[100.0]]), np.array([0.2])
    assert hidden_curve(shifts, np.ones(1), sigma=1.0, cohort=ALONE, use=use) is None
    assert hidden_curve(shifts, np.ones(1), sigma=0.0, cohort=ALONE, use=use) is None
    assert hidden_curve(0 * shifts, np.ones(1), sigma=1.0, cohort=ALONE, use=use).mu == 0


def test_divergences_are_finite_and_below_those_of_known_batches() -> None:
    shifts, use = np.array([[1.0, 0.5]]), first_use(batch=2, records=40, steps=2)
    curve = hidden_curve(shifts, np.array([100]), sigma=1.0, cohort=ALONE, use=use)
    known = rounds_curve(shifts, np.array([100]), sigma=1.0, cohort=ALONE, use=use)
    for order in (1.0, 1.5, 2.0, 8.0, 32.0):
        assert 0 < curve.rdp(order) <= known.rdp(order)


def test_curves_on_different_grids_compose() -> None:
    """Two runs side by side: each has a grid of its own, and mass at infinity."""
    use = np.array([0.1])
    parts = [
        hidden_curve(np.array([[mu]]), np.array([200]), sigma=1.0, cohort=ALONE, use=use)
        for mu in (0.5, 1.3)
    ]
    assert parts[0].interval != parts[1].interval
    whole = parts[0].compose(parts[1])
    exact = compose_fixed_batches(mu=0.5, rate=0.1, steps=200).compose(
        compose_fixed_batches(mu=1.3, rate=0.1, steps=200)
    )
    assert whole.epsilon(1e-5) == pytest.approx(exact.epsilon(1e-5), rel=3e-3)


@pytest.mark.parametrize("sigma", [1e-2, 1e-4, 1e-8, 1e-30])
def test_divergences_of_almost_no_noise_are_numbers(sigma: float) -> None:
    rule = FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    protocol = Protocol(
        clients=3,
        rounds=5,
        local=rule,
        noise=Gaussian(sigma=sigma),
        data=Data(name="digits", records=20),
    )
    curve = certify(protocol, "server").curve
    for order in (1.5, 8.0, 512.0):
        assert curve.rdp(order) > 1
