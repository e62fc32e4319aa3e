"""Draws the tables of convergent-dp: what was measured as lines, the paper's values as crosses."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
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
    """Returns a picture of distances against rounds.

    Args:
        table: Its name.
        results: Of the table.
    """
    groups = group_cells(results)
    figure, axes, colours = make_axes(len(groups))
    for ((cell, *_), lines), colour in zip(groups.items(), colours, strict=True):
        rounds = sorted({line.rounds for line in lines})
        seeds = [distances_at(lines, number) for number in rounds]
        means = [statistics.mean(values) for values in seeds]
        axes.plot(rounds, means, color=colour, marker=".", label=cell)
        low = [min(values) for values in seeds]
        high = [max(values) for values in seeds]
        axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
        printed = [(number, find_distance(table, cell, number)) for number in rounds]
        mark_printed(axes, printed, colour)
    axes.set(xlabel="rounds", ylabel="distance of twins", yscale="log")
    finish_axes(axes, table)
    return figure


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
    figure, axes, colours = make_axes(len(curves))
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


def make_axes(curves: int) -> tuple[Any, Any, Any]:
    """Returns a figure, its axes and a colour for each curve.

    Args:
        curves: How many.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    # These colours differ in lightness too, so that the colour-blind can tell them apart.
    return figure, figure.subplots(), colormaps["viridis"](np.linspace(0, 0.9, curves))


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
