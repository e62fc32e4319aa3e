"""TensorBoard and MLflow get the metrics of a run, epsilon among them: every step once, whatever happens in between."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'sordino[mlflow]'")
pytest.importorskip("tensorboard", reason="pip install 'sordino[tensorboard]'")

from sordino.cli.main import run
from sordino.cli.progress import TrainingProgress
from sordino.federation.round_metrics import RoundMetrics
from sordino.report import sinks
from sordino.report.sink_feeder import SinkFeeder
from sordino.report.sinks import MlflowSink, TensorBoardSink

QUICK = [
    "--set",
    "federation.rounds=12",
    "--set",
    "federation.clients=10",
    "--workers",
    "1",
    "--evaluate-every",
    "2",
]
BOTH = ["--log", "tensorboard", "--log", "mlflow:kept"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder_without_reports(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sordino.report.writing.write_final_report", lambda run, say: None)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def tracked(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], object]:
    """What MLflow has, and its run."""
    from mlflow.tracking import MlflowClient

    ((uri, number),) = json.loads((folder / "mlflow.json").read_text()).items()
    client = MlflowClient(uri)
    found = client.get_run(number)
    return {
        key: [(one.step, one.value) for one in client.get_metric_history(number, key)]
        for key in found.data.metrics
    }, found


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check(found: dict[str, list[tuple[int, float]]], folder: Path, epsilon: float) -> None:
    """Every step once, with the values of metrics.jsonl, and the last epsilon is what the run promises."""
    names = ("loss", "accuracy", "seconds")
    expected = {
        name: {row["round"] + 1: row[name] for row in rows(folder) if row[name] is not None}
        for name in names
    }
    for name, values in expected.items():
        assert Counter(step for step, _ in found[name]) == Counter(list(values))
        assert dict(found[name]) == pytest.approx(values, rel=1e-6)
    steps = [step for step, _ in found["epsilon"]]
    assert len(steps) == len(set(steps))
    assert dict(found["epsilon"])[max(values)] == pytest.approx(epsilon, rel=1e-6)
    assert sorted(found["epsilon"]) == sorted(
        found["epsilon"], key=lambda pair: pair[1]
    )  # what is spent grows
    assert "clip_fraction" not in found  # from private data
    assert "nonfinite_steps" not in found


def test_both_get_every_round_and_epsilon(capfd) -> None:
    assert run(["train", *QUICK, *BOTH, "--out", "a", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    epsilon = document["guarantee"]["epsilon"]
    check(events(Path("a")), Path("a"), epsilon)
    found, mlflow = tracked(Path("a"))
    check(found, Path("a"), epsilon)
    assert mlflow.info.status == "FINISHED"
    assert mlflow.data.params["noise.sigma"] == "0.16"
    assert "seed" not in mlflow.data.params


@pytest.mark.parametrize("secure", ["true", "false"])
@pytest.mark.parametrize("stopped", [0, 6])
def test_after_an_interruption_no_step_is_missing_or_twice(
    capfd, monkeypatch, secure, stopped
) -> None:
    original = SinkFeeder.advance

    def stop(self, metrics: RoundMetrics) -> None:
        original(self, metrics)
        if metrics.round == stopped:
            raise KeyboardInterrupt  # before the round is in a checkpoint: it will be run again

    monkeypatch.setattr(
        sinks, "FLUSH_INTERVAL", 0.0
    )  # as on a slow training: every step is sent as soon as it may be
    options = [*QUICK, "--set", f"noise.secure={secure}"]
    with monkeypatch.context() as patched:
        patched.setattr(SinkFeeder, "advance", stop)
        assert run(["train", *options, *BOTH, "--out", "a"]) == 130
    assert tracked(Path("a"))[1].info.status == "KILLED"
    capfd.readouterr()
    assert run(["resume", "a", *BOTH, "--json"]) == 0
    epsilon = json.loads(capfd.readouterr().out)["guarantee"]["epsilon"]
    check(events(Path("a")), Path("a"), epsilon)
    found, mlflow = tracked(Path("a"))
    check(found, Path("a"), epsilon)
    assert mlflow.info.status == "FINISHED"


def test_a_sink_that_comes_later_gets_the_rounds_of_before(capfd, monkeypatch) -> None:
    def stop(self, metrics: RoundMetrics) -> None:
        if metrics.round == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainingProgress, "advance", stop)
        assert run(["train", *QUICK, "--out", "a"]) == 130
    capfd.readouterr()
    assert run(["resume", "a", *BOTH, "--json"]) == 0
    epsilon = json.loads(capfd.readouterr().out)["guarantee"]["epsilon"]
    check(events(Path("a")), Path("a"), epsilon)
    check(tracked(Path("a"))[0], Path("a"), epsilon)


@pytest.mark.parametrize(
    ("module", "sink", "package"),
    [
        ("torch.utils.tensorboard", "tensorboard", "tensorboard"),
        ("mlflow.tracking", "mlflow:kept", "mlflow"),
    ],
)
def test_a_package_that_is_not_installed_is_named_before_anything_is_written(
    capfd, monkeypatch, module, sink, package
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert run(["train", *QUICK, "--log", sink, "--out", "a"]) == 2
    assert f"pip install 'sordino[{package}]'" in capfd.readouterr().err
    assert not Path("a").exists()


@pytest.mark.parametrize(
    "sink", ["wandb", "tensorboard:elsewhere", "", "mlflow:http://127.0.0.1:9", "mlflow:weird://x"]
)
def test_a_sink_that_cannot_be_used_is_refused_before_anything_is_written(
    capfd, monkeypatch, sink
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert run(["train", *QUICK, "--log", sink, "--out", "a"]) == 2
    err = capfd.readouterr().err
    assert "--log" in err
    assert "Traceback" not in err
    assert not Path("a").exists()


@pytest.mark.parametrize("when", ["open", "log", "close"])
def test_a_sink_that_fails_is_dropped_and_the_training_goes_on(capfd, monkeypatch, when) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("the server went away")

    monkeypatch.setattr(MlflowSink, when, fail)
    assert run(["train", *QUICK, *BOTH, "--out", "a", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err.count("the server went away") == 1
    check(events(Path("a")), Path("a"), json.loads(out)["guarantee"]["epsilon"])


def test_ctrl_c_before_the_first_round_leaves_nothing(capfd, monkeypatch) -> None:
    from sordino.federation.training import Training

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "run", interrupted)
    assert run(["train", *QUICK, "--log", "tensorboard", "--out", "a"]) == 130
    assert not Path("a").exists()


def test_nothing_is_sent_to_the_makers_of_mlflow(monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    MlflowSink("kept")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_sink_that_was_never_opened_can_be_closed() -> None:
    TensorBoardSink().close("interrupted")
