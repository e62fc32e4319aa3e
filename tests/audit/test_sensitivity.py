"""Twins share every draw, never come further apart than the bound, and in the worst cases come exactly that far."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sordino import (
    Assumptions,
    Budget,
    ByColumn,
    ClientBudget,
    ClippedGlm,
    Constant,
    Continuous,
    Cyclic,
    Data,
    Dataset,
    Decay,
    Dirichlet,
    Everyone,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Mean,
    Median,
    Model,
    Poisson,
    Privacy,
    Protocol,
    StageWise,
    UserError,
    train,
)
from sordino.audit.twin_distances import bound_distances
from sordino.audit.twin_sweeps import (
    SWEEPS,
    Sensitivity,
    make_variants,
    measure_sensitivity,
    sweep_key,
)
from sordino.audit.twins import Replaced, Twins, draw_cohorts, make_twins, play_models, train_twins
from sordino.cli.sensitivity_command import run_sensitivity
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.attendance import draw_participants
from sordino.federation.setup import Setup, prepare
from sordino.models.flat import FlatModel
from sordino.report.sensitivity_plots import value_in_words
from tests.support import toy_dataset, toy_protocol

FLAT = FedAvg(steps=3, batch=2, clip=0.05, schedule=Constant(rate=0.3))
# Fresh noise is of integers unless floats are asked for.
FRESH = Gaussian(sigma=0.3, secure=True, arithmetic="floats")
PULLED = FedProx(steps=3, batch=2, clip=0.05, schedule=Constant(rate=0.3), proximal=0.8)


def prepared(protocol: Protocol, data: Dataset | None = None, model: object = "logistic") -> Setup:
    return prepare(protocol, data=data if data is not None else toy_dataset(), model=model)  # type: ignore[arg-type]


def distances(pair: Twins) -> np.ndarray:
    return train_twins(pair, workers=1).distances


# The worst cases: one weight w, and records that ask for w, |w| or a concave bowl in w.

CURVATURE = 0.2  # times any weight that occurs here it stays below the clip
FAR = 1e4  # a target so far away that every gradient towards it is clipped


class Bent(nn.Module):
    """x_0 w + x_1 |w| + x_2 sqrt(1 - L w^2 / 2), of which the last has the squared error 1 - L w^2 / 2 to the target 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        return x[:, :1] * w + x[:, 1:2] * w.abs() + x[:, 2:] * (1 - CURVATURE * w**2 / 2).sqrt()


def opposed(protocol: Protocol, others: int, sizes: tuple[int, ...] = (2, 4, 4, 6, 4)) -> Twins:
    """Client 0 pulls the weight up, in the other twin down; what the other clients ask for is in column `others` of their records."""
    site = np.repeat(np.arange(len(sizes)), sizes)
    x = np.eye(3, dtype=np.float32)[np.where(site == 0, 0, others)]
    y = np.where((site == 0) | (others < 2), FAR, 0.0).astype(np.float32)[:, None]
    data = Dataset(
        name="bent", x_train=x, y_train=y, x_test=x, y_test=y, classes=None, columns={"site": site}
    )
    placed = replace(
        protocol, clients=len(sizes), data=Data(name="bent", partition=ByColumn(column="site"))
    )
    setup = prepared(placed, data, Bent())
    turned = setup.train.y.clone()
    turned[setup.parts[0]] *= -1
    other = replace(setup, train=replace(setup.train, y=turned))
    return Twins(one=setup, other=other, replaced=Replaced(client=0, unit="client"))


LINEAR, STEEP, CONCAVE = 0, 1, 2
SETTINGS = [
    {},
    {"local": PULLED},
    {"local": replace(FLAT, schedule=StageWise(rate=0.5))},
    {"local": replace(PULLED, schedule=Continuous(rate=0.9))},
    {"aggregation": Mean(mixing=0.4)},
    {"aggregation": Mean(mixing=0.7, weights="records"), "local": PULLED},
    {"participation": FixedSize(size=2)},
    {"participation": Poisson(rate=0.4), "aggregation": Mean(weights="records")},
    {"clients": 1, "rounds": 3},
]


