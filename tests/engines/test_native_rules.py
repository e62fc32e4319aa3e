"""Every rule, noise and helper by the native engine, held to the torch engine: same draws, same models, same things kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sordino import (
    Attention,
    ClientBudget,
    ClippedGlm,
    Constant,
    Data,
    Dirichlet,
    FedAvg,
    FedProx,
    Gaussian,
    Identity,
    Interpolate,
    Laplace,
    Mean,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    Staircase,
    train,
)
from sordino.engines.choice import choose_engine
from sordino.federation.setup import prepare
from sordino.federation.state import State
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.upload import Upload
from sordino.native import native_engine
from sordino.native.kernel import Kernel
from sordino.native.library import list_runnable
from sordino.native.native_engine import NativeEngine, kernel_for
from sordino.native.network_builder import KernelRefusal
from sordino.protocol import Decay, UserError
from tests.engines.native_nets import images, relative
from tests.support import toy_dataset, toy_protocol, uploads_of

needs_kernel = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")

DATA = toy_dataset(records=300, features=6, classes=3)
FAST, SLOW = Constant(rate=0.5), Constant(rate=0.05)
FEDAVG = FedAvg(steps=5, batch=7, clip=0.3, schedule=FAST)
NOISY = NoisySgd(steps=5, batch=7, clip=0.3, schedule=FAST)
QUIET, STEPS = Gaussian(sigma=0.003), Gaussian(multiplier=0.1)
MECHANISMS = (
    (50.0, "laplace"),
    (80.0, "gaussian"),
    (60.0, "staircase"),
    (70.0, "laplace"),
    (40.0, "gaussian"),
)
BUDGETS = tuple(
    ClientBudget(id=k, epsilon=epsilon, mechanism=kind)
    for k, (epsilon, kind) in enumerate(MECHANISMS)
)
WORKERS = {"torch": 1, "native": 2}
NORMAL = tuple(replace(budget, mechanism="gaussian") for budget in BUDGETS)


def smooth() -> nn.Module:
    """A network without kinks, so that rounding is all that engines can differ by."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def noisy(**changes: object) -> dict[str, object]:
    return {"local": replace(NOISY, **changes), "noise": STEPS}


def adam(**changes: object) -> dict[str, object]:
    return noisy(optimizer="adam", schedule=SLOW, **changes)


