"""What is published beside a promise tells no more than the promise covers; the rest is kept apart, and marked."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino import Data, Gaussian, Run, resume, train
from sordino.cli.main import run as command
from sordino.explorer.watching import RunWatcher
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import RoundCharged, encode_line
from sordino.protocol import Budget, Iid, Mean, Poisson, Privacy, Protocol
from sordino.report.closing_panel import result_line
from sordino.report.page import run_page
from sordino.report.run_summary import run_document, summarize_run, summary_document
from sordino.report.sink_feeder import SinkFeeder
from sordino.report.sinks import MlflowSink, Sink, TensorBoardSink
from sordino.report.writing import write_comparison
from tests.report.test_sinks import events, tracked
from tests.support import reseal, toy_dataset, toy_protocol, unseal

ROUNDS = 6
IID = Data(name="toy", partition=Iid(), records=20)
FINAL = toy_protocol(
    rounds=ROUNDS,
    noise=Gaussian(sigma=0.5),
    data=IID,
    privacy=Privacy(budget=Budget(epsilon=1e5, view="final")),
)
HIDDEN = toy_protocol(
    rounds=ROUNDS,
    participation=Poisson(rate=0.5),
    aggregation=Mean(denominator="fixed"),
    noise=Gaussian(sigma=0.5, where="server"),
    data=IID,
    privacy=Privacy(budget=Budget(epsilon=1e5, view="rounds")),
)


def trained(place: Path, protocol: Protocol, **options: object) -> Run:
    settings: dict[str, object] = {"data": toy_dataset(), "model": "logistic", "workers": 1}
    return train(protocol, folder=place, report=False, **{**settings, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def final_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose promise is about the last model; not to be changed."""
    return trained(tmp_path_factory.mktemp("final") / "last", FINAL).folder


@pytest.fixture(scope="module")
def hidden_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose promise counts on a hidden draw; not to be changed."""
    return trained(tmp_path_factory.mktemp("hidden") / "drawn", HIDDEN).folder


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def page_of(folder: Path) -> str:
    """The page of a run, without the time at which it was made."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", run_page(summarize_run(folder)))


