"""The suite: rows and files, interruptions, the twin without noise, the command, and what it refuses."""

import json
import multiprocessing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import Constant, Data, FedAvg, Gaussian, Iid, Laplace, NoisySgd, Run, UserError, train
from sordino.attacks import suite
from sordino.attacks.attack import Case, CaseResult, Measure, Row
from sordino.attacks.extraction import ExtractionAttack
from sordino.attacks.labels import LabelAttack
from sordino.attacks.suite import attack
from sordino.attacks.twin import remove_protocol_noise, train_silent_twin
from sordino.cli.main import run as command
from sordino.papers.attack_tables import printed
from sordino.protocol import View
from sordino.report.evidence import read_attacks
from tests.support import toy_dataset, toy_protocol

SMALL = LabelAttack(rounds=3, uploads=2, records=40, iterations=5, starts=2)
DATA = toy_dataset(records=200)
PLAN = toy_protocol(data=Data(name="toy", partition=Iid(), records=30))
FORK = multiprocessing.get_context("fork")


def toy_run(folder: Path, **options) -> Run:
    return train(
        PLAN,
        data=DATA,
        model="mlp",
        folder=folder,
        workers=1,
        report=False,
        **{"keep_uploads": 1, **options},
    )


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(
        suite, "ATTACKS", {"labels": {"quick": SMALL, "paper": replace(SMALL, uploads=4)}}
    )


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_say_what_was_measured_and_are_kept_beside_the_run(tmp_path, small) -> None:
    finding = attack(toy_run(tmp_path / "run"), "labels", data=DATA, model="mlp")
    document = json.loads((tmp_path / "run" / "attacks" / "labels.json").read_text())
    assert document == json.loads(json.dumps(finding.as_document()))
    assert [(row["round"], row["method"]) for row in document["rows"]] == [
        (t, method) for t in (0, 2, 3) for method in ("magnitudes", "mixture", "optimised")
    ]
    for row in document["rows"]:
        assert row.keys() >= {
            "name",
            "metric",
            "value",
            "baseline",
            "noise",
            "round",
            "paper",
            "printed",
            "view",
            "better",
            "samples",
        }
        assert (row["name"], row["noise"], row["view"], row["samples"]) == (
            "labels",
            0.05,
            "server",
            2 * 3 * 6,
        )


def test_what_was_finished_before_an_interruption_is_not_done_again(
    tmp_path, small, monkeypatch
) -> None:
    run = toy_run(tmp_path / "run")
    whole = attack(toy_run(tmp_path / "other"), "labels", data=DATA, model="mlp").rows
    attempts, attempt = [], LabelAttack.attempt

    def counted(self, seen, tick):
        attempts.append(seen)
        if len(attempts) == 4:
            raise KeyboardInterrupt
        return attempt(self, seen, tick)

    monkeypatch.setattr(LabelAttack, "attempt", counted)
    with pytest.raises(KeyboardInterrupt):
        attack(run, "labels", data=DATA, model="mlp")
    assert not (tmp_path / "run" / "attacks" / "labels.json").exists()
    assert attack(run, "labels", data=DATA, model="mlp").rows == whole
    assert len(attempts) == 4 + 3  # three were kept, the fourth is tried again, two are left


def test_a_damaged_or_a_foreign_part_is_done_again(tmp_path, small, monkeypatch) -> None:
    run = toy_run(tmp_path / "run")
    whole = attack(run, "labels", data=DATA, model="mlp").rows
    parts = sorted((tmp_path / "run" / "attacks" / "parts" / "labels-quick").iterdir())
    parts[0].write_bytes(parts[0].read_bytes()[:-1])
    assert attack(run, "labels", data=DATA, model="mlp").rows == whole
    monkeypatch.setattr(suite, "ATTACKS", {"labels": {"quick": replace(SMALL, starts=3)}})
    calls, attempt = [], LabelAttack.attempt
    monkeypatch.setattr(
        LabelAttack,
        "attempt",
        lambda self, seen, tick: calls.append(1) or attempt(self, seen, tick),
    )
    attack(run, "labels", data=DATA, model="mlp")
    assert len(calls) == len(parts)


def attack_in_a_process(folder: Path) -> None:
    torch.set_num_threads(1)
    attack(Run.load(folder, model="mlp"), "labels", data=DATA, model="mlp")


