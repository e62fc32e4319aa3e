"""Displays an audit live: trainings done, time left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sordino.cli.console import messages, print_message
from sordino.report.number_formats import format_duration

if TYPE_CHECKING:
    from sordino.audit.game import Game
    from sordino.audit.timed_play import TimePlan
    from sordino.privacy.guarantee import Guarantee


class AuditProgress:
    """Shows trainings as they end, with the time left.

    It holds the display: use it as a context.
    """

    def __init__(self, word: str = "training") -> None:
        """Prepares the display.

        Args:
            word: The name of what is counted.
        """
        self._word = word
        columns = (
            TextColumn(word + " {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=messages, transient=True)
        self._task = self._bar.add_task("", total=1, visible=False)
        self._lines = 0
        self._started = time.monotonic()
        self._first = 0

    def __enter__(self) -> AuditProgress:
        return self

    def __exit__(self, *failure: object) -> None:
        # In a log file, a display that never began would end with an empty line.
        if messages.is_terminal:
            self._bar.stop()

    def start(self, game: Game, certified: Guarantee, path: Path) -> None:
        """Says which game is played and where it is kept.

        Args:
            game: The game between the adversary and the trainer.
            certified: The guarantee that is tested.
            path: The audit's folder.
        """
        print_message(
            f"Auditing the view {certified.view}: {game.description}. Audit folder: {path}"
        )

    def plan(self, plan: TimePlan, certified: Guarantee) -> None:
        """Says how many trainings fit into the time, and what they can show.

        Args:
            plan: The number of trainings, and the time for them.
            certified: The guarantee that is tested.
        """
        from sordino.report.finding_tables import describe_plan

        print_message(describe_plan(plan, certified))

    def share(self, done: float) -> None:
        """Shows a share of the work in percent.

        Args:
            done: From 0 to 1.
        """
        self.advance(int(100 * done), 100)

    def advance(self, done: int, total: int) -> None:
        """Counts trainings; a log file gets a line for every tenth.

        Args:
            done: The number that has ended.
            total: The number of all.
        """
        if messages.is_terminal:
            # The display runs a thread: by the first training, worker processes have been forked.
            if done > 0:
                self._bar.start()
            self._bar.update(self._task, completed=done, total=total, visible=True)
        elif done == 0 or self._lines == 0:
            self._lines = 1
            self._started = time.monotonic()
            self._first = done
        elif done * 10 // total >= self._lines:
            self._lines = done * 10 // total + 1
            elapsed = time.monotonic() - self._started
            left = elapsed / max(1, done - self._first) * (total - done)
            print_message(f"{self._word} {done:,}/{total:,}, {format_duration(left)} left")
