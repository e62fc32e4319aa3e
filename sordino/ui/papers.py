"""The command `sordino papers`: what each paper claimed, and what holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sordino.protocol import UserError
from sordino.ui.audit import AuditProgress, show
from sordino.ui.console import Stopped, facts_table, messages, print_json, results

if TYPE_CHECKING:
    from sordino.audit.verdict import Finding
    from sordino.papers.claims import Verdict

app = typer.Typer(help="What the papers claimed, and what holds.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
COLOURS = {"sound": "green", "conditional": "yellow", "asymptotic": "yellow", "unsound": "red"}
REPRODUCTIONS = ("prifedsync-tables", "convergent-table-3")


@app.command("list")
def list_claims(json: Json = False) -> None:
    """List every published claim with its verdict."""
    from sordino.papers.catalogue import all_claims, as_documents

    if json:
        print_json(as_documents())
        return
    table = Table(title="Published claims", title_justify="left")
    for column in ("claim", "verdict", "says"):
        table.add_column(column, no_wrap=column == "claim")
    for claim in all_claims():
        table.add_row(claim.name, Text(claim.verdict, COLOURS[claim.verdict]), claim.statement)
    results.print(table)
    results.print("Next: sordino papers check convergent/theorem-3a")


@app.command()
def check(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="Such as convergent/theorem-3a.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another parameter, such as rounds=100."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also train it many times and measure.")
    ] = False,
    trainings: Annotated[
        int | None,
        typer.Option(help="With --measure: on each side; by default as many as could refute it."),
    ] = None,
    json: Json = False,
) -> None:
    """Print a claim, its counterexample, the exact value and the verdict."""
    from sordino.papers.catalogue import find
    from sordino.papers.claims import check

    found = check(find(claim), **parameters(sets or []))
    finding = measured(found, trainings) if measure else None
    if json:
        shown = (
            {}
            if finding is None
            else {"measured": {**finding.as_document(), "verdict": finding.claims[0].verdict}}
        )
        print_json({**found.as_document(), **shown})
        return
    results.print(facts_table(found.facts()))
    if finding is not None:
        show(finding, json=False)


def measured(verdict: Verdict, trainings: int | None) -> Finding:
    """Train what a claim speaks about, with the live display."""
    from sordino.federation.folder import claimed_path
    from sordino.papers.measured import federation_of, measure

    federation_of(verdict)  # a claim that cannot be trained is refused before a folder is made
    place = claimed_path(verdict.claim.name.rsplit("/", 1)[-1], Path("audits"))
    with AuditProgress() as progress:
        try:
            return measure(
                verdict,
                place,
                trainings=trainings,
                on_start=progress.start,
                on_progress=progress.advance,
            )
        except KeyboardInterrupt:
            raise Stopped(place) from None


def parameters(sets: list[str]) -> dict[str, float]:
    """Numbers from `NAME=VALUE` texts; whole ones stay whole."""
    found: dict[str, float] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        try:
            found[name.strip().replace("-", "_")] = (
                int(value) if value.strip().lstrip("-").isdecimal() else float(value)
            )
        except ValueError:
            equals = ""
        if equals == "":
            raise UserError(
                f"--set {text!r}: expected NAME=VALUE with a number, such as rounds=100."
            )
    return found


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=" or ".join(REPRODUCTIONS))],
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where a plot goes.")] = Path(
        "convergent-table-3.png"
    ),
    json: Json = False,
) -> None:
    """Compute a table of a paper anew, with what is certified beside it."""
    if name == "convergent-table-3":
        from sordino.papers.growth import draw_growth

        draw_growth(plot)
        messages.print(f"Plot: {plot}")
    elif name == "prifedsync-tables":
        show_prifedsync_tables(json)
    else:
        raise UserError(
            f"{name!r} is not among what can be computed anew: {', '.join(REPRODUCTIONS)}."
        )


def show_prifedsync_tables(json: bool) -> None:
    """Tables 1 to 3 of prifedsync: the printed mu, the formula's, and the certified epsilon."""
    from sordino.papers.tables import prifedsync_tables

    with messages.status("composing privacy losses"):
        rows = prifedsync_tables()
    if json:
        print_json({"rows": [row.as_document() for row in rows]})
        return
    table = Table(title="prifedsync, Tables 1 to 3; epsilon at delta = 1e-05", title_justify="left")
    for column in (
        "table",
        "p",
        "sigma",
        "R",
        "mu printed",
        "mu of the formula",
        "epsilon of that mu",
        "certified, p = 1",
        "certified",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        printed = row.printed
        numbers = (row.mu, row.limit_epsilon, row.certified_epsilon, row.participating_epsilon)
        table.add_row(
            str(printed.table), f"{printed.probability:g}", f"{printed.sigma:g}", str(printed.rounds), f"{printed.printed_mu:.2f}",
            *(f"{number:.3f}" for number in numbers),
        )  # fmt: skip
    results.print(table)
