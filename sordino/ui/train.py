"""`sordino train`, `sordino resume` and `sordino evaluate`: a federation is trained, with a live display, and scored."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.protocol import Protocol, UserError
from sordino.report.formats import percent
from sordino.ui.arguments import (
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
    Workers,
)
from sordino.ui.audit import resume_audit
from sordino.ui.console import Stopped, facts_table, messages, print_json, results
from sordino.ui.sources import protocol_from

if TYPE_CHECKING:
    from sordino.engines.choice import SuperLink
    from sordino.federation.run import Run
    from sordino.federation.setup import Begun
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
        int, typer.Option(min=1, help="Train with this many seeds; shows mean and spread.")
    ] = 1,
    workers: Workers = None,
    device: Device = "cpu",
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between two scorings; 0 for none.")
    ] = None,
    keep_uploads: Annotated[
        bool,
        typer.Option("--keep-uploads", help="Keep what the server receives, for `sordino attack`."),
    ] = False,
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --keep-uploads: of every so many rounds only, and the last."
        ),
    ] = None,
    log: Log = None,
    superlink: Link = None,
    certificate: Certificate = None,
    insecure: Insecure = False,
    patience: Patience = 120.0,
    deadline: Deadline = 600.0,
    sign: Sign = None,
    json: Json = False,
) -> None:
    """Train a federation and keep the run in a folder."""
    from sordino.report.story import as_document
    from sordino.ui.summary import mean_and_spread, repeats_table, summary

    if keep_every is not None and not keep_uploads:
        raise UserError("--keep-every without --keep-uploads: nothing is kept. Add --keep-uploads.")
    plan, keep = protocol_from(protocol, sets), (keep_every or 1) if keep_uploads else 0
    link = superlink_from(superlink, certificate, insecure, patience, deadline)
    runs = []
    for repeat in range(repeats):
        seeded = plan if repeats == 1 else replace(plan, seed=(plan.seed or 0) + repeat)
        place = out if out is None or repeats == 1 else out / f"seed-{seeded.seed}"
        runs.append(
            trained(
                seeded, place, engine, workers, device, evaluate_every, keep, log or [], link, sign
            )
        )
        report_on(runs[-1])
        if not json and repeats == 1:
            results.print(summary(runs[-1]))
    if repeats > 1 and not json:
        results.print(repeats_table(runs))
    if json:
        print_json(
            as_document(runs[0])
            if repeats == 1
            else {"runs": [as_document(run) for run in runs], **mean_and_spread(runs)}
        )
    raise_if_out_of_budget(runs)


def superlink_from(
    address: str | None, certificate: Path | None, insecure: bool, patience: float, deadline: float
) -> SuperLink | None:
    """Where the machines of a federation meet, if they do. That a connection is not secured has to be said."""
    if address is None:
        return None
    from sordino.engines.choice import SuperLink

    if (certificate is None) != insecure:
        raise UserError(
            "--superlink needs --certificate FILE, of the authority that signed the SuperLink's certificate; or --insecure, for tests on "
            "one machine, where everyone on the way can read and change everything."
        )
    if certificate is not None and not certificate.is_file():
        raise UserError(f"--certificate {certificate}: there is no such file.")
    named = str(certificate) if certificate is not None else None
    return SuperLink(address=address, certificate=named, patience=patience, deadline=deadline)


def trained(
    protocol: Protocol,
    out: Path | None,
    engine: str,
    workers: int | None,
    device: str,
    every: int | None,
    keep: int = 0,
    log: Sequence[str] = (),
    superlink: SuperLink | None = None,
    sign: Path | None = None,
) -> Run:
    """Train with the live display; after Ctrl-C say how to go on."""
    from sordino.engines import train
    from sordino.federation.folder import RunFolder
    from sordino.report.words import described
    from sordino.ui.prices import cap_lines, spent_in
    from sordino.ui.progress import TrainingProgress
    from sordino.ui.summary import kept_lines

    where: list[Path] = []
    with logging_to(log) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            where.append(folder)
            messages.print(
                f"Training {described(setup.protocol)}. Run folder: {folder}", soft_wrap=True
            )
            facts = RunFolder(folder).facts()
            if engine == "auto" and facts["engine"] != "native":
                say_once(f"Engine: {facts['engine']}; {facts['engine_reason']}.")
            for line in (
                *cap_lines(setup.protocol, setup.sizes.tolist()),
                *kept_lines(setup.protocol, facts["parameters"], keep),
            ):
                messages.print(line, soft_wrap=True)
            progress.start(rounds=setup.protocol.rounds, done=0, spent=spent_in(setup, folder))
            sinks.start(setup, folder)

        try:
            finished = train(
                protocol,
                folder=out,
                engine=engine,
                workers=workers,
                device=device,
                evaluate_every=every,
                keep_uploads=keep,
                superlink=superlink,
                sign=sign,
                report=False,  # written once the display is gone
                on_start=start,
                on_round=sinks.after(progress.advance),
                on_message=lambda text: messages.print(text, soft_wrap=True),
            )
        except KeyboardInterrupt:
            raise Stopped(where[0] if where and where[0].exists() else None) from None
        sinks.end(finished)
    return finished


@contextmanager
def logging_to(texts: Sequence[str]) -> Iterator[Logging]:
    """The sinks of `--log`; they are closed however a training ends."""
    from sordino.report.sinks import Logging, sinks_from

    sinks = Logging(sinks_from(texts), lambda text: messages.print(text, soft_wrap=True))
    try:
        yield sinks
    finally:
        sinks.end(None)


def report_on(run: Run) -> None:
    """Write the report of a run that has ended."""
    from sordino.report.writing import at_the_end

    with messages.status("writing the report"):
        at_the_end(run, lambda text: messages.print(text, soft_wrap=True))


@functools.cache
def say_once(text: str) -> None:
    """Say something that would be the same in every run of a command."""
    messages.print(text, soft_wrap=True)


def resume(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run or an audit that was interrupted."),
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
    """Go on with a run or an audit that was interrupted; with seeded noise it ends as if it had never been."""
    if (run / "audit.json").exists():
        resume_audit(run, workers, json)
        return
    from sordino.engines import resume
    from sordino.federation.folder import RunFolder
    from sordino.report.story import as_document
    from sordino.ui.prices import spent_in
    from sordino.ui.progress import TrainingProgress
    from sordino.ui.summary import summary

    link = superlink_from(superlink, certificate, insecure, patience, deadline)
    with logging_to(log or []) as sinks, TrainingProgress() as progress:

        def start(setup: Begun, folder: Path) -> None:
            done = len(RunFolder(folder).metrics())
            messages.print(
                f"Going on with {folder} at round {done + 1} of {setup.protocol.rounds}."
            )
            progress.start(rounds=setup.protocol.rounds, done=done, spent=spent_in(setup, folder))
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
                on_message=lambda text: messages.print(text, soft_wrap=True),
            )
        except KeyboardInterrupt:
            raise Stopped(run) from None
        sinks.end(finished)
    report_on(finished)
    if json:
        print_json(as_document(finished))
    else:
        results.print(summary(finished))
    raise_if_out_of_budget([finished])


def raise_if_out_of_budget(runs: list[Run]) -> None:
    """A run that its budget ended early is told so, with exit code 3."""
    from sordino.privacy.spending import BudgetExceeded, afforded, repeated_rounds

    for run in runs:
        budget = run.protocol.privacy.budget
        if run.status == "budget" and budget is not None:
            if "reason" in run.facts:
                raise BudgetExceeded(run.facts["reason"])
            again = repeated_rounds(run.ledger, run.protocol.rounds)
            raise BudgetExceeded(
                afforded(run.protocol, budget, repeated=again, sizes=run.sizes).message
            )


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
    from sordino.federation.run import Run
    from sordino.report.words import TESTED

    loaded = Run.load(run)
    scores = evaluate_run(loaded, data)
    if clients:
        scores["clients"] = evaluate_clients(loaded, data).tolist()
        if loaded.personal:
            scores["personal"] = evaluate_clients(loaded, data, personal=True).tolist()
    if json:
        print_json(scores)
        return
    rows = [
        ("Records", f"{scores['records']:,} of {scores['data']}: {TESTED[scores['tested_on']]}"),
        ("Loss", f"{scores['loss']:.4f}"),
    ]
    if scores["baseline"] is not None:
        rows.append(
            ("Baseline", f"{scores['baseline']:.4f}, always predicting the mean of these records")
        )
    if scores["accuracy"] is not None:
        rows.append(("Accuracy", percent(scores["accuracy"])))
        rows += [(f"  {name}", percent(share)) for name, share in scores["classes"].items()]
    for key, whose in (("clients", "Global model"), ("personal", "Own models")):
        if key in scores:
            shares = sorted(scores[key])
            middle = f"mean {percent(sum(shares) / len(shares))}, worst {percent(shares[0])}, best {percent(shares[-1])}"
            rows.append(
                (whose, f"{len(shares)} clients, each on its own label distribution: {middle}")
            )
    results.print(facts_table(rows))
