"""Random protocols: what is certified is never below the exact law of two data sets, and never above the bounds that it replaced.

The exact laws are those of linear losses, one of whose records is turned round, or taken out: they share nothing with the certificate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.protocol import (
    Bezier,
    Constant,
    Cyclic,
    Data,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Laplace,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    StageWise,
    all_views,
)
from sordino.protocol.values import Assumptions
from tests.oracles.exact_laws import (
    Release,
    composed_epsilon,
    laplace_mixture,
    normal_mixture,
)

DELTA = 1e-4
CLIENTS = 4
CLIP = 0.5

schedules = st.sampled_from([Constant(rate=1.0), StageWise(rate=1.0), Cyclic(rate=1.0)])
steps = st.integers(1, 3)
records = st.integers(2, 10)
participations = st.sampled_from(
    [Everyone(), FixedSize(size=1), FixedSize(size=3), Poisson(rate=0.3), Poisson(rate=0.8)]
)
slow = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def upload_protocols(draw) -> Protocol:
    """Uploads under Gaussian noise, or Laplace noise with the l1 clip, by FedAvg or FedProx."""
    norm = draw(st.sampled_from(["l2", "l1"]))
    shape = {
        "steps": draw(steps),
        "batch": draw(st.integers(1, 2)),
        "clip": CLIP,
        "schedule": draw(schedules),
        "clip_norm": norm,
        "minibatches": draw(st.sampled_from(["secret", "public"])),
    }
    rule = FedAvg(**shape)
    if draw(st.booleans()):
        rule = FedProx(**shape, proximal=draw(st.sampled_from([0.2, 0.7])))
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
        view: "server", or "rounds" with a fixed number of participants.
        turned: whether the record is turned round, or pulls on one data set and not on the other.
    """
    rule = protocol.local
    law = normal_mixture if protocol.noise.normal else laplace_mixture
    noise = protocol.noise.sigma if protocol.noise.normal else protocol.noise.scale
    chance = protocol.participation.find_chance(clients=CLIENTS)
    if view == "rounds":
        noise *= math.sqrt(protocol.participation.count_expected(clients=CLIENTS))
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
        first = law(centres, masses)
        second = law([-centre for centre in centres], masses) if turned else law([0.0], [1.0])
        found.append(Release(first=first, second=second, probability=chance))
    return found


@slow
@given(
    protocol=upload_protocols(), view=st.sampled_from(["server", "rounds"]), turned=st.booleans()
)
def test_no_promise_is_below_the_exact_law_of_linear_losses(protocol, view, turned) -> None:
    assume(protocol.local.batch <= protocol.data.records)
    if view == "rounds":
        assume(protocol.noise.normal and not protocol.participation.varies)
    exact = composed_epsilon(linear_releases(protocol, view, turned), DELTA, points=4000)
    assert exact <= certify(protocol, view, delta=DELTA).epsilon(DELTA) * (1 + 1e-6)


OLD = {
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
    kind = draw(st.sampled_from(["fedavg", "fedprox", "scaffold", "bezier", "noisy-sgd"]))
    noise = Gaussian(sigma=draw(st.floats(0.3, 5.0)))
    extra = {}
    if kind == "fedavg":
        rule = FedAvg(**shape)
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
        data=Data(name="digits", records=draw(records)),
        **extra,
    )


@slow
@given(
    protocol=any_protocols(), place=st.integers(0, 99), unit=st.sampled_from(["record", "client"])
)
def test_a_promise_is_never_above_the_bounds_that_do_without_secret_draws(
    protocol, place, unit
) -> None:
    assume(protocol.local.batch <= protocol.data.records)
    views = all_views(CLIENTS)
    view = views[place % len(views)]
    now = certify(protocol, view, unit, delta=DELTA).epsilon(DELTA)
    old = [
        bound.curve.epsilon(DELTA)
        for bound in find_bounds(pose_question(protocol, view, unit, None, None))
        if bound.method in OLD
    ]
    assert not old or now <= min(old) * (1 + 1e-9)
    known = replace(protocol, local=replace(protocol.local, minibatches="public"))
    assert now <= certify(known, view, unit, delta=DELTA).epsilon(DELTA) * (1 + 2e-3)
