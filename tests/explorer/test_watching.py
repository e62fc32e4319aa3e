"""Run folders while they are written, damaged or deleted: something is said of each, and nothing is ever raised."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from sordino import Budget, Privacy, train
from sordino.explorer.watching import RunWatcher, compare_runs, list_runs, price_folder, trace_plan
from sordino.federation.store.run_folder import as_line
from sordino.privacy.certify import certify
from sordino.privacy.ledger import Ledger, read_ledger
from sordino.privacy.spending import certify_run
from tests.support import toy_dataset, toy_protocol


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    return train(
        toy_protocol(rounds=6), data=toy_dataset(), model="logistic", folder=place / "a", workers=1
    ).folder


@pytest.fixture
def root(trained, tmp_path) -> Path:
    shutil.copytree(trained, tmp_path / "runs" / "a")
    return tmp_path / "runs"


def test_a_finished_run_is_seen_as_it_is(root, trained) -> None:
    run = RunWatcher(root).look("a")
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert (run.problem, run.status, run.state, run.rounds) == (
        "",
        "finished",
        "finished",
        (1, 2, 3, 4, 5, 6),
    )
    assert run.scores["accuracy"] == tuple(row["accuracy"] for row in rows)
    assert run.last("loss") == rows[-1]["loss"]
    assert not run.under_way
    assert "5 clients" in run.what


def test_a_run_is_read_on_from_where_the_last_look_ended(root) -> None:
    metrics = root / "a" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:2]))
    watch = RunWatcher(root)
    assert watch.look("a").rounds == (1, 2)
    metrics.write_bytes(b"".join(lines[:3]) + lines[3][:10])  # a line that is only half there
    assert watch.look("a").rounds == (1, 2, 3)
    metrics.write_bytes(b"".join(lines[:4]))
    assert watch.look("a").rounds == (1, 2, 3, 4)
    metrics.write_bytes(b"".join(lines[:1]))  # taken back, as after a crash
    assert watch.look("a").rounds == (1,)


def test_a_diverged_run_is_not_priced_as_its_last_model_alone(tmp_path) -> None:
    """When it stopped depends on its data, so what is proved about the last model is not about it."""
    plan = toy_protocol(rounds=6, privacy=Privacy(budget=Budget(epsilon=1e4, view="final")))
    run = train(plan, data=toy_dataset(), model="logistic", folder=tmp_path / "a", workers=1)
    assert price_folder(run.folder, 0).view == "final"
    facts = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({**facts, "status": "diverged"}))
    found = price_folder(run.folder, 0)
    assert found.view == "rounds"
    assert found.epsilon == run.guarantee("rounds").epsilon(1e-5)


def test_a_run_under_way_is_told_from_one_that_was_interrupted(root) -> None:
    facts = json.loads((root / "a" / "run.json").read_text())
    (root / "a" / "run.json").write_text(json.dumps({**facts, "status": "unfinished"}))
    os.utime(root / "a" / "metrics.jsonl")
    assert RunWatcher(root).look("a").state == "under way"
    os.utime(root / "a" / "metrics.jsonl", (0, 0))
    assert "sordino resume" in RunWatcher(root).look("a").state


DAMAGE = {
    "protocol.toml": [b"", b"\xff\xfe", b"clients = 3", b"[federation"],
    "run.json": [
        b"",
        b"[1, 2]",
        b"{}",
        b'{"status": "finished"}',
        b'{"status": "finished", "sizes": 3}',
    ],
    "metrics.jsonl": [b"{\n", b"[1]\n", b'{"round": "one"}\n', b"\xff\n", b"null\n"],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, content) for name, contents in DAMAGE.items() for content in contents],
)
def test_a_damaged_folder_is_said_to_be_damaged(root, name, content) -> None:
    watch = RunWatcher(root)
    assert watch.look("a").problem == ""
    (root / "a" / name).write_bytes(content)
    run = watch.look("a")
    assert "is damaged" in run.problem
    assert "\n" not in run.problem
    assert compare_runs([run], "loss") is None
    if name != "metrics.jsonl":
        assert price_folder(root / "a", 1).problem


@pytest.mark.parametrize("name", ["protocol.toml", "run.json", "metrics.jsonl"])
def test_a_file_that_is_missing_or_a_folder_is_named(root, name) -> None:
    (root / "a" / name).unlink()
    assert name in RunWatcher(root).look("a").problem
    (root / "a" / name).mkdir()
    assert name in RunWatcher(root).look("a").problem


def test_a_run_that_is_deleted_while_it_is_watched_is_missed(root) -> None:
    watch = RunWatcher(root)
    assert watch.look("a").problem == ""
    shutil.rmtree(root / "a")
    assert watch.look("a").problem == "is no longer there"
    assert list_runs(root) == []
    assert price_folder(root / "a", 0).problem


def test_runs_are_found_newest_first_repeats_too_and_audits_are_not_runs(root) -> None:
    shutil.copytree(root / "a", root / "many" / "seed-7")
    shutil.copytree(root / "a", root / "audit")
    (root / "audit" / "audit.json").write_text("{}")
    os.utime(root / "a" / "metrics.jsonl", (1, 1))
    assert list_runs(root) == ["many/seed-7", "a"]


def test_what_was_spent_is_priced_by_the_ledger(root) -> None:
    told = price_folder(root / "a", 1)
    expected = certify(
        toy_protocol(rounds=6),
        "server",
        rounds=range(6),
        sizes=json.loads((root / "a" / "run.json").read_text())["sizes"],
    )
    assert (told.charges, told.view, told.problem) == (6, "server", "")
    assert told.epsilon == expected.epsilon(1e-5)
    ledger = root / "a" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"round":2', b'"round":1'))
    assert "was changed" in price_folder(root / "a", 1).problem


def test_clients_that_fell_silent_hid_nobody(root) -> None:
    """With two of five left, in the view of who sees the models, the mean hides less than was planned."""
    protocol = toy_protocol(rounds=6, privacy=Privacy(budget=Budget(epsilon=1e6, view="rounds")))
    run = train(protocol, data=toy_dataset(), model="logistic", folder=root / "b", workers=1)
    before = price_folder(root / "b", 1).epsilon
    with Ledger.resume(run.folder / "ledger.jsonl") as ledger:
        for t in range(6):
            ledger.note_missing(round=t, reasons=dict.fromkeys((2, 3, 4), "it did not answer"))
    after = price_folder(root / "b", 2)
    assert after.epsilon == certify_run(
        protocol, read_ledger(run.folder / "ledger.jsonl").events, "rounds", sizes=run.sizes
    ).epsilon(1e-5)
    assert after.epsilon > 1.2 * before


def test_the_plan_ends_at_all_rounds_and_has_the_budget(root) -> None:
    protocol = toy_protocol(rounds=6)
    chart = trace_plan(protocol, (24,) * 5)
    assert (chart.points[0], chart.points[-1]) == (1, 6)
    assert chart.lines[0].values[-1] == certify(protocol, "server", sizes=(24,) * 5).epsilon(1e-5)


def test_ten_thousand_rounds_of_ten_runs_are_few_points(root) -> None:
    row = {"loss": 0.5, "accuracy": 0.9}
    (root / "a" / "metrics.jsonl").write_bytes(
        b"".join(as_line({"round": t, **row}) for t in range(10_000))
    )
    for number in range(9):
        shutil.copytree(root / "a", root / f"b{number}")
    watch = RunWatcher(root)
    seen = [watch.look(name) for name in list_runs(root)]
    chart = compare_runs(seen, "accuracy")
    assert len(seen) == 10
    assert len(chart.points) <= 401
    assert chart.points[-1] == 10_000
    assert {len(line.values) for line in chart.lines} == {len(chart.points)}


def test_runs_of_different_length_are_compared_over_the_rounds_of_all(root) -> None:
    shutil.copytree(root / "a", root / "b")
    lines = (root / "b" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (root / "b" / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    watch = RunWatcher(root)
    chart = compare_runs([watch.look("a"), watch.look("b")], "loss")
    assert chart.points == (1, 2, 3, 4, 5, 6)
    assert [math.isnan(value) for value in chart.lines[1].values] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
