"""The commands `sordino train`, `sordino resume` and `sordino evaluate`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import (
    Certificate,
    Deadline,
    Device,
    File,
    Insecure,
    Json,
    Link,
    Log,
    Patience,
    Sets,
    Sign,
    WithoutNoise,
    Workers,
)
from sordino.cli.audit_command import resume_audit
from sordino.cli.console import Stopped, messages, print_json, print_message, results
from sordino.cli.protocol_sources import protocol_from
from sordino.cli.report_command import write_comparison_with_twin
from sordino.cli.sweep_command import continue_sweep
from sordino.protocol import Protocol, UserError
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.engines.choice import SuperLink
    from sordino.federation.setup import Begun
    from sordino.federation.store.run import Run
    from sordino.report.sinks import Logging


def train(
    protocol: File = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder; by default runs/<name>-<n>.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="auto, torch, native, or flower across machines.")
    ] = "auto",
    repeats: Annotated[
        int, typer.Option(min=1, help="Train with this many seeds, and show mean and spread.")
    ] = 1,
    workers: Workers = None,
    device: Device = "cpu",
    evaluate_every: Annotated[
        int | None, typer.Option(metavar="N", help="Score the model every N rounds; 0 for never.")
    ] = None,
    keep_uploads: Annotated[
        bool,
        typer.Option("--keep-uploads", help="Keep what the server receives, for `sordino attack`."),
    ] = False,
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --keep-uploads: keep those of every N-th round only, and of the last.",
        ),
    ] = None,
    log: Log = None,
    superlink: Link = None,
    certificate: Certificate = None,
    insecure: Insecure = False,
    patience: Patience = 120.0,
    deadline: Deadline = 600.0,
    sign: Sign = None,
    without_noise: WithoutNoise = False,
    json: Json = False,
) -> None:
    """Train a federation and keep the run in a folder."""
    from sordino.report.closing_panel import repeats_document, repeats_table, summary
    from sordino.report.run_summary import run_document

    # An option that would be ignored is refused.
    if keep_every is not None and not keep_uploads:
        raise UserError("--keep-every without --keep-uploads: nothing is kept. Add --keep-uploads.")
    refuse_twins(without_noise, repeats, engine)
    plan = protocol_from(protocol, sets)
    keep = 0
    if keep_uploads:
        keep = keep_every or 1
    request = TrainingRequest(
        engine=engine,
        workers=workers,
        device=device,
        evaluate_every=evaluate_every,
        keep_uploads=keep,
        log=tuple(log or ()),
        superlink=superlink_from(superlink, certificate, insecure, patience, deadline),
        sign=sign,
    )
    if repeats == 1:
        run = train_with_display(plan, out, request)
        write_report_of(run)
        found = run_document(run)
        if not json:
            results.print(summary(run, results.encoding))
        if without_noise:
            page, cost = write_comparison_with_twin(run.folder, workers)
            found["without_noise"] = {"page": str(page), **cost.as_document()}
            if not json:
                results.print(cost.sentence, soft_wrap=True)
        if json:
            print_json(found)
        # Last, so that the result is printed before the exit code says that it is partial.
        raise_if_out_of_budget([run])
        return
    runs = []
    for repeat in range(repeats):
        # Repeats must differ, and seeds that follow one another can be repeated singly.
        seeded = replace(plan, seed=(plan.seed or 0) + repeat)
        folder = None
        if out is not None:
            folder = out / f"seed-{seeded.seed}"
        runs.append(train_with_display(seeded, folder, request))
        # Written after each run: a later failure must not cost the reports of earlier ones.
        write_report_of(runs[-1])
    if json:
        print_json(repeats_document(runs))
    else:
        results.print(repeats_table(runs))
    raise_if_out_of_budget(runs)


def refuse_twins(without_noise: bool, repeats: int, engine: str) -> None:
    """Refuses --without-noise where no twin can be trained.

    Args:
        without_noise: Whether a twin was asked for.
        repeats: How many seeds are trained.
        engine: The name of the engine.

    Raises:
        UserError: Several seeds, or machines whose clients send nothing without noise.
    """
    if without_noise and (repeats > 1 or engine == "flower"):
        raise UserError(
            "--without-noise trains the twin of one run on this machine: leave out --repeats and "
            "--engine flower. `sordino report RUN --without-noise` compares a run later."
        )


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """Holds how a protocol is to be trained, as the command line says it.

    Attributes:
        engine: "auto", "torch", "native" or "flower".
        workers: Worker processes; None for one per core.
        device: "cpu", "cuda" or "mps".
        evaluate_every: Rounds between two scores; None for the default.
        keep_uploads: The number of rounds between two kept ones; 0 for none.
        log: The sinks that metrics are sent to, as typed.
        superlink: Where the machines meet, for Flower.
        sign: The key that signs the run.
    """

    engine: str = "auto"
    workers: int | None = None
    device: str = "cpu"
    evaluate_every: int | None = None
    keep_uploads: int = 0
    log: tuple[str, ...] = ()
    superlink: SuperLink | None = None
    sign: Path | None = None


def superlink_from(
    address: str | None, certificate: Path | None, insecure: bool, patience: float, deadline: float
) -> SuperLink | None:
    """Returns where the machines of a federation meet, from the options.

    Args:
        address: Address of the SuperLink; None in one process.
        certificate: Certificate of the authority that signed the SuperLink's certificate.
        insecure: Whether the connection is meant to be without TLS.
        patience: Seconds that clients are given to connect.
        deadline: Seconds that clients are given to answer.

    Raises:
        UserError: Neither a certificate nor --insecure, or both; or no such file.
    """
    if address is None:
        return None
    from sordino.engines.choice import SuperLink

    # An unencrypted connection is never a default: it has to be asked for.
    if (certificate is None) != insecure:
        raise UserError(
            "--superlink needs --certificate FILE, of the authority that signed the SuperLink's "
            "certificate; or --insecure, for tests on one machine, where everyone on the way can "
            "read and change everything."
        )
    if certificate is None:
        return SuperLink(address=address, certificate=None, patience=patience, deadline=deadline)
    if not certificate.is_file():
        raise UserError(f"--certificate {certificate}: there is no such file.")
    return SuperLink(
        address=address, certificate=str(certificate), patience=patience, deadline=deadline
    )


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
    from sordino.privacy.published import find_withheld
    from sordino.report.closing_panel import kept_lines
    from sordino.report.phrasing import describe_protocol
    from sordino.report.price_tables import cap_lines, make_round_pricer

    folders: list[Path] = []
    with logging_to(request.log) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            folders.append(folder)
            print_message(f"Training {describe_protocol(setup.protocol)}. Run folder: {folder}")
            # The engine is chosen by the training, and the facts say which one and why.
            facts = RunFolder(folder).facts()
            if request.engine == "auto" and facts["engine"] != "native":
                print_once(f"Engine: {facts['engine']}; {facts['engine_reason']}.")
            for line in cap_lines(setup.protocol, setup.sizes.tolist()):
                print_message(line)
            for line in kept_lines(setup.protocol, facts["parameters"], request.keep_uploads):
                print_message(line)
            progress.start(
                rounds=setup.protocol.rounds,
                done=0,
                spent=make_round_pricer(setup, folder),
                draw_hidden=find_withheld(setup.protocol).draw,
            )
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


@contextmanager
def logging_to(texts: Sequence[str]) -> Iterator[Logging]:
    """Opens the sinks of `--log`, and closes them however a training ends.

    Args:
        texts: What was typed.

    Yields:
        What feeds the sinks.
    """
    from sordino.report.sinks import Logging, sinks_from

    sinks = Logging(sinks_from(texts), print_message)
    try:
        yield sinks
    finally:
        # Otherwise an interrupted training would leave a sink without its last lines.
        sinks.end(None)


def write_report_of(run: Run) -> None:
    """Writes the report of a run that has ended.

    Args:
        run: What was trained.
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


