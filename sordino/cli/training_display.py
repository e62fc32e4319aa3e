"""Trains and resumes with the live display, the sinks of `--log`, and the report at the end."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.cli.console import Stopped, messages, print_message
from sordino.protocol import Protocol

if TYPE_CHECKING:
    from sordino.cli.progress import TrainingProgress
    from sordino.engines.choice import SuperLink
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run
    from sordino.report.sink_feeder import SinkFeeder


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The options of the command line that say how a run is trained.

    Attributes:
        engine: "auto", "torch", "native" or "flower".
        workers: Worker processes; None for one per core.
        device: "cpu", "cuda" or "mps".
        evaluate_every: Rounds between two scores; None for the default.
        keep_uploads: The number of rounds between two whose uploads are kept; 0 for none.
        log: The sinks that metrics are sent to, as typed.
        superlink: Where the machines meet; None in one process.
        sign: The key that signs the run; None for a run without a signature.
    """

    engine: str = "auto"
    workers: int | None = None
    device: str = "cpu"
    evaluate_every: int | None = None
    keep_uploads: int = 0
    log: tuple[str, ...] = ()
    superlink: SuperLink | None = None
    sign: Path | None = None


def train_with_display(protocol: Protocol, out: Path | None, request: TrainingRequest) -> Run:
    """Trains with the live display.

    Args:
        protocol: The federation.
        out: The run's folder; None for a new one below runs/.
        request: How it is trained.

    Returns:
        The run.

    Raises:
        Stopped: Ctrl-C was pressed; the message says how to resume.
    """
    from sordino.cli.progress import TrainingProgress
    from sordino.engines import train
    from sordino.federation.store.run_folder import RunFolder
    from sordino.report.closing_panel import kept_lines
    from sordino.report.phrasing import describe_protocol
    from sordino.report.price_tables import cap_lines

    folders: list[Path] = []
    with logging_to(request.log) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            folders.append(folder)
            print_message(f"Training {describe_protocol(setup.protocol)}. Run folder: {folder}")
            # The training chooses the engine, and the facts say which one and why.
            facts = RunFolder(folder).facts()
            if request.engine == "auto" and facts["engine"] != "native":
                print_once(f"Engine: {facts['engine']}; {facts['engine_reason']}.")
            for line in cap_lines(setup.protocol, setup.sizes.tolist()):
                print_message(line)
            for line in kept_lines(setup.protocol, facts["parameters"], request.keep_uploads):
                print_message(line)
            show_rounds(progress, setup, folder, done=0)
            sinks.start(setup, folder)

        try:
            run = train(
                protocol,
                folder=out,
                engine=request.engine,
                workers=request.workers,
                device=request.device,
                evaluate_every=request.evaluate_every,
                keep_uploads=request.keep_uploads,
                superlink=request.superlink,
                sign=request.sign,
                # The report is written once the display is gone.
                report=False,
                on_start=start,
                on_round=sinks.after(progress.advance),
                on_message=print_message,
            )
        except KeyboardInterrupt:
            # A run that never began leaves no folder, and cannot be resumed.
            existing = [folder for folder in folders if folder.exists()]
            raise Stopped(existing[0] if existing else None, request.sign) from None
        sinks.end(run)
    return run


def resume_with_display(run: Path, request: TrainingRequest) -> Run:
    """Resumes a run with the live display.

    Args:
        run: The run's folder.
        request: How it is trained; what the run's folder says is not asked again.

    Returns:
        The finished run.

    Raises:
        Stopped: Ctrl-C was pressed again.
    """
    from sordino.cli.progress import TrainingProgress
    from sordino.engines import resume
    from sordino.federation.store.run_folder import RunFolder

    with logging_to(request.log) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            done = len(RunFolder(folder).metrics())
            print_message(f"Resuming {folder} at round {done + 1} of {setup.protocol.rounds}.")
            show_rounds(progress, setup, folder, done=done)
            sinks.start(setup, folder)

        try:
            finished = resume(
                run,
                workers=request.workers,
                device=request.device,
                superlink=request.superlink,
                sign=request.sign,
                report=False,
                on_start=start,
                on_round=sinks.after(progress.advance),
                on_message=print_message,
            )
        except KeyboardInterrupt:
            raise Stopped(run, request.sign) from None
        sinks.end(finished)
    return finished


def show_rounds(progress: TrainingProgress, setup: Begun, folder: Path, *, done: int) -> None:
    """Begins to display the rounds of a training.

    Args:
        progress: The display.
        setup: The training.
        folder: The run's folder.
        done: The number of rounds that were done earlier.
    """
    from sordino.privacy.published import find_withheld
    from sordino.report.price_tables import make_round_pricer

    progress.start(
        rounds=setup.protocol.rounds,
        done=done,
        spent=make_round_pricer(setup, folder),
        draw_hidden=find_withheld(setup.protocol).draw,
    )


@contextmanager
def logging_to(texts: Sequence[str]) -> Iterator[SinkFeeder]:
    """Opens the sinks of `--log`, and closes them however a training ends.

    Args:
        texts: The sinks, as typed.

    Yields:
        The sinks, to be given the start, the rounds and the end.
    """
    from sordino.report.sink_feeder import SinkFeeder
    from sordino.report.sinks import sinks_from

    sinks = SinkFeeder(sinks_from(texts), print_message)
    try:
        yield sinks
    finally:
        # Otherwise an interrupted training would leave a sink without its last lines.
        sinks.end(None)


def write_report_of(run: Run) -> None:
    """Writes the report of a run that has ended.

    Args:
        run: The run.
    """
    from sordino.report.writing import write_final_report

    with messages.status("writing the report"):
        write_final_report(run, print_message)


@functools.cache
def print_once(text: str) -> None:
    """Prints a message that would be the same in every run of a command.

    Args:
        text: The message.
    """
    print_message(text)
