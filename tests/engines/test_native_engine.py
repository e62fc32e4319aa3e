"""The native engine as a whole: the trainings of the torch engine, whatever it cannot run left to torch, and what a run says of it."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from sordino import Constant, Dataset, FedAvg, FedProx, Gaussian, NoisySgd, Run, resume, train
from sordino.engines import choice as choices
from sordino.engines.choice import choose_engine
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.aggregation.joining import upload_weights
from sordino.federation.client import ClientWork
from sordino.federation.rules.clipped_steps import train_locally
from sordino.federation.rules.local_training import Assignment
from sordino.federation.setup import Setup, prepare
from sordino.models.flat import FlatModel
from sordino.native import library, native_engine
from sordino.native.kernel import Kernel
from sordino.native.library import list_runnable
from sordino.native.native_engine import NativeEngine, kernel_for
from sordino.native.network_builder import KernelRefusal
from sordino.native.translate import translate
from sordino.protocol import UserError
from sordino.randomness import Key
from tests.engines.native_nets import Residual, images, kink_distances, relative
from tests.support import aggregate, toy_dataset, toy_protocol, uploads_of, without_seconds

needs_kernel = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")


def rounds(setup: Setup, engine: TorchEngine | NativeEngine, count: int) -> list[np.ndarray]:
    """The models after every round."""
    everyone, models = np.arange(setup.protocol.clients), [setup.initial_weights()]
    with engine:
        for t in range(count):
            uploads = [
                u.vector
                for u in uploads_of(engine, round=t, weights=models[-1], participants=everyone)
            ]
            rule = setup.protocol.aggregation
            models.append(
                aggregate(rule, models[-1], iter(uploads), upload_weights(rule, setup.sizes))
            )
    return models


def assert_only_kinks_differ(
    setup: Setup, ours: list[np.ndarray], theirs: list[np.ndarray]
) -> None:
    """Weights differ by more than rounding only after a step had a record within rounding of a kink."""
    work, nearest = ClientWork(setup), np.inf
    for t, models in enumerate(zip(ours, theirs, strict=True)):
        for weights in models if t + 1 < len(ours) else ():
            for client in range(setup.protocol.clients):
                flat, rule = FlatModel(setup.module), setup.protocol.local
                task = Assignment(client=client, round_index=t, start=weights)
                for k in range(rule.steps):
                    batches = list(work.draw_batches(task))[:k]
                    some = replace(rule, steps=max(k, 1))
                    _, here = train_locally(
                        flat, torch.from_numpy(weights), some, [0.1] * k, batches, work.loss
                    )
                    flat.load(here.float())
                    x, _ = list(work.draw_batches(task))[k]
                    nearest = min(nearest, kink_distances(flat.module(), x.numpy()).min())
    assert nearest < 1e-6


@needs_kernel
@pytest.mark.parametrize("local", [FedAvg, FedProx])
@pytest.mark.parametrize(
    ("model", "size", "clients"),
    [("logistic", 28, 4), ("mlp", 28, 4), ("lenet5", 28, 3), ("prifedsync-mnist", 14, 2)],
)
def test_five_rounds_are_those_of_the_torch_engine(
    model: str, size: int, clients: int, local: type[FedAvg]
) -> None:
    more = {"proximal": 0.3} if local is FedProx else {}
    rule = local(steps=5, batch=20, clip=0.5, schedule=Constant(rate=0.1), **more)
    protocol = toy_protocol(clients=clients, rounds=5, local=rule, noise=Gaussian(sigma=0.003))
    setup = prepare(protocol, data=images(clients * 40, size), model=model)
    theirs, ours = (
        rounds(setup, TorchEngine(setup, workers=1), 5),
        rounds(setup, NativeEngine(setup, workers=2), 5),
    )
    assert relative(theirs[-1], ours[0]) > 1e-3
    if relative(ours[-1], theirs[-1]) >= 1e-4:
        assert_only_kinks_differ(setup, ours, theirs)


@needs_kernel
def test_uploads_carry_the_noise_and_the_counts_of_the_torch_engine() -> None:
    setup = prepare(toy_protocol(noise=Gaussian(sigma=0.7)), data=toy_dataset(), model="mlp")
    chosen = np.array([4, 0, 3])
    with TorchEngine(setup, workers=1) as torch_engine, NativeEngine(setup, workers=1) as engine:
        theirs, ours = (
            list(uploads_of(e, round=2, weights=setup.initial_weights(), participants=chosen))
            for e in (torch_engine, engine)
        )
        for a, b in zip(theirs, ours, strict=True):
            assert (a.client, a.steps) == (b.client, b.steps)
            assert np.abs(a.vector - b.vector).max() < 1e-5
        scores = torch_engine.score(setup.initial_weights()), engine.score(setup.initial_weights())
        assert scores[0].correct == scores[1].correct
        assert scores[0].loss == pytest.approx(scores[1].loss, rel=1e-6)


@needs_kernel
def test_the_trainings_of_an_audit_draw_what_they_draw_by_torch() -> None:
    setup = replace(
        prepare(toy_protocol(noise=Gaussian(sigma=0.3)), data=toy_dataset(), model="mlp"),
        training=4096 * 2 + 5,
    )
    theirs, ours = (
        rounds(setup, TorchEngine(setup, workers=1), 2)[-1],
        rounds(setup, NativeEngine(setup, workers=1), 2)[-1],
    )
    other = rounds(
        replace(setup, training=4), NativeEngine(replace(setup, training=4), workers=1), 2
    )[-1]
    assert relative(ours, theirs) < 1e-5
    assert relative(other, theirs) > 0.1


class OwnLoss(nn.Linear):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()


def test_a_model_with_a_loss_of_its_own_is_left_to_torch() -> None:
    setup = prepare(toy_protocol(), data=toy_dataset(), model=OwnLoss(6, 3))
    assert "its own loss" in choose_engine(setup, "auto").reason or not list_runnable()


@pytest.mark.slow
@needs_kernel
def test_fifty_rounds_on_digits_learn_the_same(tmp_path) -> None:
    local = FedAvg(steps=5, batch=16, clip=1.0, schedule=Constant(rate=0.5))
    protocol = toy_protocol(clients=10, rounds=50, local=local, noise=Gaussian(sigma=0.01))
    runs = [
        train(
            protocol, data="digits", model="mlp", engine=e, folder=tmp_path / e, evaluate_every=10
        )
        for e in ("torch", "native")
    ]
    assert [run.facts["engine"] for run in runs] == ["torch", "native"]
    there = np.isfinite(runs[0].metrics["accuracy"])
    assert (
        np.abs(runs[0].metrics["accuracy"][there] - runs[1].metrics["accuracy"][there]).max() < 0.01
    )
    assert runs[0].metrics["accuracy"][there][-1] > 0.8


@needs_kernel
@pytest.mark.parametrize("simd", list_runnable())
def test_the_result_does_not_depend_on_the_number_of_threads(simd: str, monkeypatch) -> None:
    monkeypatch.setenv(library.CHOICE, simd)
    setup = prepare(
        toy_protocol(clients=7, noise=Gaussian(sigma=0.1)), data=images(7 * 30, 16), model="lenet5"
    )
    answers = [rounds(setup, NativeEngine(setup, workers=n), 2)[-1] for n in (1, 2, 5)]
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


@needs_kernel
def test_the_ledger_line_is_on_disk_before_any_client_trains(tmp_path, monkeypatch) -> None:
    seen, original = [], Kernel.train

    def watched(self, records, jobs, *, threads) -> None:
        line = json.loads((tmp_path / "a" / "ledger.jsonl").read_text().splitlines()[-1])
        seen.append(
            line["round"] == jobs["round"][0] and line["clients"] == jobs["client"].tolist()
        )
        original(self, records, jobs, threads=threads)

    monkeypatch.setattr(Kernel, "train", watched)
    train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "a", engine="native")
    assert seen == [True] * 4


@needs_kernel
def test_uploads_in_pieces_are_the_same_uploads(monkeypatch) -> None:
    setup = prepare(toy_protocol(clients=7), data=toy_dataset(records=210), model="mlp")
    whole = rounds(setup, NativeEngine(setup, workers=2), 1)[-1]
    monkeypatch.setattr(native_engine, "AT_ONCE", 2)
    assert np.array_equal(rounds(setup, NativeEngine(setup, workers=2), 1)[-1], whole)


@needs_kernel
def test_quantities_are_trained_with_the_squared_error() -> None:
    generator = np.random.default_rng(0)
    x, y = (
        generator.standard_normal((60, 3, 12), dtype=np.float32),
        generator.standard_normal((60, 4), dtype=np.float32),
    )
    data = Dataset(name="series", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9], classes=None)
    setup = prepare(toy_protocol(clients=3), data=data, model="udp-wind")
    theirs, ours = (
        rounds(setup, TorchEngine(setup, workers=1), 3)[-1],
        rounds(setup, NativeEngine(setup, workers=1), 3)[-1],
    )
    assert relative(ours, theirs) < 1e-4


# ---- the choice


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return module


def backward_hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].weight.register_hook(lambda gradient: 0 * gradient)
    return module


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    module[0].weight.requires_grad_(False)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, layer, nn.Linear(6, 3))


class Odd(nn.Linear):
    """Derived from a layer that the kernel has, and something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 3


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(6, 3), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return self.relu(h) + h


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class DroppingTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(6, 6), nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.first(self.drop(x))))


