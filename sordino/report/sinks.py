"""Sends metrics elsewhere while a run is under way: TensorBoard event files, or MLflow.

Epsilon is one of the metrics. A sink gets what metrics.jsonl has, which leaves out what the
guarantee does not cover (privacy/published.py). What comes from clients' private data (the share of
clipped steps, gradients that were not finite) is covered by no guarantee and is not sent. A run
that continues after an interruption continues there too, without a step missing or twice:
TensorBoard's files are written again from metrics.jsonl, MLflow gets the steps that it lacks. A
sink that fails is dropped with a message; the training continues.
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

from sordino.privacy.published import Withheld, find_withheld, publish_row
from sordino.protocol import Protocol, UserError, dumps
from sordino.protocol.documents import flatten_tables
from sordino.protocol.file import parse_toml

if TYPE_CHECKING:
    from sordino.federation.round_metrics import RoundMetrics
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run

SENT = ("loss", "accuracy", "signal_to_noise", "participants", "bytes_up", "bytes_down", "seconds")
# How often in a run epsilon is computed.
PRICINGS = 25
# Seconds between two messages to a server.
FLUSH_INTERVAL = 1.0
# Metrics that one message to MLflow may hold.
BATCH = 1000
MLFLOW = {
    # Metrics go where the user sends them, and nowhere else.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A folder is allowed, if the user asks for one.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Sink(abc.ABC):
    """Is a place that metrics flow to.

    It is made before a training, so that a missing package shows before anything is written.
    """

    @abc.abstractmethod
    def open(self, folder: Path, protocol: Protocol) -> int:
        """Begins, or continues after an interruption.

        Args:
            folder: The run's folder.
            protocol: The federation.

        Returns:
            The last step that the sink has already.
        """

    @abc.abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in the metrics of a step.

        Args:
            step: Its number, from 1.
            values: Metrics by name.
        """

    @abc.abstractmethod
    def close(self, status: str) -> None:
        """Ends.

        Args:
            status: Status of the run; "interrupted" means that it will go on.
        """


def choose_clock(protocol: Protocol) -> Callable[[], float]:
    """Returns the clock by which a sink dates steps.

    How long a round takes tells how many clients took part: where nobody may know, the clock
    does not move.

    Args:
        protocol: The federation.
    """
    if not find_withheld(protocol).draw:
        return time.time
    opened = time.time()
    return lambda: opened


class TensorBoardSink(Sink):
    """Writes event files in the run's folder, under tensorboard/."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "--log tensorboard needs the package tensorboard: "
                "pip install 'sordino[tensorboard]'."
            ) from None
        self._make = SummaryWriter
        self._writer: SummaryWriter | None = None
        self._clock: Callable[[], float] = time.time

    def open(self, folder: Path, protocol: Protocol) -> int:
        """Begins again: old files are removed, since steps after the last checkpoint are run again.

        Args:
            folder: The run's folder.
            protocol: The federation.
        """
        for old in (folder / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._make(log_dir=str(folder / "tensorboard"), flush_secs=5)
        self._clock = choose_clock(protocol)
        # Indented, so that it is shown as code.
        text = "    " + dumps(protocol).replace("\n", "\n    ")
        self._writer.add_text("protocol", text)
        return 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.log`.

        Args:
            step: The round.
            values: Numbers by their names.
        """
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step, walltime=self._clock())

    def close(self, status: str) -> None:
        """See `Sink.close`.

        Args:
            status: How the run ended.
        """
        if self._writer is not None:
            self._writer.close()


