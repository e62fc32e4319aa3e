"""The audit attacks what trains: an engine that does something else than the game plays is found out, and an intact one is not."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import audit, train
from sordino.audit.engine_check import EngineTrial, check_engines
from sordino.audit.engine_differences import ROUNDED
from sordino.audit.game import WorstCaseGame
from sordino.audit.kept_uploads import find_obstacle, replay_kept_uploads
from sordino.audit.worst_cases.neighbours import Pair
from sordino.cli.main import run
from sordino.engines import torch_engine
from sordino.federation import client
from sordino.federation.aggregation.mean import MeanJoining
from sordino.federation.client import ClientWork
from sordino.native import jobs, library, native_engine
from sordino.protocol import (
    ClientBudget,
    Constant,
    Data,
    DpSgd,
    FedAvg,
    Gaussian,
    Interpolate,
    Model,
    NoisySgd,
    Protocol,
    Scaffold,
    View,
    dumps,
)
from tests.audit.broken import NO_CLIP
from tests.audit.test_many import FEDERATIONS

SEED, TRAININGS = 3, 300
STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
PLAN = Protocol(seed=SEED, clients=3, rounds=3, local=Scaffold(**STEPS), noise=Gaussian(sigma=0.4))
NOISY = replace(
    PLAN,
    local=NoisySgd(**STEPS),
    noise=Gaussian(multiplier=1.0),
    data=Data(name="digits", records=8),
)
WHOLE_RULE, WHOLE_ASSIGNED, WHOLE_FINISH = (
    jobs.make_step_rule,
    client.make_assignment,
    client.finish_upload,
)
native = pytest.mark.skipif(library.choose_instruction_set() is None, reason="no compiled kernel")


def trained_by(change):
    """The torch engine trains clients of another protocol."""

    def changed(setup):
        return replace(setup, protocol=change(setup.protocol))

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            torch_engine,
            "ClientWork",
            lambda setup, *args, **options: ClientWork(changed(setup), *args, **options),
        )

    return sabotage


def resized(factor):
    """A client's noise times a factor, in the torch engine."""

    def change(protocol: Protocol) -> Protocol:
        noise = protocol.noise
        if noise.multiplier is not None:
            return replace(protocol, noise=replace(noise, multiplier=factor * noise.multiplier))
        return replace(protocol, noise=replace(noise, sigma=factor * noise.sigma))

    return trained_by(change)


def repeated(patch: pytest.MonkeyPatch) -> None:
    """Every round draws the noise of the first, in the torch engine."""

    def finish(setup, task, result, **options):
        return WHOLE_FINISH(setup, replace(task, round_index=0), result, **options)

    patch.setattr(client, "finish_upload", finish)


def stepped(**changes):
    """The torch engine steps by another rule than the protocol's."""
    return trained_by(lambda protocol: replace(protocol, local=replace(protocol.local, **changes)))


def ruled(change):
    """The kernel is told another rule."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            jobs, "make_step_rule", lambda *args, **options: change(WHOLE_RULE(*args, **options))
        )

    return sabotage


def kernel_repeats(patch: pytest.MonkeyPatch) -> None:
    """The kernel is told that every round is the first."""
    whole = jobs.Call.give_rules

    def give_rules(self, noises):
        whole(self, noises)
        self.table["round"] = 0

    patch.setattr(jobs.Call, "give_rules", give_rules)


def uncorrected(module):
    """An engine forgets the control variates."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            module,
            "make_assignment",
            lambda *args, **options: replace(WHOLE_ASSIGNED(*args, **options), correction=None),
        )

    return sabotage


def client_skipped(patch: pytest.MonkeyPatch) -> None:
    """The torch engine sends for the first client what that client was given."""

    def finish(setup, task, result, **options):
        if options["client"] == 0:
            result = replace(result, model=torch.from_numpy(task.start).double())
        return WHOLE_FINISH(setup, task, result, **options)

    patch.setattr(client, "finish_upload", finish)


def kernel_skips(patch: pytest.MonkeyPatch) -> None:
    """The kernel is told that the steps of the first client have no length."""
    whole = jobs.Call.give_rules

    def give_rules(self, noises):
        whole(self, noises)
        moving = self.table["rule"].copy()
        ruled(lambda rule: replace(rule, rates=[0.0] * len(rule.rates)))(patch)
        whole(self, noises)
        patch.setattr(jobs, "make_step_rule", WHOLE_RULE)
        others = self.table["client"] != 0
        self.table["rule"][others] = moving[others]

    patch.setattr(jobs.Call, "give_rules", give_rules)