@pytest.mark.parametrize("changes", SETTINGS, ids=lambda changes: ", ".join(changes) or "plain")
@pytest.mark.parametrize(
    ("others", "smoothness"),
    [(LINEAR, 0.0), (STEEP, None), (CONCAVE, CURVATURE)],
    ids=["linear", "steep", "concave"],
)
def test_a_worst_case_attains_the_bound(others, smoothness, changes) -> None:
    settings = {"rounds": 8, "local": FLAT, "noise": Gaussian(sigma=0.0), **changes}
    protocol = toy_protocol(**settings, assumptions=Assumptions(smoothness=smoothness))
    pair = opposed(protocol, others, *([(4,)] if changes.get("clients") == 1 else []))
    found, bound = distances(pair), bound_distances(pair)
    assert bound[-1] > 0
    assert found == pytest.approx(bound, rel=1e-4, abs=1e-7)


def test_the_twins_share_their_noise() -> None:
    protocol = toy_protocol(
        rounds=6, local=FLAT, noise=Gaussian(sigma=0.3), assumptions=Assumptions(smoothness=0.0)
    )
    pair = opposed(protocol, LINEAR)
    assert distances(pair) == pytest.approx(bound_distances(pair), rel=1e-4)
    assert distances(pair)[-1] == pytest.approx(
        6 / 5 * 2 * 0.05 * 3 * 0.3, rel=1e-4
    )  # share, then 2V K eta in each of 6 rounds


def test_models_in_a_ball_are_never_further_apart_than_its_diameter() -> None:
    pair = opposed(
        toy_protocol(
            rounds=8, local=FLAT, noise=Gaussian(sigma=0.0), assumptions=Assumptions(diameter=0.4)
        ),
        STEEP,
    )
    found, bound = distances(pair), bound_distances(pair)
    assert found == pytest.approx(bound, rel=1e-4)
    assert (found <= 0.4).all()
    assert bound[-1] == 0.4


@pytest.mark.parametrize(
    ("batch", "steps", "sizes"),
    [(None, 4, (4, 8, 6, 3, 9)), (3, 6, (6, 6, 6, 6, 6))],
    ids=["full", "cyclic"],
)
def test_clipped_logistic_regression_attains_its_contracting_bound(batch, steps, sizes) -> None:
    x, y = np.ones((30, 1), np.float32), np.ones(30, np.int64)
    columns = {"site": np.repeat(np.arange(5), sizes)}
    data = Dataset(
        name="two", x_train=x, y_train=y, x_test=x, y_test=y, classes=("no", "yes"), columns=columns
    )
    rule = ClippedGlm(
        steps=steps,
        clip=0.01,
        schedule=Constant(rate=0.4),
        weight_decay=0.5,
        batches="cyclic" if batch else "full",
        batch=batch,
    )
    setup = prepared(
        toy_protocol(
            rounds=12, local=rule, data=Data(name="two", partition=ByColumn(column="site"))
        ),
        data,
    )
    record = 5  # in the last of the batches, whose step is followed by the fewest that contract
    turned = setup.train.y.clone()
    turned[setup.parts[2][record]] = 0
    pair = Twins(
        one=setup,
        other=replace(setup, train=replace(setup.train, y=turned)),
        replaced=Replaced(client=2, record=record, unit="record"),
    )
    found, bound = distances(pair), bound_distances(pair)
    assert found == pytest.approx(bound, rel=1e-4)
    assert bound[-1] - bound[-2] < 0.2 * bound[0]  # it converges


# Any protocol at all.

rates = st.sampled_from([0.05, 0.5, 1.9])
schedules = st.builds(
    lambda kind, rate: kind(rate=rate),
    st.sampled_from([Constant, Cyclic, StageWise, Continuous]),
    rates,
)
shared = {
    "steps": st.integers(1, 4),
    "clip": st.sampled_from([0.01, 1.0, 50.0]),
    "schedule": schedules,
}
rules = st.one_of(
    st.builds(FedAvg, batch=st.sampled_from([1, 5, 8]), **shared),
    st.builds(
        FedProx,
        batch=st.sampled_from([1, 5, 8]),
        proximal=st.sampled_from([0.0, 0.4, 1.5]),
        **shared,
    ),
    st.builds(
        ClippedGlm,
        weight_decay=st.sampled_from([0.0, 0.2]),
        feature_norm=st.sampled_from([1.0, 3.0]),
        **shared,
    ),
)
means = st.builds(
    Mean, mixing=st.sampled_from([0.3, 1.0]), weights=st.sampled_from(["equal", "records"])
)
protocols = st.builds(
    toy_protocol,
    seed=st.integers(0, 10**6),
    local=rules,
    aggregation=st.one_of(means, st.just(Median())),
    participation=st.sampled_from([Everyone(), Poisson(rate=0.4), FixedSize(size=3)]),
    noise=st.sampled_from([Gaussian(sigma=0.0), Gaussian(sigma=0.3), FRESH]),
    assumptions=st.sampled_from([Assumptions(), Assumptions(diameter=0.2)]),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    protocol=protocols,
    unit=st.sampled_from(["record", "client"]),
    client=st.integers(0, 4),
    model=st.sampled_from(["logistic", "mlp"]),
)
def test_no_twins_come_further_apart_than_the_bound(protocol, unit, client, model) -> None:
    linear = isinstance(protocol.local, ClippedGlm)
    sites = np.random.default_rng(protocol.seed).permutation(
        np.repeat(np.arange(5), [8, 9, 20, 40, 43])
    )
    data = replace(toy_dataset(classes=2 if linear else 3), columns={"site": sites})
    placed = replace(protocol, data=Data(name="toy", partition=ByColumn(column="site")))
    pair = make_twins(
        prepared(placed, data, "logistic" if linear else model),
        Replaced(client=client, record=3, unit=unit),
    )
    found, bound = distances(pair), bound_distances(pair)
    assert (
        found <= bound * (1 + 1e-6) + 3e-6 * (bound > 0)
    ).all()  # before the client takes part: exactly 0