PLAIN: dict[str, object] = {"local": FEDAVG, "noise": QUIET}
RULES: dict[str, dict[str, object]] = {
    "noisy-sgd": noisy(),
    "noisy-sgd, poisson": noisy(sampling="poisson"),
    "noisy-sgd, batches mostly empty": noisy(sampling="poisson", batch=1),
    "noisy-sgd, l1": noisy(clip_norm="l1"),
    "noisy-sgd, no noise": {**noisy(weight_decay=0.1), "noise": Gaussian(multiplier=0.0)},
    "noisy-sgd, falling rate": noisy(schedule=Decay(rate=0.5, factor=0.7, every=7)),
    "momentum and decay": noisy(optimizer="momentum", schedule=SLOW, weight_decay=0.1),
    "adam": adam(),
    "adam, poisson, l1, decay": adam(sampling="poisson", clip_norm="l1", weight_decay=0.1),
    "adagrad": noisy(optimizer="adagrad", schedule=SLOW),
    "adagrad, decay, pull": {**noisy(optimizer="adagrad", schedule=SLOW, weight_decay=0.1), "personalization": Identity(pull=0.5)},
    "laplace in steps": {**noisy(sampling="poisson"), "noise": Laplace(scale=0.05)},
    "laplace in steps, l1, adam": {**adam(clip_norm="l1"), "noise": Laplace(scale=0.05)},
    "staircase in steps": {**noisy(), "noise": Staircase(step=60.0, width=1.0)},
    "harmonizer in steps": {**noisy(sampling="poisson", batch=5), "client": BUDGETS},
    "harmonizer in steps, penalty, weighed": {
        **noisy(sampling="poisson", batch=5),
        "client": BUDGETS,
        "penalty": True,
        "aggregation": Mean(weights="noise"),
    },
    "own budgets": {**noisy(), "client": (ClientBudget(id=1, epsilon=70.0),)},
    "identity": {**adam(), "personalization": Identity()},
    "interpolate": {**noisy(sampling="poisson"), "personalization": Interpolate(alpha=0.3)},
    "interpolate, pull": {**adam(), "personalization": Interpolate(alpha=0.3, pull=0.7)},
    "attention": {**adam(), "personalization": Attention(own=0.4)},
    "attention, pull": {**noisy(optimizer="momentum", schedule=SLOW), "personalization": Attention(own=0.4, pull=0.5)},
    "fedavg, identity, pull": {**PLAIN, "personalization": Identity(pull=0.5)},
    "fedavg, interpolate": {**PLAIN, "personalization": Interpolate(alpha=0.3)},
    "fedavg, l1": {**PLAIN, "local": replace(FEDAVG, clip_norm="l1")},
    "whole update": {**PLAIN, "local": replace(FEDAVG, clip_target="update")},
    "whole update, l1": {**PLAIN, "local": replace(FEDAVG, clip_target="update", clip_norm="l1")},
    "whole update, fedprox": {**PLAIN, "local": FedProx(steps=5, batch=7, clip=0.3, schedule=FAST, proximal=0.4, clip_target="update")},
    "server": {**PLAIN, "noise": Gaussian(sigma=0.003, where="server")},
    "server, laplace, whole update": {
        "local": replace(FEDAVG, clip_target="update", clip_norm="l1"),
        "noise": Laplace(scale=0.003, where="server"),
    },
    "both": {**PLAIN, "noise": Gaussian(sigma=0.003, server_sigma=0.002, where="both")},
    "laplace": {"local": replace(FEDAVG, clip_norm="l1"), "noise": Laplace(scale=0.003)},
    "staircase": {"local": replace(FEDAVG, clip=0.05, clip_norm="l1"), "noise": Staircase(step=60.0, width=0.3)},
    "scaffold": {**PLAIN, "local": Scaffold(steps=5, batch=7, clip=0.3, schedule=FAST)},
    "scaffold, whole update": {**PLAIN, "local": Scaffold(steps=5, batch=7, clip=0.3, schedule=FAST, clip_target="update")},
    "harmonizer": {**PLAIN, "client": BUDGETS},
    "harmonizer, normal noise": {**PLAIN, "client": NORMAL},
    "harmonizer, penalty": {**PLAIN, "client": NORMAL, "penalty": True},
    "harmonizer, penalty, fedprox": {
        "local": FedProx(steps=5, batch=7, clip=0.3, schedule=FAST, proximal=0.4),
        "noise": QUIET,
        "client": BUDGETS,
        "penalty": True,
    },
}  # fmt: skip


def plan(changes: dict[str, object]) -> Protocol:
    """Five rounds of five clients of different sizes, who take part now and then."""
    data = Data(name="toy", partition=Dirichlet(beta=2.0))
    return toy_protocol(rounds=5, participation=Poisson(rate=0.7), data=data, **changes)


def trained(changes: dict[str, object], engine: str, folder: Path) -> State:
    run = train(
        plan(changes),
        data=DATA,
        model=smooth(),
        engine=engine,
        folder=folder / engine,
        workers=WORKERS[engine],
    )
    assert run.facts["engine"] == engine
    state, _ = RunFolder(folder / engine).load_checkpoint()
    assert state is not None
    return state


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("changes", RULES.values(), ids=RULES.keys())
def test_a_training_is_that_of_the_torch_engine(changes: dict[str, object], tmp_path: Path) -> None:
    theirs, ours = (trained(changes, engine, tmp_path) for engine in ("torch", "native"))
    start = torch.cat([p.detach().reshape(-1) for p in smooth().parameters()]).numpy()
    assert relative(theirs.weights, start) > 1e-2
    assert relative(ours.weights - start, theirs.weights - start) < 1e-5
    assert ours.arrays().keys() == theirs.arrays().keys()
    for name, array in theirs.arrays().items():
        assert ours.arrays()[name].dtype == array.dtype, name
        assert relative(ours.arrays()[name].astype(np.float64), array.astype(np.float64)) < 1e-5, (
            name
        )
    for metrics in zip(
        *(RunFolder(tmp_path / engine).metrics() for engine in ("torch", "native")), strict=True
    ):
        assert (
            len(
                {
                    (line["clip_fraction"], line["nonfinite_steps"], line["participants"])
                    for line in metrics
                }
            )
            == 1
        )


