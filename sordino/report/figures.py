"""Draws the figures of a run's report, each with a description and a table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.guarantee import MEANINGFUL, format_delta
from sordino.protocol import View
from sordino.report.attack_figures import draw_attacks
from sordino.report.drawing import (
    COLOURS,
    MOST_POINTS,
    Picture,
    add_legend,
    cap_epsilons,
    finish_picture,
    label_epsilons,
    line_style,
    new_figure,
    select_rows,
    shorten_label,
    spread_indices,
    use_whole_numbers,
)
from sordino.report.number_formats import (
    MISSING,
    format_measurement,
    format_percent,
    format_upper_bound,
    state_epsilon,
)
from sordino.report.partition_figure import draw_partition_figure
from sordino.report.phrasing import describe_test_records
from sordino.report.run_prices import ClientSpending, choose_client_view
from sordino.report.run_summary import ALPHAS, FIVE_PERCENT, RunSummary, select_scored_rounds
from sordino.report.view_figure import draw_views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rows in the table of a trade-off curve.
TRADEOFF_ROWS = 18


def draw_figures(summary: RunSummary) -> dict[str, Picture | None]:
    """Draws all figures of a report.

    Args:
        summary: Summary of a run.

    Returns:
        The pictures by name; None where there is nothing to show.
    """
    return {
        "views": draw_views(summary),
        "tradeoff": draw_tradeoffs(summary),
        "spent": draw_spending(summary),
        "learning": draw_learning(summary),
        "clients": draw_clients(summary),
        "partition": draw_partition_figure(summary),
        "attacks": draw_attacks(summary),
    }


def draw_tradeoffs(summary: RunSummary) -> Picture:
    """Draws the error rates that no test can get below, per view, and those that audits reached.

    Args:
        summary: Summary of a run.
    """
    view, unit, _ = summary.headline
    curves = summary.curves
    figure, axes = new_figure(3.3)
    for index, (names, betas) in enumerate(curves.items()):
        axes.plot(ALPHAS, betas, label=shorten_label(names), linewidth=1.8, **line_style(index))
    axes.plot(
        [0, 1],
        [1, 0],
        color=COLOURS["muted"],
        linestyle=":",
        linewidth=1,
        label="guessing",
    )
    reached = [
        (audit, test) for audit in summary.audits if audit.unit == unit for test in audit.tests
    ]
    if reached:
        axes.scatter(
            *np.array([test for _, test in reached]).T,
            marker="x",
            s=42,
            linewidths=1.8,
            color=COLOURS["ink"],
            zorder=4,
            label="reached in the audit",
        )
    axes.set(
        xlabel="false alarms, as a share of all cases",
        ylabel="misses, at least",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
    )
    add_legend(axes, loc="upper right")
    rows: list[tuple[str, ...]] = []
    for index in spread_indices(len(ALPHAS), TRADEOFF_ROWS).tolist():
        # Lower bounds are rounded down.
        misses = [f"{math.floor(1000 * betas[index]) / 1000:.3f}" for betas in curves.values()]
        rows.append((f"{ALPHAS[index]:.2g}", *misses))
    for audit, (alarms, missed) in reached:
        text = f"{missed:.3f} reached in the audit of {audit.view}"
        rows.append((f"{alarms:.2g}", text, *[""] * (len(curves) - 1)))
    headline_curve = next(iter(curves.values()))
    missed_at_five = math.floor(100 * headline_curve[FIVE_PERCENT])
    return finish_picture(
        figure,
        name="tradeoff",
        title="How well any test can tell",
        description=f"In the view {view}, a test that says in at most 5 of 100 cases that a "
        f"{unit} was used when it was not misses it in at least {missed_at_five} of 100 cases when "
        "it was. The dotted line is guessing: the nearer a curve is to it, the less is learned.",
        columns=("false alarms", *(f"misses, {names}" for names in curves)),
        rows=rows,
    )


def draw_spending(summary: RunSummary) -> Picture | None:
    """Draws the headline's epsilon against rounds, with the budget.

    Args:
        summary: Summary of a run.

    Returns:
        None where no round was charged, or the first round alone has no meaningful limit.
    """
    view, unit, delta = summary.headline
    rounds = summary.spent.rounds
    epsilons = summary.spent.epsilons
    budget = summary.budget
    # All points would be drawn at the same height.
    if not rounds or epsilons[0] > MEANINGFUL:
        return None
    figure, axes = new_figure()
    axes.plot(
        rounds,
        cap_epsilons(epsilons),
        marker="o",
        markersize=3.5,
        linewidth=1.8,
        label="spent, at most",
        **line_style(0),
    )
    highest = max(cap_epsilons(epsilons))
    kept = ""
    if budget is not None:
        limit = min(budget.epsilon, MEANINGFUL)
        style = {"color": COLOURS["orange"], "linestyle": "--", "linewidth": 1.4}
        axes.axhline(limit, label=f"budget: {budget.epsilon:g}", **style)
        highest = max(highest, limit)
        # Training stops before a round that would exceed its budget.
        if epsilons[-1] <= budget.epsilon:
            kept = f" The budget of {budget.epsilon:g} was not exceeded."
    axes.set(
        xlabel="rounds charged",
        ylabel=label_epsilons(f"ε at δ = {format_delta(delta)}", epsilons),
        ylim=(0, 1.12 * highest),
    )
    use_whole_numbers(axes)
    add_legend(axes)
    first = f"{state_epsilon(epsilons[0])} after round {rounds[0]:,}"
    last = f"{state_epsilon(epsilons[-1])} after round {rounds[-1]:,}"
    rows = [
        (f"{count:,}", format_upper_bound(epsilon))
        for count, epsilon in zip(rounds, epsilons, strict=True)
    ]
    return finish_picture(
        figure,
        name="spent",
        title="Privacy spent, round by round",
        description=f"In the view {view}, about one {unit}, at most: {first}, {last}.{kept}",
        columns=("rounds charged", "ε, at most"),
        rows=rows,
    )


def draw_learning(summary: RunSummary) -> Picture | None:
    """Draws accuracy and loss on test records against rounds.

    Args:
        summary: Summary of a run.

    Returns:
        None where no round was scored, or scores are withheld.
    """
    scored = select_scored_rounds(summary.run)
    # Scores that the guarantee does not cover are not drawn.
    if len(scored) == 0 or summary.withheld.scores:
        return None
    metrics = summary.run.metrics
    rounds = metrics["round"][scored].astype(int) + 1
    loss = metrics["loss"][scored].astype(float)
    accuracy = metrics["accuracy"][scored].astype(float)
    # A regression has a loss and no accuracy.
    if np.isfinite(accuracy).any():
        figure, (above, below) = new_figure(3.1, rows=2)
        above.plot(rounds, 100 * accuracy, linewidth=1.8, label="global model", **line_style(2))
        above.set(ylabel="accuracy, %")
        above.set_ylim(0, 100)
        columns: tuple[str, ...] = ("round", "accuracy")
        values = [[format_percent(value) for value in accuracy]]
        score = f"accuracy {format_percent(float(accuracy[-1]))}, "
        own = metrics["own_accuracy"][scored].astype(float)
        if np.isfinite(own).any():
            above.plot(
                rounds, 100 * own, linewidth=1.8, label="personal models, mean", **line_style(0)
            )
            add_legend(above)
            columns = (*columns, "personal models, mean (not covered)")
            values.append([format_percent(value) for value in own])
        columns = (*columns, "loss")
    else:
        figure, below = new_figure()
        columns = ("round", "loss")
        values = []
        score = ""
    values.append([format_measurement(value) for value in loss])
    below.plot(rounds, loss, linewidth=1.8, **line_style(1))
    below.set(xlabel="round", ylabel="loss")
    below.set_ylim(bottom=min(0.0, float(loss.min())))
    use_whole_numbers(below)
    rows = list(zip([f"{number:,}" for number in rounds], *values, strict=True))
    return finish_picture(
        figure,
        name="learning",
        title="What the model learned",
        description=f"On {describe_test_records(summary.run)}, after round {rounds[-1]:,}: "
        f"{score}loss {format_measurement(float(loss[-1]))}.",
        columns=columns,
        rows=select_rows(rows),
    )


def draw_clients(summary: RunSummary) -> Picture | None:
    """Draws what each client has spent, against its own budget where it has one.

    Args:
        summary: Summary of a run.

    Returns:
        None where all clients have spent the same and none has a budget.
    """
    rows = summary.clients
    priced: list[tuple[int, ClientSpending, float]] = []
    for rank, row in enumerate(rows, 1):
        if row.epsilon is not None and math.isfinite(row.epsilon):
            priced.append((rank, row, row.epsilon))
    alike = len({epsilon for _, _, epsilon in priced}) < 2
    with_budgets = any(row.budget is not None for row in rows)
    if not priced or (alike and not with_budgets):
        return None
    shown = [priced[index] for index in spread_indices(len(priced), MOST_POINTS).tolist()]
    epsilons = [epsilon for _, _, epsilon in shown]
    figure, axes = new_figure()
    axes.plot(
        [rank for rank, _, _ in shown],
        cap_epsilons(epsilons),
        marker="o",
        markersize=4,
        linestyle="none",
        color=COLOURS["blue"],
        label="spent, at most",
    )
    _mark_budgets(axes, {rank: row for rank, row, _ in shown})
    axes.set(
        xlabel="clients, the most exposed first",
        ylabel=label_epsilons("ε, given who took part", epsilons),
    )
    axes.set_ylim(bottom=0)
    use_whole_numbers(axes)
    add_legend(axes)
    view = choose_client_view(summary.run, summary.headline)
    return finish_picture(
        figure,
        name="clients",
        title="What each client has spent",
        description=_describe_clients(view, priced, len(rows)),
        columns=("client", "records", "rounds", "ε, at most", "own budget"),
        rows=select_rows([_tabulate_client(row) for row in rows]),
    )


def _mark_budgets(axes: Axes, rows: Mapping[int, ClientSpending]) -> None:
    """Marks the budgets of clients, which are given by their ranks."""
    budgets = {
        rank: min(row.budget.epsilon, MEANINGFUL)
        for rank, row in rows.items()
        if row.budget is not None
    }
    if budgets:
        axes.scatter(
            list(budgets),
            list(budgets.values()),
            marker="_",
            s=70,
            linewidths=2,
            color=COLOURS["orange"],
            label="the client's budget",
        )


def _tabulate_client(row: ClientSpending) -> tuple[str, ...]:
    budget = MISSING
    if row.budget is not None:
        budget = f"{row.budget.epsilon:g}"
    return (
        str(row.client),
        f"{row.records:,}",
        f"{row.rounds:,}",
        format_upper_bound(row.epsilon),
        budget,
    )


def _describe_clients(
    view: View, priced: Sequence[tuple[int, ClientSpending, float]], clients: int
) -> str:
    """Says which client has spent the most and which the least, and how many were not priced."""
    _, most, highest = priced[0]
    _, least, lowest = priced[-1]
    text = (
        f"In the view {view}, given who took part: client {most.client} has spent the most, "
        f"at most {state_epsilon(highest)} in {most.rounds:,} rounds; client {least.client} the "
        f"least, at most {state_epsilon(lowest)} in {least.rounds:,}."
    )
    if len(priced) < clients:
        text += (
            f" {clients - len(priced)} clients have no finite bound, or would take long to price."
        )
    return text