# What twins are.


def test_twins_differ_in_one_record_and_in_nothing_else() -> None:
    setup = prepared(toy_protocol(noise=FRESH, participation=Poisson(rate=0.5)))
    pair = make_twins(setup, Replaced(client=3, record=2))
    row = setup.parts[3][2]
    assert (
        pair.other.train.x.min() == setup.train.x.min()
    )  # a negative stays within the range of all records
    assert pair.other.train.x.max() == setup.train.x.max()
    for name in ("x", "y"):
        one, other = getattr(pair.one.train, name), getattr(pair.other.train, name)
        different = (one != other).reshape(len(one), -1).any(dim=1)
        assert torch.nonzero(different).ravel().tolist() == [row]
    assert pair.other.noise_key == setup.noise_key
    assert pair.other.draw_key == setup.draw_key
    drawn = [
        draw_participants(setup.protocol, round_index=t, key=setup.draw_key).tolist()
        for t in range(4)
    ]
    assert [chosen.tolist() for chosen in draw_cohorts(pair.other)] == drawn
    assert (
        train_twins(
            Twins(one=setup, other=setup, replaced=Replaced()), workers=1
        ).distances.tolist()
        == [0.0] * 4
    )


def test_images_turn_negative_and_get_another_label() -> None:
    images = np.arange(40 * 4, dtype=np.uint8).reshape(40, 1, 2, 2)
    images[-1] = 250
    labels = np.arange(40) % 4
    data = Dataset(
        name="i",
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=labels,
        classes=tuple("abcd"),
    )
    setup = prepared(toy_protocol(), data)
    pair = make_twins(setup, Replaced(client=1, unit="client"))
    rows = setup.parts[1]
    assert (pair.other.train.x[rows].long() + pair.one.train.x[rows].long() == 250).all()
    assert ((pair.other.train.y[rows] - pair.one.train.y[rows]) % 4 == 1).all()
    untouched = np.setdiff1d(np.arange(40), rows)
    assert torch.equal(pair.other.train.x[untouched], pair.one.train.x[untouched])


@pytest.mark.parametrize(
    ("targets", "expected"),
    [([0.0, 1.0, 9.0, 10.0], [10.0, 10.0, 0.0, 0.0]), ([2.0] * 4, [3.0] * 4)],
)
def test_targets_move_to_the_far_end(targets, expected) -> None:
    x, y = np.ones((4, 2), np.float32), np.array(targets, np.float32)[:, None]
    data = Dataset(name="r", x_train=x, y_train=y, x_test=x, y_test=y, classes=None)
    local = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    pair = make_twins(prepared(toy_protocol(clients=1, local=local), data), Replaced(unit="client"))
    assert pair.other.train.y.ravel().tolist() == expected
    assert torch.equal(pair.one.train.x, pair.other.train.x)


def test_a_record_counts_only_once_its_client_takes_part() -> None:
    local = FedAvg(
        steps=1, batch=24, clip=1.0, schedule=Constant(rate=0.3)
    )  # every record, in every step
    setup = prepared(toy_protocol(rounds=12, seed=5, local=local, participation=FixedSize(size=1)))
    present = [
        4 in draw_participants(setup.protocol, round_index=t, key=setup.draw_key) for t in range(12)
    ]
    first = present.index(True)
    assert 0 < first < 11
    found = distances(make_twins(setup, Replaced(client=4)))
    assert (found > 0).tolist() == [t >= first for t in range(12)]


