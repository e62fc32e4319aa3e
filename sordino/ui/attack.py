"""The command `sordino attack`: what published attacks get out of a run, with its noise and without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sordino.protocol import SordinoError
from sordino.protocol.errors import typed
from sordino.report.formats import percent
from sordino.ui.arguments import Json, Workers
from sordino.ui.audit import AuditProgress, refresh_report
from sordino.ui.console import INTERRUPTED, messages, print_json, results

if TYPE_CHECKING:
    from sordino.attacks.game import Row
    from sordino.attacks.referee import Referee
    from sordino.attacks.suite import Finding
    from sordino.federation.run import Run
    from sordino.federation.setup import Setup

EXAMPLE = "attacked"  # the federation that is attacked where no run is given
SHARES = {"accuracy", "F1", "agreement", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "success rate"}
NOTHING = "sees nothing"


class AttackStopped(SordinoError):
    """Ctrl-C; what was finished is kept."""

    exit_code = INTERRUPTED


def attack(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a run; without it, an example is trained."),
    ] = None,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which attack, or all.")] = "all",
    setting: Annotated[
        str, typer.Option(help="quick or paper: as near to the papers' settings as two cores get.")
    ] = "quick",
    attribute: Annotated[
        str | None, typer.Option(metavar="NAME", help="For the attack on attributes: which one.")
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(metavar="N", help="For the attack on membership: models the attacker trains."),
    ] = None,
    twin: Annotated[
        bool,
        typer.Option(
            "--twin/--no-twin",
            help="Also train the same federation without noise, and attack both.",
        ),
    ] = True,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Put a run through published attacks: what they get with its noise, and without."""
    from sordino.attacks.suite import ATTACKS, named_attack, options_of
    from sordino.federation.run import Run

    names, options = (
        list(ATTACKS) if name == "all" else [name],
        {"attribute": attribute, "shadows": shadows},
    )
    for one in names:
        named_attack(
            one, setting, options if name != "all" else options_of(one, options)
        )  # a mistake is refused before any training
    subject = Run.load(run) if run is not None else trained_example(workers)
    try:
        found, refused = attacked(subject, names, setting, options, twin, workers)
    except KeyboardInterrupt:
        raise AttackStopped(
            f"stopped. What was finished is kept. Go on with: {typed('attack', subject.folder, name)}"
        ) from None
    refresh_report(subject.folder)
    if json:
        print_json(
            {
                "run": str(subject.folder),
                "attacks": [one.as_document() for one in found],
                "refused": refused,
            }
        )
        return
    for finding in found:
        results.print(
            f"{finding.name}, setting {finding.setting}: {finding.subject}",
            style="italic",
            soft_wrap=True,
        )
        results.print(findings_table(finding))
    for one, why in refused.items():
        results.print(f"{one}: not tried. {why}", soft_wrap=True)
    messages.print(f"Rows and plots: {subject.folder / 'attacks'}", soft_wrap=True)


def trained_example(workers: int | None) -> Run:
    """A small federation that ships with the package, trained with its uploads kept."""
    from sordino.protocol import loads
    from sordino.ui.sources import example_text
    from sordino.ui.train import trained

    return trained(loads(example_text(EXAMPLE)), None, "auto", workers, "cpu", None, keep=1)


def attacked(
    run: Run,
    names: list[str],
    setting: str,
    options: Mapping[str, Any],
    twin: bool,
    workers: int | None,
) -> tuple[list[Finding], dict[str, str]]:
    """Every attack on the run and its twin, with the live display; and why some could not be tried.

    Raises:
        UserError: not one of the attacks could be tried.
    """
    from sordino.attacks.referee import Referee
    from sordino.attacks.suite import attack, options_of, refusals
    from sordino.papers.attack_tables import printed

    with messages.status("reading the run and its data"):
        referee = Referee(run)
        refused = refusals(referee, names, setting, options)
    if len(refused) == len(names):
        raise next(iter(refused.values()))
    subjects = [referee, *(twin_of(referee, workers) if twin else ())]
    found = []
    for name in names:
        if name in refused:
            continue
        with AuditProgress(f"{name}: percent") as progress:
            own = options_of(name, options)
            found.append(
                attack(
                    subjects,
                    name,
                    setting=setting,
                    **own,
                    printed=printed,
                    on_progress=progress.share,
                )
            )
    return found, {name: str(error) for name, error in refused.items()}


def twin_of(referee: Referee, workers: int | None) -> list[Referee]:
    """The run's twin without noise, trained with the live display where it is not there yet; none where the run has no noise."""
    from sordino.attacks.referee import Referee
    from sordino.attacks.twin import silent_twin
    from sordino.federation.folder import RunFolder
    from sordino.ui.progress import TrainingProgress

    with TrainingProgress() as progress:

        def start(setup: Setup, folder: Path) -> None:
            messages.print(
                f"The same federation without noise, to compare. Run folder: {folder}",
                soft_wrap=True,
            )
            progress.start(
                rounds=setup.protocol.rounds,
                done=len(RunFolder(folder).metrics()),
                spent=lambda rounds: "",
            )

        twin = silent_twin(referee.run, workers=workers, on_start=start, on_round=progress.advance)
    return [] if twin is None else [Referee(twin, data=referee.dataset)]


def findings_table(finding: Finding) -> Table:
    """What one attack got, a line for every noise, round and method; below them what is got by who sees nothing of the run."""
    table = Table()
    metrics = list(dict.fromkeys(row.metric for row in finding.rows))
    for column in ("noise", "round", "method", *metrics):
        table.add_column(column, justify="left" if column == "method" else "right")
    for noise in sorted({row.noise for row in finding.rows}):
        for round in sorted({row.round for row in finding.rows if row.noise == noise}):
            lines = table_lines(
                [row for row in finding.rows if (row.noise, row.round) == (noise, round)]
            )
            for number, (method, cells) in enumerate(lines.items()):
                place = (f"{noise:g}", str(round)) if number == 0 else ("", "")
                last = number == len(lines) - 1
                style = "dim" if method == NOTHING else None
                table.add_row(
                    *place,
                    method,
                    *(cells.get(metric, "") for metric in metrics),
                    style=style,
                    end_section=last,
                )
    return table


def table_lines(rows: list[Row]) -> dict[str, dict[str, str]]:
    """Per method its metrics as texts; then what a paper prints, where it does, and what a trivial attacker gets."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        lines.setdefault(row.method or "attack", {})[row.metric] = shown(row.metric, row.value)
    for row in rows:
        if row.printed is not None:
            lines.setdefault(row.paper.partition(";")[0], {})[row.metric] = shown(
                row.metric, row.printed
            )
    for row in rows:
        lines.setdefault(NOTHING, {}).setdefault(row.metric, shown(row.metric, row.baseline))
    return lines


def shown(metric: str, value: float) -> str:
    """A value for people: shares in percent."""
    return percent(value) if metric in SHARES else f"{value:.3g}"
