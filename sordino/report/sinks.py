"""Where else metrics may flow while a run is under way: TensorBoard event files, an MLflow tracking server. Epsilon is one of them.

A sink gets what metrics.jsonl has, which leaves out what the promise does not cover (privacy/published.py). A run
that goes on after an interruption goes on there too, without a step missing or twice:
TensorBoard's files are written anew from metrics.jsonl, MLflow gets the steps that it has not. What clients' private data say (the share
of clipped steps, gradients that were not finite) is covered by no guarantee and is not sent. A sink that fails is dropped with a message;
the training goes on.
"""

from __future__ import annotations

import abc
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.privacy.published import Withheld, find_withheld, published_row
from sordino.protocol import Protocol, UserError, dumps
from sordino.protocol.documents import flattened
from sordino.protocol.file import parse

if TYPE_CHECKING:
    from sordino.federation.loop import RoundMetrics
    from sordino.federation.run import Run
    from sordino.federation.setup import Begun

SENT = ("loss", "accuracy", "signal_to_noise", "participants", "bytes_up", "bytes_down", "seconds")
PRICINGS = 25  # how often in a run epsilon is worked out
FLUSHED = 1.0  # seconds between two messages to a server
MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # what is logged goes where it is told to go, and nowhere else
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is allowed, if it is what is asked for
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Sink(abc.ABC):
    """A place that metrics flow to. It is made before a training, so that what is missing shows before anything is written."""

    @abc.abstractmethod
    def open(self, folder: Path, protocol: Protocol) -> int:
        """Begin, or go on; returns the last step that is there already."""

    @abc.abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the metrics of a step."""

    @abc.abstractmethod
    def close(self, status: str) -> None:
        """End; a status of "interrupted" means that the run will go on."""


class TensorBoardSink(Sink):
    """Event files in the run's folder, under tensorboard/."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "--log tensorboard needs the package tensorboard: pip install 'sordino[tensorboard]'."
            ) from None
        self._make = SummaryWriter
        self._writer: SummaryWriter | None = None

    def open(self, folder: Path, protocol: Protocol) -> int:
        """See `Sink.open`: old files go, since the steps after the last checkpoint are run again."""
        for old in (folder / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._make(log_dir=str(folder / "tensorboard"), flush_secs=5)
        self._writer.add_text(
            "protocol", "    " + dumps(protocol).replace("\n", "\n    ")
        )  # indented: as code
        return 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.log`."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        """See `Sink.close`."""
        if self._writer is not None:
            self._writer.close()


class MlflowSink(Sink):
    """A run of an MLflow tracking server, or of a folder or data base that MLflow keeps; mlflow.json in the run's folder says which.

    It holds metrics back for a second, so that a server gets few messages, and the newest step until the next one: a round may be
    run again after an interruption, with other noise, and MLflow forgets nothing.
    """

    MARKS = ("seconds", "round")  # one of every step is sent last: where it is, the step is there

    def __init__(self, uri: str) -> None:
        for name, value in MLFLOW.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise UserError(
                "--log mlflow needs the package mlflow: pip install 'sordino[mlflow]'."
            ) from None
        uri = (
            str(Path(uri).resolve()) if uri and ":" not in uri else uri
        )  # a folder stays the same one wherever a run is resumed
        try:
            self._client = MlflowClient(tracking_uri=uri or None)
            self._client.search_experiments(max_results=1)
        except Exception as error:  # MLflow raises what its stores raise
            hint = (
                " A data base needs the whole package: pip install mlflow."
                if "sql" in uri.partition(":")[0]
                else ""
            )
            raise UserError(
                f"--log mlflow:{uri}: this place cannot be used: {in_a_line(error)}{hint}"
            ) from None
        self._uri, self._run = uri, ""
        self._waiting: list[tuple[int, int, Mapping[str, float]]] = []
        self._flushed = time.monotonic()

    def open(self, folder: Path, protocol: Protocol) -> int:
        """See `Sink.open`."""
        note, known = folder / "mlflow.json", {}
        with suppress(OSError, ValueError):
            known = dict(json.loads(note.read_bytes()))
        if self._uri in known:
            self._run = str(known[self._uri])
            self._client.update_run(self._run, status="RUNNING")
            marked = [
                metric.step
                for mark in self.MARKS
                for metric in self._client.get_metric_history(self._run, mark)
            ]
            return max(marked, default=0)
        experiment = self._client.get_experiment_by_name("sordino")
        number = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment("sordino")
        )
        self._run = self._client.create_run(
            number, run_name=folder.resolve().name, tags={"sordino.folder": str(folder)}
        ).info.run_id
        for key, value in flattened(parse(dumps(protocol))).items():
            if key != "seed":  # whoever knows it can take the noise away
                self._client.log_param(self._run, key, value[:500])
        note.write_text(json.dumps({**known, self._uri: self._run}) + "\n")
        return 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.log`."""
        self._waiting.append((step, int(time.time() * 1000), values))
        if time.monotonic() - self._flushed >= FLUSHED:
            self._flush(self._waiting[:-1])

    def close(self, status: str) -> None:
        """See `Sink.close`; after an interruption the newest step comes from metrics.jsonl."""
        self._flush(self._waiting if status != "interrupted" else self._waiting[:-1])
        ended = {"diverged": "FAILED", "interrupted": "KILLED"}.get(status, "FINISHED")
        self._client.set_tag(self._run, "sordino.status", status)
        self._client.set_terminated(self._run, status=ended)

    def _flush(self, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        ordered = [
            (step, at, sorted(values.items(), key=lambda pair: pair[0] in self.MARKS))
            for step, at, values in rows
        ]
        metrics = [
            Metric(name, value, at, step) for step, at, pairs in ordered for name, value in pairs
        ]
        for start in range(0, len(metrics), 1000):  # as many as one message may hold
            self._client.log_batch(self._run, metrics=metrics[start : start + 1000])
        self._waiting, self._flushed = self._waiting[len(rows) :], time.monotonic()


def sinks_from(texts: Sequence[str]) -> list[Sink]:
    """The sinks that `--log` names.

    Raises:
        UserError: an unknown sink, a package that is not installed, a place that cannot be used.

    Example:
        >>> sinks_from([])
        []
    """
    found: list[Sink] = []
    for text in dict.fromkeys(texts):
        kind, _, place = text.partition(":")
        if kind == "mlflow":
            found.append(MlflowSink(place))
        elif text == "tensorboard":
            found.append(TensorBoardSink())
        else:
            raise UserError(
                f"--log {text!r}: expected tensorboard, or mlflow:URI such as mlflow:http://127.0.0.1:5000."
            )
    return found


class Logging:
    """Feeds sinks with the rounds of one run. It holds them open: call `start`, `advance` after every round, and `end`."""

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None]) -> None:
        self._waiting, self._say = list(sinks), say
        self._last: dict[Sink, int] = {}  # of the open ones, the last step that each had before
        self._price: Callable[[int], float] = lambda rounds: math.inf
        self._setup: Begun
        self._withheld = Withheld()
        self._folder: Path
        self._rounds, self._started, self._pricing = 1, 0.0, 0.0

    def start(self, setup: Begun, folder: Path) -> None:
        """Note what is trained. Sinks are opened with the first round: a run that is stopped before it leaves nothing anywhere."""
        if self._waiting:
            from sordino.report.promises import running_price

            self._setup, self._folder, self._price = setup, folder, running_price(setup, folder)
            self._rounds, self._started = setup.protocol.rounds, time.monotonic()
            self._withheld = find_withheld(setup.protocol)

    def advance(self, metrics: RoundMetrics) -> None:
        """Pass the metrics of a round on."""
        if self._waiting:
            self._open(metrics.round)
        if self._last:
            self._send(asdict(metrics))

    def _open(self, round: int) -> None:
        """Open the sinks and give them the rounds of earlier that they lack."""
        from sordino.federation.folder import RunFolder

        rows = [row for row in RunFolder(self._folder).metrics() if row["round"] < round]
        for sink in self._waiting:
            last = self._try(sink, sink.open, self._folder, self._setup.protocol)
            if last is not None:
                self._last[sink] = last
        self._waiting = []
        for row in rows:
            self._send(row)

    def after(self, listener: Callable[[RoundMetrics], None]) -> Callable[[RoundMetrics], None]:
        """A listener for rounds that tells another one first."""

        def both(metrics: RoundMetrics) -> None:
            listener(metrics)
            self.advance(metrics)

        return both

    def end(self, run: Run | None) -> None:
        """Close the sinks, the last step's epsilon included; without a run it was interrupted. A second call does nothing."""
        if run is not None and self._last:
            from sordino.report.promises import headline_of, promised
            from sordino.report.story import last_scores

            asked = headline_of(run)
            values = {"epsilon": promised(run, asked).epsilon(asked[2])}
            if self._withheld.scores:  # those of the last model may be sent, now that it is known
                values |= last_scores(run)
            for sink in list(self._last):
                self._try(sink, sink.log, len(run.metrics["round"]), finite(values))
        for sink in list(self._last):
            self._try(sink, sink.close, "interrupted" if run is None else run.status)
        self._last = {}

    def _send(self, row: Mapping[str, Any]) -> None:
        step = int(row["round"]) + 1
        wanting = [sink for sink, last in self._last.items() if step > last]
        shown = published_row(row, self._withheld, last=False)
        values = {name: float(shown[name]) for name in SENT if shown[name] is not None}
        if "seconds" not in values:
            values["round"] = float(step)
        if (
            wanting
            and step < self._rounds
            and step % max(1, self._rounds // PRICINGS) == 0
            and self._affordable()
        ):
            before = time.monotonic()
            values["epsilon"] = self._price(step)
            self._pricing += time.monotonic() - before
        for sink in wanting:
            self._try(sink, sink.log, step, finite(values))

    def _affordable(self) -> bool:
        """Whether working out epsilon has taken no more than a second and a tenth of the time."""
        return self._pricing <= 1 + 0.1 * (time.monotonic() - self._started)

    def _try(self, sink: Sink, work: Callable[..., Any], *arguments: Any) -> Any:
        """A sink that fails is no reason for a training to fail."""
        try:
            return work(*arguments)
        except Exception as error:
            self._last.pop(sink, None)
            self._say(
                f"{type(sink).__name__.removesuffix('Sink')}: {in_a_line(error)} No more metrics are sent there; the training goes on."
            )
            return None


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """The values that are numbers: no sink can draw the others."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def in_a_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).splitlines() or [type(error).__name__])[0]
