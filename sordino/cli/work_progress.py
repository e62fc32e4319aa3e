"""Displays the progress of several trainings: how much is done, and the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from sordino.cli.console import messages
from sordino.cli.progress import LINES, make_uncut_column
from sordino.report.number_formats import format_duration, format_percent

# Seconds between two redrawings of the display.
REDRAWN = 0.2


class WorkProgress:
    """Shows how much of several trainings is done and how long the rest takes.

    It holds the display: use it as a context. It redraws itself from `advance`, without a thread:
    worker processes are forked all along, and a fork does not go with threads.
    """

    def __init__(self, label: str, work: float) -> None:
        """Takes the words that are shown; nothing is shown yet.

        Args:
            label: The work, in a word.
            work: How much there is, in local steps.
        """
        self._label = label
        self._bar = Progress(
            make_uncut_column(label),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            make_uncut_column("{task.percentage:.0f} %"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            make_uncut_column("left"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=messages,
            transient=True,
            # Redrawn by hand: rich's own thread would compete with training for two cores.
            auto_refresh=False,
        )
        self._task = None
        if messages.is_terminal:
            self._task = self._bar.add_task("", total=work)
        self._work = work
        self._done = 0.0
        self._lines = 0
        self._started = time.monotonic()
        self._drawn = self._started

    def __enter__(self) -> WorkProgress:
        if self._task is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._bar.stop()

    def skip(self, work: float) -> None:
        """Leaves out work that was done earlier, which tells nothing about the time left.

        Args:
            work: Work in local steps.
        """
        self._work -= work
        if self._task is not None:
            self._bar.update(self._task, total=self._work)

    def advance(self, work: float) -> None:
        """Counts work that was done.

        Args:
            work: Work in local steps.
        """
        self._done += work
        now = time.monotonic()
        if self._task is not None:
            due = now - self._drawn >= REDRAWN
            if due:
                self._drawn = now
            self._bar.update(self._task, completed=self._done, refresh=due)
        # Without a terminal a few lines are printed, and not thousands of redrawings.
        elif self._done >= self._work * (self._lines + 1) / LINES:
            self._lines = int(self._done / self._work * LINES)
            spent = now - self._started
            left = spent * (self._work / self._done - 1)
            share = format_percent(self._done / self._work)
            times = f"{format_duration(spent)} elapsed, {format_duration(left)} left"
            messages.print(f"{self._label} {share}  {times}", soft_wrap=True)
