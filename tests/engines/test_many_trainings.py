"""`train_many`: every training ends as `train` ends it, whatever runs beside it."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sordino import (
    Budget,
    BudgetExceeded,
    ClientBudget,
    ClippedGlm,
    Constant,
    FedAvg,
    Gaussian,
    Interpolate,
    Model,
    NoisySgd,
    Privacy,
    Protocol,
    UserError,
    certify,
    realised,
    train_many,
)
from sordino.engines import training_cache
from sordino.engines.training_cache import HELD
from sordino.federation.training import Training
from sordino.native import native_engine
from sordino.native.kernel import Kernel
from sordino.native.library import list_runnable
from sordino.native.native_engine import split_evenly
from sordino.privacy.ledger_lines import RoundCharged
from tests.engines.many import ELSEWHERE, KEEPING, LOCAL, VARIED, alone, assert_same, needs_kernel
from tests.support import toy_dataset, toy_protocol


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_training_ends_as_it_would_alone(tmp_path, workers) -> None:
    found = train_many(VARIED, data=toy_dataset(), model="mlp", workers=workers)
    for one, other in zip(found, alone(VARIED, tmp_path), strict=True):
        assert_same(one, other)
    assert found[0].state is not None
    assert not torch.equal(found[0].state["1.weight"], found[3].state["1.weight"])


def test_trainings_that_keep_something_keep_it_apart(tmp_path) -> None:
    found = train_many(KEEPING * 2, data=toy_dataset(), model="mlp")
    for one, other, again in zip(
        found, alone(KEEPING, tmp_path), found[len(KEEPING) :], strict=False
    ):
        assert_same(one, other)
        assert_same(again, other)
    assert {one.engine for one in found} == {"native"} or not list_runnable()


@needs_kernel
def test_clients_of_all_trainings_are_trained_together_and_bounded_in_number(monkeypatch) -> None:
    calls, original = [], Kernel.train

    def watched(self, records, jobs, *, threads) -> None:
        calls.append(len(jobs))
        original(self, records, jobs, threads=threads)

    monkeypatch.setattr(Kernel, "train", watched)
    seeds = [toy_protocol(seed=seed) for seed in range(8)]
    together = train_many(seeds, data=toy_dataset(), model="mlp")
    assert calls == [40] * 4
    calls.clear()
    monkeypatch.setattr(native_engine, "AT_ONCE", 12)
    for one, other in zip(
        train_many(seeds, data=toy_dataset(), model="mlp", workers=2), together, strict=True
    ):
        assert_same(one, other)
    assert max(calls) <= 12
    assert sum(calls) == 8 * 5 * 4
    assert min(calls) > 1  # pieces of near-equal size


def test_pieces_cover_everything_once_in_order() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        counts, most = (
            generator.integers(0, 9, int(generator.integers(1, 7))).tolist(),
            int(generator.integers(1, 12)),
        )
        shared = list(split_evenly(counts, most))
        flat = [
            (which, place)
            for piece in shared
            for which, some in piece
            for place in range(some.start, some.stop)
        ]
        assert flat == [
            (which, place) for which, count in enumerate(counts) for place in range(count)
        ]
        sizes = [sum(some.stop - some.start for _, some in piece) for piece in shared]
        assert max(sizes, default=0) <= most
        assert max(sizes, default=0) - min(sizes, default=0) <= 1


@needs_kernel
def test_as_many_trainings_are_under_way_as_fill_the_kernel_and_no_more(monkeypatch) -> None:
    monkeypatch.setattr(native_engine, "AT_ONCE", 12)
    alive: weakref.WeakSet[Training] = weakref.WeakSet()
    most, given, original = 0, [], Training.__init__

    def counted(self, *arguments, **options) -> None:
        nonlocal most
        original(self, *arguments, **options)
        alive.add(self)
        most = max(most, len(alive))

    def made(number: int):
        data = toy_dataset(seed=number)
        given.append(weakref.ref(data))
        in_memory = sum(one() is not None for one in given)
        assert in_memory <= 3 + HELD + 1
        return data

    monkeypatch.setattr(Training, "__init__", counted)
    train_many([toy_protocol(seed=seed) for seed in range(20)], data=made, model="mlp")
    assert (
        most == 4
    )  # three fill a call of 12 clients; the one that has just ended still stands on the frame of whoever ended it
    assert len(given) == 20


@needs_kernel
def test_neighbours_and_halves_each_have_their_own_records(tmp_path) -> None:
    whole = toy_dataset(records=200)
    half = np.random.default_rng(1).permutation(200)[:120]
    neighbour = replace(whole, x_train=whole.x_train.copy())
    neighbour.x_train[0] += 1
    data = [
        whole,
        neighbour,
        replace(whole, x_train=whole.x_train[half], y_train=whole.y_train[half]),
    ]
    plans = [toy_protocol()] * 3
    found = train_many(plans, data=data, model="mlp")
    for one, other in zip(found, alone(plans, tmp_path, data), strict=True):
        assert_same(one, other)
    assert len({one.facts["data_digest"] for one in found}) == 3
    for one, other in zip(
        train_many(plans, data=lambda number: data[number], model="mlp"), found, strict=True
    ):
        assert_same(one, other)


def test_what_the_kernel_cannot_run_is_run_by_torch_and_says_why(tmp_path) -> None:
    plans = [
        toy_protocol(model=Model(name="mlp")),
        toy_protocol(model=ELSEWHERE),
        toy_protocol(seed=9, model=Model(name="logistic")),
    ]
    found = train_many(plans, data=toy_dataset())
    for one, other in zip(found, alone(plans, tmp_path), strict=True):
        assert_same(one, other)
    if list_runnable():
        assert [one.engine for one in found] == ["native", "torch", "native"]
        assert "Softplus" in found[1].facts["engine_reason"]
    first = 1 if list_runnable() else 0
    with pytest.raises(UserError, match=f"training {first}: engine = 'native'"):
        train_many(plans, data=toy_dataset(), engine="native")
    assert {one.engine for one in train_many(plans, data=toy_dataset(), engine="torch")} == {
        "torch"
    }


@needs_kernel
def test_modules_and_factories_are_translated_for_what_they_are(tmp_path) -> None:
    widths = iter(range(3, 9))

    def factory(shape: tuple[int, ...], outputs: int) -> nn.Module:
        width = next(widths)
        return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, outputs))

    plans = [toy_protocol(), toy_protocol()]
    found = train_many(plans, data=toy_dataset(), model=factory)
    assert found[0].facts["parameters"] != found[1].facts["parameters"]
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    for one, other in zip(
        train_many(plans, data=toy_dataset(), model=module),
        alone(plans, tmp_path, model=module),
        strict=True,
    ):
        assert_same(one, other)
        inputs = torch.from_numpy(toy_dataset().x_test)
        assert torch.equal(one.model(inputs), other.model(inputs))


def test_clients_that_keep_models_keep_them_in_memory_too(tmp_path) -> None:
    plans = [toy_protocol(personalization=Interpolate(alpha=0.3))]
    (found,), (run,) = train_many(plans, data=toy_dataset(), model="mlp"), alone(plans, tmp_path)
    assert found.personal == run.personal == (0, 1, 2, 3, 4)
    for client in found.personal:
        ours, theirs = (one.client_model(client).state_dict() for one in (found, run))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(UserError, match="client 9 of this training"):
        found.client_model(9)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_many(VARIED[:2], data=toy_dataset(), model="mlp")
    assert list(tmp_path.iterdir()) == []
    assert train_many([], data=toy_dataset(), model="mlp") == []


# ---- budgets

WHOLE = FedAvg(steps=1, batch=24, clip=1.0, schedule=Constant(rate=0.1))


def budgeted(epsilon: float, **changes) -> Protocol:
    return toy_protocol(
        rounds=40,
        local=WHOLE,
        noise=Gaussian(sigma=0.5),
        privacy=Privacy(budget=Budget(epsilon=epsilon)),
        **changes,
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_budgets_stop_each_training_where_train_would_stop_it(tmp_path, on_disk) -> None:
    plans = [budgeted(5.0), budgeted(3.0, seed=4), toy_protocol(rounds=6)]
    found = train_many(
        plans, data=toy_dataset(), model="logistic", folder=tmp_path / "many" if on_disk else None
    )
    assert [one.status for one in found] == ["budget", "budget", "finished"]
    for one, other in zip(found, alone(plans, tmp_path, model="logistic"), strict=True):
        assert_same(one, other)
    for one, epsilon in zip(found, (5.0, 3.0), strict=False):
        done = len(one.rounds_paid)
        assert (
            one.guarantee().epsilon(1e-5)
            == certify(one.protocol, rounds=range(done), sizes=one.sizes).epsilon(1e-5)
            <= epsilon
        )
        assert certify(one.protocol, rounds=range(done + 1)).epsilon(1e-5) > epsilon


def test_trainings_that_differ_in_their_seed_alone_are_priced_once(monkeypatch) -> None:
    priced, original = [], training_cache.find_limits

    def counted(setup, events):
        priced.append(setup.protocol.seed)
        return original(setup, events)

    monkeypatch.setattr(training_cache, "find_limits", counted)
    found = train_many(
        [budgeted(5.0, seed=seed) for seed in range(4)] + [budgeted(3.0)],
        data=toy_dataset(),
        model="logistic",
    )
    assert len(priced) == 2
    assert len({len(one.rounds_paid) for one in found[:4]}) == 1
    assert len(found[4].rounds_paid) < len(found[0].rounds_paid)


def test_a_budget_that_affords_nothing_is_refused_before_anything_is_written(tmp_path) -> None:
    with pytest.raises(BudgetExceeded, match=r"training 1: .*after 0 rounds"):
        train_many(
            [toy_protocol(), budgeted(0.01)],
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "a",
        )
    assert not (tmp_path / "a").exists()


def test_clients_with_budgets_of_their_own_leave_when_theirs_is_spent() -> None:
    plan = toy_protocol(
        rounds=30, local=WHOLE, noise=Gaussian(sigma=0.5), client=(ClientBudget(id=1, epsilon=3.0),)
    )
    for one in train_many([plan, replace(plan, seed=8)], data=toy_dataset(), model="mlp"):
        assert (
            0
            < sum(1 in event.clients for event in one.ledger if isinstance(event, RoundCharged))
            < 30
        )
        assert realised(one.protocol, one.ledger)[1].epsilon(1e-5) <= 3.0


# ---- mistakes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocols": [toy_protocol(), "mlp"]}, r"protocols\[1\] = 'mlp'"),
        ({"protocols": toy_protocol()}, "a single Protocol"),
        ({"data": [toy_dataset()]}, "2 protocols and 1 data sets"),
        (
            {"protocols": [toy_protocol(), toy_protocol(local=replace(LOCAL, batch=99))]},
            "training 1: local.batch = 99",
        ),
        ({"model": "mpl"}, "training 0: model.name"),
        ({"workers": 0}, "workers = 0"),
        ({"engine": "jax"}, "engine = 'jax'"),
        ({"engine": "flower"}, "one training at a time"),
        ({"evaluate_every": -1}, "evaluate-every = -1"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, changes, words) -> None:
    arguments = {
        "protocols": [toy_protocol(), toy_protocol()],
        "data": toy_dataset(),
        "model": "mlp",
        **changes,
    }
    with pytest.raises(UserError, match=words):
        train_many(arguments.pop("protocols"), **arguments, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@needs_kernel
def test_what_a_function_makes_is_checked_when_its_training_begins_and_the_others_are_kept(
    tmp_path,
) -> None:
    def made(number: int):
        return toy_dataset(records=120 if number < 2 else 10)

    with pytest.raises(UserError, match=r"training 2: local\.batch = 6: client 0 has 2 records"):
        train_many(
            [toy_protocol(seed=n) for n in range(3)], data=made, model="mlp", folder=tmp_path / "a"
        )
    assert not (tmp_path / "a" / "00002").exists()
    finished = train_many(
        [toy_protocol(seed=n) for n in range(2)], data=made, model="mlp", folder=tmp_path / "a"
    )
    assert [one.status for one in finished] == ["finished"] * 2


def test_a_training_that_diverges_says_so_and_the_others_go_on() -> None:
    wild = toy_protocol(noise=Gaussian(sigma=3e38))
    found = train_many([wild, toy_protocol()], data=toy_dataset(), model="mlp")
    assert [one.status for one in found] == ["diverged", "finished"]
    with pytest.raises(UserError, match="'rounds', not 'final'"):
        found[0].guarantee("final")
    assert found[1].guarantee("final").epsilon(1e-5) > 0


def test_a_worker_is_enough_for_rules_that_only_torch_runs() -> None:
    two = replace(toy_dataset(classes=2), classes=("no", "yes"))
    glm = toy_protocol(
        local=ClippedGlm(steps=4, clip=0.3, schedule=Constant(rate=1.0), weight_decay=0.1)
    )
    (found,) = train_many([glm], data=two, model="logistic", workers=1)
    assert (found.engine, found.status) == ("torch", "finished")


@needs_kernel
def test_batches_that_are_drawn_otherwise_do_not_share_a_kernel(tmp_path) -> None:
    """A kernel for batches of varying size adds up in another order: beside one, a training would end in other bits than alone."""
    fixed = NoisySgd(steps=2, batch=20, clip=1.0, schedule=Constant(rate=0.3))
    plans = [toy_protocol(seed=seed, local=rule, noise=Gaussian(multiplier=1.0)) for seed, rule in
             enumerate((replace(fixed, sampling="poisson"), fixed, replace(fixed, sampling="poisson")))]  # fmt: skip
    for one, other in zip(
        train_many(plans, data=toy_dataset(), model="mlp"), alone(plans, tmp_path), strict=True
    ):
        assert_same(one, other)
