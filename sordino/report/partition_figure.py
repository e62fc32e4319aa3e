"""Draws the number of records that every client has of each label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.report.drawing import (
    COLOURS,
    Picture,
    add_legend,
    finish_picture,
    new_figure,
    shorten_label,
    spread_indices,
)
from sordino.report.run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

# The number of tones, of which each stands for a range of counts.
TONES = 5
# The largest number of clients that are drawn.
MOST_DRAWN = 120
# The largest number of clients and of labels in the table.
MOST_ROWS = 24
MOST_COLUMNS = 30
# Half the side of a cell, in units of the distance between two.
HALF_CELL = 0.44


def draw_partition_figure(summary: RunSummary) -> Picture | None:
    """Draws the number of records that every client has of each label; darker means more.

    Args:
        summary: Summary of a run.

    Returns:
        None where the numbers were not written down, or may not be shown.
    """
    if summary.shares is None:
        return None
    counts = summary.shares.counts
    chosen = spread_indices(len(counts), MOST_DRAWN)
    if summary.shares.classes is None:
        labels = ["records"]
        figure, axes = new_figure(2.6)
        axes.bar(np.arange(len(chosen)), counts[chosen, 0], width=0.8, color=COLOURS["blue"])
        axes.set(ylabel="training records")
    else:
        labels = [str(name) for name in summary.shares.classes]
        figure, axes = new_figure(min(4.6, 1.2 + 0.2 * len(labels)))
        draw_cells(axes, counts[chosen], labels)
    axes.grid(visible=False)
    axes.set(xlim=(-0.6, len(chosen) - 0.4), xlabel="client")
    if len(chosen) < len(counts):
        axes.set(xlabel=f"clients, {len(chosen)} of {len(counts):,}")
    ticks = spread_indices(len(chosen), 9)
    axes.set_xticks(ticks, [str(chosen[tick]) for tick in ticks])
    rows = []
    for client in spread_indices(len(counts), MOST_ROWS).tolist():
        cells = [f"{count:,}" for count in counts[client, :MOST_COLUMNS].tolist()]
        rows.append((str(client), *cells))
    description = describe_partition(counts)
    if summary.shares.classes is not None:
        median = np.median((counts > 0).sum(axis=1))
        description += (
            f" Half of the clients have records of at most {median:g} of {len(labels)} labels."
        )
    return finish_picture(
        figure,
        name="partition",
        title="The clients' records",
        description=description,
        columns=("client", *(shorten_label(name, 20) for name in labels[:MOST_COLUMNS])),
        rows=rows,
    )


def describe_partition(counts: np.ndarray) -> str:
    """Says how many records and clients there are.

    Args:
        counts: The numbers of records by client and label.

    Returns:
        A sentence.

    Example:
        >>> describe_partition(np.array([[3, 1], [2, 2]]))
        '8 training records of 2 clients, 4 each.'
    """
    totals = counts.sum(axis=1)
    each = f"{totals.min():,} to {totals.max():,} each"
    if totals.min() == totals.max():
        each = f"{totals[0]:,} each"
    return f"{int(totals.sum()):,} training records of {len(counts):,} clients, {each}."


def draw_cells(axes: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    """Draws a cell for every client and label.

    Args:
        axes: The axes to draw on.
        counts: The numbers of records by client and label.
        names: The names of the labels.
    """
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    largest = max(1, int(counts.max()))
    # The edges grow as squares, so that small counts differ in tone even next to thousands.
    edges = np.ceil(largest * (np.arange(1, TONES + 1) / TONES) ** 2).astype(int)
    tones = np.searchsorted(edges, counts)
    handles = []
    low = 1
    for tone, high in enumerate(edges.tolist()):
        fill: dict[str, Any] = {
            "facecolor": COLOURS["blue"],
            "alpha": 0.18 + 0.82 * tone / (TONES - 1),
            "linewidth": 0,
        }
        cells = np.argwhere((counts > 0) & (tones == tone)).tolist()
        if cells:
            # All cells of one tone are one path, which keeps the SVG small.
            path = Path.make_compound_path(*(_cell_path(x, y) for x, y in cells))
            axes.add_patch(PathPatch(path, **fill))
        if low <= high:
            words = f"{low}–{high}"
            if low == high:
                words = str(low)
            handles.append(Rectangle((0, 0), 1, 1, label=words, **fill))
        low = high + 1
    axes.set_ylim(len(names) - 0.5, -0.5)
    ticks = spread_indices(len(names), 20)
    axes.set_yticks(ticks, [shorten_label(names[tick], 16) for tick in ticks])
    add_legend(
        axes,
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=TONES,
        borderaxespad=0.2,
        handlelength=1.0,
        columnspacing=0.9,
    )


def _cell_path(x: int, y: int) -> Path:
    from matplotlib.path import Path

    left = x - HALF_CELL
    right = x + HALF_CELL
    low = y - HALF_CELL
    high = y + HALF_CELL
    corners = [(left, low), (right, low), (right, high), (left, high), (left, low)]
    return Path(corners, closed=True)