def one_skipped(patch: pytest.MonkeyPatch) -> None:
    """The server, which all engines have in common, leaves the first client out of the mean."""
    whole = MeanJoining.add

    def add(self, vector):
        whole(self, 0 * vector if self._count == 0 else vector)

    patch.setattr(MeanJoining, "add", add)


TORCH = {
    "noise removed": resized(0.0),
    "noise halved": resized(0.5),
    "noise drawn twice": repeated,
    "clip removed": stepped(clip=NO_CLIP),
    "rate doubled": stepped(schedule=Constant(rate=0.2)),
    "client skipped": client_skipped,
    "control variates left out": uncorrected(client),
}
KERNEL = {
    "noise removed": ruled(lambda rule: replace(rule, upload_noise=0.0)),
    "noise halved": ruled(lambda rule: replace(rule, upload_noise=rule.upload_noise / 2)),
    "noise drawn twice": kernel_repeats,
    "clip removed": ruled(lambda rule: replace(rule, clip=NO_CLIP)),
    "rate doubled": ruled(lambda rule: replace(rule, rates=[2 * rate for rate in rule.rates])),
    "client skipped": kernel_skips,
    "control variates left out": uncorrected(native_engine),
}
# A lot's sum under the clients' shares of one noise; and noise of integers on a grid, which the
# native engine draws and adds in C++, but for whole updates that are clipped in Python.
LOTS = replace(
    PLAN,
    local=DpSgd(batch=4, clip=1.0, schedule=Constant(rate=0.1)),
    noise=Gaussian(multiplier=1.0),
    data=Data(name="digits", records=8),
)
INTEGERS = replace(PLAN, local=FedAvg(**STEPS), noise=Gaussian(sigma=0.4, arithmetic="integers"))

WHOLE_UPDATES = replace(INTEGERS, local=FedAvg(**STEPS, clip_target="update"))


def draw_nothing(stream, trainings, count, digits):
    return np.zeros((trainings, count), dtype=np.int64)


