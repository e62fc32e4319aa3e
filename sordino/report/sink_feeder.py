"""Feeds sinks with the metrics of a run, epsilon among them, round by round.

A sink gets what metrics.jsonl has, which leaves out what the guarantee does not cover
(privacy/published.py). What comes from private data (the share of clipped steps, gradients that
were not finite) is covered by no guarantee and is not sent. A sink that fails is dropped with a
message; the training continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.privacy.published import Withheld, find_withheld, publish_row
from sordino.report.sinks import Sink, first_line_of

if TYPE_CHECKING:
    from sordino.federation.round_metrics import RoundMetrics
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run

SENT = ("loss", "accuracy", "signal_to_noise", "participants", "bytes_up", "bytes_down", "seconds")
# How often epsilon is computed during a run.
PRICINGS = 25


class SinkFeeder:
    """Feeds sinks with the rounds of one run, and holds them open meanwhile.

    Call `start`, then `advance` after every round, and `end`.
    """

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None]) -> None:
        """Prepares the sinks.

        Args:
            sinks: The sinks to feed.
            say: Prints a message.
        """
        self._waiting = list(sinks)
        self._say = say
        # The open sinks, each with the last step that it had when it was opened.
        self._last: dict[Sink, int] = {}
        self._price: Callable[[int], float] = lambda rounds: math.inf
        self._setup: Begun
        self._withheld = Withheld()
        self._folder: Path
        self._rounds = 1
        self._started = 0.0
        self._pricing = 0.0

    def start(self, setup: Begun, folder: Path) -> None:
        """Prepares for a run. Sinks are opened with its first round, and not before.

        So a run that is stopped before its first round leaves nothing in them.

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
        """Returns a listener for rounds that calls another listener, and then feeds the sinks.

        Args:
            listener: The other listener.
        """

        def both(metrics: RoundMetrics) -> None:
            listener(metrics)
            self.advance(metrics)

        return both

    def end(self, run: Run | None) -> None:
        """Sends the final epsilon and closes the sinks. A second call does nothing.

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
