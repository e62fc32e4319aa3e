"""Random protocols: what is certified is never below the exact law of two data sets, and never above the bounds that it replaced.

The exact laws are those of linear losses, one of whose records is turned round, or taken out: they share nothing with the certificate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, hypergeom

from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.protocol import (
    Bezier,
    ClippedGlm,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Decay,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Laplace,
    Mean,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    StageWise,
    all_views,
)
from sordino.protocol.dp_sgd_rule import DpSgd
from sordino.protocol.values import Assumptions, Privacy
from tests.oracles.exact_laws import (
    COARSE,
    Release,
    composed_epsilon,
    laplace_mixture,
    normal_mixture,
)

DELTA = 1e-4
CLIENTS = 4
CLIP = 0.5

schedules = st.sampled_from(
    [
        Constant(rate=1.0),
        StageWise(rate=1.0),
        Cyclic(rate=1.0),
        Continuous(rate=1.0),
        Decay(rate=1.0, factor=0.7, every="round"),
    ]
)
steps = st.integers(1, 3)
records = st.integers(2, 10)
participations = st.sampled_from(
    [Everyone(), FixedSize(size=1), FixedSize(size=3), Poisson(rate=0.3), Poisson(rate=0.8)]
)
slow = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def upload_protocols(draw) -> Protocol:
    """Uploads under Gaussian noise, or Laplace noise with the l1 clip, by FedAvg, FedProx or SCAFFOLD."""
    norm = draw(st.sampled_from(["l2", "l1"]))
    shape = {
        "steps": draw(steps),
        "batch": draw(st.integers(1, 2)),
        "clip": CLIP,
        "schedule": draw(schedules),
        "clip_norm": norm,
        "minibatches": draw(st.sampled_from(["secret", "public"])),
    }
    kind = draw(st.sampled_from([FedAvg, FedProx, Scaffold]))
    pull = {"proximal": draw(st.sampled_from([0.2, 0.7]))} if kind is FedProx else {}
    rule = kind(**shape, **pull)
    size = draw(st.floats(0.4, 4.0))
    return Protocol(
        clients=CLIENTS,
        rounds=draw(st.integers(1, 4)),
        local=rule,
        noise=Laplace(scale=size) if norm == "l1" else Gaussian(sigma=size),
        participation=draw(participations),
        data=Data(name="digits", records=draw(records)),
    )


def linear_releases(protocol: Protocol, view: str, turned: bool) -> list[Release]:
    """The laws of every round for linear losses: a draw of the record at step k moves the upload by 2V eta_k, and later steps pull back.

    Args:
        protocol: the federation.
        view: "server", or "rounds" and "coalition:1" where the number of the honest is fixed or binomial.
        turned: whether the record is turned round, or pulls on one data set and not on the other.
    """
    rule = protocol.local
    law = normal_mixture if protocol.noise.normal else laplace_mixture
    noise = protocol.noise.sigma if protocol.noise.normal else protocol.noise.scale
    chance = protocol.participation.find_chance(clients=CLIENTS)
    honest = honest_numbers(protocol, view)
    rate = rule.batch / protocol.data.records
    pull = getattr(rule, "proximal", 0.0)
    found = []
    for t in range(protocol.rounds):
        etas = rule.schedule.rates(round=t, steps=rule.steps)
        left = [math.prod(1 - eta * pull for eta in etas[k + 1 :]) for k in range(rule.steps)]
        reach = CLIP * np.array(etas) * np.array(left) / noise
        centres, masses = [], []
        for pattern in product((0, 1), repeat=rule.steps):
            centres.append(float(np.dot(pattern, reach)))
            drawn = sum(pattern)
            masses.append(rate**drawn * (1 - rate) ** (rule.steps - drawn))
        first, second = [], []
        for number, mass in honest:
            # How many contribute is seen: the outcomes of different numbers lie side by side.
            seen = np.array(centres) / math.sqrt(number)
            first.append(mass * law(seen, masses, COARSE))
            second.append(
                mass * (law(-seen, masses, COARSE) if turned else law([0.0], [1.0], COARSE))
            )
        found.append(
            Release(first=np.concatenate(first), second=np.concatenate(second), probability=chance)
        )
    return found


def honest_numbers(protocol: Protocol, view: str) -> list[tuple[int, float]]:
    """How many clients' noise is in a sum of which the attacked client is part, and how probable that is."""
    if view == "server" or protocol.local.corrected:
        return [(1, 1.0)]
    others = CLIENTS - 1 - int(view == "coalition:1")
    rule = protocol.participation
    if isinstance(rule, Everyone):
        return [(1 + others, 1.0)]
    if isinstance(rule, FixedSize):
        drawn = hypergeom(CLIENTS - 1, others, rule.size - 1)
    else:
        drawn = binom(others, rule.rate)
    return [(1 + n, float(drawn.pmf(n))) for n in range(others + 1) if drawn.pmf(n) > 0]


