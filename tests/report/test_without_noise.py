"""The same training without noise: on request, marked, and never in what is published."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sordino import Run
from sordino.attacks.twin import remove_protocol_noise
from sordino.cli.main import run
from sordino.protocol import Constant, Laplace, NoisySgd, loads, override_keys
from sordino.protocol.channel_kinds import Direct

SMALL = ["--set", "federation.rounds=4", "--set", "federation.clients=10"]
LOUD = ["--set", "noise.sigma=3.0", "--set", "privacy.budget.epsilon=1000"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capfd, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.slow
def test_a_training_says_what_noise_cost_and_publishes_nothing_of_it(capfd) -> None:
    code, out, _ = answer(capfd, "train", *SMALL, *LOUD, "--out", "a", "--without-noise", "--json")
    assert code == 0
    document = json.loads(out)
    free = document["without_noise"]
    assert free["private"] is False
    assert "Do not publish" in free["note"]
    # Without noise the same training learns; with this much it guesses.
    assert free["accuracy"] > document["accuracy"]
    assert free["accuracy_lost"] == pytest.approx(free["accuracy"] - document["accuracy"])
    twin = Run.load(free["twin"])
    assert twin.metrics["accuracy"][-1] == free["accuracy"]
    assert twin.protocol.seed == Run.load("a").protocol.seed
    apart = Path("a/private/report.html").read_text()
    assert "Do not publish this page" in apart
    shown = Path("a/report.html").read_text()
    assert "Without noise:" not in shown
    assert "without_noise" not in shown
    assert str(free["accuracy"]) not in Path("a/metrics.jsonl").read_text()
    assert answer(capfd, "verify", "a")[0] == 0


@pytest.mark.slow
def test_a_report_adds_the_comparison_later_and_trains_the_twin_once(capfd) -> None:
    answer(capfd, "train", *SMALL, "--out", "a")
    before = Path("a/report.html").read_bytes()
    code, out, err = answer(capfd, "report", "a", "--without-noise")
    assert code == 0
    assert "Not private" in out
    assert "private/report.html" in out
    assert Path("a/report.html").read_bytes() == before
    assert "without noise" in err
    code, _, err = answer(capfd, "report", "a", "--without-noise")
    assert code == 0
    assert "Run folder" not in err


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["report", "a", "b", "--without-noise"], "one folder"),
        (["report", "a", "--without-noise", "--out", "x.html"], "--out"),
        (["report", "nowhere", "--without-noise"], "nowhere"),
        (["train", *SMALL, "--without-noise", "--repeats", "2"], "--repeats"),
    ],
)
def test_what_cannot_be_compared_is_refused(capfd, typed, named) -> None:
    code, out, err = answer(capfd, *typed)
    assert (code, out) == (2, "")
    assert named in err
    assert list(Path.cwd().iterdir()) == []


def test_a_run_without_noise_has_nothing_to_compare(capfd) -> None:
    silent = ["--set", "noise.sigma=0", "--set", "privacy={}"]
    assert answer(capfd, "train", *SMALL, *silent, "--out", "a")[0] == 0
    code, _, err = answer(capfd, "report", "a", "--without-noise")
    assert code == 2
    assert "has no noise" in err


def test_the_twin_of_a_secure_sum_sends_its_uploads_as_they_are() -> None:
    plan = loads(
        """
        [federation]
        clients = 10
        rounds = 2
        channel = { secure-aggregation = { threshold = 8 } }
        [local]
        rule = "fedavg"
        steps = 1
        batch = 4
        clip = 1.0
        schedule = { kind = "constant", rate = 0.1 }
        [noise]
        mechanism = "gaussian"
        sigma = 0.1
        """
    )
    assert remove_protocol_noise(plan).channel == Direct()
    rule = "local={ rule = 'dp-sgd', batch = 4, clip = 1.0 }"
    lot = override_keys(plan, [rule, "noise={ mechanism = 'gaussian', multiplier = 1.0 }"])
    assert remove_protocol_noise(lot).noise.multiplier == 0
    steps = NoisySgd(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
    loud = replace(lot, channel=Direct(), local=steps, noise=Laplace(scale=1.0))
    assert remove_protocol_noise(loud).noise.multiplier == 0
