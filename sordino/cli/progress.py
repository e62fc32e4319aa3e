"""Displays a training live: round, loss, accuracy, privacy spent, time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from sordino.cli.console import messages, print_message

if TYPE_CHECKING:
    from sordino.federation.round_metrics import RoundMetrics

# Lines that a training prints where the display cannot be redrawn, such as in a log file.
LINES = 10
# How often the privacy spent is computed; each time takes about a tenth of a second.
PRICINGS = 10


class TrainingProgress:
    """Shows rounds as they pass.

    It holds the display: use it as a context, and call `start` before the first round.
    """

    def __init__(self) -> None:
        self._narrow = messages.width < 100
        bar = []
        if not self._narrow:
            bar.append(BarColumn(bar_width=None, table_column=Column(ratio=1)))
        self._bar = Progress(
            make_uncut_column("round {task.completed:.0f}/{task.total:.0f}"),
            make_uncut_column("{task.fields[scores]}"),
            *bar,
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            make_uncut_column("left"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=messages,
            transient=True,
        )
        self._task = None
        if messages.is_terminal:
            self._task = self._bar.add_task("", total=1, scores="", visible=False)
        self._rounds = 1
        self._first = 0
        self._started = 0.0
        self._scores = ""
        self._spending = ""
        self._priced_round = 0
        self._most_participants = 0
        self._draw_hidden = False
        # Whether a client ever fell silent.
        self._short = False
        self._spent: Callable[[int], str] = lambda rounds: ""

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._bar.stop()

    def start(
        self,
        *,
        rounds: int,
        done: int,
        spent: Callable[[int], str],
        draw_hidden: bool = False,
    ) -> None:
        """Shows the display.

        Call it after worker processes were forked: the display runs a thread, and a fork does not
        go with threads.

        Args:
            rounds: How many there are.
            done: How many were done earlier.
            spent: Says in words what a number of rounds costs.
            draw_hidden: Whether the promise counts on nobody knowing who took part. What is shown
                ends in logs, so it does not say how many did.
        """
        self._rounds = rounds
        self._first = done
        self._started = time.monotonic()
        self._spent = spent
        self._draw_hidden = draw_hidden
        self._priced_round = 0
        if self._task is not None:
            self._bar.update(self._task, total=rounds, completed=done, visible=True)
            self._bar.start()

    def advance(self, metrics: RoundMetrics) -> None:
        """Counts a round.

        Args:
            metrics: Metrics of the round.
        """
        if metrics.loss is not None:
            self._scores = self._format_scores(metrics.loss, metrics.accuracy)
            # Personal models tell who has been trained, as does the number of participants.
            if metrics.own_accuracy is not None and not self._draw_hidden:
                self._scores += f"  personal models {100 * metrics.own_accuracy:.1f} %"
        self._most_participants = max(self._most_participants, metrics.participants)
        self._short |= metrics.short
        done = metrics.round + 1
        if self._needs_price(done):
            self._priced_round = done
            self._spending = self._spent(done)
        line = f"{self._scores}  {self._spending}"
        if metrics.participants < self._most_participants and not self._draw_hidden:
            line = f"{metrics.participants} clients  {line}"
        # Never ahead of what was spent: an older price says until when it holds.
        if self._priced_round != done:
            line += f" after round {self._priced_round}"
        if self._task is not None:
            self._bar.update(self._task, completed=done, scores=line)
        elif done == self._rounds or done % max(1, self._rounds // LINES) == 0:
            elapsed = time.monotonic() - self._started
            left = elapsed / (done - self._first) * (self._rounds - done)
            times = f"{elapsed:.0f} s elapsed, {left:.0f} s left"
            print_message(f"round {done}/{self._rounds}  {line}  {times}")

    def _format_scores(self, loss: float, accuracy: float | None) -> str:
        if accuracy is None:
            return f"loss {loss:.3f}"
        text = f"accuracy {100 * accuracy:.1f} %"
        if self._narrow:
            return text
        return f"loss {loss:.3f}  {text}"

    def _needs_price(self, done: int) -> bool:
        """Returns whether the price is computed after this round.

        That is after the first, the last, a few between, and all once a client fell silent.
        """
        regular = done % max(1, self._rounds // PRICINGS) == 0
        return regular or self._short or done in (self._first + 1, self._rounds)


def make_uncut_column(text: str) -> TextColumn:
    """Returns a column that is never cut.

    Args:
        text: Its format.
    """
    return TextColumn(text, table_column=Column(no_wrap=True))
