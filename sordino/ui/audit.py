"""The command `sordino audit`: what an adversary really gets, beside what is promised."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sordino.protocol import Protocol, SordinoError, UserError, View
from sordino.protocol.errors import typed
from sordino.report.formats import at_most, duration
from sordino.ui.console import Stopped, messages, print_json, results
from sordino.ui.sources import protocol_from

if TYPE_CHECKING:
    from sordino.audit.game import Game
    from sordino.audit.verdict import Claim, Finding
    from sordino.privacy.guarantee import Guarantee

COLOURS = {"holds": "green", "refuted": "red", "not tested": "yellow"}

TRAININGS = "Trainings on each side that judge; as many again choose the test. By default 5000, fewer if long; 500 with a canary."
REAL, TWINS = "Real models and data", "Sensitivity"


class Contradicted(SordinoError):
    """The audit contradicts a promise."""

    exit_code = 4


class AuditProgress:
    """Shows trainings as they end, with the time left. It holds the display: use it as a context."""

    def __init__(self, word: str = "training") -> None:
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
        self._lines, self._started, self._first = 0, time.monotonic(), 0

    def __enter__(self) -> AuditProgress:
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def start(self, game: Game, certified: Guarantee, path: Path) -> None:
        """Say what is played and where it is kept."""
        messages.print(
            f"Auditing the view {certified.view}: {game.description}. Audit folder: {path}",
            soft_wrap=True,
        )

    def share(self, done: float) -> None:
        """Show a share of the work, from 0 to 1, in percent."""
        self.advance(int(100 * done), 100)

    def advance(self, done: int, total: int) -> None:
        """Count trainings; a log file gets a line for every tenth."""
        if messages.is_terminal:
            if (
                done > 0
            ):  # worker processes have been forked by now; the display runs a thread of its own
                self._bar.start()
            self._bar.update(self._task, completed=done, total=total, visible=True)
        elif done == 0 or self._lines == 0:
            self._lines, self._started, self._first = 1, time.monotonic(), done
        elif done * 10 // total >= self._lines:
            self._lines = done * 10 // total + 1
            left = (time.monotonic() - self._started) / max(1, done - self._first) * (total - done)
            messages.print(f"{self._word} {done:,}/{total:,}, {duration(left)} left")


def show(finding: Finding, *, json: bool, folder: str | None = None) -> None:
    """Print a finding, and end with exit code 4 where it contradicts a promise."""
    if json:
        print_json({**finding.as_document(), **({} if folder is None else {"folder": folder})})
    else:
        unit = {"record": "one record", "client": "all records of one client"}[
            finding.certified.unit
        ]
        head = f"View {finding.certified.view}, about {unit} ({finding.certified.adjacency}), epsilon at delta = {finding.delta:g}"
        results.print(head, style="italic", soft_wrap=True)
        results.print(finding_table(finding))
        for line in (*remarks(finding), *finding.certified.notes):
            results.print(line, soft_wrap=True)
    if finding.contradicted:
        raise Contradicted("the audit contradicts what is promised: " + contradiction(finding))


def finding_table(finding: Finding) -> Table:
    """What was measured, what is certified, what others claimed."""
    from sordino.privacy.guarantee import rounded_down

    certified, delta, table = finding.certified, finding.delta, Table()
    for column, justify in (
        ("", "left"),
        ("mu", "right"),
        ("epsilon", "right"),
        ("verdict", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    nothing = finding.mu_lower == 0 and finding.epsilon_lower == 0
    sure = "nothing was shown" if nothing else f"{100 * finding.confidence:.0f} % sure each"
    table.add_row(
        f"measured{', given more' if finding.given else ''}: at least",
        rounded_down(finding.mu_lower),
        rounded_down(finding.epsilon_lower),
        sure,
    )
    mu = "-" if certified.mu is None else at_most(certified.mu)
    table.add_row(
        "certified: at most", mu, at_most(certified.epsilon(delta)), judged(finding.verdict)
    )
    for one in finding.claims:
        table.add_row(one.claim.name, *claimed_numbers(one.claim, delta), judged(one.verdict))
    return table


def claimed_numbers(claim: Claim, delta: float) -> tuple[str, str]:
    """Returns what stands under mu and epsilon in the row of a claim; an epsilon at another delta says at which."""
    if claim.epsilon is None or claim.delta is None:
        return at_most(claim.mu or 0.0), ""
    place = "" if claim.delta == delta else f" at delta = {claim.delta:g}"
    return "", at_most(claim.epsilon) + place


def remarks(finding: Finding) -> list[str]:
    """What must be read with the numbers."""
    from sordino.privacy.guarantee import rounded_down

    tight, attained, promised = finding.tightness, finding.attained, finding.certified.mu
    sample = (
        f"; {finding.trainings:,} trainings on each side judged it, as many chose the test"
        if finding.trainings > 1
        else ""
    )
    said = [f"Game: {finding.description}{sample}."]
    if finding.given:
        view = finding.certified.view
        said.append(
            f"Given to the adversary: {finding.given}, for which the bound is proved; that is more than the view {view} shows."
        )
    if tight is not None:
        near = (
            f"; {attained:.3f} of the mu that the certified curve allows at the same error rate"
            if attained is not None
            else ""
        )
        what = "mu was measured" if promised is not None else f"epsilon was measured{near}"
        said.append(f"Tightness: {tight:.3f} of the certified {what}.")
    limit = most_epsilon(finding)
    if finding.certified.epsilon(finding.delta) > limit:
        said.append(
            f"Epsilon has a test of its own; so few trainings can show {rounded_down(limit)} at most."
        )
    if promised is not None and promised > finding.most:
        said.append(
            f"This could have shown mu = {rounded_down(finding.most)} at most, and more is certified.{advice(finding, promised)}"
        )
    elif finding.mu_lower == 0 and finding.epsilon_lower == 0:
        said.append(
            "Nothing was shown." + (advice(finding, promised) if promised is not None else "")
        )
    if finding.residuals is not None:
        said.append(f"Noise: {finding.residuals}")
    elif finding.trainings > 1:
        said.append(
            "Noise: not looked at: there is none, or too little of it, or uploads so large that float32 does not show it."
        )
    if finding.engine is not None:
        said.append(f"Engine: {finding.engine}")
    return said


def most_epsilon(finding: Finding) -> float:
    """The largest epsilon that so many trainings could have shown: that of a test which never errs."""
    from sordino.audit.bounds import CONFIDENCE, Limits, upper_limit

    limit = float(upper_limit(0, finding.trainings, (1 - CONFIDENCE) / 2))
    return (
        Limits(false_positive=limit, false_negative=limit).epsilon(finding.delta)
        if finding.trainings > 1
        else math.inf
    )


def advice(finding: Finding, promised: float) -> str:
    """What would show more."""
    from sordino.audit.bounds import trainings_needed

    if finding.trainings == 1:
        return " More canaries, or many trainings instead of one, show more."
    if promised <= 7:
        return f" About {trainings_needed(promised, 0.9):,} trainings on each side show 90 % of it, if it is attained."
    if math.isinf(promised):
        return ""
    return f" To see how tight the bound is, audit with {promised / 3:.3g} times the noise, where it is about 3."


def contradiction(finding: Finding) -> str:
    """Which promise, in words."""
    broken = []
    if finding.verdict == "refuted":
        broken.append(
            f"the certified bound of the view {finding.certified.view} is exceeded, 99.99 % sure"
        )
    broken += [
        f"{one.claim.name} is exceeded, 99.99 % sure"
        for one in finding.claims
        if one.claim.ours and one.verdict == "refuted"
    ]
    if finding.residuals is not None and finding.residuals.failed:
        broken.append("the noise is not what it is said to be")
    engine = finding.engine
    if engine is not None and engine.verdict == "differs":
        broken.append(
            engine.place or f"the noise of the engine {engine.name} is not what it is said to be"
        )
    return "; ".join(broken) + "."


def judged(verdict: str) -> Text:
    """A verdict in its colour."""
    return Text(verdict, COLOURS[verdict])


def given_claims(texts: list[str], view: View, unit: str) -> tuple[Claim, ...]:
    """Claims from `NAME=MU` and `NAME: epsilon=E, delta=D` texts, about the view that is audited."""
    return tuple(given_claim(text, view, unit) for text in texts)


def given_claim(text: str, view: View, unit: str) -> Claim:
    """Returns the claim that a text makes.

    Raises:
        UserError: it makes none; the message shows both forms.
    """
    from sordino.audit.verdict import Claim

    name, colon, promise = text.partition(":")
    if not colon:
        name, _, value = text.partition("=")
        promise = f"mu={value}"
    numbers = {key: claimed_number(value) for key, value in pairs_in(promise)}
    forms = ({"mu"}, {"epsilon", "delta"})
    whole = set(numbers) in forms and all(0 <= number < math.inf for number in numbers.values())
    if not name.strip() or not whole or numbers.get("delta", 0.0) >= 1:
        raise UserError(
            f"--claim {text!r}: expected NAME=MU with a finite number of at least 0, such as theirs=0.29, or "
            "'NAME: epsilon=E, delta=D' with a delta below 1, such as 'theirs: epsilon=2, delta=1e-5'."
        )
    return Claim(name=name.strip(), **numbers, view=str(view), unit=unit, ours=True)


def pairs_in(text: str) -> list[tuple[str, str]]:
    """Returns the keys and values of a text such as "epsilon=2, delta=1e-5"; a part without one has no value."""
    parts = [part.partition("=") for part in text.split(",")]
    return [(key.strip(), value.strip()) for key, _, value in parts]


def claimed_number(text: str) -> float:
    """Returns a number, or one that no claim may have."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def audited(source: Any, view: str, unit: str, **options: Any) -> tuple[Finding, Path]:
    """Audit with the live display."""
    from sordino.papers.applied import audit_with_claims

    places: list[Path] = []
    with AuditProgress() as progress:

        def start(game: Game, certified: Guarantee, path: Path) -> None:
            places.append(path)
            progress.start(game, certified, path)

        try:
            finding = audit_with_claims(
                source, view, unit, on_start=start, on_progress=progress.advance, **options
            )
        except KeyboardInterrupt:
            raise Stopped(places[0] if places else None) from None
    return finding, places[0]


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
    view: Annotated[
        str, typer.Option(help="server, rounds, coalition:k, final, weak or strong.")
    ] = "server",
    unit: Annotated[
        str, typer.Option(help="What differs between the two data sets: record or client.")
    ] = "record",
    trainings: Annotated[
        int | None,
        typer.Option(help=TRAININGS),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Where epsilon is measured; by default at the budget's, or 1e-5."),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MU",
            help="Somebody's promise to hold it against; or 'NAME: epsilon=2, delta=1e-5'.",
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
    """Measure what an adversary really gets, at least; exit code 4 if that contradicts a promise."""
    subject = audited_source(source, sets)
    if sensitivity:
        refuse_together(
            "--sensitivity",
            canary=canary,
            one_run=one_run,
            trainings=trainings,
            claim=claim,
            canaries=canaries,
            workers=workers,
        )
        show_twins(subject, sweep, values, 3 if seeds is None else seeds, out, json)
        return
    refuse_together("without --sensitivity", sweep=sweep, values=values, seeds=seeds)
    delta = usual_delta(subject) if delta is None else delta
    if one_run is not None:
        refuse_together("--one-run", trainings=trainings, claim=claim, workers=workers)
        from sordino.ui.one_training import OneTraining, show_one_run

        asked = OneTraining(
            kind=one_run, view=view, unit=unit, delta=delta, canary=canary, canaries=canaries
        )
        show_one_run(subject, asked, out, json)
        return
    refuse_together("without --one-run", canaries=canaries)
    claims = given_claims(claim or [], View.parse(view), unit)
    options = {
        "trainings": trainings,
        "delta": delta,
        "claims": claims,
        "canary": canary,
        "folder": out,
        "workers": workers,
    }
    finding, place = audited(subject, view, unit, **options)
    if isinstance(subject, Path):
        refresh_report(subject)
    show(finding, json=json, folder=str(place))


def resume_audit(folder: Path, workers: int | None, json: bool) -> None:
    """Go on with an audit that was interrupted."""
    from sordino.audit.auditing import resume_audit
    from sordino.audit.folder import AuditFolder

    with AuditProgress() as progress:
        try:
            finding = resume_audit(
                folder, workers=workers, on_start=progress.start, on_progress=progress.advance
            )
        except KeyboardInterrupt:
            raise Stopped(folder) from None
    run = AuditFolder(folder).facts()["run"]
    if run is not None and Path(run).is_dir():
        refresh_report(Path(run))
    show(finding, json=json, folder=str(folder))


def refresh_report(run: Path) -> None:
    """Let the report of a run show what was found out about it."""
    from sordino.report.writing import refresh

    with messages.status("writing the report"):
        refresh(run, lambda text: messages.print(text, soft_wrap=True))


def usual_delta(subject: Protocol | Path) -> float:
    """The delta of a protocol's or a run's budget, or 1e-5."""
    from sordino.federation.folder import RunFolder
    from sordino.report.promises import headline

    return headline(
        subject if isinstance(subject, Protocol) else RunFolder.existing(subject).protocol()
    )[2]


def audited_source(source: Path | None, sets: list[str] | None) -> Protocol | Path:
    """The folder of a run as it is, or the protocol of a file or of the built-in example."""
    if source is None or not source.is_dir():
        return protocol_from(source, sets)
    if (source / "audit.json").exists():
        raise UserError(
            f"{source} is the folder of an audit, not of a run. Go on with it by `{typed('resume', source)}`."
        )
    if sets:
        raise UserError(
            f"--set changes a protocol, and {source} is a run: what was run cannot be changed."
        )
    return source


def refuse_together(with_what: str, **options: object) -> None:
    """Options that mean nothing here are refused, not ignored."""
    for name, value in options.items():
        if value is not None and value != []:
            joined = with_what if with_what.startswith("without") else f"with {with_what}"
            raise UserError(f"--{name.replace('_', '-')} {joined}: the two do not go together.")


def show_twins(
    subject: Protocol | Path,
    sweep: str | None,
    values: str | None,
    seeds: int,
    out: Path | None,
    json: bool,
) -> None:
    """The sensitivity of a protocol, in a plot and a table."""
    from sordino.audit.auditing import subject_of
    from sordino.ui.sensitivity import run_sensitivity

    protocol = subject_of(subject).protocol
    listed = (
        None if values is None else [part.strip() for part in values.split(",") if part.strip()]
    )
    place = (
        out
        if out is not None
        else Path("sensitivity.png" if sweep is None else f"sensitivity-{sweep.split('.')[-1]}.png")
    )
    run_sensitivity(protocol, sweep=sweep, values=listed, seeds=seeds, out=place, json=json)
