"""A clip that follows a private quantile: as Andrew et al. have it, counted under noise, and paid for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import (
    Constant,
    Data,
    DpSgd,
    FedProx,
    Gaussian,
    Laplace,
    Mean,
    Median,
    Poisson,
    Protocol,
    Scaffold,
    SecureAggregation,
    ServerAdam,
    SordinoError,
    certify,
    resume,
    train,
)
from sordino.audit.auditing import audit
from sordino.audit.kept_uploads import find_obstacle
from sordino.engines.torch_engine import TorchEngine
from sordino.federation import round as rounds
from sordino.federation.assignment import minibatches
from sordino.federation.client import ClientWork
from sordino.federation.round import RoundRecord, play_training
from sordino.federation.rules import clipped_steps
from sordino.federation.setup import Setup, prepare
from sordino.native.native_engine import NativeEngine
from sordino.protocol import AdaptiveClip, Model
from tests.engines.test_resume import interrupted
from tests.privacy.test_lots import central
from tests.support import toy_dataset, toy_protocol

FOLLOW = AdaptiveClip(quantile=0.7, rate=0.5, weight=0.2)
UPDATES = FedProx(
    steps=2,
    batch=6,
    clip=0.08,
    proximal=0.1,
    schedule=Constant(rate=0.2),
    clip_target="update",
    adaptive=FOLLOW,
)
RULE = DpSgd(batch=6, clip=0.2, schedule=Constant(rate=0.5), adaptive=FOLLOW)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs without a folder are written here."""
    monkeypatch.chdir(tmp_path)


def plan(**changes: Any) -> Protocol:
    return toy_protocol(**{"local": RULE, "noise": Gaussian(multiplier=0.0), **changes})


def ready(protocol: Protocol) -> Setup:
    return prepare(protocol, data=toy_dataset(), model="logistic")


def rounds_of(setup: Setup, count: int, engine: type = TorchEngine) -> list[RoundRecord]:
    with engine(setup, workers=1) as made:
        return list(play_training(setup, made, count))


