"""The command `sordino audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import VIEWS_HELP
from sordino.cli.audit_progress import AuditProgress
from sordino.cli.claim_option import read_claim
from sordino.cli.console import Stopped, messages, print_json, print_message, results
from sordino.cli.protocol_sources import count_priced_parameters, protocol_from
from sordino.protocol import Protocol, SordinoError, UserError, View
from sordino.protocol.errors import format_command

if TYPE_CHECKING:
    from sordino.audit.game import Game
    from sordino.audit.verdict import Finding
    from sordino.privacy.guarantee import Guarantee

TRAININGS = (
    "Trainings on each side that judge; as many more choose the test. "
    "By default 5000, fewer if long; 500 with a canary."
)
MINUTES = (
    "Minutes instead of a number of trainings: as many as fit. Stops when the verdict is clear."
)
REAL = "Real models and data"
TWINS = "Sensitivity"
DEFAULT_TWINS = 3


class Contradicted(SordinoError):
    """An audit contradicts a guarantee."""

    exit_code = 4


def show(finding: Finding, *, json: bool, folder: str | None = None) -> None:
    """Prints a finding.

    Args:
        finding: What an audit found.
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
        **options: Those of `sordino.audit.auditing.audit`.

    Returns:
        What was found, and the audit's folder.

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
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override one key, such as noise.sigma=0.5."
        ),
    ] = None,
    view: Annotated[str, typer.Option(help=VIEWS_HELP)] = "server",
    unit: Annotated[
        str, typer.Option(help="What differs between the two data sets: record or client.")
    ] = "record",
    trainings: Annotated[
        int | None,
        typer.Option(help=TRAININGS),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help=MINUTES)] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Where epsilon is measured; by default at the budget's, or 1e-5."),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MU",
            help="A published claim to test; or 'NAME: epsilon=2, delta=1e-5'.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Audit folder; by default audits/<name>-<n>.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; by default one per core.")
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="KIND|FILE",
            help="random, mislabelled, crafted, or an .npz file.",
            rich_help_panel=REAL,
        ),
    ] = None,
    one_run: Annotated[
        str | None,
        typer.Option(help="One training with canary records or clients.", rich_help_panel=REAL),
    ] = None,
    canaries: Annotated[
        int | None, typer.Option(help="How many, with --one-run.", rich_help_panel=REAL)
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Distance of twins that share every noise draw.",
            rich_help_panel=TWINS,
        ),
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Vary this key, such as local.clip.", rich_help_panel=TWINS
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Its values.", rich_help_panel=TWINS)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Twins for each value; by default 3.", rich_help_panel=TWINS)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Measure what an adversary learns, at least. Exit code 4 if that contradicts a guarantee."""
    subject = choose_subject(source, sets)
    # Options of another kind of audit are refused, since ignoring one would mislead.
    if sensitivity:
        refuse_together(
            "--sensitivity",
            canary=canary,
            one_run=one_run,
            trainings=trainings,
            minutes=minutes,
            claim=claim,
            canaries=canaries,
            workers=workers,
        )
        if seeds is None:
            seeds = DEFAULT_TWINS
        show_twins(subject, sweep, values, seeds, out, json)
        return
    refuse_together("without --sensitivity", sweep=sweep, values=values, seeds=seeds)
    # The delta of the budget: a finding at another delta could not be compared with it.
    if delta is None:
        delta = default_delta(subject)
    if one_run is not None:
        refuse_together(
            "--one-run", trainings=trainings, minutes=minutes, claim=claim, workers=workers
        )
        options = {"view": view, "unit": unit, "delta": delta, "canary": canary}
        show_one_run(subject, out, json, kind=one_run, canaries=canaries, **options)
        return
    refuse_together("without --one-run", canaries=canaries)
    if minutes is not None:
        refuse_together("--minutes", trainings=trainings)
    claims = tuple(read_claim(text, View.parse(view), unit) for text in claim or [])
    options = {
        "trainings": trainings,
        "minutes": minutes,
        "delta": delta,
        "claims": claims,
        "canary": canary,
        "folder": out,
        "workers": workers,
    }
    finding, place = audit_with_display(subject, view, unit, **options)
    # An audit of a protocol file belongs to no run.
    if isinstance(subject, Path):
        refresh_report(subject)
    show(finding, json=json, folder=str(place))


def show_one_run(subject: Protocol | Path, out: Path | None, json: bool, **question: Any) -> None:
    """Audits by one training, with the live display, and prints what it showed.

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
    # The run may have been moved since the audit began.
    # None for an audit of a protocol file.
    run = AuditFolder(folder).facts()["run"]
    if run is not None and Path(run).is_dir():
        refresh_report(Path(run))
    show(finding, json=json, folder=str(folder))


def refresh_report(run: Path) -> None:
    """Rewrites the report of a run, which then shows what was found out about it.

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
        The folder of a run as it is, or a protocol.

    Raises:
        UserError: The folder is that of an audit, or a run is to be changed.
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


def refuse_together(with_what: str, **options: object) -> None:
    """Refuses options that mean nothing here: nothing that was typed is ignored.

    Args:
        with_what: The option that they do not go with, or "without" and the one that they need.
        **options: Their values, None where they were not given.

    Raises:
        UserError: One of them was given.
    """
    # None, and an empty list, mean that an option was not given.
    for name, value in options.items():
        if value is None or value == []:
            continue
        option = f"--{name.replace('_', '-')}"
        if with_what.startswith("without"):
            needed = with_what.removeprefix("without ")
            raise UserError(f"{option} {with_what}: it has no meaning. Add {needed}, or omit it.")
        raise UserError(f"{option} with {with_what}: the two do not go together. Omit one of them.")


def show_twins(
    subject: Protocol | Path,
    sweep: str | None,
    values: str | None,
    seeds: int,
    out: Path | None,
    json: bool,
) -> None:
    """Measures the sensitivity of a protocol, in a plot and a table.

    Args:
        subject: A protocol, or the folder of a run.
        sweep: The key that is varied; None for the protocol as it is.
        values: Its values, separated by commas; one inside brackets or quotes separates nothing.
        seeds: Twins for each value.
        out: The plot; None for a file named after the key.
        json: Print one JSON document and nothing else.
    """
    from sordino.audit.audit_subject import load_subject
    from sordino.cli.sensitivity_command import run_sensitivity
    from sordino.report.sensitivity_plots import default_plot_name
    from sordino.sweeps.sweep_request import split_outside_brackets

    protocol = load_subject(subject).protocol
    listed = None
    if values is not None:
        parts = map(str.strip, split_outside_brackets(values))
        listed = [part for part in parts if part]
    if out is None:
        key = None
        if sweep is not None:
            key = sweep.split(".")[-1]
        out = Path(default_plot_name(key))
    run_sensitivity(protocol, sweep=sweep, values=listed, seeds=seeds, out=out, json=json)
