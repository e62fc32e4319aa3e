"""Draws the tables of convergent-dp: what was measured as lines, the paper's values as crosses."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from experiments.convergent.published import find_accuracy, find_distance
from experiments.convergent.results import Result, read_results
from experiments.convergent.showing import distances_at, group_cells

SUFFIXES = ("png", "svg")


def draw_tables(folder: Path, tables: Sequence[str], target: Path) -> None:
    """Draws every table of which something was measured, as PNG and as SVG.

    Args:
        folder: Of the files.
        tables: Their names.
        target: The folder of the pictures.
    """
    for table in tables:
        results = read_results(folder, table)
        if not results:
            continue
        twins = results[0].distance is not None
        figure = draw_distances(table, results) if twins else draw_accuracies(table, results)
        for suffix in SUFFIXES:
            name = table.replace("-", "_")
            figure.savefig(target / f"convergent_{name}.{suffix}", dpi=120, metadata={})


def draw_distances(table: str, results: Sequence[Result]) -> Any:
    """Returns a picture of distances against rounds, with a panel for every quantity that varies.

    Args:
        table: Its name.
        results: Of the table.
    """
    groups = group_cells(results)
    panels = split_panels([cell for cell, *_ in groups])
    figure, all_axes = make_panels(len(panels))
    for axes, cells in zip(all_axes, panels, strict=True):
        shown = {group: lines for group, lines in groups.items() if group[0] in cells}
        for ((cell, *_), lines), colour in zip(shown.items(), pick_colours(shown), strict=True):
            draw_distance(axes, table, cell, lines, colour)
        axes.plot([], [], "x", color="grey", label="the paper's")
        axes.set(xlabel="rounds", yscale="log")
        axes.legend(fontsize="small")
    all_axes[0].set_ylabel("distance of twins")
    all_axes[0].set_title(f"convergent-dp, {table.replace('-', ' ')}", loc="left")
    return figure


def split_panels(cells: Sequence[str]) -> list[list[str]]:
    """Returns the cells of every panel: those in which one quantity varies, and what it starts from.

    Args:
        cells: Their names; one that names several quantities is what the others start from.

    Example:
        >>> split_panels(["m=20 K=5", "K=2", "K=10", "m=50"])
        [['m=20 K=5', 'K=2', 'K=10'], ['m=20 K=5', 'm=50']]
        >>> split_panels(["m=20 S=1", "m=20 S=2", "m=50 S=1"])
        [['m=20 S=1', 'm=20 S=2'], ['m=50 S=1']]
        >>> split_panels(["constant", "cyclic"])
        [['constant', 'cyclic']]
    """
    starts = [cell for cell in cells if " " in cell]
    varied: dict[str, list[str]] = {}
    if len(starts) == len(cells) > 1:
        # Two quantities vary in all cells: a panel for each value of the first.
        for cell in cells:
            varied.setdefault(cell.split(" ")[0], []).append(cell)
        return list(varied.values())
    for cell in cells:
        if cell not in starts and "=" in cell:
            varied.setdefault(cell.split("=")[0], []).append(cell)
    if len(starts) != 1 or len(varied) < 2:
        return [list(cells)]
    return [[*starts, *members] for members in varied.values()]


def draw_distance(axes: Any, table: str, cell: str, lines: Sequence[Result], colour: Any) -> None:
    """Draws the distance of a cell's twins: mean and range over seeds, and the paper's values.

    Args:
        axes: To draw on.
        table: Its name.
        cell: The name of the cell.
        lines: Of the cell.
        colour: Of the curve.
    """
    rounds = sorted({line.rounds for line in lines})
    seeds = [distances_at(lines, number) for number in rounds]
    axes.plot(rounds, list(map(statistics.mean, seeds)), color=colour, marker=".", label=cell)
    axes.fill_between(
        rounds, list(map(min, seeds)), list(map(max, seeds)), color=colour, alpha=0.2, linewidth=0
    )
    printed = [(number, find_distance(table, cell, number)) for number in rounds]
    mark_printed(axes, printed, colour)


def draw_accuracies(table: str, results: Sequence[Result]) -> Any:
    """Returns a picture of accuracies against noise, a line for clients, steps and schedule.

    Args:
        table: Its name.
        results: Of the table.
    """
    curves: dict[tuple[str, str], dict[float, list[Result]]] = {}
    for (cell, _, schedule), lines in group_cells(results).items():
        federation, sigma = re.fullmatch(r"(.*) sigma=(.*)", cell).groups()  # type: ignore[union-attr]
        curves.setdefault((federation, schedule), {})[float(sigma)] = lines
    figure, (axes,) = make_panels(1)
    colours = pick_colours(curves)
    for ((federation, schedule), points), colour in zip(curves.items(), colours, strict=True):
        # No noise has no place on a logarithmic axis.
        sigmas = sorted(sigma for sigma in points if sigma > 0)
        means = [statistics.mean(line.accuracy or 0.0 for line in points[s]) for s in sigmas]
        axes.plot(sigmas, means, color=colour, marker=".", label=f"{federation}, {schedule}")
        printed = [(s, find_accuracy(table, points[s][0].cell)) for s in sigmas]
        mark_printed(axes, printed, colour)
    axes.set(xlabel="sigma", ylabel="accuracy, %", xscale="log")
    finish_axes(axes, table)
    return figure


def make_panels(count: int) -> tuple[Any, list[Any]]:
    """Returns a figure and its axes, side by side.

    Args:
        count: How many panels.
    """
    from matplotlib.figure import Figure

    width = 8 if count == 1 else 3.2 * count
    figure = Figure(figsize=(width, 5 if count == 1 else 4), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def pick_colours(curves: Sized) -> Any:
    """Returns a colour for each curve.

    Args:
        curves: All of a panel.
    """
    from matplotlib import colormaps

    # These colours differ in lightness too, so that the colour-blind can tell them apart.
    return colormaps["viridis"](np.linspace(0, 0.9, len(curves)))


def mark_printed(axes: Any, printed: list[tuple[Any, float | None]], colour: Any) -> None:
    """Draws the paper's values as crosses, in the colour of the curve that they belong to.

    Args:
        axes: To draw on.
        printed: Places and values; None where the paper prints none.
        colour: Of the curve.
    """
    known = [(place, value) for place, value in printed if value is not None]
    places = [place for place, _ in known]
    values = [value for _, value in known]
    axes.plot(places, values, "x", color=colour)


def finish_axes(axes: Any, table: str) -> None:
    """Adds title and legend.

    Args:
        axes: To draw on.
        table: Its name.
    """
    axes.plot([], [], "x", color="grey", label="the paper's")
    axes.set_title(f"convergent-dp, {table.replace('-', ' ')}", loc="left")
    axes.legend(fontsize="small")
