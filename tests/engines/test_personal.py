"""Clients with models of their own: Algorithm 1 by hand, any number of workers, resumed bit for bit, and what is left on disk."""

import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from sordino import (
    Attention,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Identity,
    Interpolate,
    Mean,
    NoisySgd,
    Poisson,
    Run,
    Shards,
    UserError,
    resume,
    train,
)
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.attendance import draw_participants
from sordino.federation.evaluation import evaluate_clients
from sordino.federation.personal import make_attentive_helpers
from sordino.federation.setup import prepare
from sordino.federation.state import State
from sordino.federation.store.run_folder import RunFolder
from sordino.models import build_model
from sordino.native.library import list_runnable
from sordino.native.native_engine import NativeEngine
from sordino.protocol import NoPersonalization
from tests.support import toy_dataset, toy_protocol, uploads_of, without_seconds

FORK = multiprocessing.get_context("fork")
ADAM = NoisySgd(steps=3, batch=6, clip=0.5, schedule=Constant(rate=0.05), optimizer="adam")
ENGINES = [
    "torch",
    pytest.param(
        "native",
        marks=pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built"),
    ),
]
OWN = [
    NoPersonalization(),
    Identity(),
    Interpolate(alpha=0.3),
    Attention(own=0.4),
    Identity(pull=0.5),
    Interpolate(alpha=0.3, pull=0.5),
]


def plan(own=OWN[2], local=ADAM, rounds=6, **changes):
    noise = Gaussian(multiplier=0.5) if isinstance(local, NoisySgd) else Gaussian(sigma=0.05)
    return toy_protocol(
        **{
            "personalization": own,
            "local": local,
            "noise": noise,
            "rounds": rounds,
            "participation": Poisson(rate=0.6),
            **changes,
        }
    )


def fedavg(**changes) -> FedAvg:
    return FedAvg(
        **{"steps": 2, "batch": 24, "clip": 0.5, "schedule": Constant(rate=0.3), **changes}
    )


def files(folder: Path) -> dict[str, object]:
    run = Run.load(folder)
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.safetensors"))
    }
    return {
        **found,
        "ledger": (folder / "ledger.jsonl").read_bytes(),
        "metrics": without_seconds(run.metrics),
        "status": run.status,
    }


@pytest.mark.slow
@pytest.mark.parametrize("own", OWN, ids=str)
@pytest.mark.parametrize("local", [ADAM, fedavg(batch=6)], ids=lambda rule: rule.tag)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path, own, local, engine) -> None:
    for workers in (1, 3):
        train(
            plan(own, local),
            data=toy_dataset(),
            model="mlp",
            folder=tmp_path / str(workers),
            workers=workers,
            engine=engine,
        )
    assert files(tmp_path / "1") == files(tmp_path / "3")


