"""Draws what attacks on a run reached."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sordino.report.drawing import (
    COLOURS,
    MOST_POINTS,
    Picture,
    add_legend,
    finish_picture,
    line_style,
    new_figure,
    shorten_label,
    spread_indices,
)
from sordino.report.evidence import AttackResult, Plot
from sordino.report.number_formats import MISSING, format_measurement
from sordino.report.run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The largest number of attacks in one picture, and of plots in one page.
MOST_ATTACKS = 20
MOST_PLOTS = 12


def draw_attacks(summary: RunSummary) -> Picture | None:
    """Draws what attacks reached, and what is reached without seeing anything of the run.

    Args:
        summary: Summary of a run.

    Returns:
        None where there was no attack.
    """
    attacks = summary.attacks
    if not attacks:
        return None
    shown = attacks[:MOST_ATTACKS]
    figure, axes = new_figure(0.8 + 0.34 * len(shown))
    for row, attack in enumerate(shown):
        # An infinite value has no place on a common axis; the table below has it.
        if math.isfinite(attack.baseline) and math.isfinite(attack.value):
            _mark_attack(axes, row, attack)
    # Marks without points, only for the legend.
    axes.scatter([], [], marker="|", color=COLOURS["muted"], label="without seeing anything")
    axes.scatter([], [], marker="o", color=COLOURS["orange"], label="the attack")
    labels = [shorten_label(f"{attack.name}, {attack.metric}", 34) for attack in shown]
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel="share of the larger of the two")
    # Values such as a worsening of the loss may be negative.
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), 1.05)
    add_legend(
        axes,
        loc="lower center",
        bbox_to_anchor=(0.3, 1.0),
        ncols=2,
        borderaxespad=0.2,
    )
    rows = []
    reached = []
    for attack in attacks:
        value = format_measurement(attack.value)
        baseline = format_measurement(attack.baseline)
        rows.append((attack.name, attack.metric, value, baseline, attack.paper or MISSING))
        reached.append(f"{attack.name}, {attack.metric} {value}, baseline {baseline}")
    return finish_picture(
        figure,
        name="attacks",
        title="What attacks reached",
        # A printed page has no table of these numbers.
        description="What each attack reached, and the baseline of an attacker who sees nothing of "
        f"the run: {'; '.join(reached)}.",
        columns=("attack", "metric", "reached", "baseline", "from"),
        rows=rows,
    )


def _mark_attack(axes: Axes, row: int, attack: AttackResult) -> None:
    """Marks the value and the baseline of an attack, as shares of the larger of the two."""
    # Metrics have different units, so no scale is common to all rows.
    scale = max(abs(attack.baseline), abs(attack.value)) or 1.0
    baseline = attack.baseline / scale
    value = attack.value / scale
    axes.plot([baseline, value], [row, row], color=COLOURS["line"], linewidth=3, zorder=1)
    axes.scatter(baseline, row, marker="|", s=90, linewidths=2, color=COLOURS["muted"], zorder=2)
    axes.scatter(value, row, marker="o", s=36, color=COLOURS["orange"], zorder=3)


def draw_attack_plots(summary: RunSummary) -> list[Picture]:
    """Draws the plots that attacks left in the run's folder.

    Args:
        summary: Summary of a run.
    """
    plots = []
    for attack in summary.attacks:
        # A plot shows every amount of noise, so its title names none.
        name = attack.name.partition(", noise")[0]
        plots += [(name, plot) for plot in attack.plots]
    # A run that was attacked many times must not make a page of hundreds of pictures.
    return [
        draw_plot(f"attack-plot-{number}", name, plot)
        for number, (name, plot) in enumerate(plots[:MOST_PLOTS])
    ]


def draw_plot(name: str, attack: str, plot: Plot) -> Picture:
    """Draws one plot of an attack.

    Args:
        name: The name of the picture, unique in its page.
        attack: The name of the attack.
        plot: The plot, as it was read.
    """
    figure, axes = new_figure()
    rows: list[tuple[str, ...]] = []
    for index, (line, (xs, ys)) in enumerate(plot.lines.items()):
        kept = spread_indices(len(xs), MOST_POINTS).tolist()
        style = line_style(index)
        if len(kept) == 1:
            # A line of one point would not be seen.
            style["marker"] = "o"
        axes.plot(
            [xs[at] for at in kept],
            [ys[at] for at in kept],
            label=shorten_label(line),
            linewidth=1.6,
            **style,
        )
        for at in spread_indices(len(xs), 12).tolist():
            rows.append((line, format_measurement(xs[at]), format_measurement(ys[at])))
    axes.set(xlabel=shorten_label(plot.x_label, 60), ylabel=shorten_label(plot.y_label, 40))
    if plot.logarithmic:
        axes.set(xscale="log", yscale="log")
    if plot.lines:
        add_legend(axes)
    return finish_picture(
        figure,
        name=name,
        title=f"{attack}: {plot.title}",
        description=f"{plot.y_label} against {plot.x_label}; lines: {', '.join(plot.lines)}.",
        columns=("line", "x", "y"),
        rows=rows,
    )
