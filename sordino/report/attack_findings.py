"""Shows the findings of attacks in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from sordino.report.number_formats import format_percent

if TYPE_CHECKING:
    from sordino.attacks.attack import Row
    from sordino.attacks.suite import AttackFinding

# Metrics that are shares, and are shown in percent.
SHARES = {"accuracy", "F1", "agreement", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "success rate"}
# The method of an adversary that has only prior knowledge.
NOTHING = "sees nothing"


def findings_table(finding: AttackFinding) -> Table:
    """Builds a table of what one attack got.

    Args:
        finding: Finding of one attack, on one or more runs.

    Returns:
        A table with a line for every noise, round and method; below them the result of
        guessing, without the run.
    """
    metrics = list(dict.fromkeys(row.metric for row in finding.rows))
    table = Table()
    for column in ("noise", "round", "method", *metrics):
        table.add_column(column, justify="left" if column == "method" else "right")
    groups = sorted({(row.noise, row.round) for row in finding.rows})
    for noise, number in groups:
        rows = [row for row in finding.rows if (row.noise, row.round) == (noise, number)]
        _add_group(table, metrics, (f"{noise:g}", str(number)), method_lines(rows))
    return table


def _add_group(
    table: Table,
    metrics: list[str],
    head: tuple[str, str],
    lines: dict[str, dict[str, str]],
) -> None:
    """Adds the lines of one noise and round; only the first line names them."""
    for number, (method, cells) in enumerate(lines.items()):
        table.add_row(
            *(head if number == 0 else ("", "")),
            method,
            *(cells.get(metric, "") for metric in metrics),
            style="dim" if method == NOTHING else None,
            end_section=number == len(lines) - 1,
        )


def method_lines(rows: list[Row]) -> dict[str, dict[str, str]]:
    """Arranges rows of one noise and round by method.

    Args:
        rows: One for every method and metric.

    Returns:
        Per method its metrics as texts; then what a paper prints, where it does, and the
        result of guessing.
    """
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        # An attack with a single method does not name it.
        method = row.method or "attack"
        lines.setdefault(method, {})[row.metric] = format_metric(row.metric, row.value)
    for row in rows:
        if row.printed is not None:
            # A paper may have several tables for one attack; the first one names the line.
            paper = row.paper.partition(";")[0]
            lines.setdefault(paper, {})[row.metric] = format_metric(row.metric, row.printed)
    for row in rows:
        baseline = format_metric(row.metric, row.baseline)
        # The baseline is the same for all methods of a metric.
        lines.setdefault(NOTHING, {}).setdefault(row.metric, baseline)
    return lines


def format_metric(metric: str, value: float) -> str:
    """Returns a value for people: shares in percent.

    Args:
        metric: Its name.
        value: The number.
    """
    if metric in SHARES:
        return format_percent(value)
    return f"{value:.3g}"
