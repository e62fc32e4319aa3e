"""noisy-sgd with one step a round: who sees means sees the sum of all clients' noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sordino.audit.auditing import audit
from sordino.privacy.amplification import subsampling, two_sided
from sordino.privacy.amplification.cohorts import Cohort
from sordino.privacy.bounds.joined_steps import GROUPS, adds_up, group_cohort, make_joined_round
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import Missed, Opened, RoundCharged
from sordino.privacy.spending import certify_clients, certify_run
from sordino.protocol import (
    ClientBudget,
    Constant,
    Data,
    FixedSize,
    Gaussian,
    Interpolate,
    Mean,
    Median,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    UserError,
)

RULE = NoisySgd(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
KINDS = [("fixed", None), ("poisson", None), ("poisson", "replace-one")]


def plan(**changes: object) -> Protocol:
    found = {
        "clients": 16, "rounds": 20, "local": RULE, "noise": Gaussian(multiplier=1.0),
        "data": Data(name="digits", records=40),
    }  # fmt: skip
    return Protocol(**{**found, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("sampling", "adjacency"), KINDS)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_with_everyone_it_is_one_client_with_more_noise(sampling, adjacency, unit) -> None:
    protocol = plan(local=replace(RULE, sampling=sampling), privacy=Privacy(adjacency=adjacency))
    for view, honest in (("rounds", 16), ("final", 16), ("coalition:7", 9), ("strong", 1)):
        loud = replace(protocol, noise=Gaussian(multiplier=math.sqrt(honest)))
        expected = certify(loud, "server", unit)
        found = certify(protocol, view, unit)
        assert found.epsilon(1e-5) == pytest.approx(expected.epsilon(1e-5), rel=2e-3)
        assert found.epsilon(1e-5) <= certify(protocol, "server", unit).epsilon(1e-5) * (1 + 1e-9)


def test_a_draw_of_clients_mixes_over_how_many_are_honest() -> None:
    drawn = plan(participation=FixedSize(size=9))
    loud = replace(drawn, noise=Gaussian(multiplier=3.0))
    assert certify(drawn, "rounds").epsilon(1e-5) == pytest.approx(
        certify(loud, "server").epsilon(1e-5), rel=2e-3
    )
    chance = plan(participation=Poisson(rate=0.5), rounds=1)
    for epsilon in (0.1, 0.5, 1.0):
        exact = 0.0
        for others in range(16):
            mass = stats.binom.pmf(others, 15, 0.5)
            one = subsampling.find_sampled_deltas(
                np.array([epsilon]), mu=1 / math.sqrt(1 + others), rate=0.1
            )
            exact += 0.5 * mass * float(one[0])
        found = certify(chance, "rounds").delta(epsilon)
        assert exact <= found <= 1.001 * exact + 1e-9


def test_many_numbers_of_participants_are_grouped_downwards() -> None:
    cohort = Cohort.poisson(clients=400, rate=0.3)
    few = group_cohort(cohort)
    assert len(few.counts) <= GROUPS
    assert sum(few.masses) == pytest.approx(1.0)
    coarse, fine = (
        sum(mass / count for count, mass in zip(one.counts, one.masses, strict=True))
        for one in (few, cohort)
    )
    assert fine <= coarse <= 1.1 * fine


def test_both_directions_are_mixed_where_a_record_is_added_or_removed() -> None:
    cohort = Cohort(probability=0.5, counts=(1, 4), masses=(0.3, 0.7))
    one = make_joined_round(1.0, 0.2, "poisson-added", cohort, 10)
    for epsilon in (0.1, 0.5):
        ways = []
        for sign in (1, -1):
            total = 0.0
            for count, mass in zip(cohort.counts, cohort.masses, strict=True):
                line = np.linspace(-12, 12, 200_001)
                move = 1 / math.sqrt(count)
                with_it = 0.8 * stats.norm.pdf(line) + 0.2 * stats.norm.pdf(line, move)
                pair = (with_it, stats.norm.pdf(line))[::sign]
                excess = np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0.0)
                total += 0.5 * mass * float(excess.sum() * (line[1] - line[0]))
            ways.append(total)
        assert max(ways) <= one.delta(epsilon) * (1 + 1e-9)
        assert one.delta(epsilon) == pytest.approx(max(ways), rel=5e-3)


def test_it_stands_for_plain_single_steps_and_means_alone() -> None:
    assert adds_up(plan())
    others = (
        {"local": replace(RULE, steps=2)},
        {"local": replace(RULE, optimizer="momentum")},
        {"local": replace(RULE, optimizer="adam")},
        {"aggregation": Median()},
        {"personalization": Interpolate(alpha=0.5)},
        {"client": (ClientBudget(id=0, epsilon=9.0),)},
        {"aggregation": Mean(weights="records"), "participation": Poisson(rate=0.5), "data": None},
    )
    for changes in others:
        protocol = plan(**changes)
        server, rounds = (certify(protocol, view).epsilon(1e-5) for view in ("server", "rounds"))
        assert rounds == pytest.approx(server, rel=1e-9)


def test_what_was_realised_counts_who_was_there() -> None:
    protocol = plan(participation=Poisson(rate=0.5), rounds=3)
    events = [
        Opened(protocol="x", generator="y", noise="seeded"),
        RoundCharged(round=0, clients=(0, 1, 2, 3)),
        RoundCharged(round=1, clients=(0,)),
        RoundCharged(round=2, clients=(1, 2)),
    ]
    found = certify_clients(protocol, events, "rounds")
    mixed = [subsampling.compose_fixed_batches(mu=mu, rate=0.1) for mu in (0.5, 1.0)]
    assert found[0].epsilon(1e-5) == pytest.approx(
        mixed[0].compose(mixed[1]).epsilon(1e-5), rel=5e-3
    )
    alone = certify_clients(protocol, events, "server")
    assert all(found[c].epsilon(1e-5) <= alone[c].epsilon(1e-5) * (1 + 1e-9) for c in range(16))
    worst = certify_clients(protocol, events, "coalition:3")
    assert worst[0].epsilon(1e-5) == pytest.approx(alone[0].epsilon(1e-5), rel=5e-3)


def test_who_fell_silent_hides_nobody() -> None:
    protocol = plan(rounds=1)
    events = [
        Opened(protocol="x", generator="y", noise="seeded"),
        RoundCharged(round=0, clients=tuple(range(16))),
        Missed(round=0, clients=tuple(range(1, 16)), reasons=("it is not connected",) * 15),
    ]
    found = certify_run(protocol, events, "rounds").epsilon(1e-5)
    assert found == pytest.approx(certify(protocol, "server").epsilon(1e-5), rel=5e-3)


@pytest.mark.parametrize(("sampling", "adjacency"), KINDS)
def test_batches_that_adversaries_know_hide_nothing_under_the_others_noise(
    sampling, adjacency
) -> None:
    rule = replace(RULE, sampling=sampling, minibatches="public")
    protocol = plan(local=rule, privacy=Privacy(adjacency=adjacency))
    seen = RoundCharged(round=0, clients=tuple(range(15)))
    one = certify_clients(replace(protocol, rounds=1), [seen], "rounds")[0].curve
    moved = 2.0 if adjacency == "replace-one" and sampling == "poisson" else 1.0
    for curve, mu, rounds in (
        (certify(protocol, "rounds").curve, moved / 4, 20),
        (certify(protocol, "coalition:7").curve, moved / 3, 20),
        (certify(protocol, "strong").curve, moved, 20),
        (one, moved / math.sqrt(15), 1),
    ):
        # Who knows the batches knows the number of those that hold the record.
        held = np.arange(1, rounds + 1)
        mus = mu * np.sqrt(held)
        for epsilon in (0.1, 1.0, 3.0):
            given = stats.norm.cdf(mus / 2 - epsilon / mus)
            given -= math.exp(epsilon) * stats.norm.cdf(-mus / 2 - epsilon / mus)
            exact = float(stats.binom.pmf(held, rounds, 0.1) @ given)
            assert exact * (1 - 1e-9) <= curve.delta(epsilon) <= exact * 1.01 + 1e-12
    server = certify(protocol, "server").epsilon(1e-5)
    assert certify(protocol, "strong").epsilon(1e-5) == pytest.approx(server, rel=2e-3)


@pytest.mark.slow
def test_the_audit_of_means_does_not_pass_the_bound_and_comes_close(tmp_path) -> None:
    protocol = plan(
        clients=4,
        rounds=4,
        seed=3,
        data=Data(name="digits", records=4),
        noise=Gaussian(multiplier=1.5),
    )
    finding = audit(protocol, view="rounds", trainings=4000, folder=tmp_path / "audit", workers=1)
    certified = certify(protocol, "rounds").mu
    assert certified == pytest.approx(math.sqrt(4) / 1.5 / 2)
    assert finding.mu_lower <= certified
    assert finding.mu_lower > 0.8 * certified  # 4,000 trainings show no more: the interval is wide
    with pytest.raises(UserError, match="--view server"):
        audit(
            protocol,
            view="rounds",
            trainings=100,
            folder=tmp_path / "real",
            canary="random",
            data="digits",
            model="logistic",
        )


def test_two_sided_and_fixed_batches_agree_on_a_certain_batch() -> None:
    epsilons = np.linspace(0, 3, 7)
    both = two_sided.find_two_sided_deltas(epsilons, reach=0.5, rate=1.0)
    assert both == pytest.approx(
        subsampling.find_sampled_deltas(epsilons, mu=1.0, rate=1.0), rel=1e-9
    )


@pytest.mark.parametrize(("sampling", "adjacency"), KINDS)
@pytest.mark.parametrize("view", ["server", "rounds"])
def test_an_event_does_not_count_a_draw_that_adversaries_know(sampling, adjacency, view) -> None:
    import dp_accounting

    rule = replace(RULE, sampling=sampling, minibatches="public")
    protocol = plan(local=rule, privacy=Privacy(adjacency=adjacency))
    # Of a release that moves by 1 / multiplier, whatever the neighbours are called.
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(protocol.to_dp_event(view))
    certain = certify(replace(protocol, data=None), view).epsilon(1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(certain, rel=2e-3)


def test_dp_accounting_agrees_on_the_event() -> None:
    import dp_accounting

    protocol = plan(local=replace(RULE, sampling="poisson"))
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(protocol.to_dp_event("rounds"))
    assert certify(protocol, "rounds").epsilon(1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=2e-3
    )