@pytest.mark.slow
def test_killed_at_any_moment_an_attack_ends_as_if_it_had_never_been(tmp_path, monkeypatch) -> None:
    slow = replace(SMALL, rounds=4, uploads=4, iterations=30)
    monkeypatch.setattr(suite, "ATTACKS", {"labels": {"quick": slow}})
    toy_run(tmp_path / "whole")
    attack_in_a_process(tmp_path / "whole")
    expected = (tmp_path / "whole" / "attacks" / "labels.json").read_bytes()
    toy_run(tmp_path / "killed")
    kills = 0
    while True:
        process = FORK.Process(target=attack_in_a_process, args=(tmp_path / "killed",))
        process.start()
        process.join(0.15 + 0.1 * kills)
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills > 0
    assert (tmp_path / "killed" / "attacks" / "labels.json").read_bytes() == expected


@dataclass(frozen=True, kw_only=True)
class Constantly:
    """An attack on nothing, with pictures."""

    name: str = "constant"
    view: View = View.FINAL
    paper: str = "nobody's"
    headline: str = "accuracy"

    def cases(self, referee) -> list[Case]:
        return [
            Case(key=str(t), round=t, observe=lambda: None, reveal=lambda: None) for t in (1, 5)
        ]

    def attempt(self, seen, tick) -> None:
        tick(0.5)

    def score(self, guess, truth) -> CaseResult:
        measure = Measure(
            metric="accuracy", method="", value=0.5, baseline=0.1, better="higher", samples=1
        )
        return CaseResult(
            measures=(measure,),
            pictures={
                "originals": np.zeros((2, 3, 8, 8), np.float32),
                "made": np.ones((2, 3, 8, 8)),
            },
        )


def test_several_runs_are_attacked_side_by_side_with_progress(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(suite, "ATTACKS", {"constant": {"quick": Constantly()}})
    runs = [
        toy_run(tmp_path / "a"),
        train(
            remove_protocol_noise(PLAN), data=DATA, model="mlp", folder=tmp_path / "b", report=False
        ),
    ]
    told: list[float] = []
    finding = attack(
        runs,
        "constant",
        data=DATA,
        model="mlp",
        folder=tmp_path / "results",
        on_progress=told.append,
    )
    assert [(row.noise, row.round) for row in finding.rows] == [
        (0.05, 1),
        (0.05, 5),
        (0.0, 1),
        (0.0, 5),
    ]
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "constant-pictures.png",
        "constant.json",
        "constant.png",
    ]


def test_the_twin_differs_in_its_noise_alone_and_is_trained_once(tmp_path) -> None:
    run = toy_run(tmp_path / "run", keep_uploads=2)
    twin = train_silent_twin(run, data=DATA, model="mlp")
    assert twin.protocol == remove_protocol_noise(run.protocol)
    assert (twin.protocol.noise.sigma, twin.protocol.seed, twin.facts["keep_uploads"]) == (
        0.0,
        3,
        2,
    )
    again = train_silent_twin(
        run, data=DATA, model="mlp", on_round=lambda metrics: pytest.fail("trained again")
    )
    assert again.folder == twin.folder
    assert train_silent_twin(twin, data=DATA, model="mlp") is None


def test_a_twin_that_was_interrupted_is_finished(tmp_path) -> None:
    run = toy_run(tmp_path / "run")
    whole = train_silent_twin(toy_run(tmp_path / "other"), data=DATA, model="mlp")

    def stop(metrics) -> None:
        if metrics.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_silent_twin(run, data=DATA, model="mlp", on_round=stop)
    twin = train_silent_twin(run, data=DATA, model="mlp")
    assert all(torch.equal(twin.state[name], whole.state[name]) for name in whole.state)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise": Laplace(scale=0.1)},
        {"noise": Gaussian(sigma=0.1, where="server")},
        {
            "noise": Gaussian(multiplier=1.0),
            "local": NoisySgd(
                steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1), sampling="poisson"
            ),
        },
    ],
)
def test_every_kind_of_noise_can_be_left_out(changes) -> None:
    quiet = remove_protocol_noise(toy_protocol(**changes))
    assert (quiet.noise.sigma or 0.0, quiet.noise.multiplier or 0.0, quiet.noise.where) == (
        0.0,
        0.0,
        "client",
    )


def test_the_paper_is_quoted_where_it_speaks_of_the_same_thing() -> None:
    local = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    plan = toy_protocol(
        local=local, rounds=500, noise=Gaussian(sigma=0.1), data=Data(name="cifar10")
    )
    row = Row(
        name="inversion", view="server", round=300, noise=0.1, metric="L2", method="", value=1.0, baseline=1.0, better="lower", samples=1,
        paper="",
    )  # fmt: skip
    assert printed(row, plan) == 17.17
    for other in (
        replace(row, round=299),
        replace(row, noise=0.2),
        replace(row, metric="MSE"),
        replace(row, name="labels"),
    ):
        assert printed(other, plan) is None
    assert printed(row, replace(plan, data=Data(name="mnist"))) is None


