"""A file never promises more than its run: what is said without the clients' sizes holds for all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.question import has_own_noise
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.ledger_lines import RoundCharged
from sordino.privacy.own_noise import with_found_noise
from sordino.privacy.participation_caps import all_caps
from sordino.privacy.spending import certify_clients
from sordino.protocol import (
    Bezier,
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    DpSgd,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Identity,
    Interpolate,
    Laplace,
    Mean,
    Median,
    Model,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    Scaffold,
    SecureAggregation,
    Shuffler,
    StageWise,
    Staircase,
    UserError,
    View,
    all_views,
)
from sordino.protocol.values import Assumptions

CLIENTS = 3
ROUNDING = 1 + 1e-9
steps = st.sampled_from([1, 2, 4])
batches = st.sampled_from([1, 4])
schedules = st.sampled_from([Constant(rate=0.5), StageWise(rate=0.5)])
upload_rules = st.one_of(
    st.builds(FedAvg, steps=steps, batch=batches, clip=st.just(0.5), schedule=schedules),
    st.builds(
        FedAvg,
        steps=steps,
        batch=batches,
        clip=st.just(0.5),
        schedule=schedules,
        clip_norm=st.just("l1"),
        clip_target=st.sampled_from(["step", "update"]),
    ),
    st.builds(
        FedProx,
        steps=steps,
        batch=batches,
        clip=st.just(0.5),
        schedule=schedules,
        proximal=st.just(0.3),
    ),
    st.builds(Scaffold, steps=steps, batch=batches, clip=st.just(0.5), schedule=schedules),
    st.builds(
        Bezier, steps=steps, batch=batches, clip=st.just(0.5), schedule=st.just(Constant(rate=0.5))
    ),
    st.builds(
        ClippedGlm,
        steps=st.just(60),
        clip=st.just(0.5),
        schedule=schedules,
        weight_decay=st.sampled_from([0.0, 0.1]),
    ),
    st.builds(
        ClippedGlm,
        steps=st.just(60),
        batch=st.just(4),
        batches=st.just("cyclic"),
        clip=st.just(0.5),
        schedule=schedules,
        weight_decay=st.sampled_from([0.0, 0.1]),
    ),
)
step_rules = st.builds(
    NoisySgd,
    steps=steps,
    batch=batches,
    clip=st.just(0.5),
    schedule=schedules,
    sampling=st.sampled_from(["fixed", "poisson"]),
)
lot_rules = st.builds(
    DpSgd,
    batch=batches,
    clip=st.just(0.5),
    schedule=schedules,
    sampling=st.sampled_from(["fixed", "poisson"]),
)
summed_rules = st.one_of(
    st.builds(FedAvg, steps=steps, batch=batches, clip=st.just(0.5), schedule=schedules),
    st.builds(
        FedProx,
        steps=steps,
        batch=batches,
        clip=st.just(0.5),
        schedule=schedules,
        proximal=st.just(0.3),
    ),
    st.builds(
        Bezier, steps=steps, batch=batches, clip=st.just(0.5), schedule=st.just(Constant(rate=0.5))
    ),
)
budgets = st.builds(
    dict,
    epsilon=st.sampled_from([0.5, 4.0, 30.0]),
    unit=st.sampled_from(["record", "client"]),
)
mechanisms = st.sampled_from(
    [
        {},
        {"mechanism": "gaussian"},
        {"mechanism": "laplace"},
        {"mechanism": "staircase"},
        {"mechanism": "gaussian", "noise": 2.0},
    ]
)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Protocol, tuple[int, ...]]:
    """Returns a protocol that does not say its clients' sizes, and sizes that a run of it may have."""
    rule = draw(upload_rules | step_rules)
    noisy = isinstance(rule, NoisySgd)
    noises = [Gaussian(sigma=2.0), Laplace(scale=2.0), Staircase(step=0.5, width=64.0)]
    noise = Gaussian(multiplier=1.5) if noisy else draw(st.sampled_from(noises))
    own = draw(st.sampled_from(["none", "one", "all", "mechanisms", "penalty"]))
    if own in ("mechanisms", "penalty") and isinstance(rule, (Bezier, Scaffold)):
        own = "all"
    if own == "penalty" and isinstance(rule, (ClippedGlm, NoisySgd)):
        own = "all"
    listed = {"none": 0, "one": 1}.get(own, CLIENTS)
    clients = []
    for client in range(listed):
        extra = draw(mechanisms) if own in ("mechanisms", "penalty") else {}
        budget = draw(budgets)
        if noisy and extra.get("mechanism") == "staircase":
            # What it hides of all records of a client in a step is not known, so none is found.
            budget["unit"] = "record"
        clients.append(ClientBudget(id=client, **budget, **extra))
    poisson = noisy and rule.sampling == "poisson"
    adjacency = draw(st.sampled_from([None, "replace-one"])) if poisson else None
    where = "client"
    if own == "none" and not noisy and not isinstance(rule, Scaffold):
        where = draw(st.sampled_from(["client", "server", "both"]))
    if isinstance(noise, Gaussian) and where == "both":
        noise = replace(noise, where="both", server_sigma=1.0)
    elif where == "server" and not isinstance(noise, Staircase):
        noise = replace(noise, where="server")
    sized = draw(st.lists(st.sampled_from([4, 12, 20, 60]), min_size=CLIENTS, max_size=CLIENTS))
    protocol = Protocol(
        clients=CLIENTS,
        rounds=draw(st.sampled_from([1, 5])),
        participation=draw(
            st.sampled_from([Everyone(), Poisson(rate=0.5), FixedSize(size=2)]),
        ),
        aggregation=Mean(
            weights=draw(st.sampled_from(["equal", "records"])),
            mixing=draw(st.sampled_from([1.0, 0.5])),
        ),
        penalty=own == "penalty",
        local=rule,
        noise=noise,
        privacy=Privacy(adjacency=adjacency),
        assumptions=Assumptions(smoothness=2.0) if isinstance(rule, Bezier) else Assumptions(),
        model=Model(name="mlp", parameters=5),
        data=draw(st.sampled_from([None, Data(name="digits")])),
        client=tuple(clients),
    )
    return protocol, tuple(sized)