@pytest.mark.parametrize(
    "changes",
    [
        {"assumptions": Assumptions(diameter=0.1)},
        {"participation": Poisson(rate=0.5), "aggregation": Mean(mixing=0.5, weights="records")},
        {"client": (ClientBudget(id=1, epsilon=60.0, delta=1e-5),), "noise": Gaussian(sigma=0.3)},
    ],
    ids=["ball", "some", "capped"],
)
def test_a_twin_is_trained_as_any_run_is(changes, tmp_path) -> None:
    protocol = toy_protocol(rounds=6, **changes)
    run = train(
        protocol,
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "run",
        engine="torch",
        workers=1,
    )
    if protocol.client:
        assert 0 < sum(1 in getattr(event, "clients", ()) for event in run.ledger) < 6
    setup = prepared(protocol)
    with TorchEngine(setup, workers=1) as engine:
        *_, last = play_models(setup, engine)
    assert run.state is not None
    assert torch.equal(FlatModel(setup.module).from_state(run.state), torch.from_numpy(last))
    assert (
        train_twins(make_twins(setup), workers=2, score=True).accuracy
        == run.metrics["accuracy"][-1]
    )


def test_a_model_that_overflows_is_infinitely_far_from_its_twin() -> None:
    local = FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=1e60))
    with np.errstate(over="ignore", invalid="ignore"):
        run = train_twins(make_twins(prepared(toy_protocol(local=local))), workers=1)
    assert np.isinf(run.distances[-1])


def test_a_median_follows_what_moves_all_uploads_alike() -> None:
    bound = bound_distances(make_twins(prepared(toy_protocol(rounds=3, aggregation=Median()))))
    shift = (
        2 * 1.0 * 3 * 0.3
    )  # 2 V K eta; after the first round that of all 5 clients, in directions that add up as squares
    assert bound == pytest.approx([shift, shift * (1 + 5**0.5), shift * (1 + 2 * 5**0.5)])


# Seeds and sweeps.


def test_mean_and_spread_are_over_the_seeds() -> None:
    protocol = toy_protocol(seed=11)
    found = measure_sensitivity(protocol, seeds=3, data=toy_dataset(), model="logistic", workers=1)
    single = [
        distances(make_twins(prepared(replace(protocol, seed=seed)))) for seed in (11, 12, 13)
    ]
    for t, column in enumerate(zip(*single, strict=True)):
        assert found.mean[t] == pytest.approx(statistics.mean(column), rel=1e-12)
        assert found.spread[t] == pytest.approx(statistics.stdev(column), rel=1e-9)
        assert found.largest[t] == max(column)
    assert np.isnan(
        measure_sensitivity(
            protocol, seeds=1, data=toy_dataset(), model="logistic", workers=1
        ).spread
    ).all()


def test_the_bound_covers_every_seed_where_each_draws_its_own_participants() -> None:
    protocol = toy_protocol(seed=1, rounds=5, participation=FixedSize(size=1))
    found = measure_sensitivity(protocol, seeds=4, data=toy_dataset(), model="logistic", workers=1)
    bounds = [
        bound_distances(make_twins(prepared(replace(protocol, seed=seed)))) for seed in (1, 2, 3, 4)
    ]
    assert len({tuple(bound) for bound in bounds}) > 1
    assert found.bound.tolist() == [max(column) for column in zip(*bounds, strict=True)]


@pytest.mark.parametrize("key", SWEEPS)
def test_every_key_can_be_swept_with_its_own_values(key) -> None:
    plans = make_variants(toy_protocol(data=Data(name="digits"), model=Model(name="mlp")), key)
    assert [plan.value for plan in plans] == list(SWEEPS[key])
    assert len({plan.protocol for plan in plans}) == len(plans)


