"""Shows the claims of the papers, and their tables with certified values, in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sordino.report.terminal_tables import Justify, make_table

if TYPE_CHECKING:
    from sordino.papers.claims import PublishedClaim
    from sordino.papers.prifedsync_tables import TableRow

COLOURS = {"sound": "green", "conditional": "yellow", "asymptotic": "yellow", "unsound": "red"}


def claims_table(claims: Iterable[PublishedClaim]) -> Table:
    """Builds a table of published claims with their verdicts.

    Args:
        claims: The claims.
    """
    table = Table(title="Published claims", title_justify="left")
    for column in ("claim", "verdict", "says"):
        table.add_column(column, no_wrap=column == "claim")
    for claim in claims:
        table.add_row(claim.name, Text(claim.verdict, COLOURS[claim.verdict]), claim.statement)
    return table


def prifedsync_table(rows: Iterable[TableRow]) -> Table:
    """Builds tables 1 to 3 of prifedsync: the printed mu, the formula's, the certified epsilon.

    Args:
        rows: The rows of the three tables.
    """
    columns: dict[str, Justify] = {
        "table": "right",
        "p": "right",
        "sigma": "right",
        "R": "right",
        "mu printed": "right",
        "mu of the formula": "right",
        "epsilon of that mu": "right",
        "certified, everyone": "right",
        "certified, sampled": "right",
    }
    table = make_table(columns, "prifedsync, Tables 1 to 3; epsilon at delta = 1e-5")
    for row in rows:
        printed = row.printed
        table.add_row(
            str(printed.table),
            f"{printed.probability:g}",
            f"{printed.sigma:g}",
            str(printed.rounds),
            f"{printed.printed_mu:.2f}",
            f"{row.mu:.3f}",
            f"{row.limit_epsilon:.3f}",
            _round_up(row.certified_epsilon),
            _round_up(row.participating_epsilon),
        )
    return table


def _round_up(epsilon: float) -> str:
    """Returns a certified epsilon with three decimals, which is never shown below its value."""
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}"