def resume(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, an audit or a sweep."),
    ],
    workers: Workers = None,
    device: Device = "cpu",
    log: Log = None,
    superlink: Link = None,
    certificate: Certificate = None,
    insecure: Insecure = False,
    patience: Patience = 120.0,
    deadline: Deadline = 600.0,
    sign: Sign = None,
    json: Json = False,
) -> None:
    """Resume a run, audit or sweep that was interrupted; seeded noise gives the same result."""
    # A folder of an audit is known by its file.
    if (run / "audit.json").exists():
        resume_audit(run, workers, json)
        return
    # A folder of a sweep too.
    if (run / "sweep.json").exists():
        continue_sweep(run, workers, device, json)
        return
    from sordino.cli.progress import TrainingProgress
    from sordino.engines import resume
    from sordino.federation.store.run_folder import RunFolder
    from sordino.privacy.published import find_withheld
    from sordino.report.closing_panel import summary
    from sordino.report.price_tables import make_round_pricer
    from sordino.report.run_summary import run_document

    link = superlink_from(superlink, certificate, insecure, patience, deadline)
    with logging_to(log or []) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            done = len(RunFolder(folder).metrics())
            print_message(f"Resuming {folder} at round {done + 1} of {setup.protocol.rounds}.")
            progress.start(
                rounds=setup.protocol.rounds,
                done=done,
                spent=make_round_pricer(setup, folder),
                draw_hidden=find_withheld(setup.protocol).draw,
            )
            sinks.start(setup, folder)

        try:
            finished = resume(
                run,
                workers=workers,
                device=device,
                superlink=link,
                sign=sign,
                report=False,
                on_start=start,
                on_round=sinks.after(progress.advance),
                on_message=print_message,
            )
        except KeyboardInterrupt:
            raise Stopped(run, sign) from None
        sinks.end(finished)
    write_report_of(finished)
    if json:
        print_json(run_document(finished))
    else:
        results.print(summary(finished, results.encoding))
    raise_if_out_of_budget([finished])