@pytest.mark.slow
@slow
@given(
    protocol=upload_protocols(),
    view=st.sampled_from(["server", "rounds", "coalition:1"]),
    turned=st.booleans(),
)
def test_no_promise_is_below_the_exact_law_of_linear_losses(protocol, view, turned) -> None:
    assume(protocol.local.batch <= protocol.data.records)
    assume(view == "server" or protocol.noise.normal)
    exact = composed_epsilon(linear_releases(protocol, view, turned), DELTA, points=1000)
    assert exact <= certify(protocol, view, delta=DELTA).epsilon(DELTA) * (1 + 1e-6)


@st.composite
def noisy_protocols(draw) -> Protocol:
    """Noise in steps, or on a lot of all records; everyone takes part."""
    shape = {
        "batch": 2,
        "clip": CLIP,
        "schedule": Constant(rate=0.1),
        "sampling": draw(st.sampled_from(["fixed", "poisson"])),
    }
    rule = DpSgd(**shape)
    if draw(st.booleans()):
        rule = NoisySgd(**shape, steps=draw(steps))
    adjacency = draw(st.sampled_from(["replace-one", "add-or-remove"]))
    assume(shape["sampling"] == "poisson" or adjacency == "replace-one")
    return Protocol(
        clients=CLIENTS,
        rounds=draw(st.integers(1, 20)),
        local=rule,
        noise=Gaussian(multiplier=draw(st.floats(0.7, 4.0))),
        data=Data(name="digits", records=draw(records)),
        privacy=Privacy(adjacency=adjacency),
    )


def drawn_release(protocol: Protocol, view: str) -> Release:
    """The laws of all steps for a record whose clipped gradient has length C, and is turned round or taken out."""
    rule = protocol.local
    mu = 1 / protocol.noise.multiplier
    number = CLIENTS - int(view == "coalition:1")
    if isinstance(rule, DpSgd):
        # A step of noisy-sgd with fixed batches has its noise in units of 2C, a lot in units of C.
        mu *= 2 if rule.sampling == "fixed" else 1
        mu *= math.sqrt(CLIENTS) if view == "server" else math.sqrt(CLIENTS / number)
    elif rule.steps == 1 and view != "server":
        mu /= math.sqrt(number)
    rate = rule.batch / protocol.data.records
    second = normal_mixture([0.0], [1.0], COARSE)
    if rule.sampling == "poisson" and protocol.adjacency == "replace-one":
        second = normal_mixture([0.0, -mu], [1 - rate, rate], COARSE)
    return Release(
        first=normal_mixture([0.0, mu], [1 - rate, rate], COARSE),
        second=second,
        times=protocol.rounds * getattr(rule, "steps", 1),
    )


@pytest.mark.slow
@slow
@given(protocol=noisy_protocols(), view=st.sampled_from(["server", "rounds", "coalition:1"]))
def test_no_promise_is_below_the_exact_law_of_drawn_records(protocol, view) -> None:
    exact = composed_epsilon([drawn_release(protocol, view)], DELTA, points=1000)
    assert exact <= certify(protocol, view, delta=DELTA).epsilon(DELTA) * (1 + 1e-6)


@pytest.mark.slow
@slow
@given(
    sizes=st.lists(st.integers(2, 40), min_size=CLIENTS, max_size=CLIENTS),
    view=st.sampled_from(["server", "rounds"]),
    sigma=st.floats(0.3, 3.0),
    rounds=st.integers(1, 4),
)
def test_no_promise_to_unequal_clients_is_below_the_law_of_the_smallest_or_largest(
    sizes, view, sigma, rounds
) -> None:
    protocol = Protocol(
        clients=CLIENTS,
        rounds=rounds,
        local=FedAvg(steps=1, batch=2, clip=CLIP, schedule=Constant(rate=1.0)),
        noise=Gaussian(sigma=sigma),
        data=Data(name="digits", sizes=tuple(sizes)),
        aggregation=Mean(weights="records"),
    )
    promised = certify(protocol, view, delta=DELTA).epsilon(DELTA)
    length = math.sqrt(sum(size**2 for size in sizes))
    for size in {min(sizes), max(sizes)}:
        reach = 2 * CLIP / sigma * (1 if view == "server" else size / length)
        release = Release(
            first=normal_mixture([0.0, reach], [1 - 2 / size, 2 / size], COARSE),
            second=normal_mixture([0.0], [1.0], COARSE),
            times=rounds,
        )
        assert composed_epsilon([release], DELTA, points=1000) <= promised * (1 + 1e-6)


