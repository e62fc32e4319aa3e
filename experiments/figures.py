"""Figures of experiments: means over seeds with their spread, the paper's values as crosses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_axes(*, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """Returns a figure and its axes.

    Args:
        xlabel: What is to the right.
        ylabel: What is upwards.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def draw_curve(
    axes: Any, points: Sequence[tuple[float, Sequence[float]]], *, label: str, colour: int
) -> None:
    """Draws means with their standard deviations over seeds; nothing where nothing was measured.

    Args:
        axes: To draw on.
        points: Places, each with the values of all seeds.
        label: Of the curve.
        colour: The number of its colour.
    """
    measured = [(place, values) for place, values in points if values]
    if not measured:
        return
    axes.errorbar(
        [place for place, _ in measured],
        [statistics.fmean(values) for _, values in measured],
        yerr=[statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in measured],
        marker=".",
        capsize=3,
        label=label,
        color=f"C{colour}",
    )


def draw_printed(axes: Any, points: Sequence[tuple[float, float]], *, colour: int) -> None:
    """Draws what a paper prints as crosses.

    Args:
        axes: To draw on.
        points: Places and values.
        colour: The number of the colour of the curve that they belong to.
    """
    places = [place for place, _ in points]
    values = [value for _, value in points]
    axes.plot(places, values, "x", color=f"C{colour}")


def save_figure(figure: Any, axes: Any, path: Path) -> None:
    """Adds a legend, and writes PNG and SVG side by side.

    Args:
        figure: The figure.
        axes: Its axes.
        path: Of the PNG file.
    """
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    # Without a date in them, equal figures are equal files.
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