class Recorder(Sink):
    """A sink that remembers what it was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[int, float]] = {}

    def open(self, folder: Path, protocol: Protocol) -> int:
        return 0

    def log(self, step: int, values: dict[str, float]) -> None:  # type: ignore[override]
        for name, value in values.items():
            self.sent.setdefault(name, {})[step] = value

    def close(self, status: str) -> None:
        pass


def recorded(place: Path, protocol: Protocol, *sinks: Sink) -> Run:
    """Train while metrics flow to sinks."""
    logging = SinkFeeder(sinks, pytest.fail)
    run = trained(place, protocol, on_start=logging.start, on_round=logging.advance)
    logging.end(run)
    return run


def test_a_promise_about_the_last_model_is_published_with_the_last_score_alone(final_run) -> None:
    shown, kept = lines(final_run / "metrics.jsonl"), Run.load(final_run).metrics
    assert [row["loss"] for row in shown] == [None] * (ROUNDS - 1) + [kept["loss"][-1]]
    assert [row["accuracy"] for row in shown] == [None] * (ROUNDS - 1) + [kept["accuracy"][-1]]
    for name in ("signal_to_noise", "clip_fraction", "nonfinite_steps"):
        assert [row[name] for row in shown] == [None] * ROUNDS, name
    assert np.isfinite(kept["loss"]).all()  # what a person has who holds the folder
    assert "Do not publish" in (final_run / "private" / "README.txt").read_text()


@pytest.mark.slow
def test_the_page_does_not_depend_on_the_scores_of_earlier_models(final_run, tmp_path) -> None:
    other = Path(shutil.copytree(final_run, tmp_path / final_run.name))
    rows = lines(other / "private" / "metrics.jsonl")
    for row in rows[:-1]:
        row |= {"loss": 77.25, "accuracy": 0.0125, "signal_to_noise": 55.5, "clip_fraction": 0.5}
    rows[-1]["signal_to_noise"] = 55.5  # of the last model and the one before it
    write_lines(other / "private" / "metrics.jsonl", rows)
    reseal(other)
    assert page_of(other).replace(str(other), "") == page_of(final_run).replace(str(final_run), "")
    page = page_of(final_run)
    assert "only the last score is published" in page
    assert "figure-learning" not in page
    assert f"loss {Run.load(final_run).metrics['loss'][-1]:.4g}" in page


def test_the_page_of_an_older_folder_is_held_to_the_same(final_run, tmp_path) -> None:
    """Folders of earlier versions have whole lines in metrics.jsonl."""
    old = Path(shutil.copytree(final_run, tmp_path / "old"))
    shutil.move(old / "private" / "metrics.jsonl", old / "metrics.jsonl")
    shutil.rmtree(old / "private")
    unseal(old)
    losses = Run.load(old).metrics["loss"]
    assert np.isfinite(losses).all()
    metrics = summary_document(summarize_run(old))["metrics"]
    assert metrics["loss"] == [losses[-1]]


def test_a_comparison_told_about_the_last_model_shows_last_scores_of_all_runs(
    final_run, tmp_path
) -> None:
    plain = trained(tmp_path / "plain", replace(FINAL, seed=4, privacy=Privacy()))
    page = write_comparison([final_run, plain.folder], tmp_path / "both.html").read_text()
    block = re.search(r'id="sordino-report">(.*?)</script>', page)
    assert block is not None
    for told_run in json.loads(block.group(1))["runs"]:
        assert len(told_run["metrics"]["loss"]) == 1
    for value in plain.metrics["loss"][:-1]:
        assert f">{value:.4g}<" not in page


def test_sinks_get_the_last_score_alone(tmp_path) -> None:
    found = Recorder()
    run = recorded(tmp_path / "run", FINAL, found)
    assert found.sent["loss"] == {ROUNDS: run.metrics["loss"][-1]}
    assert found.sent["accuracy"] == {ROUNDS: run.metrics["accuracy"][-1]}
    assert "signal_to_noise" not in found.sent


def test_tensorboard_and_mlflow_hold_nothing_about_the_draw_and_every_step(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = recorded(tmp_path / "run", HIDDEN, TensorBoardSink(), MlflowSink("kept"))
    for values in (events(run.folder), tracked(run.folder)[0]):
        assert not {"participants", "bytes_up", "bytes_down", "seconds"} & set(values)
        assert sorted(dict(values["loss"])) == list(range(1, ROUNDS + 1))
    times = dated(run.folder)
    assert len(times) == 2
    assert all(len(set(dates)) == 1 for dates in times.values())
    later = MlflowSink("kept")
    assert later.open(run.folder, run.protocol) == ROUNDS  # it knows what it has


def dated(folder: Path) -> dict[str, list[float]]:
    """When each sink says that the losses came: a round takes longer with more clients."""
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    ((uri, number),) = json.loads((folder / "mlflow.json").read_text()).items()
    history = MlflowClient(uri).get_metric_history(number, "loss")
    return {
        "tensorboard": [event.wall_time for event in board.Scalars("loss")],
        "mlflow": [metric.timestamp for metric in history],
    }


def test_an_interrupted_run_keeps_its_lines_apart_and_ends_as_if_it_had_not_been(
    final_run, tmp_path
) -> None:
    seen = 0

    def stop(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", FINAL, on_round=stop)
    assert [row["loss"] for row in lines(tmp_path / "run" / "metrics.jsonl")] == [None] * 3
    resume(tmp_path / "run", data=toy_dataset(), model="logistic", workers=1, report=False)
    for name in ("metrics.jsonl", "private/metrics.jsonl"):
        again, before = lines(tmp_path / "run" / name), lines(final_run / name)
        assert [{**row, "seconds": 0} for row in again] == [
            {**row, "seconds": 0} for row in before
        ], name


@pytest.mark.slow
def test_a_hidden_draw_is_in_nothing_that_is_published(hidden_run, tmp_path) -> None:
    for row in lines(hidden_run / "metrics.jsonl"):
        assert [row[name] for name in ("participants", "bytes_up", "bytes_down", "seconds")] == (
            [None] * 4
        )
        assert row["loss"] is not None  # of a model that the promise covers
    other = Path(shutil.copytree(hidden_run, tmp_path / hidden_run.name))
    redraw(other)
    assert page_of(other).replace(str(other), "") == page_of(hidden_run).replace(
        str(hidden_run), ""
    )
    document = summary_document(summarize_run(hidden_run))
    assert document["clients"] == []
    assert document["ledger"]["digest"] is None
    assert "not published" in " ".join(document["withheld"])


def redraw(folder: Path) -> None:
    """Change who took part in every round, in the ledger and in the metrics."""
    chain, written = "", []
    for event in read_ledger(folder / "ledger.jsonl").events:
        changed = event
        if isinstance(event, RoundCharged):
            changed = replace(event, clients=(event.round % 5,))
        line, chain = encode_line(changed, chain)
        written.append(line)
    (folder / "ledger.jsonl").write_bytes(b"".join(written))
    rows = lines(folder / "private" / "metrics.jsonl")
    for row in rows:
        row |= {"participants": 1, "bytes_up": 12, "bytes_down": 12, "clip_fraction": 0.75}
    seconds = [row["seconds"] for row in rows]
    for row, other in zip(rows, reversed(seconds), strict=True):
        row["seconds"] = other
    write_lines(folder / "private" / "metrics.jsonl", rows)
    reseal(folder)


def test_certify_says_that_what_a_hidden_draw_came_to_is_not_to_be_published(
    hidden_run, capsys
) -> None:
    assert command(["certify", str(hidden_run), "--view", "rounds"]) == 0
    assert "do not publish them" in " ".join(capsys.readouterr().out.split())
    assert command(["certify", str(hidden_run), "--json"]) == 0
    assert "do not publish them" in json.loads(capsys.readouterr().out)["realised_note"]


def test_a_draw_that_the_promise_does_not_count_on_is_shown(tmp_path) -> None:
    """Clients add the noise: who takes part may be known, and the price is that of a public draw."""
    public = toy_protocol(rounds=ROUNDS, participation=Poisson(rate=0.5), data=IID)
    run = trained(tmp_path / "run", public)
    assert not (run.folder / "private").exists()
    document = summary_document(summarize_run(run))
    assert len(document["clients"]) == run.protocol.clients
    assert document["withheld"] == []
    assert lines(run.folder / "metrics.jsonl")[0]["participants"] is not None


def test_numbers_of_a_whole_run_stay_numbers(hidden_run) -> None:
    document = run_document(Run.load(hidden_run))
    assert document["rounds"] == ROUNDS
    assert document["seconds"] == pytest.approx(
        summary_document(summarize_run(hidden_run))["run"]["seconds"]
    )


def test_the_closing_panel_draws_no_curve_of_models_that_are_not_promised(final_run) -> None:
    run = Run.load(final_run)
    whole = replace(run, protocol=replace(run.protocol, privacy=Privacy()))
    assert result_line(whole).startswith(result_line(run).rstrip())
    assert len(result_line(run).rstrip()) < len(result_line(whole))


def test_the_explorer_looks_at_what_is_published(final_run) -> None:
    seen = RunWatcher(final_run.parent).look(final_run.name)
    assert len(seen.rounds) == ROUNDS
    assert np.isnan(seen.scores["loss"][:-1]).all()
    assert seen.last("loss") == Run.load(final_run).metrics["loss"][-1]
    assert "only the last score" in seen.left_out