def unnoised(module):
    """An engine adds no noise to the integers that its clients send."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        def finish(*task, **options):
            return WHOLE_FINISH(*task, **{**options, "draw": draw_nothing})

        patch.setattr(module, "finish_upload", finish)

    return sabotage


OTHER_RELEASES = {
    "lots, torch: noise": (LOTS, "torch", resized(0.5)),
    "lots, torch: clip": (LOTS, "torch", stepped(clip=NO_CLIP)),
    "lots, native: noise": (
        LOTS,
        "native",
        ruled(lambda rule: replace(rule, upload_noise=rule.upload_noise / 2)),
    ),
    "lots, native: clip": (LOTS, "native", ruled(lambda rule: replace(rule, clip=NO_CLIP))),
    "integers, torch: noise": (INTEGERS, "torch", unnoised(client)),
    "integers, torch: clip": (INTEGERS, "torch", stepped(clip=2.0)),
    "integers, native: noise": (
        INTEGERS,
        "native",
        ruled(lambda rule: replace(rule, grid_noise=None)),
    ),
    "whole updates, native: noise": (WHOLE_UPDATES, "native", unnoised(jobs)),
    "integers, native: clip": (INTEGERS, "native", ruled(lambda rule: replace(rule, clip=NO_CLIP))),
}
NOISY_STEPS = {
    "torch": {"noise": resized(0.5), "clip": stepped(clip=NO_CLIP)},
    "native": {
        "noise": ruled(lambda rule: replace(rule, step_noise=rule.step_noise / 2)),
        "clip": ruled(lambda rule: replace(rule, clip=NO_CLIP)),
    },
}


def found(protocol: Protocol, tmp_path: Path):
    return audit(protocol, trainings=TRAININGS, folder=tmp_path / "audit", workers=1)


def caught(finding, engine: str) -> bool:
    """Whether the engine is what the audit objects to, and the game is not."""
    named = f"engine {engine}, " in finding.engine.place
    return finding.contradicted and finding.verdict != "refuted" and named


@pytest.mark.slow
@native
@pytest.mark.parametrize(
    "protocol", [PLAN, NOISY, LOTS, INTEGERS], ids=["scaffold", "noisy-sgd", "dp-sgd", "integers"]
)
def test_an_intact_plan_is_attacked_through_both_engines_and_nothing_is_said(
    protocol, tmp_path
) -> None:
    finding = found(protocol, tmp_path)
    said = finding.as_document()["engine"]
    assert not finding.contradicted
    assert (said["name"], said["verdict"]) == ("native and torch", "equal")
    assert (said["trainings_compared"], said["rounds_compared"]) == (32, 3)
    assert 0 <= said["largest_difference"] < 1e-5
    assert finding.engine.residuals is not None
    assert finding.engine.residuals.values > 200


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH)
def test_a_sabotaged_torch_engine_is_caught(name, tmp_path, monkeypatch) -> None:
    TORCH[name](monkeypatch)
    finding = found(PLAN, tmp_path)
    assert finding.engine.verdict == "differs"
    assert caught(finding, "torch")


def test_a_client_skipped_in_the_mean_is_caught(tmp_path, monkeypatch) -> None:
    one_skipped(monkeypatch)
    finding = found(PLAN, tmp_path)
    assert finding.contradicted
    failed = {test.name: test for test in finding.residuals.failed}
    assert failed["post-processing"].place.endswith("the server's model")


@pytest.mark.slow
@native
@pytest.mark.parametrize("name", KERNEL)
def test_a_sabotaged_rule_of_the_kernel_is_caught(name, tmp_path, monkeypatch) -> None:
    KERNEL[name](monkeypatch)
    finding = found(PLAN, tmp_path)
    assert caught(finding, "native")
    assert finding.engine.largest > 100 * ROUNDED


@pytest.mark.slow
@native
@pytest.mark.parametrize("engine", NOISY_STEPS)
@pytest.mark.parametrize("what", ["noise", "clip"])
def test_sabotaged_noisy_steps_are_caught(engine, what, tmp_path, monkeypatch) -> None:
    NOISY_STEPS[engine][what](monkeypatch)
    assert caught(found(NOISY, tmp_path), engine)


@pytest.mark.slow
@native
@pytest.mark.parametrize("name", OTHER_RELEASES)
def test_sabotaged_lots_and_integers_are_caught(name, tmp_path, monkeypatch) -> None:
    plan, engine, sabotage = OTHER_RELEASES[name]
    sabotage(monkeypatch)
    assert caught(found(plan, tmp_path), engine)


@native
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_run_whose_engine_added_no_noise_does_not_pass_its_audit(
    engine, tmp_path, monkeypatch, capsys
) -> None:
    plan = replace(PLAN, local=FedAvg(**STEPS), data=Data(name="digits", records=8))
    TORCH["noise removed"](monkeypatch)
    KERNEL["noise removed"](monkeypatch)
    train(
        replace(plan, model=Model(name="logistic")),
        folder=tmp_path / "run",
        engine=engine,
        workers=1,
    )
    asked = ["audit", str(tmp_path / "run"), "--trainings", str(TRAININGS), "--workers", "1"]
    assert run([*asked, "--out", str(tmp_path / "audit"), "--json"]) == 4
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["verdict"] != "refuted"
    assert document["residuals"]["failed"] == []
    assert document["engine"]["name"] == engine
    assert document["engine"]["verdict"] == "differs"
    for said in (f"engine {engine}", "client 0", "round 0", "of its size away"):
        assert said in printed.err.replace("\n", " ")


def test_a_plan_whose_engine_differs_ends_with_exit_code_4(tmp_path, monkeypatch, capsys) -> None:
    TORCH["rate doubled"](monkeypatch)
    (tmp_path / "plan.toml").write_text(dumps(PLAN))
    asked = ["audit", str(tmp_path / "plan.toml"), "--trainings", str(TRAININGS)]
    assert run([*asked, "--out", str(tmp_path / "audit")]) == 4
    printed = capsys.readouterr()
    assert "engine torch" in printed.out
    assert "engine torch" in printed.err.replace("\n", " ")


class ChunkScores(WorstCaseGame):
    """A game on given federations."""

    setup = None

    @property
    def pair(self) -> Pair:
        return Pair(zero=self.setup, one=self.setup, attacked=0, description="")


SOME = ("bezier", "poisson median", "diameter", "clipped-glm", "penalty", "noisy poisson adagrad", "noisy fixed l1")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_engines_make_the_rows_of_every_kind_of_game(name) -> None:
    setup = FEDERATIONS[name]
    game = ChunkScores(
        protocol=setup.protocol,
        view=View.SERVER,
        unit="record",
        trainings=8,
        seed=1,
        rounds=3,
    )
    object.__setattr__(game, "setup", setup)
    check = check_engines(game, ("native", "torch"), 1)
    assert check.verdict == "equal"
    assert check.largest < ROUNDED
    assert check.trainings == 16
    assert np.isfinite(check.largest)
    torch_alone = name == "clipped-glm" or library.choose_instruction_set() is None
    assert check.name == ("torch" if torch_alone else "native and torch")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("engine", ["torch", pytest.param("native", marks=native)])
def test_uploads_that_a_run_kept_are_replayed(engine, broken, tmp_path, monkeypatch) -> None:
    plan = replace(
        PLAN,
        local=FedAvg(**STEPS),
        data=Data(name="digits", records=8),
        model=Model(name="logistic"),
    )
    with monkeypatch.context() as patch:
        if broken:
            TORCH["noise halved"](patch)
            KERNEL["noise halved"](patch)
        train(plan, folder=tmp_path / "run", engine=engine, workers=1, keep_uploads=1, report=False)
    # The installation is whole again: what the run kept alone shows what was wrong with it.
    finding = audit(tmp_path / "run", trainings=TRAININGS, folder=tmp_path / "audit", workers=1)
    assert finding.engine.kept.values > 5000
    assert bool(finding.engine.kept.failed) == broken
    assert finding.contradicted == broken
    assert (finding.engine.verdict == "differs") == broken


@pytest.mark.parametrize(("refusal", "engines"), [(None, True), ("is not in the kernel", False)])
def test_a_plan_is_compared_with_the_kernel_where_the_kernel_has_its_rule(
    refusal: str | None, engines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from sordino.audit import audit_plan
    from sordino.audit.audit_subject import Subject
    from sordino.audit.worst_cases.synthetic_losses import SyntheticLosses
    from sordino.engines import compiled
    from sordino.native.step_rules import RULE_REFUSALS
    from sordino.protocol import Constant, FedAvg, Gaussian, Protocol

    monkeypatch.setattr(compiled, "choose_instruction_set", lambda: "any")
    monkeypatch.setitem(RULE_REFUSALS._held, FedAvg, refusal)
    rule = FedAvg(steps=2, batch=2, clip=1.0, schedule=Constant(rate=0.1))
    plan = Protocol(clients=2, rounds=1, local=rule, noise=Gaussian(sigma=1.0))
    pair = SimpleNamespace(zero=SimpleNamespace(module=SyntheticLosses(2)))
    game: object = SimpleNamespace(pair=pair)
    found = audit_plan.choose_engines(Subject(protocol=plan, rounds=(0,)), game)  # type: ignore[arg-type]
    assert ("native" in found) == engines
    assert "torch" in found


STATEFUL = {
    "control variates": {"local": Scaffold(**STEPS)},
    "personal models": {
        "local": FedAvg(**STEPS),
        "personalization": Interpolate(alpha=0.5, pull=0.5),
    },
    "a pull to another client": {
        "local": FedAvg(**STEPS),
        "penalty": True,
        "client": tuple(ClientBudget(id=i, epsilon=40.0 + 10 * i) for i in range(3)),
    },
}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", STATEFUL)
def test_kept_uploads_of_rules_with_a_memory_are_replayed(
    name, broken, tmp_path, monkeypatch
) -> None:
    plan = replace(
        PLAN, **STATEFUL[name], data=Data(name="digits", records=8), model=Model(name="logistic")
    )
    run_folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        if broken:
            TORCH["noise halved"](patch)
        train(plan, folder=run_folder, engine="torch", workers=1, keep_uploads=1, report=False)
    kept = replay_kept_uploads(run_folder)
    assert kept.reason == ""
    assert kept.report.values > 5000
    assert bool(kept.report.failed) == broken
    # Without an early round nobody knows what clients were given in a later one.
    assert "not all rounds were kept" in find_obstacle(plan, [0, 2])


@pytest.mark.slow
def test_an_audit_says_why_kept_uploads_are_not_replayed(tmp_path) -> None:
    plan = replace(NOISY, model=Model(name="logistic"))
    train(plan, folder=tmp_path / "run", engine="torch", workers=1, keep_uploads=1, report=False)
    finding = audit(tmp_path / "run", trainings=20, folder=tmp_path / "audit", workers=1)
    assert finding.engine.kept is None
    reason = finding.engine.as_document()["kept_uploads_reason"]
    assert reason == "the noisy steps of noisy-sgd are not kept, only what they lead to"
    assert f"kept were not replayed: {reason}." in str(finding.engine)


@native
def test_both_engines_repeat_as_many_trainings() -> None:
    game = WorstCaseGame(
        protocol=PLAN, view=View.SERVER, unit="record", trainings=40, seed=1, rounds=3
    )
    trial = EngineTrial(game, ("native", "torch"))
    trial.prepare()
    for name in ("native", "torch"):
        samples = [one for task in trial.tasks() for one in task]
        alone = [one for one in samples if one.engine == name and one.workers == 1]
        assert sum(len(one.trainings) for one in alone) == 32
