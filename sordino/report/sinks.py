"""Sinks for the metrics of a run that is under way: TensorBoard's event files, and MLflow.

A run that continues after an interruption continues in its sinks, without a step missing or
twice: TensorBoard's files are written again from metrics.jsonl, MLflow gets the steps it lacks.
"""

from __future__ import annotations

import abc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.privacy.published import find_withheld
from sordino.protocol import Protocol, UserError, dumps
from sordino.protocol.documents import flatten_tables
from sordino.protocol.file import parse_toml

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Seconds between two messages to a server.
FLUSH_INTERVAL = 1.0
# The largest number of metrics in one message to MLflow.
BATCH = 1000
# Environment variables that MLflow reads.
MLFLOW = {
    # Metrics go where the user sends them, and nowhere else.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A folder is allowed, if the user asks for one.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Sink(abc.ABC):
    """Receives the metrics of a run, round by round.

    A sink is made before the training, so that a missing package shows before anything is written.
    """

    @abc.abstractmethod
    def open(self, folder: Path, protocol: Protocol) -> int:
        """Begins with a run, or continues after an interruption.

        Args:
            folder: The run's folder.
            protocol: The federation.

        Returns:
            The last step that the sink has already.
        """

    @abc.abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Receives the metrics of a step.

        Args:
            step: The number of rounds done, from 1.
            values: The metrics by name.
        """

    @abc.abstractmethod
    def close(self, status: str) -> None:
        """Ends with the run, or at an interruption.

        Args:
            status: The status of the run; "interrupted" means that it may be resumed.
        """


def choose_clock(protocol: Protocol) -> Callable[[], float]:
    """Returns the clock by which a sink dates steps.

    The time that a round takes tells how many clients took part. Where nobody may know that, all
    steps get the same time.

    Args:
        protocol: The federation.
    """
    if not find_withheld(protocol).draw:
        return time.time
    opened = time.time()
    return lambda: opened


class TensorBoardSink(Sink):
    """Writes event files below tensorboard/ in the run's folder."""

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
        """Removes old files and begins anew, since rounds after the last checkpoint are run again.

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
    """Sends metrics to MLflow: to a tracking server, or to a folder or database that MLflow keeps.

    mlflow.json in the run's folder names the place. Metrics are held back for a second, so that a
    server gets few messages. The newest step is held back until the next one: after an interruption
    its round may be run again, with other noise, and MLflow cannot delete metrics.
    """

    # One of these is the last metric of every step that is sent: a step that has it is complete.
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
            # Absolute, since a run may be resumed from another working directory.
            uri = str(Path(uri).resolve())
        try:
            self._client = MlflowClient(tracking_uri=uri or None)
            self._client.search_experiments(max_results=1)
        except Exception as error:
            # MLflow raises whatever its stores raise.
            hint = ""
            if "sql" in uri.partition(":")[0]:
                hint = " A database needs the whole package: pip install mlflow."
            raise UserError(
                f"--log mlflow:{uri} cannot be used: {first_line_of(error)}{hint}"
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
        texts: The values of the option, as they were typed.

    Raises:
        UserError: A sink is unknown, lacks its package, or cannot be used.

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


def first_line_of(error: Exception) -> str:
    """Returns the first line of an error's message.

    Args:
        error: What was raised.
    """
    return next(iter(str(error).splitlines()), type(error).__name__)