@needs_kernel
@pytest.mark.parametrize(
    "local",
    [
        replace(NOISY, batch=20),
        replace(NOISY, batch=20, clip_norm="l1", optimizer="adam", sampling="poisson"),
    ],
)
def test_convolutions_are_clipped_by_the_example_as_torch_clips_them(
    local: NoisySgd, tmp_path: Path
) -> None:
    protocol = toy_protocol(clients=3, rounds=5, local=replace(local, schedule=SLOW), noise=STEPS)
    runs = [
        train(
            protocol, data=images(120, 28), model="lenet5", engine=engine, folder=tmp_path / engine
        )
        for engine in WORKERS
    ]
    theirs, ours = (
        np.concatenate([value.numpy().ravel() for value in run.state.values()]) for run in runs
    )
    assert relative(ours, theirs) < 1e-4


def uploaded(changes: dict[str, object], **kept: object) -> tuple[np.ndarray, list[Upload]]:
    setup = prepare(plan(changes), data=DATA, model=smooth())
    start = setup.initial_weights()
    with NativeEngine(setup, workers=2) as engine:
        return start, list(
            uploads_of(engine, round=0, weights=start, participants=np.arange(5), **kept)
        )


@needs_kernel
@pytest.mark.parametrize(
    "noise",
    [Gaussian(sigma=1.0, where="server"), Gaussian(sigma=0.0, server_sigma=1.0, where="both")],
)
def test_what_meets_its_noise_at_the_server_is_within_the_clip_to_the_last_digit(
    noise: Gaussian,
) -> None:
    """Weights rounded to float32 would be off by a thousand times the clip."""
    start, uploads = uploaded({"local": replace(FEDAVG, clip=1e-10), "noise": noise})
    for upload in uploads:
        moved = np.linalg.norm(upload.vector - start.astype(np.float64))
        assert 1e-11 < moved <= 5 * 0.5 * 1e-10 * (1 + 1e-5)


@needs_kernel
@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2)])
def test_a_whole_update_is_as_long_as_its_clip_at_most(norm: str, order: int) -> None:
    local = replace(FEDAVG, clip_target="update", clip_norm=norm, clip=0.01)
    start, uploads = uploaded({"local": local, "noise": Gaussian(sigma=0.0, where="server")})
    for upload in uploads:
        assert 0.0099 < np.linalg.norm(upload.vector - start.astype(np.float64), order) <= 0.01
        assert (upload.steps.clipped, upload.steps.clips) == (1, 1)


@needs_kernel
def test_what_a_client_keeps_is_its_own_memory() -> None:
    _, uploads = uploaded(
        {**adam(), "personalization": Identity()}, kept={client: {} for client in range(5)}
    )
    for upload in uploads:
        assert set(upload.kept or {}) == {"model", "first", "second", "steps"}
        assert all(array.base is None for array in (upload.kept or {}).values())


@needs_kernel
def test_whoever_would_lose_what_clients_keep_is_refused() -> None:
    with pytest.raises(UserError, match="keep state from round to round"):
        uploaded(adam())


@needs_kernel
def test_jobs_in_pieces_are_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**adam(sampling="poisson"), "personalization": Interpolate(alpha=0.3, pull=0.7)}
    kept = {client: {"model": np.full(93, client, np.float32)} for client in range(5)}
    whole = uploaded(changes, kept=kept)[1]
    monkeypatch.setattr(native_engine, "IN_FLIGHT", 1)
    for one, other in zip(whole, uploaded(changes, kept=kept)[1], strict=True):
        assert np.array_equal(one.vector, other.vector)


def test_clipped_glm_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        native_engine, "choose_instruction_set", lambda: "portable"
    )  # also where the kernel is not built
    local = ClippedGlm(steps=5, clip=1.0, schedule=FAST, weight_decay=0.1)
    setup = prepare(toy_protocol(local=local), data=toy_dataset(classes=2), model="logistic")
    assert "float64" in choose_engine(setup, "auto").reason
    with pytest.raises(KernelRefusal, match="clipped-glm"):
        kernel_for(setup)


@needs_kernel
def test_wrong_norms_of_examples_are_noticed_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = prepare(plan(noisy()), data=DATA, model=smooth())
    kernel_for(setup)
    whole = Kernel.compute_gradient
    monkeypatch.setattr(
        Kernel,
        "compute_gradient",
        lambda self, r, rule, w, rows, **options: whole(
            self, r, replace(rule, norm=3 - rule.norm), w, rows, **options
        ),
    )
    with pytest.raises(KernelRefusal, match="differ"):
        kernel_for(setup)