REFUSED = {
    "hook": (hooked, "has a hook"),
    "hook of a parameter": (backward_hooked, "has a hook"),
    "parametrisation": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3))),
        "parametrised",
    ),
    "frozen": (frozen, "frozen"),
    "shared": (shared, "used twice"),
    "derived": (lambda: nn.Sequential(Odd(6, 3)), "native kernel does not have|directly"),
    "branching": (Branching, "cannot trace"),
    "overwriting": (Overwriting, "overwrites"),
    "idle": (Idle, "not used"),
    "layer": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Softplus()), "Softplus"),
    "dropout twice": (DroppingTwice, "dropout is used twice"),
    "all dropped": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(1.0)), "drops everything"),
    "buffers": (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "buffers"),
    "tanh GELU": (lambda: nn.Sequential(nn.Linear(6, 3), nn.GELU("tanh")), "approximated"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_kernel_cannot_run_is_refused_with_a_reason(make, words: str) -> None:
    with pytest.raises(KernelRefusal, match=words):
        translate(make(), (6,))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Conv2d(2, 2, 3, dilation=2), "dilation"),
        (nn.Conv2d(2, 2, 3, groups=2), "groups"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "pads"),
        (nn.Conv2d(2, 2, 3, padding="same"), "pads"),
        (nn.MaxPool2d(2, ceil_mode=True), "rounds up"),
        (nn.AvgPool2d(3, padding=1), "pads"),
        (nn.AdaptiveAvgPool2d(2), "more than one pixel"),
        (nn.Flatten(2), "flatten"),
        (nn.Linear(8, 3), "rows of features"),
    ],
)
def test_settings_that_the_kernel_lacks_are_refused(layer: nn.Module, words: str) -> None:
    with pytest.raises(KernelRefusal, match=words):
        translate(nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 3)), (2, 8, 8))


