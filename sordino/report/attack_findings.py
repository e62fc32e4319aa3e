"""Shows the findings of attacks in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from sordino.report.number_formats import format_percent

if TYPE_CHECKING:
    from sordino.attacks.attack import Row
    from sordino.attacks.suite import AttackFinding

# Metrics that are shares, which are shown in percent.
SHARES = {"accuracy", "F1", "agreement", "TPR at 1 % FPR", "TPR at 0.1 % FPR", "success rate"}
# The method of an adversary that has only prior knowledge.
NOTHING = "sees nothing"


def findings_table(finding: AttackFinding) -> Table:
    """Builds a table of what one attack reached.

    Args:
        finding: The finding of one attack, on one or more runs.

    Returns:
        A table with a line for every noise, round and method; the last line of a round is the
        result of guessing, without the run.
    """
    metrics = list(dict.fromkeys(row.metric for row in finding.rows))
    table = Table()
    for column in ("noise", "round", "method", *metrics):
        table.add_column(column, justify="left" if column == "method" else "right")
    groups: dict[tuple[float, int], list[Row]] = {}
    for row in finding.rows:
        groups.setdefault((row.noise, row.round), []).append(row)
    for noise, number in sorted(groups):
        head = [f"{noise:g}", str(number)]
        for method, cells in method_lines(groups[noise, number]).items():
            values = [cells.get(metric, "") for metric in metrics]
            style = "dim" if method == NOTHING else None
            table.add_row(*head, method, *values, style=style)
            # Only the first line of a group names its noise and its round.
            head = ["", ""]
        table.add_section()
    return table


def method_lines(rows: list[Row]) -> dict[str, dict[str, str]]:
    """Arranges rows of one noise and round by method.

    Args:
        rows: A row for every method and metric.

    Returns:
        The metrics as texts, by method; then those that a paper prints, by the name of the paper;
        and last those of guessing.
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
    """Returns the value of a metric for people; shares are in percent.

    Args:
        metric: The name of the metric.
        value: Its value.
    """
    if metric in SHARES:
        return format_percent(value)
    return f"{value:.3g}"