@st.composite
def summed_federations(draw: st.DrawFn) -> tuple[Protocol, tuple[int, ...]]:
    """Returns the same of federations whose clients hide one another: by lots, by secure sums or by both."""
    sums = draw(st.booleans())
    lots = draw(st.booleans()) or not sums
    rule = draw(lot_rules if lots else summed_rules)
    noise = Gaussian(multiplier=1.5) if lots else Gaussian(sigma=2.0)
    participation = draw(st.sampled_from([Everyone(), FixedSize(size=2)]))
    if sums:
        noise = replace(noise, digits=draw(st.sampled_from([None, 1])))
    elif draw(st.booleans()):
        noise = replace(noise, arithmetic="integers", digits=draw(st.sampled_from([None, 1])))
    elif draw(st.booleans()):
        noise = replace(noise, where="server")
    threshold = draw(st.sampled_from([2, 3])) if participation == Everyone() else 2
    channel = SecureAggregation(threshold=threshold, colluders=draw(st.sampled_from([0, 1])))
    sized = draw(st.lists(st.sampled_from([4, 12, 20, 60]), min_size=CLIENTS, max_size=CLIENTS))
    protocol = Protocol(
        clients=CLIENTS,
        rounds=draw(st.sampled_from([1, 5])),
        participation=participation,
        channel=channel if sums else "direct",
        aggregation=Mean(denominator="fixed") if lots else Mean(),
        local=rule,
        noise=noise,
        assumptions=Assumptions(smoothness=2.0) if isinstance(rule, Bezier) else Assumptions(),
        model=Model(name="mlp", parameters=5),
        data=draw(st.sampled_from([None, Data(name="digits")])),
    )
    return protocol, tuple(sized)


