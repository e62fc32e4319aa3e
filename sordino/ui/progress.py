"""The live display of a training: round, loss, accuracy, privacy spent, time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from sordino.federation.loop import RoundMetrics
from sordino.ui.console import messages

LINES = (
    10  # lines that a training prints where the display cannot be redrawn, such as in a log file
)
PRICINGS = (
    10  # how often the privacy spent is worked out anew; each takes a tenth of a second or so
)


class TrainingProgress:
    """Shows rounds as they pass. It holds the display: use it as a context, and call `start` before the first round."""

    def __init__(self) -> None:
        self._narrow = messages.width < 100
        bar = [] if self._narrow else [BarColumn(bar_width=None, table_column=Column(ratio=1))]
        self._bar = Progress(
            whole("round {task.completed:.0f}/{task.total:.0f}"),
            whole("{task.fields[scores]}"),
            *bar,
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            whole("left"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=messages,
            transient=True,
        )
        self._task = (
            None
            if not messages.is_terminal
            else self._bar.add_task("", total=1, scores="", visible=False)
        )
        self._rounds, self._first, self._started = 1, 0, 0.0
        self._scores = self._spending = ""
        self._priced = self._most = 0
        self._short = False  # whether anyone ever fell silent
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

    def start(self, *, rounds: int, done: int, spent: Callable[[int], str]) -> None:
        """Show the display; called after worker processes were forked, since it runs a thread of its own.

        Args:
            rounds: how many there are.
            done: how many were done earlier.
            spent: what so many rounds cost, in words.
        """
        self._rounds, self._first, self._started = rounds, done, time.monotonic()
        self._spent, self._priced = spent, 0
        if self._task is not None:
            self._bar.update(self._task, total=rounds, completed=done, visible=True)
            self._bar.start()

    def advance(self, metrics: RoundMetrics) -> None:
        """Count a round."""
        if metrics.loss is not None:
            loss = (
                f"loss {metrics.loss:.3f}" if metrics.accuracy is None or not self._narrow else ""
            )
            accuracy = (
                f"accuracy {100 * metrics.accuracy:.1f} %" if metrics.accuracy is not None else ""
            )
            self._scores = f"{loss}  {accuracy}".strip()
        self._most = max(self._most, metrics.participants)
        here = f"{metrics.participants} clients  " if metrics.participants < self._most else ""
        self._short |= metrics.short
        done = metrics.round + 1
        if self._is_priced(done):
            self._priced = done
            self._spending = self._spent(done)
        # Never ahead of what was spent; what is shown for longer says until when it holds.
        late = "" if self._priced == done else f" after round {self._priced}"
        shown = f"{here}{self._scores}  {self._spending}{late}"
        if self._task is not None:
            self._bar.update(self._task, completed=done, scores=shown)
        elif done == self._rounds or done % max(1, self._rounds // LINES) == 0:
            spent = time.monotonic() - self._started
            left = spent / (done - self._first) * (self._rounds - done)
            times = f"{spent:.0f} s passed, {left:.0f} s left"
            messages.print(f"round {done}/{self._rounds}  {shown}  {times}", soft_wrap=True)

    def _is_priced(self, done: int) -> bool:
        """Whether the price is worked out after this round: the first, a few on the way, the last, and all once a client fell silent."""
        regular = done % max(1, self._rounds // PRICINGS) == 0
        return regular or self._short or done in (self._first + 1, self._rounds)


def whole(text: str) -> TextColumn:
    """A column that is never cut."""
    return TextColumn(text, table_column=Column(no_wrap=True))