def test_a_sweep_prepares_the_federation_anew_for_every_value() -> None:
    counted: list[int] = []
    protocol = toy_protocol(rounds=2, seed=4)
    rows = list(
        sweep_key(
            protocol,
            "federation.clients",
            ["2", 8],
            seeds=2,
            data=toy_dataset(),
            model="logistic",
            workers=1,
            on_round=lambda plan: counted.append(plan.clients),
        )
    )
    assert [row.value for row in rows] == [2, 8]
    assert counted == [2] * 4 + [8] * 4
    for row in rows:
        alone = replace(protocol, clients=row.value)
        assert (
            row.distances[1].tolist()
            == distances(make_twins(prepared(replace(alone, seed=5)))).tolist()
        )
        assert row.bound[0] == pytest.approx(2 * 1.0 * 3 * 0.3 / row.value)  # 2 V K eta / m


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("noise.sigma", [0.5, 0.01]),
        ("local.schedule.rate", [0.3, 0.1]),
        ("data.partition.dirichlet", [0.5, 2.0]),
    ],
)
def test_any_other_key_is_swept_over_given_values(key, values) -> None:
    protocol = toy_protocol(data=DIGITS, model=Model(name="mlp"))
    plans = make_variants(protocol, key, values)
    assert [plan.value for plan in plans] == values
    assert len({plan.protocol for plan in plans}) == len(plans)


def test_a_schedule_with_its_parameters_is_a_value_and_a_word_keeps_the_rate() -> None:
    protocol = toy_protocol(data=DIGITS, model=Model(name="mlp"))
    slow = '{ kind = "decay", rate = 0.2, factor = 0.998, every = "round" }'
    fast = {"kind": "decay", "rate": 0.2, "factor": 0.5, "every": 3}
    plans = make_variants(protocol, "local.schedule", ["cyclic", slow, fast])
    assert [plan.protocol.local.schedule for plan in plans] == [
        Cyclic(rate=protocol.local.schedule.rate),
        Decay(rate=0.2, factor=0.998, every="round"),
        Decay(rate=0.2, factor=0.5, every=3),
    ]
    # Two schedules of one kind are told apart.
    assert plans[0].value == "cyclic"
    assert plans[2].value == fast
    assert value_in_words(plans[1].value) == slow


def test_both_engines_measure_the_same_distances() -> None:
    pair = make_twins(prepared(toy_protocol(seed=2, rounds=20), model="mlp"))
    native, torch_ = (train_twins(pair, engine=name, workers=1) for name in ("native", "torch"))
    assert native.distances[-1] > 0
    assert native.distances == pytest.approx(torch_.distances, rel=1e-3)


def test_alpha_of_zero_is_plain_averaging() -> None:
    protocol = toy_protocol(seed=2)
    (row,) = sweep_key(
        protocol, "local.proximal", [0], seeds=1, data=toy_dataset(), model="logistic", workers=1
    )
    assert row.distances[0].tolist() == distances(make_twins(prepared(protocol))).tolist()


def test_a_budget_does_not_end_an_audit_which_releases_nothing() -> None:
    protocol = toy_protocol(privacy=Privacy(budget=Budget(epsilon=1e-3)))
    assert np.isfinite(distances(make_twins(prepared(protocol)))).all()


GLM = ClippedGlm(steps=1, clip=1.0, schedule=Constant(rate=0.1), weight_decay=0.1)
DIGITS = Data(name="digits", partition=Dirichlet(beta=0.5), records=20)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (
            {},
            {"sweep": "local.clipp"},
            ["sweep", "local.clipp", 'Did you mean "local.clip"?', "federation.clients"],
        ),
        ({}, {"sweep": "federation.rounds"}, ["sweep", "federation.rounds", "local.clip"]),
        ({}, {"sweep": "local.clip", "values": []}, ["no values", "local.clip"]),
        ({}, {"sweep": "local.clip", "values": ["-1"]}, ["local.clip", "-1", "above 0"]),
        (
            {},
            {"sweep": "local.schedule", "values": ["linear"]},
            ["local.schedule", "linear", "cyclic"],
        ),
        (
            {},
            {"sweep": "local.schedule", "values": ['{ kind = "decay", rate = 0.1 }']},
            ["local.schedule", "factor"],
        ),
        ({}, {"values": ["1"]}, ["no key", "--sweep"]),
        ({"local": GLM}, {"sweep": "local.proximal"}, ["local.proximal", "clipped-glm"]),
        ({}, {"seeds": 0}, ["seeds", "0", "at least 1"]),
        (
            {"model": Model(name="mlp"), "noise": replace(FRESH, arithmetic="integers")},
            {},
            ["rounded to integers", 'noise.arithmetic = "floats"'],
        ),
        ({"data": None}, {}, ["data.name", "missing"]),
        ({}, {}, ["model.name", "missing"]),
        (
            {"model": Model(name="mlp")},
            {"sweep": "data.records", "values": [20, 99999]},
            ["data.records", "99999"],
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(changes, options, words, tmp_path) -> None:
    protocol = toy_protocol(**{"data": DIGITS, **changes})
    with pytest.raises(UserError) as caught:
        run_sensitivity(
            protocol,
            **{
                "sweep": None,
                "values": None,
                "seeds": 1,
                "out": tmp_path / "new",
                "json": False,
                **options,
            },
        )
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.rglob("*.png")) == []