class MlflowSink(Sink):
    """Sends metrics to MLflow: a tracking server, or a folder or data base that MLflow keeps.

    mlflow.json in the run's folder says which. Metrics are held back for a second, so that a server
    gets few messages, and the newest step until the next one: a round may be run again after an
    interruption, with other noise, and MLflow forgets nothing.
    """

    # One of these is sent last for every step: where it is, the step is complete.
    MARKS = ("seconds", "round")

    def __init__(self, uri: str) -> None:
        for name, value in MLFLOW.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise UserError(
                "--log mlflow needs the package mlflow: pip install 'sordino[mlflow]'."
            ) from None
        if uri and ":" not in uri:
            # A folder stays the same one wherever a run is resumed.
            uri = str(Path(uri).resolve())
        try:
            self._client = MlflowClient(tracking_uri=uri or None)
            self._client.search_experiments(max_results=1)
        except Exception as error:
            # MLflow raises whatever its stores raise.
            hint = ""
            if "sql" in uri.partition(":")[0]:
                hint = " A data base needs the whole package: pip install mlflow."
            raise UserError(
                f"--log mlflow:{uri}: this place cannot be used: {first_line_of(error)}{hint}"
            ) from None
        self._uri = uri
        self._run = ""
        self._waiting: list[tuple[int, int, Mapping[str, float]]] = []
        self._flushed = time.monotonic()
        self._clock: Callable[[], float] = time.time

    def open(self, folder: Path, protocol: Protocol) -> int:
        """See `Sink.open`.

        Args:
            folder: Folder of the run.
            protocol: The federation.
        """
        self._clock = choose_clock(protocol)
        note = folder / "mlflow.json"
        known = {}
        with suppress(OSError, ValueError):
            known = dict(json.loads(note.read_bytes()))
        if self._uri in known:
            self._run = str(known[self._uri])
            self._client.update_run(self._run, status="RUNNING")
            last = 0
            for mark in self.MARKS:
                for metric in self._client.get_metric_history(self._run, mark):
                    last = max(last, metric.step)
            return last
        experiment = self._client.get_experiment_by_name("sordino")
        if experiment is None:
            number = self._client.create_experiment("sordino")
        else:
            number = experiment.experiment_id
        self._run = self._client.create_run(
            number, run_name=folder.resolve().name, tags={"sordino.folder": str(folder)}
        ).info.run_id
        for key, value in flatten_tables(parse_toml(dumps(protocol))).items():
            # With the seed, anyone can remove the noise.
            if key != "seed":
                self._client.log_param(self._run, key, value[:500])
        note.write_text(json.dumps({**known, self._uri: self._run}) + "\n")
        return 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Sink.log`.

        Args:
            step: The round.
            values: Numbers by their names.
        """
        self._waiting.append((step, int(self._clock() * 1000), values))
        if time.monotonic() - self._flushed >= FLUSH_INTERVAL:
            self._flush(self._waiting[:-1])

    def close(self, status: str) -> None:
        """See `Sink.close`; after an interruption the newest step comes from metrics.jsonl.

        Args:
            status: How the run ended.
        """
        rows = self._waiting
        if status == "interrupted":
            rows = rows[:-1]
        self._flush(rows)
        ended = {"diverged": "FAILED", "interrupted": "KILLED"}.get(status, "FINISHED")
        self._client.set_tag(self._run, "sordino.status", status)
        self._client.set_terminated(self._run, status=ended)

    def _flush(self, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for step, at, values in rows:
            for name in sorted(values, key=lambda one: one in self.MARKS):
                metrics.append(Metric(name, values[name], at, step))
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + BATCH])
        self._waiting = self._waiting[len(rows) :]
        self._flushed = time.monotonic()


def sinks_from(texts: Sequence[str]) -> list[Sink]:
    """Makes the sinks that `--log` names.

    Args:
        texts: What was typed.

    Raises:
        UserError: An unknown sink, a package that is not installed, a place that cannot be used.

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
                f"--log {text!r}: expected tensorboard, or mlflow:URI such as "
                "mlflow:http://127.0.0.1:5000."
            )
    return found


class Logging:
    """Feeds sinks with the rounds of one run.

    It holds them open: call `start`, `advance` after every round, and `end`.
    """

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None]) -> None:
        """Prepares the sinks.

        Args:
            sinks: Sinks that are to be fed.
            say: Prints a message.
        """
        self._waiting = list(sinks)
        self._say = say
        # Of the open ones, the last step that each had before.
        self._last: dict[Sink, int] = {}
        self._price: Callable[[int], float] = lambda rounds: math.inf
        self._setup: Begun
        self._withheld = Withheld()
        self._folder: Path
        self._rounds = 1
        self._started = 0.0
        self._pricing = 0.0

    def start(self, setup: Begun, folder: Path) -> None:
        """Notes the protocol and the parameters of the run.

        Sinks are opened with the first round: a run that is stopped before it leaves nothing
        anywhere.

        Args:
            setup: The run that begins or continues.
            folder: The run's folder.
        """
        if self._waiting:
            from sordino.report.spending_trace import price_while_running

            self._setup = setup
            self._folder = folder
            self._price = price_while_running(setup, folder)
            self._rounds = setup.protocol.rounds
            self._started = time.monotonic()
            self._withheld = find_withheld(setup.protocol)

    def advance(self, metrics: RoundMetrics) -> None:
        """Passes on the metrics of a round.

        Args:
            metrics: Metrics of the round.
        """
        if self._waiting:
            self._open(metrics.round)
        if self._last:
            self._send(asdict(metrics))

    def _open(self, round_index: int) -> None:
        """Opens the sinks and sends them the earlier rounds that they lack."""
        from sordino.federation.store.run_folder import RunFolder

        rows = [row for row in RunFolder(self._folder).metrics() if row["round"] < round_index]
        for sink in self._waiting:
            last = self._try(sink, sink.open, self._folder, self._setup.protocol)
            if last is not None:
                self._last[sink] = last
        self._waiting = []
        for row in rows:
            self._send(row)

    def after(self, listener: Callable[[RoundMetrics], None]) -> Callable[[RoundMetrics], None]:
        """Returns a listener for rounds that calls another one first.

        Args:
            listener: The other one.
        """

        def both(metrics: RoundMetrics) -> None:
            """Passes the metrics of a round to both listeners.

            Args:
                metrics: Metrics of the round.
            """
            listener(metrics)
            self.advance(metrics)

        return both

    def end(self, run: Run | None) -> None:
        """Closes the sinks, the last step's epsilon included. A second call does nothing.

        Args:
            run: What was trained; None if it was interrupted.
        """
        if run is not None and self._last:
            from sordino.report.run_prices import choose_run_headline, price_run
            from sordino.report.run_summary import find_last_scores

            headline = choose_run_headline(run)
            values = {"epsilon": price_run(run, headline).epsilon(headline.delta)}
            # Only now is the last model known, whose scores may be sent.
            if self._withheld.scores:
                values |= find_last_scores(run)
            for sink in list(self._last):
                self._try(sink, sink.log, len(run.metrics["round"]), select_finite(values))
        status = "interrupted"
        if run is not None:
            status = run.status
        for sink in list(self._last):
            self._try(sink, sink.close, status)
        self._last = {}

    def _send(self, row: Mapping[str, Any]) -> None:
        step = int(row["round"]) + 1
        wanting = [sink for sink, last in self._last.items() if step > last]
        shown = publish_row(row, self._withheld, last=False)
        values = {name: float(shown[name]) for name in SENT if shown[name] is not None}
        if "seconds" not in values:
            values["round"] = float(step)
        due = step < self._rounds and step % max(1, self._rounds // PRICINGS) == 0
        if wanting and due and self._affordable():
            before = time.monotonic()
            values["epsilon"] = self._price(step)
            self._pricing += time.monotonic() - before
        for sink in wanting:
            self._try(sink, sink.log, step, select_finite(values))

    def _affordable(self) -> bool:
        """Returns whether computing epsilon has taken at most a second and a tenth of the time."""
        return self._pricing <= 1 + 0.1 * (time.monotonic() - self._started)

    def _try(self, sink: Sink, work: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a sink; one that fails is dropped, and the training continues."""
        try:
            return work(*arguments)
        except Exception as error:
            self._last.pop(sink, None)
            name = type(sink).__name__.removesuffix("Sink")
            self._say(
                f"{name}: {first_line_of(error)} "
                "No more metrics are sent there; the training continues."
            )
            return None


def select_finite(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the values that are finite: no sink can draw the others.

    Args:
        values: Metrics by name.
    """
    return {name: value for name, value in values.items() if math.isfinite(value)}


def first_line_of(error: Exception) -> str:
    """Returns the first line of an error's message.

    Args:
        error: What was raised.
    """
    return next(iter(str(error).splitlines()), type(error).__name__)
