"""The protocol files that ship: valid, within their budgets, the papers' own where they say so; the small one trains."""

import math
import re
from importlib.resources import files

import pytest

from sordino import Protocol, Run, calibrate, certify, realised
from sordino.cli.main import run
from sordino.federation.evaluation import evaluate_clients
from sordino.papers.prifedsync import theorem_2_limit
from sordino.privacy.ledger_lines import RoundCharged
from sordino.protocol import loads
from tests.support import real_file

FOLDER = files("sordino") / "examples"
EXAMPLES = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".toml"))


def example(name: str) -> Protocol:
    return loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_file_is_valid_and_keeps_its_budget(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", name.removesuffix(".toml")]) == 0
    assert run(["check", "mine.toml"]) == 0
    protocol = example(name)
    assert math.isfinite(certify(protocol, "rounds", delta=1e-3).epsilon(1e-3))
    budget = protocol.privacy.budget
    if budget is not None:
        assert (
            certify(protocol, budget.view, budget.unit, delta=budget.delta).epsilon(budget.delta)
            <= budget.epsilon
        )
    assert math.isinf(certify(protocol).epsilon(1e-5)) == (protocol.noise.where == "server")


FOUND = re.compile(r"multiplier = ([\d.]+) .*`sordino calibrate \S+ --epsilon ([\d.]+)` finds it")


def test_the_noise_of_a_file_is_what_its_comment_says_finds_it() -> None:
    """Rounded up, since a file has two or three digits of it."""
    checked = []
    for name in EXAMPLES:
        said = FOUND.search((FOLDER / name).read_text(encoding="utf-8"))
        if said is None:
            continue
        protocol = example(name)
        budget = protocol.privacy.budget
        found = calibrate(
            protocol, budget.view, epsilon=float(said[2]), delta=budget.delta, unit=budget.unit
        )
        assert 0.99 * float(said[1]) <= found.value <= float(said[1]), name
        checked.append(name)
    assert {"digits.toml", "consortium.toml"} <= set(checked)


# The paper's printed mu (Tables 1 and 3), and epsilon at 1e-5 as the theory computed it, with the mixture over who takes part.
@pytest.mark.parametrize(
    ("name", "mu", "epsilon"),
    [("prifedsync-mnist.toml", 4.51, 17.139), ("prifedsync-cifar.toml", 9.31, 45.478)],
)
def test_the_papers_settings_are_those_of_its_tables(name, mu, epsilon) -> None:
    protocol = example(name)
    rule, records = protocol.local, protocol.data.records
    options = {
        "batch": rule.batch,
        "records": records,
        "steps": rule.steps,
        "rounds": protocol.rounds,
        "sigma": protocol.noise.multiplier,
    }
    assert round(theorem_2_limit(**options), 2) == mu
    assert certify(protocol, "weak").epsilon(1e-5) == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.slow
def test_in_the_small_one_own_models_are_better_within_the_budget(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", "prifedsync"]) == 0
    assert run(["train", "mine.toml", "--out", "run", "--workers", "1"]) == 0
    done = Run.load("run")
    assert done.status == "finished"
    assert (
        certify(done.protocol, "strong", rounds=done.rounds_paid, sizes=done.sizes).epsilon(1e-5)
        <= 8.0
    )
    assert evaluate_clients(done, personal=True).mean() > evaluate_clients(done).mean() + 0.1
    assert run(["evaluate", "run", "--clients"]) == 0
    assert run(["certify", "run", "--view", "strong"]) == 0


@pytest.mark.slow
def test_the_wind_model_beats_the_mean_within_its_budget(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(real_file("gefcom2012_wind_power.csv.gz").parent))
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", "wind-scaffold"]) == 0
    assert run(["train", "mine.toml", "--out", "run", "--workers", "1"]) == 0
    done = Run.load("run")
    assert done.status == "finished"
    assert certify(done.protocol, rounds=done.rounds_paid, sizes=done.sizes).epsilon(1e-5) <= 4.0
    assert done.metrics["loss"][-1] < 0.7 * done.facts["baseline"]


def test_clinics_leave_when_their_budgets_are_spent_and_the_model_is_worth_something(
    tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", "harmonizer"]) == 0
    assert run(["train", "mine.toml", "--out", "run", "--workers", "1"]) == 0
    done, said = Run.load("run"), capfd.readouterr().err
    charged = [event.clients for event in done.ledger if isinstance(event, RoundCharged)]
    taken = [sum(client in clients for clients in charged) for client in range(8)]
    assert taken[:5] == [60] * 5
    assert 60 > taken[5] > taken[6] > taken[7] > 0
    assert f"Client 6 takes part in at most {taken[6]} of 60 rounds" in said
    assert re.search(r"round 60/60  5 clients  accuracy", said)
    assert done.metrics["accuracy"][-1] > 0.8
    for client, guarantee in realised(
        done.protocol, done.ledger, "server", "record", sizes=done.sizes
    ).items():
        assert guarantee.epsilon(1e-5) <= done.protocol.client[client].epsilon
