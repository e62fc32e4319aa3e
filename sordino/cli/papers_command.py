"""The commands of `sordino papers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.arguments import Json
from sordino.cli.audit_command import show
from sordino.cli.audit_progress import AuditProgress
from sordino.cli.console import Stopped, messages, print_json, results
from sordino.cli.option_checks import refuse_without
from sordino.protocol import UserError
from sordino.report.terminal_tables import facts_table

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding
    from sordino.papers.claims import Verdict

app = typer.Typer(help="What the papers claimed, and what holds.", no_args_is_help=True)

REPRODUCTIONS = ("prifedsync-tables", "convergent-table-3")


@app.command("list")
def list_claims(json: Json = False) -> None:
    """List every published claim with its verdict."""
    from sordino.papers.catalogue import all_claims, as_documents
    from sordino.report.paper_tables import claims_table

    if json:
        print_json(as_documents())
        return
    results.print(claims_table(all_claims()))
    results.print("Next: sordino papers check convergent/theorem-3a")


@app.command()
def check(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="Such as convergent/theorem-3a.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another parameter, such as rounds=100."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also train it many times, and measure.")
    ] = False,
    trainings: Annotated[
        int | None,
        typer.Option(help="With --measure: on each side; by default enough to refute it."),
    ] = None,
    json: Json = False,
) -> None:
    """Print a claim with its counterexample, the exact value and the verdict."""
    from sordino.papers.catalogue import find
    from sordino.papers.claims import check

    if not measure:
        refuse_without("--measure", trainings=trainings)
    # The check itself refuses unknown parameters.
    verdict = check(find(claim), **read_parameters(sets or []))
    finding = None
    if measure:
        finding = measure_with_display(verdict, trainings)
    if json:
        document = verdict.as_document()
        if finding is not None:
            document["measured"] = {
                **finding.as_document(),
                "verdict": finding.claims[0].verdict,
            }
        print_json(document)
        return
    results.print(facts_table(verdict.facts()))
    if finding is not None:
        show(finding, json=False)


def measure_with_display(verdict: Verdict, trainings: int | None) -> Finding:
    """Trains what a claim speaks about, with the live display.

    Args:
        verdict: The verdict on the claim.
        trainings: Trainings on each side; None for enough to refute it.

    Raises:
        UserError: The claim cannot be trained.
        Stopped: Ctrl-C was pressed; the message says how to resume.
    """
    from sordino.federation.store.run_folder import claimed_path
    from sordino.papers.measured import federation_of, measure

    # A claim that cannot be trained is refused before a folder is made.
    federation_of(verdict)
    folder = claimed_path(verdict.claim.name.rsplit("/", 1)[-1], Path("audits"))
    with AuditProgress() as progress:
        try:
            return measure(
                verdict,
                folder,
                trainings=trainings,
                on_start=progress.start,
                on_progress=progress.advance,
            )
        except KeyboardInterrupt:
            raise Stopped(folder) from None


def read_parameters(sets: list[str]) -> dict[str, float]:
    """Reads numbers from `NAME=VALUE` texts; whole ones stay whole.

    Args:
        sets: The texts, as typed.

    Raises:
        UserError: A text has no name, or no number.
    """
    found: dict[str, float] = {}
    for text in sets:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise UserError(
                f"--set {text!r}: expected NAME=VALUE with a number, such as rounds=100."
            ) from None
        # Formulas count rounds and clients in whole numbers.
        if value.strip().lstrip("-").isdecimal():
            number = int(value)
        found[name.strip().replace("-", "_")] = number
    return found


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=" or ".join(REPRODUCTIONS))],
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where a plot goes.")] = Path(
        "convergent-table-3.png"
    ),
    json: Json = False,
) -> None:
    """Compute a table of a paper again, with the certified values next to it."""
    if name == "convergent-table-3":
        from sordino.papers.growth import draw_growth

        draw_growth(plot)
        if json:
            print_json({"plot": str(plot)})
            return
        messages.print(f"Plot: {plot}")
    elif name == "prifedsync-tables":
        show_prifedsync_tables(json)
    else:
        raise UserError(f"{name!r} cannot be reproduced. Known are: {', '.join(REPRODUCTIONS)}.")


def show_prifedsync_tables(json: bool) -> None:
    """Prints tables 1 to 3 of prifedsync: the printed mu, the formula's, and the certified epsilon.

    Args:
        json: Print one JSON document and nothing else.
    """
    from sordino.papers.prifedsync_tables import prifedsync_tables
    from sordino.report.paper_tables import prifedsync_table

    with messages.status("composing privacy losses"):
        rows = prifedsync_tables()
    if json:
        print_json({"rows": [row.as_document() for row in rows]})
        return
    results.print(prifedsync_table(rows))
