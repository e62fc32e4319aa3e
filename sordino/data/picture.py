"""Draws which client has which records: clients against labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.protocol import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

SUFFIXES = (".png", ".svg", ".pdf")
BLUE = "#2a6f97"
DARK = "#264653"
PALE = "#eef1f4"
# How many inches a digit of a cell's number takes.
DIGIT_WIDTH = 0.062
# Up to this number of clients, cells and bars have room for a gap between them.
FEW_CLIENTS = 60


def draw_partition(counts: np.ndarray, classes: Sequence[str] | None, path: Path) -> None:
    """Draws how many training records of each label every client has.

    Args:
        counts: What `label_counts` returned.
        classes: The names of the classes; None for a regression, of which only the number of
            records of each client is drawn.
        path: The file; its suffix decides the format.

    Raises:
        UserError: A path that does not end in .png, .svg or .pdf, or that cannot be written.

    Example:
        >>> counts = np.array([[30, 10], [0, 40]])
        >>> draw_partition(counts, ("no", "yes"), Path("partition.png"))  # doctest: +SKIP
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"picture {str(path)!r}: expected a name that ends in {', '.join(SUFFIXES)}."
        )
    if classes is None:
        figure = _draw_bars(counts)
    else:
        figure = _draw_map(counts, classes)
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise UserError(f"picture {str(path)!r} cannot be written: {error.strerror}.") from error


def _draw_bars(counts: np.ndarray) -> Figure:
    """Returns a figure of the number of records of each client."""
    figure = _make_figure(width=min(4.5 + 0.12 * len(counts), 13), height=3.6)
    axes = figure.add_subplot()
    _draw_totals(axes, counts)
    _name_clients(axes, len(counts))
    axes.set_ylabel("training records")
    axes.set_title(_make_title(counts), loc="left", color=DARK)
    return figure


def _draw_map(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Returns a figure of how each client's records spread over the labels, darker for more.

    Above is the number of records of each client, where they differ.
    """
    clients, labels = counts.shape
    unequal = len(set(counts.sum(axis=1).tolist())) > 1
    width = min(max(3.0, 0.36 * clients), 11)
    body_height = min(max(0.9, 0.28 * labels), 9)
    heights = [body_height]
    if unequal:
        heights.insert(0, 0.8)
    figure = _make_figure(width=width + 2.4, height=sum(heights) + 1.0)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=(width, 0.16))
    body = figure.add_subplot(grid[-1, 0])
    _name_clients(body, clients)
    shades = _draw_cells(body, counts, classes)
    number_width = len(str(counts.max())) * DIGIT_WIDTH + 0.06
    # Numbers that do not fit into their cells would cover one another.
    if number_width <= width / clients and 0.28 * labels <= body_height:
        _write_numbers(body, counts)
    top = body
    if unequal:
        # Where all clients have equally many records, bars would all be the same.
        top = figure.add_subplot(grid[0, 0], sharex=body)
        _draw_totals(top, counts)
        top.tick_params(
            axis="x",
            which="both",
            length=0,
            labelbottom=False,
        )
        top.set_ylabel("all labels")
    top.set_title(_make_title(counts), loc="left", color=DARK)
    bar = figure.colorbar(shades, cax=figure.add_subplot(grid[-1, 1]), label="training records")
    bar.outline.set_visible(False)
    return figure


def _draw_cells(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> AxesImage:
    """Draws one cell for each client and label."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    clients, labels = counts.shape
    # The palest tones are left out, and tones follow the square root: a single record is seen
    # next to a client of thousands.
    tones = ListedColormap(colormaps["YlGnBu"](np.linspace(0.16, 1, 256)))
    # Zero has no tone: an empty cell shows the background.
    present = np.ma.masked_equal(counts.T, 0)
    shades = axes.imshow(
        present,
        cmap=tones,
        norm=PowerNorm(0.5, vmin=0, vmax=counts.max()),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor(PALE)
    axes.spines[:].set_visible(False)
    # At most 34 names fit one above the other.
    step = -(-labels // 34)
    names = [str(name) for name in classes[::step]]
    axes.set_yticks(range(0, labels, step), names, fontsize=8)
    axes.set_ylabel("label")
    if clients <= FEW_CLIENTS:
        axes.set_xticks(np.arange(-0.5, clients), minor=True)
        axes.set_yticks(np.arange(-0.5, labels), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
    return shades


def _make_figure(*, width: float, height: float) -> Figure:
    """Returns an empty figure, its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    # An explicit canvas draws without pyplot, whose global state belongs to the caller.
    FigureCanvasAgg(figure)
    return figure


def _draw_totals(axes: Axes, counts: np.ndarray) -> None:
    """Draws the number of records of each client as bars."""
    clients = len(counts)
    width = 0.8 if clients <= FEW_CLIENTS else 1.0
    axes.bar(np.arange(clients), counts.sum(axis=1), width=width, color=BLUE, linewidth=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.locator_params(axis="y", nbins=4, integer=True)


def _name_clients(axes: Axes, clients: int) -> None:
    """Numbers the clients along the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(-0.5, clients - 0.5)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=min(clients, 26), integer=True, steps=[1, 2, 5, 10])
    )
    axes.set_xlabel("client")


def _write_numbers(axes: Axes, counts: np.ndarray) -> None:
    """Writes the number of records into each cell."""
    for client, label in zip(*np.nonzero(counts), strict=True):
        count = counts[client, label]
        # White on dark cells.
        colour = "white" if 5 * count > counts.max() else DARK
        axes.text(
            client,
            label,
            str(count),
            ha="center",
            va="center",
            fontsize=7,
            color=colour,
        )


def _make_title(counts: np.ndarray) -> str:
    """Returns the title: how many records and clients there are."""
    totals = counts.sum(axis=1)
    each = ""
    if totals.min() == totals.max():
        each = f", {totals[0]} each"
    return f"{totals.sum()} training records of {len(counts)} clients{each}"