@pytest.mark.parametrize(
    "replaced",
    [Replaced(client=5), Replaced(client=-1), Replaced(record=24), Replaced(unit="house")],
)
def test_what_is_not_there_cannot_be_replaced(replaced) -> None:
    with pytest.raises(UserError):
        make_twins(prepared(toy_protocol()), replaced)


# What a person sees.


def runnable(tmp_path: Path) -> Protocol:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 3
    np.savez(tmp_path / "toy.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return toy_protocol(
        rounds=3, data=Data(name=str(tmp_path / "toy.npz"), classes=3), model=Model(name="logistic")
    )


def test_the_document_says_what_was_measured(tmp_path, capsys) -> None:
    protocol = runnable(tmp_path)
    run_sensitivity(
        protocol,
        sweep="local.clip",
        values=["0.5", "2"],
        seeds=2,
        out=tmp_path / "plots",
        json=True,
    )
    document = json.loads(capsys.readouterr().out)
    assert document["sweep"] == "local.clip"
    assert [row["value"] for row in document["rows"]] == [0.5, 2.0]
    for row in document["rows"]:
        (again,) = sweep_key(protocol, "local.clip", [row["value"]], seeds=2, workers=1)
        assert row["seeds"] == 2
        assert row["rounds"] == 3
        assert row["mean"] == again.mean.tolist()
        assert row["spread"] == again.spread.tolist()
        assert row["bound"] == again.bound.tolist()
    assert (tmp_path / "plots" / "sensitivity-local.clip.png").read_bytes().startswith(b"\x89PNG")


def test_a_distance_of_zero_explains_itself_in_words_and_in_json(tmp_path, capsys) -> None:
    # One record of twenty, in one round: with this seed it is not drawn.
    protocol = replace(runnable(tmp_path), rounds=1)
    protocol = replace(protocol, local=replace(protocol.local, steps=1, batch=1))
    for json_ in (True, False):
        run_sensitivity(
            protocol, sweep=None, values=None, seeds=1, out=tmp_path / "twins.svg", json=json_
        )
    shown = capsys.readouterr().out
    document, _ = json.JSONDecoder().raw_decode(shown)
    assert document["rows"][0]["largest"] == [0.0]
    assert shown.count("the record was not drawn into any minibatch") == 2
    assert "not drawn" in document["note"]
    run_sensitivity(
        runnable(tmp_path), sweep=None, values=None, seeds=1, out=tmp_path / "twins.svg", json=True
    )
    assert json.loads(capsys.readouterr().out)["note"] is None


def test_the_table_names_key_values_and_bound(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run_sensitivity(
        runnable(tmp_path), sweep=None, values=None, seeds=1, out=tmp_path / "twins.svg", json=False
    )
    shown = capsys.readouterr().out
    (row,) = sweep_key(runnable(tmp_path), None, seeds=1, workers=1)
    for text in (
        "after 3 rounds, 1 seed",
        f"{row.mean[-1]:.4g}",
        f"{row.bound[-1]:.4g}",
        "unknown",
    ):
        assert text in shown
    assert "<svg" in (tmp_path / "twins.svg").read_text()


def test_what_is_zero_or_infinite_is_drawn_too(tmp_path) -> None:
    from sordino.report.sensitivity_plots import draw_sensitivity

    rows = [
        Sensitivity(
            value="a", distances=np.zeros((2, 3)), bound=np.zeros(3), accuracies=np.full(2, np.nan)
        ),
        Sensitivity(
            value="b",
            distances=np.array([[0, 1, np.inf]]),
            bound=np.array([0, 1e3, np.inf]),
            accuracies=np.full(1, np.nan),
        ),
    ]
    with np.errstate(invalid="ignore"):
        draw_sensitivity(rows, "model.name", tmp_path / "a.png")
        draw_sensitivity(rows[:1], None, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 0
    with pytest.raises(UserError, match=r"cannot be written"):
        draw_sensitivity(rows[:1], None, tmp_path / "nowhere" / "c.png")