def raise_if_out_of_budget(runs: list[Run]) -> None:
    """Raises an error, with exit code 3, if a run was ended early by its budget.

    Args:
        runs: What was trained.

    Raises:
        BudgetExceeded: The message says how many rounds the budget allows.
    """
    from sordino.privacy.spending import (
        BudgetExceeded,
        find_affordable_rounds,
        find_repeated_rounds,
    )

    for run in runs:
        budget = run.protocol.privacy.budget
        if run.status != "budget" or budget is None:
            continue
        # Some runs note why they ended; others are priced again.
        if "reason" in run.facts:
            raise BudgetExceeded(run.facts["reason"])
        again = find_repeated_rounds(run.ledger, run.protocol.rounds)
        allowed = find_affordable_rounds(run.protocol, budget, repeated=again, sizes=run.sizes)
        raise BudgetExceeded(allowed.message)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Data to score on; by default the run's own."),
    ] = None,
    clients: Annotated[
        bool,
        typer.Option("--clients", help="Also score every client on its own label distribution."),
    ] = False,
    json: Json = False,
) -> None:
    """Score the model of a run on the test records of some data."""
    from sordino.federation.evaluation import evaluate_clients, evaluate_run
    from sordino.federation.store.run import Run
    from sordino.report.closing_panel import score_rows

    loaded = Run.load(run)
    scores = evaluate_run(loaded, data)
    if clients:
        scores["clients"] = evaluate_clients(loaded, data).tolist()
        if loaded.personal:
            scores["personal"] = evaluate_clients(loaded, data, personal=True).tolist()
    if json:
        print_json(scores)
        return
    results.print(facts_table(score_rows(scores)))
