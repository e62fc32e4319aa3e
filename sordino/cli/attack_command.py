"""The command `sordino attack`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import Json, Workers
from sordino.cli.audit_command import refresh_report
from sordino.cli.audit_progress import AuditProgress
from sordino.cli.console import INTERRUPTED, messages, print_json, print_message, results
from sordino.cli.twin_training import train_twin_with_display
from sordino.protocol import SordinoError
from sordino.protocol.errors import format_command

if TYPE_CHECKING:
    from sordino.attacks.referee import Referee
    from sordino.attacks.suite import AttackFinding
    from sordino.federation.store.run import Run

# The federation that is attacked where no run is given.
EXAMPLE = "attacked"


class AttackStopped(SordinoError):
    """Ctrl-C was pressed; finished attacks are kept.

    Attributes:
        exit_code: The code that shells expect after Ctrl-C.
    """

    exit_code = INTERRUPTED


def attack(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a run; without it, an example is trained."),
    ] = None,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which attack, or all.")] = "all",
    setting: Annotated[
        str, typer.Option(help="quick, or paper: as close to the papers as two cores allow.")
    ] = "quick",
    attribute: Annotated[
        str | None, typer.Option(metavar="NAME", help="For attribute inference: which attribute.")
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(metavar="N", help="For membership inference: shadow models."),
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
    """Run published attacks on a run: what they learn with its noise, and without."""
    from sordino.attacks.suite import ATTACKS, find_attack, select_options
    from sordino.federation.store.run import Run

    names = [name]
    if name == "all":
        names = list(ATTACKS)
    options = {"attribute": attribute, "shadows": shadows}
    for one in names:
        # A mistake is refused before any training. With all attacks, each takes its own options.
        own = options
        if name == "all":
            own = select_options(one, options)
        find_attack(one, setting, own)
    if run is None:
        subject = train_example(workers)
    else:
        subject = Run.load(run)
    try:
        found, refused = attack_with_display(subject, names, setting, options, twin, workers)
    # Each attack is stored when it ends, so that the same command continues after the last one.
    except KeyboardInterrupt:
        raise AttackStopped(
            "stopped. Finished attacks are kept. "
            f"Continue with: {format_command('attack', subject.folder, name)}"
        ) from None
    # The report shows attacks, so it must be rewritten before anything is printed.
    refresh_report(subject.folder)
    if json:
        print_json(
            {
                "run": str(subject.folder),
                "attacks": [finding.as_document() for finding in found],
                "refused": refused,
            }
        )
        return
    show_attacks(found, refused)
    print_message(f"Rows and plots: {subject.folder / 'attacks'}")


def show_attacks(found: Sequence[AttackFinding], refused: Mapping[str, str]) -> None:
    """Prints a table for every attack, and why others were not tried.

    Args:
        found: The findings.
        refused: By the name of an attack, why it could not be tried.
    """
    from sordino.report.attack_findings import findings_table

    for finding in found:
        results.print(
            f"{finding.name}, setting {finding.setting}: {finding.subject}",
            style="italic",
            soft_wrap=True,
        )
        results.print(findings_table(finding))
    for name, reason in refused.items():
        results.print(f"{name}: not tried. {reason}", soft_wrap=True)


def train_example(workers: int | None) -> Run:
    """Trains a small federation that ships with the package, and keeps its uploads.

    Args:
        workers: Worker processes; None for one per core.
    """
    from sordino.cli.protocol_sources import example_text
    from sordino.cli.training_display import TrainingRequest, train_with_display
    from sordino.protocol import loads

    # Attacks on uploads need what the server received.
    request = TrainingRequest(workers=workers, keep_uploads=1)
    return train_with_display(loads(example_text(EXAMPLE)), None, request)


def attack_with_display(
    run: Run,
    names: list[str],
    setting: str,
    options: Mapping[str, Any],
    twin: bool,
    workers: int | None,
) -> tuple[list[AttackFinding], dict[str, str]]:
    """Attacks the run and its twin, with the live display.

    Args:
        run: The run to attack.
        names: Names of the attacks.
        setting: "quick" or "paper".
        options: The options of all attacks.
        twin: Whether the same federation without noise is attacked too.
        workers: Worker processes; None for one per core.

    Returns:
        The findings, and by name why an attack could not be tried.

    Raises:
        UserError: None of the attacks could be tried.
    """
    from sordino.attacks.referee import Referee
    from sordino.attacks.suite import attack, find_refusals, select_options
    from sordino.papers.attack_tables import printed

    with messages.status("reading the run and its data"):
        referee = Referee(run)
        # All refusals are found before the first attack: hours of work must not end in a wrong
        # option.
        refused = find_refusals(referee, names, setting, options)
    # One reason is enough where no attack can be tried.
    if len(refused) == len(names):
        raise next(iter(refused.values()))
    subjects = [referee]
    if twin:
        subjects += train_twin(referee, workers)
    found = []
    for name in names:
        if name in refused:
            continue
        with AuditProgress(f"{name}: percent") as progress:
            own = select_options(name, options)
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


def train_twin(referee: Referee, workers: int | None) -> list[Referee]:
    """Trains the run's twin without noise, with the live display, unless it exists already.

    Args:
        referee: Referee of the run.
        workers: Worker processes; None for one per core.

    Returns:
        The twin's referee; nothing where the run has no noise.
    """
    from sordino.attacks.referee import Referee

    twin = train_twin_with_display(referee.run, workers)
    if twin is None:
        return []
    # The twin has the same data, which are slow to load.
    return [Referee(twin, data=referee.dataset)]