@pytest.mark.slow
@pytest.mark.parametrize("own", OWN, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupted_run_goes_on_as_if_it_had_never_been(tmp_path, own, engine) -> None:
    def stop(metrics) -> None:
        if metrics.round == 3:
            raise KeyboardInterrupt

    train(
        plan(own),
        data=toy_dataset(),
        model="mlp",
        folder=tmp_path / "whole",
        workers=1,
        engine=engine,
    )
    with pytest.raises(KeyboardInterrupt):
        train(
            plan(own),
            data=toy_dataset(),
            model="mlp",
            folder=tmp_path / "cut",
            workers=2,
            on_round=stop,
            engine=engine,
        )
    state, _ = RunFolder(tmp_path / "cut").load_checkpoint()
    assert state is not None
    assert state.round == 3
    assert any("second" in kept for kept in state.clients.values())  # the moments of Adam
    resume(tmp_path / "cut", data=toy_dataset(), workers=1)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def start_or_go_on(folder: Path) -> None:
    torch.set_num_threads(1)
    if (folder / "protocol.toml").exists():
        resume(folder, data=toy_dataset(), workers=2)
    else:
        train(plan(rounds=100), data=toy_dataset(), model="mlp", folder=folder, workers=2)


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_as_if_it_had_never_been(tmp_path) -> None:
    start_or_go_on(tmp_path / "whole")
    chance, folder = random.Random(2), tmp_path / "killed"
    for attempt in range(6):
        process = FORK.Process(target=start_or_go_on, args=(folder,))
        process.start()
        process.join(chance.uniform(0.05, 0.4))
        process.kill()
        process.join()
        if folder.exists() and not (folder / "protocol.toml").exists():
            folder = (
                tmp_path / f"again-{attempt}"
            )  # killed before there was a run: the folder is not one yet
    if not (folder / "protocol.toml").exists() or Run.load(folder).status == "unfinished":
        start_or_go_on(folder)
    assert files(folder) == files(tmp_path / "whole")


def gradient(net, x, y, clip) -> torch.Tensor:
    parameters = list(net.parameters())
    vector = torch.cat(
        [
            g.reshape(-1)
            for g in torch.autograd.grad(functional.cross_entropy(net(x), y), parameters)
        ]
    )
    return vector / max(1.0, float(vector.norm()) / clip)


def by_hand(protocol, setup) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Algorithm 1 with Eq. 2.1, noiseless, on full batches, in float64: helper, local steps, mixing."""
    own_rule, rule = protocol.personalization, protocol.local
    net = build_model("mlp", (6,), 3, seed=0).double()
    world = torch.from_numpy(setup.initial_weights()).double()
    first, own = world.clone(), {}
    for t in range(protocol.rounds):
        chosen = draw_participants(protocol, round_index=t, key=setup.draw_key)
        for client in chosen.tolist():
            mine = own.get(client, first)
            helper = (
                world
                if isinstance(own_rule, Identity)
                else (1 - own_rule.alpha) * mine + own_rule.alpha * world
            )
            w = (helper if own_rule.pull is None else mine).clone()
            rows = setup.parts[client]
            x, y = setup.train.x[rows].double(), setup.train.y[rows]
            for _ in range(rule.steps):
                torch.nn.utils.vector_to_parameters(w, net.parameters())
                step = gradient(net, x, y, rule.clip)
                if own_rule.pull is not None:
                    step = step + own_rule.pull * (w - helper)
                w = w - rule.schedule.rate * step
            own[client] = w
        if len(chosen) > 0:
            mean = torch.stack([own[client] for client in chosen.tolist()]).mean(dim=0)
            world = (1 - protocol.aggregation.mixing) * world + protocol.aggregation.mixing * mean
    return world.numpy(), {client: w.numpy() for client, w in own.items()}


@pytest.mark.parametrize(
    "own",
    [Identity(), Interpolate(alpha=0.3), Identity(pull=0.5), Interpolate(alpha=0.3, pull=0.5)],
    ids=str,
)
def test_rounds_are_those_of_algorithm_1(tmp_path, own) -> None:
    protocol = plan(
        own, fedavg(), noise=Gaussian(sigma=0.0), aggregation=Mean(mixing=0.7), rounds=5
    )
    setup = prepare(protocol, data=toy_dataset(), model="mlp")
    run = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a", workers=1)
    world, models = by_hand(protocol, setup)
    final = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]).numpy()
    assert np.abs(final - world).max() < 1e-5
    assert run.personal == tuple(sorted(models))
    for client, expected in models.items():
        found = torch.cat(
            [p.detach().reshape(-1) for p in run.client_model(client).parameters()]
        ).numpy()
        assert np.abs(found - expected).max() < 1e-5


CARRIED = [Interpolate(alpha=0.3), Identity(pull=0.5), Interpolate(alpha=0.3, pull=0.5)]
HANDS = {"torch": TorchEngine, "native": NativeEngine}


def own_models(protocol, label, engine) -> list[np.ndarray]:
    """Client 0's personal model after every round, all its records having one label; the server sends one and the same model.

    Both classes have the same large weights, so that the steps of one label are the opposite of those of the other.
    """
    setup = prepare(protocol, data=toy_dataset(classes=2), model="logistic")
    setup.train.y[setup.parts[0]] = label
    row = np.random.default_rng(1).uniform(600, 1000, 6)
    world = np.concatenate([row, row, [700, 700]]).astype(np.float32)
    kept, found = {"model": world}, []
    with HANDS[engine](setup, workers=1) as hands:
        for t in range(protocol.rounds):
            before = kept["model"].copy()
            sent = uploads_of(
                hands, round=t, weights=world, participants=np.array([0]), kept={0: dict(kept)}
            )
            after = dict(next(iter(sent)).kept or {})
            assert np.array_equal(kept["model"], before)
            kept = after
            found.append(kept["model"].astype(np.float64))
    return found


@pytest.mark.parametrize("own", CARRIED, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_own_models_come_no_further_apart_than_is_priced(own, engine) -> None:
    """Steps of some 1e-4 beside weights whose neighbours in float32 are 6e-5 away: rounded every round they would."""
    for rate in (0.0002, 0.0004, 0.0008):
        local = fedavg(steps=1, clip=0.5, schedule=Constant(rate=rate))
        protocol = plan(own, local, rounds=8, participation=Poisson(rate=1.0))
        ones, others = (own_models(protocol, label, engine) for label in (0, 1))
        # A round leaves a share of the distance and adds two steps of the length of the clip.
        share = 1 - own.alpha if isinstance(own, Interpolate) else 0.0
        if own.pull is not None:
            share = 1 - rate * own.pull * (1 - share)
        limit = 0.0
        for one, other in zip(ones, others, strict=True):
            limit = share * limit + 2 * rate * local.clip
            assert 0.999 * limit < np.linalg.norm(one - other) <= limit


@pytest.mark.parametrize("own", CARRIED, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_own_models_without_noise_stay_in_float64_on_disk_and_are_published_in_float32(
    tmp_path, own, engine
) -> None:
    def stop(metrics) -> None:
        if metrics.round == 3:
            raise KeyboardInterrupt

    asked = {"data": toy_dataset(), "model": "mlp", "workers": 1, "engine": engine}
    protocol = plan(own, fedavg(batch=6))
    run = train(protocol, folder=tmp_path / "whole", **asked)
    with pytest.raises(KeyboardInterrupt):
        train(protocol, folder=tmp_path / "cut", on_round=stop, **asked)
    state, _ = RunFolder(tmp_path / "cut").load_checkpoint()
    assert state is not None
    models = [kept["model"] for kept in state.clients.values()]
    assert {model.dtype.name for model in models} == {"float64"}
    assert any((model != model.astype(np.float32)).any() for model in models)
    resume(tmp_path / "cut", data=toy_dataset(), workers=1)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    published = [
        load_file(tmp_path / "whole" / "clients" / f"{client}.safetensors")
        for client in run.personal
    ]
    assert {tensor.dtype for one in published for tensor in one.values()} == {torch.float32}


def test_attention_weighs_those_that_are_alike() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(2, 40))
    sent = {
        c: (centres[c % 2] + 0.1 * generator.normal(size=40)).astype(np.float32) for c in range(6)
    }
    world = np.mean(list(sent.values()), axis=0)
    rule = Attention(own=0.4, sharpness=20.0)
    found = make_attentive_helpers(rule, world, [0, 9], sent)
    assert set(found) == {0}  # client 9 has sent nothing: it gets the global model
    like = np.mean([sent[2], sent[4]], axis=0)
    assert np.abs(found[0] - (0.4 * sent[0] + 0.6 * like)).max() < 0.05
    even = make_attentive_helpers(Attention(own=0.0, sharpness=0.0), world, [0], sent)[0]
    np.testing.assert_allclose(
        even, np.mean([sent[c] for c in range(1, 6)], axis=0), rtol=1e-5, atol=1e-6
    )


def test_fresh_moments_for_none_and_kept_ones_for_adam(tmp_path) -> None:
    """The same rounds cut in two by hand differ from one run unless moments are carried: Adam's first step is then no first step."""
    protocol = plan(
        NoPersonalization(),
        rounds=2,
        participation=Poisson(rate=1.0),
        noise=Gaussian(multiplier=0.0),
    )
    whole = train(protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "a", workers=1)
    state, _ = RunFolder(tmp_path / "a").load_checkpoint()
    assert state is not None
    assert {int(kept["steps"][0]) for kept in state.clients.values()} == {6}
    assert whole.personal == ()
    with pytest.raises(UserError, match="has no personal model"):
        whole.client_model(0)


def test_own_models_fit_own_labels_better(tmp_path) -> None:
    """One label a client: whoever keeps a model knows its label, the mean of all does not."""
    data = toy_dataset(records=240, classes=4, seed=5)
    protocol = plan(
        Interpolate(alpha=0.1),
        NoisySgd(steps=5, batch=12, clip=1.0, schedule=Constant(rate=0.5)),
        clients=8,
        rounds=8,
        noise=Gaussian(multiplier=0.2),
        participation=Poisson(rate=1.0),
        data=Data(name="toy", partition=Shards(per_client=1)),
    )
    run = train(protocol, data=data, model="logistic", folder=tmp_path / "a", workers=1)
    world, own = evaluate_clients(run, data), evaluate_clients(run, data, personal=True)
    assert own.mean() > 0.95
    assert own.mean() > world.mean() + 0.05


def test_whoever_would_lose_what_clients_keep_is_refused() -> None:
    setup = prepare(plan(), data=toy_dataset(), model="mlp")
    with (
        TorchEngine(setup, workers=1) as engine,
        pytest.raises(UserError, match="keep state from round to round"),
    ):
        list(
            uploads_of(engine, round=0, weights=setup.initial_weights(), participants=np.arange(2))
        )


def test_a_checkpoint_tells_what_the_server_keeps_from_what_clients_keep(tmp_path) -> None:
    before = State(
        weights=np.arange(3, dtype=np.float32),
        round=2,
        kept={"leader": np.ones(3, np.float32)},
        clients={
            0: {"model": np.zeros(3, np.float32)},
            11: {"model": np.full(3, 7, np.float32), "steps": np.array([4])},
        },
    )
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(before)
    after, _ = folder.load_checkpoint()
    assert after is not None
    assert after.round == 2
    assert set(after.kept) == {"leader"}
    assert set(after.clients) == {0, 11}
    assert after.arrays().keys() == before.arrays().keys()
    assert all(
        np.array_equal(array, before.arrays()[name]) for name, array in after.arrays().items()
    )