def test_a_wrong_translation_is_noticed_before_anything_is_trained(monkeypatch) -> None:
    if not list_runnable():
        pytest.skip("the native kernel was not built")
    setup = prepare(toy_protocol(), data=toy_dataset(), model="mlp")

    def swapped(module, shape):
        return translate(
            nn.Sequential(nn.Flatten(), nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)), shape
        )

    monkeypatch.setattr(native_engine, "translate", swapped)
    with pytest.raises(KernelRefusal, match="differ"):
        kernel_for(setup)


@needs_kernel
def test_auto_takes_the_native_engine_where_it_can_and_says_why_not(tmp_path) -> None:
    native = train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert (native.facts["engine"], native.facts["kernel"]) == (
        "native",
        library.fingerprint_library(library.choose_instruction_set()),
    )
    fallen = train(toy_protocol(), data=toy_dataset(), model=Branching, folder=tmp_path / "b")
    assert fallen.facts["engine"] == "torch"
    assert "cannot trace" in fallen.facts["engine_reason"]
    asked = train(
        toy_protocol(), data=toy_dataset(), model="mlp", engine="torch", folder=tmp_path / "c"
    )
    assert (asked.facts["engine"], asked.facts["kernel"]) == ("torch", None)
    assert (
        json.loads((tmp_path / "b" / "run.json").read_text())["engine_reason"]
        == fallen.facts["engine_reason"]
    )


def test_without_a_kernel_torch_runs_and_the_reason_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(library.FOLDER, str(tmp_path / "empty"))
    assert list_runnable() == []
    run = train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "a")
    assert run.facts["engine"] == "torch"
    assert "compiler" in run.facts["engine_reason"]
    with pytest.raises(UserError, match="absent"):
        train(
            toy_protocol(), data=toy_dataset(), model="mlp", engine="native", folder=tmp_path / "b"
        )
    assert not (tmp_path / "b").exists()


