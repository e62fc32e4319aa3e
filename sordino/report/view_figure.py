"""Draws what each adversary learns at most, and what audits measured, with a row per view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.privacy.guarantee import MEANINGFUL, Guarantee, format_delta
from sordino.protocol import View
from sordino.report.drawing import (
    COLOURS,
    Picture,
    add_legend,
    cap_epsilons,
    finish_picture,
    label_epsilons,
    new_figure,
)
from sordino.report.number_formats import (
    MISSING,
    format_lower_bound,
    format_upper_bound,
    state_epsilon,
)
from sordino.report.phrasing import name_adversary
from sordino.report.run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The mark and the colour of bounds about each unit, and how far below the line of its view it is
# drawn: two bounds that are equal would hide each other.
UNIT_MARKS = (("record", "o", "blue", -0.1), ("client", "D", "purple", 0.1))


def draw_views(summary: RunSummary) -> Picture:
    """Draws epsilon of every view, about a record and about a client, and what audits measured.

    Args:
        summary: Summary of a run.
    """
    _, unit, delta = summary.headline
    views = [guarantee.view for guarantee in summary.guarantees[unit]]
    epsilons = [one.epsilon(delta) for found in summary.guarantees.values() for one in found]
    figure, axes = new_figure(1.6 + 0.34 * len(views))
    _mark_bounds(axes, summary, views)
    _mark_audits(axes, summary, views)
    budget = summary.run.protocol.privacy.budget
    if budget is not None:
        axes.axvline(
            min(budget.epsilon, MEANINGFUL),
            color=COLOURS["muted"],
            linestyle="--",
            linewidth=1,
            label=f"budget {budget.epsilon:g} ({budget.view})",
        )
    # Epsilons beyond any meaning are drawn at the edge, or they would crush the others.
    if max(epsilons) > MEANINGFUL:
        lowest = min(0.5 * MEANINGFUL, float(axes.dataLim.minposx))
        axes.set_xlim(0.8 * lowest, 1.2 * MEANINGFUL)
    axes.set(
        xscale="log",
        xlabel=label_epsilons(f"ε at δ = {format_delta(delta)}", epsilons),
        # The first view is on top.
        ylim=(len(views) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(views)), [str(view) for view in views])
    _label_decades(axes)
    add_legend(
        axes,
        loc="lower center",
        bbox_to_anchor=(0.45, 1.0),
        ncols=2,
        borderaxespad=0.2,
        handletextpad=0.3,
        columnspacing=1.2,
    )
    rows = [
        (
            str(view),
            name_adversary(view),
            *format_epsilons(summary, view),
            format_measured(summary, view),
        )
        for view in views
    ]
    return finish_picture(
        figure,
        name="views",
        title="How much each adversary could learn",
        description=describe_range(summary.guarantees[unit], delta),
        columns=("view", "adversary", "ε, one record", "ε, one client", "measured, at least"),
        rows=rows,
    )


def _mark_bounds(axes: Axes, summary: RunSummary, views: Sequence[View]) -> None:
    """Marks the upper bounds of both units."""
    delta = summary.headline.delta
    for unit, marker, colour, shift in UNIT_MARKS:
        epsilons = {one.view: one.epsilon(delta) for one in summary.guarantees[unit]}
        rows = [row for row, view in enumerate(views) if view in epsilons]
        axes.scatter(
            cap_epsilons([epsilons[views[row]] for row in rows]),
            [row + shift for row in rows],
            marker=marker,
            color=COLOURS[colour],
            s=36,
            zorder=3,
            label=f"one {unit}: at most",
        )


def _mark_audits(axes: Axes, summary: RunSummary, views: Sequence[View]) -> None:
    """Marks the lower bounds in the headline's unit; those of stronger adversaries apart."""
    unit = summary.headline.unit
    # Only an adversary that sees no more than the view measures what the view reveals.
    groups = (
        (False, "orange", f"one {unit}: measured, at least"),
        (True, "muted", "measured by an adversary given more than the view"),
    )
    for given_more, colour, label in groups:
        points = [
            (min(audit.epsilon_lower, MEANINGFUL), row)
            for row, view in enumerate(views)
            for audit in summary.audits_in(view, unit, given_more=given_more)
            # A bound of zero has no place on a logarithmic axis.
            if audit.epsilon_lower
        ]
        if points:
            axes.scatter(
                [epsilon for epsilon, _ in points],
                [row for _, row in points],
                marker="|",
                s=110,
                linewidths=2,
                color=COLOURS[colour],
                zorder=4,
                label=label,
            )


def _label_decades(axes: Axes) -> None:
    """Labels powers of ten; on a short axis also 2 and 5 times each."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_xlim()
    steps: tuple[float, ...] = (1.0,)
    # Within two decades, powers of ten alone would be one or two labels.
    if high < 100 * low:
        steps = (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=7))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")


def describe_range(guarantees: Sequence[Guarantee], delta: float) -> str:
    """Says in which view the least is learned, and in which the most.

    Args:
        guarantees: One for each view, about the same unit.
        delta: Where epsilon is shown.

    Returns:
        A sentence.
    """
    least = min(guarantees, key=lambda one: one.epsilon(delta))
    most = max(guarantees, key=lambda one: one.epsilon(delta))
    low = state_epsilon(least.epsilon(delta))
    high = state_epsilon(most.epsilon(delta))
    if low == high:
        return f"At most, about one {least.unit}, in every view: {low}."
    return (
        f"At most, about one {least.unit}: {low} in the view {least.view}, where the least is "
        f"learned; {high} in the view {most.view}, where the most is."
    )


def format_epsilons(summary: RunSummary, view: View) -> tuple[str, str]:
    """Returns the epsilons of a view about a record and about a client, for people.

    Args:
        summary: Summary of a run.
        view: One of its views.

    Returns:
        Two texts, marked "(vouched)" where the bound rests on an assumption of the user's.
    """
    return _format_epsilon(summary, view, "record"), _format_epsilon(summary, view, "client")


def _format_epsilon(summary: RunSummary, view: View, unit: str) -> str:
    for guarantee in summary.guarantees[unit]:
        if guarantee.view == view:
            text = format_upper_bound(guarantee.epsilon(summary.headline.delta))
            if guarantee.condition:
                text += " (vouched)"
            return text
    return MISSING


def format_measured(summary: RunSummary, view: View) -> str:
    """Returns what audits measured in a view, in the headline's unit.

    Args:
        summary: Summary of a run.
        view: One of its views.
    """
    audits = summary.audits_in(view, summary.headline.unit)
    if not audits:
        return MISSING
    return format_lower_bound(audits[0].epsilon_lower)