PLAIN = Protocol(
    clients=CLIENTS,
    rounds=3,
    local=FedAvg(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5)),
    noise=Gaussian(sigma=2.0),
    model=Model(name="mlp", parameters=5),
)
PUBLIC = replace(PLAIN.local, minibatches="public")
DP_SGD = DpSgd(batch=4, clip=0.5)
MULTIPLIED = Gaussian(multiplier=1.5)
INTEGERS = Gaussian(sigma=2.0, arithmetic="integers")
SUMS = SecureAggregation(threshold=2)
WEIGHED = Mean(weights="records")
FIXED = Mean(denominator="fixed")
VARIANTS = {
    "median": {"aggregation": Median()},
    "fixed": {"aggregation": FIXED, "participation": Poisson(rate=0.5)},
    "public batches": {"local": PUBLIC, "aggregation": WEIGHED},
    "shuffler": {"channel": Shuffler()},
    "secure sums": {"channel": SUMS, "noise": INTEGERS},
    "integers": {"noise": INTEGERS},
    "personal models": {"personalization": Identity(pull=0.5), "aggregation": WEIGHED},
    "mixed models": {"personalization": Interpolate(alpha=0.5, pull=0.3)},
    "dp-sgd": {"local": DP_SGD, "noise": MULTIPLIED, "aggregation": FIXED},
    "dp-sgd, sums": {"local": DP_SGD, "noise": MULTIPLIED, "aggregation": FIXED, "channel": SUMS},
}


def finds_noise_from_records(protocol: Protocol) -> bool:
    """Returns whether a client's noise is found for a budget about one record, which depends on how many there are.

    So does that for a budget about a client, where any number of its records may be in a batch.
    """
    rule = protocol.local
    counts_all = isinstance(rule, NoisySgd) and rule.sampling == "poisson"
    return any(
        budget.mechanism is not None
        and budget.noise is None
        and (budget.unit == "record" or counts_all)
        for budget in protocol.client
    )


@pytest.mark.slow
@given(federations() | federations() | summed_federations(), st.sampled_from(["record", "client"]))
@settings(max_examples=140, deadline=None)
def test_a_file_never_promises_more_than_its_run(
    federation: tuple[Protocol, tuple[int, ...]], unit: str
) -> None:
    protocol, sizes = federation
    for view in all_views(CLIENTS, protocol.channel.colluders):
        if finds_noise_from_records(protocol):
            with pytest.raises(UserError, match=r"data\.records"):
                certify(protocol, view, unit)
            continue
        promised = certify(protocol, view, unit)
        run = certify(with_found_noise(protocol, sizes), view, unit, sizes=sizes)
        assert run.epsilon(1e-5) <= promised.epsilon(1e-5) * ROUNDING
        assert run.epsilon(1e-8) <= promised.epsilon(1e-8) * ROUNDING
        assert_nobody_has_spent_more(protocol, sizes, view, unit, run.epsilon(1e-5))