def norms_of(setup: Setup, weights: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """The gradients of single examples, by torch's own differentiation."""
    work = ClientWork(setup)
    found = []
    for row in rows.tolist():
        work.model.load(torch.from_numpy(weights))
        chosen = torch.tensor([row])
        work.model.loss_gradient(
            setup.train.inputs(chosen), setup.train.y.index_select(0, chosen), work.loss
        )
        found.append(work.model.gradients.double().numpy().copy())
    return found


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_rounds_follow_the_published_recursion(engine: type) -> None:
    """C <- C exp(-rate (share within - quantile)), and a step on gradients clipped to C."""
    setup = ready(plan())
    clip = float(np.float32(0.2))
    seen = []
    for record in rounds_of(setup, 4, engine):
        before = record.before.weights
        total = np.zeros(before.size)
        counted = 0.0
        for client in range(5):
            (lot,) = minibatches(setup, client=client, round_index=record.task.round_index)
            for gradient in norms_of(setup, before, lot):
                norm = np.linalg.norm(gradient)
                total += gradient * min(1.0, clip / norm)
                counted += 0.5 if norm <= clip else -0.5
        expected = before - 0.5 * total / (5 * 6)
        np.testing.assert_allclose(record.after.weights, expected, atol=3e-6)
        share = min(1.0, max(0.0, 0.5 + counted / (5 * 6)))
        clip *= math.exp(-0.5 * (share - 0.7))
        seen.append(clip)
        assert record.after.kept["clip"] == pytest.approx(clip, rel=1e-6)
    assert len(set(seen)) == 4


def test_the_clip_finds_the_quantile() -> None:
    rule = replace(RULE, clip=0.01, schedule=Constant(rate=1e-6))
    setup = ready(plan(local=rule))
    last = rounds_of(setup, 60)[-1].after
    norms = [
        np.linalg.norm(one)
        for client in range(5)
        for one in norms_of(setup, last.weights, setup.parts[client])
    ]
    assert np.mean(np.array(norms) <= last.kept["clip"][0]) == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_updates_follow_the_recursion_too(engine: type) -> None:
    """The server's model is the mean of updates clipped to C, and C follows their norms."""
    silent = plan(local=UPDATES, noise=Gaussian(sigma=0.0))
    # The same steps with a clip that no update reaches.
    free = ready(replace(silent, local=replace(UPDATES, clip=1e6, adaptive=None)))
    clip = float(np.float32(UPDATES.clip))
    for record in rounds_of(ready(silent), 4, engine):
        before = record.before.weights
        total = np.zeros(before.size)
        counted = 0.0
        for client in range(5):
            work = ClientWork(free)
            index = record.task.round_index
            sent = work.upload(client=client, round_index=index, weights=before).vector
            update = sent.astype(np.float64) - before
            norm = np.linalg.norm(update)
            total += update * min(1.0, clip / norm)
            counted += 0.5 if norm <= clip else -0.5
        np.testing.assert_allclose(record.after.weights, before + total / 5, atol=3e-6)
        clip *= math.exp(-0.5 * (0.5 + counted / 5 - 0.7))
        assert record.after.kept["clip"] == pytest.approx(clip, rel=1e-6)


SUMMED = SecureAggregation(threshold=4)
SUMS = {
    "dp-sgd": {"local": RULE, "noise": Gaussian(multiplier=0.02)},
    "fedavg": {"local": UPDATES, "noise": Gaussian(sigma=1e-3)},
}


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
@pytest.mark.parametrize("changes", SUMS.values(), ids=SUMS)
def test_secure_sums_hold_the_counts_of_all(changes: dict[str, Any], engine: type) -> None:
    """With little noise, the clips of secure sums are those of sums that are seen."""
    model = Model(name="logistic", parameters=21)
    seen = rounds_of(ready(plan(**{**changes, "noise": silenced(changes["noise"])})), 3, engine)
    setup = ready(plan(**changes, channel=SUMMED, model=model))
    for open_record, record in zip(seen, rounds_of(setup, 3, engine), strict=True):
        assert record.after.kept["clip"] == pytest.approx(open_record.after.kept["clip"], rel=0.05)
        assert all(one.count is not None and one.count.dtype == np.uint64 for one in record.uploads)
        # One count alone is a residue under noise, which says nothing in this unit.
        assert len({int(one.count[0]) for one in record.uploads if one.count is not None}) == 5


def silenced(noise: Gaussian) -> Gaussian:
    if noise.multiplier is not None:
        return Gaussian(multiplier=0.0)
    return Gaussian(sigma=0.0)


def test_a_sum_that_is_not_opened_moves_no_clip() -> None:
    changes = {**SUMS["fedavg"], "channel": SUMMED, "participation": Poisson(rate=0.8)}
    setup = ready(plan(**changes, model=Model(name="logistic", parameters=21)))
    records = rounds_of(setup, 25)
    opened = [len(record.present) >= 4 for record in records]
    assert any(opened)
    assert not all(opened)
    for record, known in zip(records, opened, strict=True):
        before = record.before.kept.get("clip", np.float32(UPDATES.clip))
        assert (record.after.kept["clip"] != before) == known


@pytest.mark.parametrize(
    ("changes", "deviation"),
    [
        # A share of z V, over B, of five clients.
        ({"local": RULE, "noise": Gaussian(multiplier=3.0)}, 3.0 * 0.2 / 6 / math.sqrt(5)),
        ({"local": UPDATES, "noise": Gaussian(sigma=0.3)}, 0.3),
    ],
)
def test_counts_are_one_more_coordinate_under_the_same_noise(
    changes: dict[str, Any], deviation: float
) -> None:
    """A whole lot of B within the clip is as long as weight times the lot's gradients can be."""
    silent = ClientWork(ready(plan(**{**changes, "noise": silenced(changes["noise"])})))
    noisy = ClientWork(ready(plan(**changes)))
    start = silent.setup.initial_weights()
    far = np.stack([start, np.full_like(start, 1e5)])
    left = []
    lengths = []
    for t in range(300):
        one = silent.upload(client=1, round_index=t, weights=far).count
        other = noisy.upload(client=1, round_index=t, weights=far).count
        assert one is not None
        assert other is not None
        lengths.append(float(one[0]))
        left.append(float(other[0] - one[0]))
    assert np.std(left) == pytest.approx(deviation, rel=0.12)
    assert np.mean(lengths) == pytest.approx(0.2 * changes["local"].clip, rel=0.1)


PRICED = Protocol(
    clients=10,
    rounds=200,
    local=replace(RULE, clip=0.7),
    noise=Gaussian(multiplier=1.1),
    data=Data(name="digits", records=120),
)


@pytest.mark.parametrize("view", ["rounds", "server"])
def test_the_count_is_paid_for(view: str) -> None:
    """Two sides of a right angle: 1/z^2 of the gradients and (weight/z)^2 of the count."""
    plan = replace(PRICED, noise=Gaussian(multiplier=4.0))
    together = (4.0**-2 + (4.0 / 0.2) ** -2) ** -0.5
    if view == "server":
        together /= math.sqrt(10)
    expected = central(together, 0.05, 200)
    found = certify(plan, view).epsilon(1e-5)
    assert found == pytest.approx(expected, rel=1e-3)
    still = replace(plan, local=replace(plan.local, adaptive=None))
    assert certify(still, view).epsilon(1e-5) < found


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_lots_pay_as_noise_that_is_weaker_by_the_count(sampling: str) -> None:
    """In every view and behind secure sums: a count that no bound forgets."""
    local = replace(PRICED.local, sampling=sampling)
    behind = SecureAggregation(threshold=8, colluders=1)
    model = Model(name="logistic", parameters=650)
    for changes in ({}, {"channel": behind, "model": model}):
        ours = replace(PRICED, local=local, noise=Gaussian(multiplier=4.0), **changes)
        fixed = replace(
            ours,
            local=replace(local, adaptive=None),
            noise=Gaussian(multiplier=4.0 / math.sqrt(1 + 0.2**2)),
        )
        for view in ("server", "rounds", "coalition:2", "final"):
            found = certify(ours, view).epsilon(1e-5)
            assert found == pytest.approx(certify(fixed, view).epsilon(1e-5), rel=1e-5)


UPDATE_PLAN = Protocol(
    clients=10,
    rounds=50,
    local=replace(UPDATES, clip=0.7),
    noise=Gaussian(sigma=6.0),
    data=Data(name="digits", records=120),
)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_updates_pay_as_a_clip_that_is_longer_by_the_count(unit: str) -> None:
    """Whatever hides a client, update and count cost what updates of norm V sqrt(1 + w^2) do."""
    longer = replace(UPDATES, clip=0.7 * math.sqrt(1 + 0.2**2), adaptive=None)
    for changes in (
        {},
        {"participation": Poisson(rate=0.3)},
        {
            "channel": SecureAggregation(threshold=8, colluders=1),
            "model": Model(name="logistic", parameters=650),
        },
    ):
        ours = replace(UPDATE_PLAN, **changes)
        fixed = replace(ours, local=longer)
        for view in ("server", "rounds", "coalition:2", "final"):
            found = certify(ours, view, unit=unit).epsilon(1e-5)
            # Of a grid with one coordinate more the rounding is a millionth.
            assert found == pytest.approx(certify(fixed, view, unit=unit).epsilon(1e-5), rel=1e-5)


def test_one_round_of_updates_is_a_right_angle() -> None:
    """By hand: 2V / sigma and w 2V / sigma in one round against the server."""
    one = replace(UPDATE_PLAN, rounds=1)
    mu = certify(one, "server", unit="client").mu
    assert mu == pytest.approx(math.hypot(1.4 / 6.0, 0.2 * 1.4 / 6.0), rel=1e-9)


RESUMED = {
    "dp-sgd": {"noise": Gaussian(multiplier=1.0)},
    "fedprox": {"local": UPDATES, "noise": Gaussian(sigma=0.01)},
    "dp-sgd, secure sums": {"noise": Gaussian(multiplier=1.0), "channel": SUMMED},
    "fedprox, secure sums": {"local": UPDATES, "noise": Gaussian(sigma=0.01), "channel": SUMMED},
}


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(
    changes: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    protocol = plan(**changes, rounds=6, server=ServerAdam(rate=0.05))
    interrupted(tmp_path / "a", after=4, protocol=protocol, engine=engine)
    again = resume(tmp_path / "a", data=toy_dataset())
    whole = train(
        protocol, data=toy_dataset(), model="mlp", folder=tmp_path / "b", engine=engine, workers=1
    )
    for name, value in (whole.state or {}).items():
        assert torch.equal(value, (again.state or {})[name])


SIGMA = Gaussian(sigma=1.0)
SCAFFOLD = Scaffold(
    steps=2,
    batch=6,
    clip=0.5,
    schedule=Constant(rate=0.2),
    clip_target="update",
    adaptive=FOLLOW,
)
# No update is within the clip of a worst case, and the share within is then below any quantile.
SHRINK = AdaptiveClip(quantile=0.01, rate=2.0, weight=1.0)
GAME = Protocol(
    seed=2,
    clients=3,
    rounds=3,
    local=DpSgd(batch=6, clip=0.5, adaptive=FOLLOW),
    noise=Gaussian(multiplier=0.7),
    data=Data(name="digits", records=16),
)


UPDATE_GAME = Protocol(
    seed=2,
    clients=3,
    rounds=3,
    local=replace(UPDATES, clip=0.5, batch=16),
    noise=Gaussian(sigma=1.0),
    data=Data(name="digits", records=16),
)
LOGISTIC = Model(name="logistic", parameters=650)
GAMES = {
    "lots, rounds": (GAME, "rounds"),
    "lots, coalition": (GAME, "coalition:1"),
    "updates, server": (UPDATE_GAME, "server"),
    "updates, rounds": (UPDATE_GAME, "rounds"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "view"), GAMES.values(), ids=GAMES)
def test_the_worst_case_comes_close_to_the_price(
    protocol: Protocol, view: str, tmp_path: Path
) -> None:
    found = audit(protocol, view, trainings=3000, folder=tmp_path / "audit", workers=1)
    assert 0.75 < found.attained < 1.04
    assert not found.contradicted
    assert found.residuals is not None
    assert found.engine is not None
    assert found.engine.verdict == "equal"


@pytest.mark.soak
@pytest.mark.parametrize("game", [GAME, UPDATE_GAME], ids=["lots", "updates"])
def test_behind_secure_sums_the_worst_case_comes_close_too(game: Protocol, tmp_path: Path) -> None:
    summed = replace(game, channel=SecureAggregation(threshold=3), model=LOGISTIC)
    found = audit(summed, "server", trainings=3000, folder=tmp_path / "audit", workers=1)
    assert 0.75 < found.attained < 1.04
    assert not found.contradicted
    assert found.engine is not None
    assert found.engine.verdict == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("game", [GAME, UPDATE_GAME], ids=["lots", "updates"])
def test_a_step_that_is_longer_than_the_clip_says_is_noticed(
    game: Protocol, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fitting = audit(game, "rounds", trainings=200, folder=tmp_path / "a", workers=1)
    assert not fitting.contradicted
    original = rounds.find_step_rate
    monkeypatch.setattr(
        rounds, "find_step_rate", lambda protocol, state: original(protocol, state) * 1.01
    )
    broken = audit(game, "rounds", trainings=200, folder=tmp_path / "b", workers=1)
    assert broken.contradicted


@pytest.mark.slow
def test_an_update_that_is_clipped_to_the_first_clip_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client that divides by the present clip and clips to the first one sends too much."""
    shrinking = replace(UPDATE_GAME, local=replace(UPDATE_GAME.local, adaptive=SHRINK))
    fitting = audit(shrinking, "server", trainings=2000, folder=tmp_path / "a", workers=1)
    assert not fitting.contradicted
    whole = clipped_steps.clipped_step

    def to_the_first(weights: Any, gradients: Any, rate: float, clip: Any, order: int = 2) -> Any:
        first = 0.5 if torch.is_tensor(clip) else clip
        return whole(weights, gradients, rate, first, order)

    monkeypatch.setattr(clipped_steps, "clipped_step", to_the_first)
    broken = audit(shrinking, "server", trainings=2000, folder=tmp_path / "b", workers=1)
    assert broken.contradicted


REFUSED = {
    "noise at the server": {"noise": Gaussian(multiplier=1.0, where="server")},
    "other noise": {"local": UPDATES, "noise": Laplace(scale=1.0)},
    "weights": {"local": UPDATES, "noise": SIGMA, "aggregation": Mean(weights="records")},
    "median": {"local": UPDATES, "noise": SIGMA, "aggregation": Median()},
    "scaffold": {"local": SCAFFOLD, "noise": SIGMA},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_is_not_priced_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SordinoError, match=r"adaptive|fixed clip"):
        replace(PRICED, **changes)


def test_kept_uploads_say_nothing_without_the_counts_that_moved_the_clip() -> None:
    assert find_obstacle(plan(), [0, 1]) == "the counts that their clip followed are not kept"
    assert find_obstacle(plan(local=replace(RULE, adaptive=None)), [0, 1]) == ""


def test_a_clip_of_steps_follows_nothing() -> None:
    with pytest.raises(SordinoError, match=r"clip-target.*adaptive"):
        replace(UPDATES, clip_target="step")


def test_no_count_leaves_a_client_whose_clip_stays() -> None:
    setup = ready(plan(local=replace(RULE, adaptive=None)))
    record = rounds_of(setup, 1)[0]
    assert all(one.count is None for one in record.uploads)
    assert record.task.broadcast.ndim == 1
