"""The audit attacks what trains: an engine that does something else than the game plays is found out, and an intact one is not."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino import audit, train
from sordino.audit.engine_check import ROUNDED, checked_engines
from sordino.audit.game import WorstCaseGame
from sordino.audit.worst_case import Pair
from sordino.cli import run
from sordino.engines import native_engine
from sordino.engines.native import jobs, library
from sordino.federation import assignment, client, exchange
from sordino.protocol import (
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Model,
    NoisySgd,
    Protocol,
    Scaffold,
    View,
    dumps,
)
from tests.audit.broken import NO_CLIP, drawn_for, moved
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
WHOLE_UPLOAD, WHOLE_RULE, WHOLE_ASSIGNED = (
    assignment.noisy_upload,
    jobs.step_rule,
    assignment.assigned,
)
native = pytest.mark.skipif(library.chosen() is None, reason="no compiled kernel")


def resized(factor):
    """A client's noise times a factor, in the torch engine and where the kernel leaves the noise to Python."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            assignment,
            "noisy_upload",
            lambda weights, noise, stream: WHOLE_UPLOAD(
                weights, replace(noise, sigma=factor * noise.sigma), stream
            ),
        )

    return sabotage


def repeated(patch: pytest.MonkeyPatch) -> None:
    """Every round draws the noise of the first."""

    def upload(weights, noise, stream):
        return WHOLE_UPLOAD(weights, noise, moved(stream, client=drawn_for(stream)[0], round=0))

    patch.setattr(assignment, "noisy_upload", upload)


def stepped(**changes):
    """The torch engine steps by another rule than the protocol's."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        for name in ("train_locally", "train_noisily"):
            whole = getattr(client, name)

            def steps(*args, whole=whole, name=name, **options):
                place = 2 if name == "train_locally" else 3
                rule = replace(args[place], clip=changes.get("clip", args[place].clip))
                rates = tuple(changes.get("rate", 1.0) * rate for rate in args[place + 1])
                options["multiplier"] = changes.get("noise", 1.0) * options.get("multiplier", 0.0)
                if name == "train_locally":
                    options.pop("multiplier")
                return whole(*args[:place], rule, rates, *args[place + 2 :], **options)

            patch.setattr(client, name, steps)

    return sabotage


def ruled(change):
    """The kernel is told another rule."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            jobs, "step_rule", lambda *args, **options: change(WHOLE_RULE(*args, **options))
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
            "assigned",
            lambda *args, **options: replace(WHOLE_ASSIGNED(*args, **options), correction=None),
        )

    return sabotage


def one_skipped(patch: pytest.MonkeyPatch) -> None:
    """The server of `train` leaves the first client out of the mean."""
    whole = exchange.aggregate

    def without_first(rule, current, uploads, weights, **options):
        return whole(rule, current, list(uploads)[1:], weights[1:], **options)

    patch.setattr(exchange, "aggregate", without_first)


TORCH = {
    "noise removed": resized(0.0),
    "noise halved": resized(0.5),
    "noise drawn twice": repeated,
    "clip removed": stepped(clip=NO_CLIP),
    "rate doubled": stepped(rate=2.0),
    "client skipped": one_skipped,
    "control variates left out": uncorrected(client),
}
KERNEL = {
    "noise removed": ruled(lambda rule: replace(rule, upload_noise=0.0)),
    "noise halved": ruled(lambda rule: replace(rule, upload_noise=rule.upload_noise / 2)),
    "noise drawn twice": kernel_repeats,
    "clip removed": ruled(lambda rule: replace(rule, clip=NO_CLIP)),
    "rate doubled": ruled(lambda rule: replace(rule, rates=[2 * rate for rate in rule.rates])),
    "client skipped": one_skipped,
    "control variates left out": uncorrected(native_engine),
}
NOISY_STEPS = {
    "torch": {"noise": stepped(noise=0.5), "clip": stepped(clip=NO_CLIP)},
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


@native
@pytest.mark.parametrize("protocol", [PLAN, NOISY], ids=["scaffold", "noisy-sgd"])
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


@pytest.mark.parametrize("name", TORCH)
def test_a_sabotaged_torch_engine_is_caught(name, tmp_path, monkeypatch) -> None:
    TORCH[name](monkeypatch)
    finding = found(PLAN, tmp_path)
    assert finding.contradicted
    assert finding.engine.verdict == "differs"
    if name != "client skipped":  # which every engine has in common
        assert caught(finding, "torch")


@native
@pytest.mark.parametrize("name", KERNEL)
def test_a_sabotaged_rule_of_the_kernel_is_caught(name, tmp_path, monkeypatch) -> None:
    KERNEL[name](monkeypatch)
    finding = found(PLAN, tmp_path)
    assert caught(finding, "native")
    assert finding.engine.largest > 100 * ROUNDED


@native
@pytest.mark.parametrize("engine", NOISY_STEPS)
@pytest.mark.parametrize("what", ["noise", "clip"])
def test_sabotaged_noisy_steps_are_caught(engine, what, tmp_path, monkeypatch) -> None:
    NOISY_STEPS[engine][what](monkeypatch)
    assert caught(found(NOISY, tmp_path), engine)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@native
def test_a_kernel_that_was_compiled_without_its_noise_is_caught(tmp_path, monkeypatch) -> None:
    sources = Path(library.__file__).parent / "src"
    built = tmp_path / "built"
    built.mkdir()
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-DSORDINO_TEST_SILENT_UPLOADS"]
    made = built / "portable.test.so"
    subprocess.run(["g++", *options, str(sources / "portable.cpp"), "-o", str(made)], check=True)
    monkeypatch.setenv(library.FOLDER, str(built))
    assert caught(found(PLAN, tmp_path), "native")


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


class Played(WorstCaseGame):
    """A game on given federations."""

    setup = None

    @property
    def pair(self) -> Pair:
        return Pair(zero=self.setup, one=self.setup, attacked=0, description="")


SOME = ("bezier", "poisson median", "diameter", "clipped-glm", "penalty", "noisy poisson adagrad", "noisy fixed l1")  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_engines_make_the_rows_of_every_kind_of_game(name) -> None:
    setup = FEDERATIONS[name]
    game = Played(
        protocol=setup.protocol,
        view=View.SERVER,
        unit="record",
        trainings=8,
        seed=1,
        rounds=3,
    )
    object.__setattr__(game, "setup", setup)
    check = checked_engines(game, ("native", "torch"), 1)
    assert check.verdict == "equal"
    assert check.largest < ROUNDED
    assert check.trainings == 16
    assert np.isfinite(check.largest)
    torch_alone = name == "clipped-glm" or library.chosen() is None
    assert check.name == ("torch" if torch_alone else "native and torch")