def assert_nobody_has_spent_more(
    protocol: Protocol, sizes: tuple[int, ...], view: View, unit: str, epsilon: float
) -> None:
    """Checks what every client has spent after a run in which all came, by its own records and weight."""
    # Where a draw decides, one that was drawn more often than expected has spent more.
    if protocol.participation != Everyone() or has_own_noise(protocol) or protocol.client:
        return
    events = [RoundCharged(round=t, clients=tuple(range(CLIENTS))) for t in range(protocol.rounds)]
    spent = certify_clients(protocol, events, view, unit, sizes=sizes)
    assert max(one.epsilon(1e-5) for one in spent.values()) <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("sizes", [(4, 12, 60), (20, 20, 20), (60, 4, 4)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_nor_does_a_file_about_another_channel_aggregation_or_rule(variant, sizes, unit) -> None:
    protocol = replace(PLAIN, **VARIANTS[variant])
    for view in all_views(CLIENTS):
        promised = certify(protocol, view, unit)
        run = certify(protocol, view, unit, sizes=sizes)
        assert run.epsilon(1e-5) <= promised.epsilon(1e-5) * ROUNDING
        assert_nobody_has_spent_more(protocol, sizes, view, unit, run.epsilon(1e-5))


@pytest.mark.slow
@given(federations(), st.sampled_from(["record", "client"]))
@settings(max_examples=25, deadline=None)
def test_noise_that_is_found_without_sizes_suffices_for_all_sizes(
    federation: tuple[Protocol, tuple[int, ...]], unit: str
) -> None:
    protocol, sizes = federation
    for view in ("server", "rounds", "final"):
        loud = replace(protocol, noise=mechanism_of(protocol.noise).resize(1e5))
        if has_own_noise(protocol) or certify(loud, view, unit).epsilon(1e-5) > 2:
            with pytest.raises(UserError, match=r"their own noise|no noise is enough"):
                calibrate(protocol, view, unit, epsilon=2.0)
            continue
        found = calibrate(protocol, view, unit, epsilon=2.0)
        assert certify(found.protocol, view, unit, sizes=sizes).epsilon(1e-5) <= 2.0 * ROUNDING


def poisson_batches() -> Protocol:
    rule = NoisySgd(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1), sampling="poisson")
    own = tuple(ClientBudget(id=k, epsilon=20.0, unit="client") for k in range(3))
    return Protocol(clients=3, rounds=20, local=rule, noise=Gaussian(multiplier=40.0), client=own)


def test_poisson_batches_of_unknown_size_are_not_promised_to_release_nothing() -> None:
    protocol, sizes = poisson_batches(), (40, 40, 40)
    run = certify(protocol, unit="client", sizes=sizes).epsilon(1e-5)
    assert run > 5
    assert certify(protocol, unit="client").epsilon(1e-5) >= run


def test_a_penalty_without_sizes_counts_every_round() -> None:
    rule = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
    own = tuple(ClientBudget(id=k, epsilon=2.0 + k) for k in range(3))
    protocol = Protocol(
        clients=3, rounds=4, local=rule, noise=Gaussian(sigma=0.7), client=own, penalty=True
    )
    for unit in ("record", "client"):
        run = certify(protocol, unit=unit, sizes=(40_000,) * 3).epsilon(1e-5)
        assert 0 < run <= certify(protocol, unit=unit).epsilon(1e-5)
    assert all_caps(protocol) == {
        0: 0,
        1: 0,
        2: 0,
    }  # a client that does not know its records is careful


def test_noise_that_depends_on_unsaid_records_is_asked_for() -> None:
    rule = FedAvg(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5))
    own = tuple(ClientBudget(id=k, epsilon=4.0, mechanism="gaussian") for k in range(2))
    protocol = Protocol(clients=2, rounds=10, local=rule, noise=Gaussian(sigma=1.0), client=own)
    with pytest.raises(UserError, match=r"client 0: its noise .* Add data\.records"):
        certify(protocol, "server", "client")
    by_client = replace(protocol, client=tuple(replace(one, unit="client") for one in own))
    assert certify(by_client, unit="client").epsilon(1e-5) <= 4.0
    assert certify(protocol, sizes=(40, 40)).epsilon(1e-5) <= 4.0
    said = replace(protocol, data=Data(name="digits", records=40))
    assert certify(said).epsilon(1e-5) == certify(protocol, sizes=(40, 40)).epsilon(1e-5)


@pytest.mark.parametrize("records", [None, 40])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_budgets_of_clients_do_not_make_next_to_no_noise_enough(
    unit: str, records: int | None
) -> None:
    rule = FedAvg(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5))
    own = tuple(ClientBudget(id=k, epsilon=1.0, unit=unit) for k in range(3))
    plain = Protocol(
        clients=3,
        rounds=10,
        local=rule,
        noise=Gaussian(sigma=1.0),
        data=Data(name="digits", records=records),
    )
    alone = calibrate(plain, "server", unit, epsilon=4.0)
    found = calibrate(replace(plain, client=own), "server", unit, epsilon=4.0)
    assert found.sigma == alone.sigma
    assert found.achieved <= alone.achieved <= 4.0