@needs_kernel
def test_a_kernel_of_another_version_counts_as_absent(monkeypatch) -> None:
    monkeypatch.setattr(library, "VERSION", library.VERSION + 1)
    assert list_runnable() == []
    assert (
        "make native"
        in choose_engine(prepare(toy_protocol(), data=toy_dataset(), model="mlp"), "auto").reason
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "jax"}, "auto, torch, native or flower"),
        ({"engine": "native", "model": Branching}, "trace"),
    ],
)
def test_an_engine_that_cannot_be_had_is_refused_before_anything_is_written(
    tmp_path, options, words
) -> None:
    if not list_runnable():
        pytest.skip("the native kernel was not built")
    with pytest.raises(UserError, match=words):
        train(
            toy_protocol(),
            **{"data": toy_dataset(), "model": "mlp", **options},
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


@needs_kernel
def test_an_interrupted_run_goes_on_with_its_engine_and_ends_as_if_it_had_not_been(
    tmp_path, monkeypatch
) -> None:
    class Stop(Exception):
        pass

    def stop(metrics) -> None:
        if metrics.round == 1:
            raise Stop

    whole = train(toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "whole")
    with pytest.raises(Stop):
        train(
            toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "cut", on_round=stop
        )
    if (
        len(list_runnable()) > 1
    ):  # another instruction set would give other last digits under the same noise
        with monkeypatch.context() as other:
            other.setenv(library.CHOICE, list_runnable()[-1])
            with pytest.raises(UserError, match="another kernel"):
                resume(tmp_path / "cut", data=toy_dataset())
    ended = resume(tmp_path / "cut", data=toy_dataset(), workers=1)
    assert ended.status == "finished"
    assert without_seconds(ended.metrics) == without_seconds(whole.metrics)
    assert all(torch.equal(ended.state[name], value) for name, value in whole.state.items())


@needs_kernel
def test_a_processor_that_lacks_the_instructions_asked_for_is_told(monkeypatch) -> None:
    monkeypatch.setenv(library.CHOICE, "avx1024")
    with pytest.raises(UserError, match=r"SORDINO_SIMD.*portable"):
        library.choose_instruction_set()


@needs_kernel
def test_models_beyond_the_cache_are_left_to_torch(monkeypatch) -> None:
    monkeypatch.setattr(native_engine, "LARGEST", 100)
    setup = prepare(toy_protocol(), data=toy_dataset(), model="mlp")
    assert "parameters" in choose_engine(setup, "auto").reason
    assert choose_engine(setup, "auto", device="cuda").reason == "the device is cuda"
    assert choices.ENGINES == ("auto", "torch", "native", "flower")


@needs_kernel
def test_a_residual_network_runs_natively() -> None:
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh())
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), Residual(body), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )
    setup = prepare(toy_protocol(clients=2), data=images(60, 8), model=module)
    theirs, ours = (
        rounds(setup, TorchEngine(setup, workers=1), 3)[-1],
        rounds(setup, NativeEngine(setup, workers=1), 3)[-1],
    )
    assert relative(ours, theirs) < 1e-4


DROPPING_RULES = {
    "fedavg": {},
    "noisy-sgd, lots of any size": {
        "local": NoisySgd(
            steps=3, batch=20, clip=0.5, schedule=Constant(rate=0.3), sampling="poisson"
        ),
        "noise": Gaussian(multiplier=0.1),
    },
}


class Bent(nn.Module):
    """A forward of its own, so that torch vectorises examples instead of passing layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = dropping()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(torch.tanh(x))


def dropping() -> nn.Sequential:
    """No kinks; dropouts of odd sizes, before and after other layers."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.LayerNorm((3, 6, 6)),
        nn.Tanh(),
        nn.Dropout(0.25),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 11),
        nn.Dropout(0.5),
        nn.Sigmoid(),
        nn.LayerNorm(11, bias=False),
        nn.Linear(11, 10),
    )


@needs_kernel
@pytest.mark.parametrize("make", [dropping, Bent], ids=["layers", "traced"])
@pytest.mark.parametrize("changes", DROPPING_RULES.values(), ids=DROPPING_RULES.keys())
def test_both_engines_drop_the_same_values(changes: dict[str, object], make) -> None:
    torch.manual_seed(3)
    protocol = toy_protocol(clients=3, **changes)
    # Clients have 90 records each, so that lots fill several blocks of the kernel.
    setup = prepare(protocol, data=images(270, 8), model=make())
    # As under `secure`: what is dropped follows the secret key, not the seed.
    secret = Key.from_seed(99)
    setup = replace(setup, noise_key=secret, draw_key=secret)
    theirs = rounds(setup, TorchEngine(setup, workers=1), 3)[-1]
    ours = rounds(setup, NativeEngine(setup, workers=2), 3)[-1]
    assert relative(ours, theirs) < 1e-5
    still = prepare(protocol, data=images(270, 8), model=without_dropouts(setup.module))
    still = replace(still, noise_key=secret, draw_key=secret)
    assert relative(rounds(still, NativeEngine(still, workers=1), 3)[-1], theirs) > 1e-3


def without_dropouts(module: nn.Module) -> nn.Module:
    """The same weights with nothing dropped: a comparison that must fail."""
    copied = copy.deepcopy(module)
    for layer in copied.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return copied


def test_a_finished_native_run_can_be_read_where_there_is_no_kernel(tmp_path, monkeypatch) -> None:
    if not list_runnable():
        pytest.skip("the native kernel was not built")
    run = train(
        toy_protocol(), data=toy_dataset(), model="mlp", folder=tmp_path / "a", engine="native"
    )
    monkeypatch.setenv(library.FOLDER, str(tmp_path / "empty"))
    assert Run.load(run.folder).facts["engine"] == "native"
