"""The command `sordino sweep`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import VIEWS_HELP, Device, File, Json, Sets, Workers, read_numbers
from sordino.cli.console import Stopped, messages, print_json, print_message, results
from sordino.cli.protocol_sources import protocol_from
from sordino.cli.sensitivity_command import estimate_effort
from sordino.cli.work_progress import WorkProgress
from sordino.protocol import Protocol
from sordino.protocol.errors import format_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from sordino.federation.round_metrics import RoundMetrics
    from sordino.sweeps.sweep_results import Sweep, SweepRow
    from sordino.sweeps.sweeping import SweepOptions


def sweep(
    protocol: File = None,
    sets: Sets = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2,...", help="Values that a key takes; repeatable."),
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option(metavar="E1,E2,...", help="Targets; the noise is calibrated for each."),
    ] = None,
    view: Annotated[str, typer.Option(help=f"Whose epsilon: {VIEWS_HELP}")] = "server",
    delta: Annotated[float, typer.Option(help="For epsilon.")] = 1e-5,
    seeds: Annotated[int, typer.Option(help="Trainings of every setting.")] = 1,
    price: Annotated[
        str,
        typer.Option(
            help="Price the tuning: sum for all runs, selection for only the best, or none."
        ),
    ] = "none",
    trials: Annotated[
        float | None,
        typer.Option(metavar="MEAN", help="For --price selection: how many runs are expected."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder, new or of this sweep; runs/sweep-<n>."),
    ] = None,
    engine: Annotated[str, typer.Option(help="auto, torch or native.")] = "auto",
    workers: Workers = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train with several settings, epsilons and seeds; a table, a CSV file and a figure."""
    from sordino.sweeps.sweep_request import SweepRequest, read_over
    from sordino.sweeps.sweeping import SweepOptions, run_sweep

    request = SweepRequest(
        protocol=protocol_from(protocol, sets),
        over=tuple(read_over(text) for text in over or []),
        epsilons=tuple(read_numbers("--epsilons", epsilons) or ()),
        view=view,
        delta=delta,
        seeds=seeds,
        price=price,
        trials=trials,
    )
    options = SweepOptions(engine=engine, workers=workers, device=device)
    run_with_display(lambda watched: run_sweep(request, out, watched), options, json)


def continue_sweep(folder: Path, workers: int | None, device: str, json: bool) -> None:
    """Continues a sweep for `sordino resume`.

    Args:
        folder: Folder of the sweep.
        workers: Worker processes; None for one per core.
        device: "cpu", "cuda" or "mps".
        json: Print one JSON document and nothing else.
    """
    from sordino.sweeps.sweeping import SweepOptions, resume_sweep

    options = SweepOptions(workers=workers, device=device)
    run_with_display(lambda watched: resume_sweep(folder, watched), options, json)


def run_with_display(
    run: Callable[[SweepOptions], Sweep], options: SweepOptions, json: bool
) -> None:
    """Runs a sweep with the live display, and shows what it found.

    Args:
        run: Starts or resumes the sweep.
        options: How it is trained.
        json: Print one JSON document and nothing else.

    Raises:
        Stopped: Ctrl-C was pressed; the message says how to go on.
    """
    from sordino.report.sweep_tables import sweep_table, write_sweep_files

    watch = SweepWatch()
    try:
        swept = run(watch.listen(options))
    except KeyboardInterrupt:
        raise Stopped(watch.folder) from None
    finally:
        watch.close()
    files = write_sweep_files(swept)
    if json:
        print_json({**swept.as_document(), "files": [str(path) for path in files]})
        return
    results.print(sweep_table(swept))
    for note in swept.notes:
        results.print(note, soft_wrap=True)
    if swept.tuning is not None:
        results.print(swept.tuning.sentence, soft_wrap=True)
        if swept.tuning.kind == "selection" and swept.best is not None:
            results.print(f"Best run: {swept.best.run}", soft_wrap=True)
    print_message("Wrote " + ", ".join(map(str, files)))


class SweepWatch:
    """Shows a sweep while it runs. It holds the display and what each training has done."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._progress: WorkProgress | None = None
        self._plans: tuple[Protocol, ...] = ()
        # By training, how many rounds are over, as far as that is known.
        self._done: dict[int, int] = {}

    def listen(self, options: SweepOptions) -> SweepOptions:
        """Returns options with which the sweep reports to this display.

        Args:
            options: How it is trained.
        """
        return replace(
            options, on_plan=self.start, on_round=self.count_round, on_row=self.count_training
        )

    def start(self, plans: tuple[Protocol, ...], folder: Path) -> None:
        """Shows the display.

        Args:
            plans: The protocols of all trainings.
            folder: The folder of the sweep.
        """
        self.folder = folder
        self._plans = plans
        messages.print(
            f"{len(plans)} trainings in {folder}; interrupted, they go on with "
            f"`{format_command('resume', folder)}`.",
            soft_wrap=True,
        )
        work = sum(plan.rounds * estimate_effort(plan) for plan in plans)
        self._progress = WorkProgress("sweep", work)
        # Begun with the plan, which says how much there is to do, and ended in `close`.
        self._progress.__enter__()

    def count_round(self, number: int, metrics: RoundMetrics) -> None:
        """Counts a round.

        Args:
            number: Number of the training.
            metrics: Metrics of the round.
        """
        if self._progress is None:
            return
        effort = estimate_effort(self._plans[number])
        # The first round that is seen of a training tells how many were over before.
        if number not in self._done:
            self._progress.skip(metrics.round * effort)
        self._done[number] = metrics.round + 1
        self._progress.advance(effort)

    def count_training(self, number: int, row: SweepRow) -> None:
        """Counts a training that has ended; rounds that were not seen took no time.

        Args:
            number: Number of the training.
            row: The row that it adds to the table.
        """
        if self._progress is None:
            return
        unseen = self._plans[number].rounds - self._done.get(number, 0)
        self._progress.skip(unseen * estimate_effort(self._plans[number]))

    def close(self) -> None:
        """Ends the display."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
