"""The command `sordino audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import VIEWS_HELP, Json, Sets, Workers
from sordino.cli.audit_progress import AuditProgress
from sordino.cli.claim_option import read_claim
from sordino.cli.console import Stopped, messages, print_json, print_message, results
from sordino.cli.option_checks import refuse_with, refuse_without
from sordino.cli.protocol_sources import count_priced_parameters, protocol_from
from sordino.cli.sensitivity_command import show_twins
from sordino.protocol import Protocol, SordinoError, UserError, View
from sordino.protocol.errors import format_command

if TYPE_CHECKING:
    from sordino.audit.game import Game
    from sordino.audit.verdict import Finding
    from sordino.privacy.guarantee import Guarantee

# Panels of the help.
REAL = "Real models and data"
TWINS = "Sensitivity"
Unit = Annotated[
    str, typer.Option(help="What differs between the two data sets: record or client.")
]
Trainings = Annotated[
    int | None,
    typer.Option(
        help="Trainings on each side that judge; as many more choose the test. "
        "By default 5000, fewer if long; 500 with a canary."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Minutes instead of a number of trainings: as many as fit. Stops when the verdict is "
        "clear."
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(help="Where epsilon is measured; by default at the budget's, or 1e-5."),
]
Claims = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=MU", help="A published claim to test; or 'NAME: epsilon=2, delta=1e-5'."
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Audit folder; by default audits/<name>-<n>.")
]
Canary = Annotated[
    str | None,
    typer.Option(
        metavar="KIND|FILE",
        help="random, mislabelled, crafted, or an .npz file.",
        rich_help_panel=REAL,
    ),
]
OneRun = Annotated[
    str | None,
    typer.Option(help="One training with canary records or clients.", rich_help_panel=REAL),
]
Canaries = Annotated[
    int | None, typer.Option(help="How many, with --one-run.", rich_help_panel=REAL)
]
Sensitivity = Annotated[
    bool,
    typer.Option(
        "--sensitivity",
        help="Distance of twins that share every noise draw.",
        rich_help_panel=TWINS,
    ),
]
Sweep = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Vary this key, such as local.clip.", rich_help_panel=TWINS),
]
Values = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Its values.", rich_help_panel=TWINS)
]
Seeds = Annotated[
    int | None, typer.Option(help="Twins for each value; by default 3.", rich_help_panel=TWINS)
]
DEFAULT_TWINS = 3


class Contradicted(SordinoError):
    """An audit contradicts a guarantee."""

    exit_code = 4


def show(finding: Finding, *, json: bool, folder: str | None = None) -> None:
    """Prints a finding.

    Args:
        finding: The finding of an audit.
        json: Print one JSON document and nothing else.
        folder: Where the audit is kept, for JSON.

    Raises:
        Contradicted: It contradicts a guarantee; exit code 4.
    """
    from sordino.report.finding_tables import contradiction, finding_head, finding_table, remarks

    if json:
        document = finding.as_document()
        if folder is not None:
            document["folder"] = folder
        print_json(document)
    else:
        results.print(finding_head(finding), style="italic", soft_wrap=True)
        results.print(finding_table(finding))
        for line in (*remarks(finding), *finding.certified.notes):
            results.print(line, soft_wrap=True)
    if finding.contradicted:
        # After everything was printed: the exit code must not hide the numbers.
        raise Contradicted("the audit contradicts the guarantee: " + contradiction(finding))


def audit_with_display(source: Any, view: str, unit: str, **options: Any) -> tuple[Finding, Path]:
    """Audits with the live display.

    Args:
        source: A protocol, or the folder of a run.
        view: What the adversary sees.
        unit: "record" or "client".
        **options: Further arguments of `sordino.audit.auditing.audit`.

    Returns:
        The finding, and the audit's folder.

    Raises:
        Stopped: Ctrl-C was pressed; the message says how to resume.
    """
    from sordino.papers.applied import audit_with_claims

    folders: list[Path] = []
    with AuditProgress() as progress:
        # The folder is known once the audit has begun, and an interruption must name it.
        def start(game: Game, certified: Guarantee, path: Path) -> None:
            folders.append(path)
            progress.start(game, certified, path)

        try:
            finding = audit_with_claims(
                source,
                view,
                unit,
                on_start=start,
                on_plan=progress.plan,
                on_progress=progress.advance,
                **options,
            )
        except KeyboardInterrupt:
            raise Stopped(folders[0] if folders else None) from None
    return finding, folders[0]


def audit(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROTOCOL.toml|RUN]", help="Protocol file or folder of a finished run."
        ),
    ] = None,
    sets: Sets = None,
    view: Annotated[str, typer.Option(help=VIEWS_HELP)] = "server",
    unit: Unit = "record",
    trainings: Trainings = None,
    minutes: Minutes = None,
    delta: Delta = None,
    claim: Claims = None,
    out: Out = None,
    workers: Workers = None,
    canary: Canary = None,
    one_run: OneRun = None,
    canaries: Canaries = None,
    sensitivity: Sensitivity = False,
    sweep: Sweep = None,
    values: Values = None,
    seeds: Seeds = None,
    json: Json = False,
) -> None:
    """Measure what an adversary learns, at least. Exit code 4 if that contradicts a guarantee."""
    subject = choose_subject(source, sets)
    # Options of another kind of audit are refused, since ignoring one would mislead.
    played = {"trainings": trainings, "minutes": minutes, "claim": claim, "workers": workers}
    if sensitivity:
        refuse_with("--sensitivity", canary=canary, one_run=one_run, canaries=canaries, **played)
        if seeds is None:
            seeds = DEFAULT_TWINS
        show_twins(subject, sweep, values, seeds, out, json)
        return
    refuse_without("--sensitivity", sweep=sweep, values=values, seeds=seeds)
    # The delta of the budget: a finding at another delta could not be compared with it.
    if delta is None:
        delta = default_delta(subject)
    if one_run is not None:
        refuse_with("--one-run", **played)
        question = {"view": view, "unit": unit, "delta": delta, "canary": canary}
        show_one_run(subject, out, json, kind=one_run, canaries=canaries, **question)
        return
    refuse_without("--one-run", canaries=canaries)
    if minutes is not None:
        refuse_with("--minutes", trainings=trainings)
    finding, folder = audit_with_display(
        subject,
        view,
        unit,
        trainings=trainings,
        minutes=minutes,
        delta=delta,
        claims=tuple(read_claim(text, View.parse(view), unit) for text in claim or []),
        canary=canary,
        folder=out,
        workers=workers,
    )
    # An audit of a protocol file belongs to no run.
    if isinstance(subject, Path):
        refresh_report(subject)
    show(finding, json=json, folder=str(folder))


def show_one_run(subject: Protocol | Path, out: Path | None, json: bool, **question: Any) -> None:
    """Audits by one training, with the live display, and prints the result.

    Args:
        subject: A protocol, or the folder of a run.
        out: The audit's folder; None for a new one.
        json: Print one JSON document and nothing else.
        **question: The attributes of a `CanaryQuestion`.
    """
    from sordino.audit.canaries.canary_audit import (
        CanaryQuestion,
        audit_by_one_training,
        estimate_document,
    )
    from sordino.audit.verdict import Finding
    from sordino.report.finding_tables import estimate_table

    with AuditProgress("round") as progress:
        answer = audit_by_one_training(
            subject, CanaryQuestion(**question), folder=out, on_round=progress.advance
        )
    print_message(f"Audit folder: {answer.folder}")
    if answer.run is not None:
        refresh_report(answer.run)
    if isinstance(answer.result, Finding):
        show(answer.result, json=json, folder=str(answer.folder))
    elif json:
        print_json(estimate_document(answer.result, answer.certified))
    else:
        results.print(estimate_table(answer.result, answer.certified))


def resume_audit(folder: Path, workers: int | None, json: bool) -> None:
    """Resumes an audit that was interrupted.

    Args:
        folder: The audit's folder.
        workers: Worker processes; None for one per core.
        json: Print one JSON document and nothing else.

    Raises:
        Stopped: Ctrl-C was pressed again.
    """
    from sordino.audit.audit_folder import AuditFolder
    from sordino.audit.auditing import resume_audit

    with AuditProgress() as progress:
        try:
            finding = resume_audit(
                folder,
                workers=workers,
                on_start=progress.start,
                on_plan=progress.plan,
                on_progress=progress.advance,
            )
        except KeyboardInterrupt:
            raise Stopped(folder) from None
    # None for an audit of a protocol file; a run may have been moved since the audit began.
    run = AuditFolder(folder).facts()["run"]
    if run is not None and Path(run).is_dir():
        refresh_report(Path(run))
    show(finding, json=json, folder=str(folder))


def refresh_report(run: Path) -> None:
    """Rewrites the report of a run, which shows audits and attacks.

    Args:
        run: The run's folder.
    """
    from sordino.report.writing import rewrite_report

    with messages.status("writing the report"):
        rewrite_report(run, print_message)


def default_delta(subject: Protocol | Path) -> float:
    """Returns the delta of the budget, or 1e-5.

    Args:
        subject: A protocol, or the folder of a run.
    """
    from sordino.federation.store.run_folder import RunFolder
    from sordino.report.run_prices import choose_headline

    if isinstance(subject, Protocol):
        return choose_headline(subject).delta
    return choose_headline(RunFolder.existing(subject).protocol()).delta


def choose_subject(source: Path | None, sets: list[str] | None) -> Protocol | Path:
    """Returns the protocol or the run to audit.

    Args:
        source: A protocol file, the folder of a run, or None for the built-in example.
        sets: Overrides of a protocol.

    Returns:
        The folder of the run, or the protocol.

    Raises:
        UserError: The folder is that of an audit, or there are overrides for a run.
    """
    # A path that is not a folder is a protocol file, and reading it names what does not fit.
    if source is None or not source.is_dir():
        return count_priced_parameters(protocol_from(source, sets))
    if (source / "audit.json").exists():
        raise UserError(
            f"{source} is the folder of an audit, not of a run. "
            f"Resume it with `{format_command('resume', source)}`."
        )
    if sets:
        raise UserError(
            f"--set changes a protocol, and {source} is a run, which cannot be changed."
        )
    return source