OLD = {
    "joined noise",
    "composition",
    "participation mixture",
    "Rényi composition",
    "known batches",
}


@st.composite
def any_protocols(draw) -> Protocol:
    """All rules that draw batches."""
    shape = {
        "steps": draw(steps),
        "batch": draw(st.integers(1, 2)),
        "clip": CLIP,
        "schedule": draw(schedules),
    }
    kinds = ["fedavg", "fedprox", "scaffold", "bezier", "noisy-sgd", "dp-sgd", "glm", "laplace"]
    kind = draw(st.sampled_from([*kinds, "server", "unequal"]))
    noise = Gaussian(sigma=draw(st.floats(0.3, 5.0)))
    extra = {"data": Data(name="digits", records=draw(records))}
    if kind == "fedavg":
        rule = FedAvg(**shape)
    elif kind == "dp-sgd":
        rule = DpSgd(**{name: shape[name] for name in ("batch", "clip", "schedule")})
        noise = Gaussian(multiplier=draw(st.floats(0.5, 4.0)))
        extra["aggregation"] = Mean(denominator="fixed")
    elif kind == "glm":
        rule = ClippedGlm(
            steps=shape["steps"], clip=CLIP, schedule=Constant(rate=1.0), weight_decay=0.1
        )
    elif kind == "laplace":
        rule = FedAvg(**shape, clip_norm="l1")
        noise = Laplace(scale=draw(st.floats(0.5, 4.0)))
    elif kind == "server":
        rule = FedAvg(**shape)
        noise = Gaussian(sigma=draw(st.floats(0.3, 2.0)), where="server")
    elif kind == "unequal":
        rule = FedAvg(**shape)
        sizes = draw(st.lists(st.integers(2, 40), min_size=CLIENTS, max_size=CLIENTS))
        extra["data"] = Data(name="digits", sizes=tuple(sizes))
        extra["aggregation"] = Mean(weights="records")
    elif kind == "fedprox":
        rule = FedProx(**shape, proximal=0.3)
    elif kind == "scaffold":
        rule = Scaffold(**shape)
    elif kind == "bezier":
        rule = Bezier(**{**shape, "schedule": Constant(rate=1.0)})
        extra["assumptions"] = Assumptions(smoothness=1.0)
    else:
        sampling = draw(st.sampled_from(["fixed", "poisson"]))
        rule = NoisySgd(**shape, sampling=sampling)
        noise = Gaussian(multiplier=draw(st.floats(0.5, 4.0)))
    return Protocol(
        clients=CLIENTS,
        rounds=draw(st.integers(1, 30)),
        local=rule,
        noise=noise,
        participation=draw(participations),
        **extra,
    )


@slow
@given(
    protocol=any_protocols(), place=st.integers(0, 99), unit=st.sampled_from(["record", "client"])
)
def test_a_promise_is_never_above_the_bounds_that_do_without_secret_draws(
    protocol, place, unit
) -> None:
    batch = getattr(protocol.local, "batch", None) or 1
    assume(batch <= (protocol.data.records or min(protocol.data.sizes)))
    views = all_views(CLIENTS)
    view = views[place % len(views)]
    now = certify(protocol, view, unit, delta=DELTA).epsilon(DELTA)
    old = [
        bound.curve.epsilon(DELTA)
        for bound in find_bounds(pose_question(protocol, view, unit, None, None))
        if bound.method in OLD
    ]
    assert not old or now <= min(old) * (1 + 1e-9)
    if not hasattr(protocol.local, "minibatches"):
        return
    known = replace(protocol, local=replace(protocol.local, minibatches="public"))
    assert now <= certify(known, view, unit, delta=DELTA).epsilon(DELTA) * (1 + 2e-3)
