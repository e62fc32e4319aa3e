"""Trains a run's twin without noise, with the live display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sordino.cli.console import Stopped, print_message
from sordino.protocol import UserError

if TYPE_CHECKING:
    from sordino.federation.setup import Setup
    from sordino.federation.store.run import Run


def train_twin_with_display(run: Run, workers: int | None) -> Run | None:
    """Trains the same federation without noise, unless that was done already.

    Args:
        run: A finished run.
        workers: Worker processes; None for one per core.

    Returns:
        The twin; None where the run itself has no noise.
    """
    from sordino.attacks.twin import train_silent_twin
    from sordino.cli.progress import TrainingProgress
    from sordino.federation.store.run_folder import RunFolder

    with TrainingProgress() as progress:

        def start(setup: Setup, folder: Path) -> None:
            print_message(f"The same federation without noise, to compare. Run folder: {folder}")
            progress.start(
                rounds=setup.protocol.rounds,
                done=len(RunFolder(folder).metrics()),
                # A twin without noise spends no finite budget, so that there is nothing to show.
                spent=lambda rounds: "",
            )

        return train_silent_twin(run, workers=workers, on_start=start, on_round=progress.advance)


def train_compared_twin(folder: Path, workers: int | None = None) -> Run:
    """Trains the twin of a run for --without-noise.

    Args:
        folder: Folder of the run.
        workers: Worker processes; None for one per core.

    Raises:
        Stopped: Ctrl-C was pressed; the run itself is complete.
        UserError: The run has not ended, has no noise, or was trained across machines.
    """
    from sordino.federation.store.run import Run

    run = Run.load(folder)
    if run.status == "unfinished":
        raise UserError(f"--without-noise: {folder} has not ended. Resume it first.")
    if run.engine == "flower":
        raise UserError(
            f"--without-noise: the records of {folder} are on other machines, whose clients send "
            "nothing without noise."
        )
    try:
        twin = train_twin_with_display(run, workers)
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    if twin is None:
        raise UserError(f"--without-noise: {folder} has no noise, so there is nothing to compare.")
    return twin