@pytest.mark.slow
def test_the_command_attacks_a_run_and_its_twin(tmp_path, capfd, monkeypatch) -> None:
    sets = [
        "--set",
        "federation.rounds=3",
        "--set",
        "federation.clients=6",
        "--set",
        "data.records=40",
        "--set",
        "model.name='mlp'",
    ]
    budget = ["--set", "privacy.budget.epsilon=1000.0"]
    assert command(["train", *sets, *budget, "--keep-uploads", "--out", "run"]) == 0
    capfd.readouterr()
    assert command(["attack", "run", "extraction", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["refused"] == {}
    assert {row["noise"] for row in document["attacks"][0]["rows"]} == {0.0, 0.16}
    monkeypatch.setattr(
        ExtractionAttack, "attempt", lambda self, seen, tick: pytest.fail("tried again")
    )
    assert command(["attack", "run", "extraction"]) == 0  # all of it is there already
    out = capfd.readouterr().out
    assert "substitute" in out
    assert "sees nothing" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attack", "nowhere", "labels"], "there is no run in 'nowhere'"),
        (["attack", "run", "labels"], "--keep-uploads"),
        (["attack", "run", "inversion"], "--keep-uploads"),
        (["attack", "run", "lables"], "attack 'lables' is not known. There are: labels"),
        (["attack", "run", "labels", "--setting", "slow"], "quick or paper"),
        (["attack", "run", "attributes", "--attribute", "colour"], "Its attributes are: even"),
        (["attack", "run", "labels", "--attribute", "even"], "only the attack attributes takes it"),
    ],
)
def test_a_mistake_gets_exit_code_2_and_says_what_to_do(tmp_path, capfd, arguments, words) -> None:
    sets = ["--set", "federation.rounds=1", "--set", "federation.clients=5"]
    assert command(["train", *sets, "--out", "run"]) == 0
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    capfd.readouterr()
    assert command(arguments) == 2
    said = capfd.readouterr()
    assert words in said.err.replace("\n", " ")
    assert "Traceback" not in said.err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_an_unfinished_run_is_refused(tmp_path) -> None:
    def stop(metrics) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(PLAN, data=DATA, model="mlp", folder=tmp_path / "run", on_round=stop)
    with pytest.raises(UserError, match="sordino resume"):
        attack(Run.load(tmp_path / "run"), "labels", data=DATA, model="mlp")


def test_all_tries_what_can_be_tried_and_says_why_not_the_rest(
    tmp_path, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(
        suite, "ATTACKS", {"labels": {"quick": SMALL}, "constant": {"quick": Constantly()}}
    )
    assert (
        command(
            [
                "train",
                "--set",
                "federation.rounds=1",
                "--set",
                "federation.clients=5",
                "--out",
                "run",
            ]
        )
        == 0
    )
    assert command(["attack", "run", "--no-twin", "--json"]) == 0
    document = json.loads(capfd.readouterr().out.split("\n{", 1)[1].join(["{", ""]))
    assert [one["attack"] for one in document["attacks"]] == ["constant"]
    assert "--keep-uploads" in document["refused"]["labels"]


def test_models_whose_numbers_overflow_are_attacked_like_others(tmp_path) -> None:
    """Noise so large that products of weights are infinite in float32: nothing to find, and no reason to break."""
    wild = replace(PLAN, noise=Gaussian(sigma=1e25), rounds=2)
    run = train(wild, data=DATA, model="mlp", folder=tmp_path / "run", keep_uploads=1, report=False)
    for plan in (SMALL, replace(suite.ATTACKS["extraction"]["quick"], queries=40, iterations=5)):
        rows = attack(run, plan, data=DATA).rows
        assert rows
        assert all(0 <= row.value <= 1 for row in rows)


def test_the_report_shows_the_headlines_of_an_attack(tmp_path) -> None:
    run = toy_run(tmp_path / "run")
    attack([run, train_silent_twin(run, data=DATA, model="mlp")], SMALL, data=DATA)
    shown = read_attacks(run.folder)
    assert [(one.name, one.metric, one.paper) for one in shown] == [
        ("labels, noise 0", "accuracy", "convergent-dp, Table 13"),
        ("labels, noise 0.05", "accuracy", "convergent-dp, Table 13"),
    ]
    [plot] = shown[0].plots
    assert {name: len(xs) for name, (xs, _) in plot.lines.items()} == {
        "noise 0": 3,
        "noise 0.05": 3,
        "sees nothing": 3,
    }
    assert shown[1].value == max(
        row.value for row in attack(run, SMALL, data=DATA).rows if row.round == 3
    )
