"""A picture of who has what: clients against labels."""

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
BLUE, DARK, PALE = "#2a6f97", "#264653", "#eef1f4"
DIGIT = 0.062  # inches that a digit of a cell's number takes
FEW_CLIENTS = 60  # up to here cells and bars have room for a gap between them


def draw_partition(counts: np.ndarray, classes: Sequence[str] | None, path: Path) -> None:
    """Draw how many training records of each label every client has; `label_counts` gives the counts.

    Without classes (regression) only the number of records per client is drawn. The suffix of the path decides the format.

    Raises:
        UserError: a path that does not end in .png, .svg or .pdf, or that cannot be written.

    Example:
        >>> draw_partition(np.array([[30, 10], [0, 40]]), ("no", "yes"), Path("partition.png"))  # doctest: +SKIP
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"picture {str(path)!r}: expected a name that ends in {', '.join(SUFFIXES)}."
        )
    figure = _bars(counts) if classes is None else _map(counts, classes)
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise UserError(f"picture {str(path)!r} cannot be written: {error.strerror}.") from error


def _bars(counts: np.ndarray) -> Figure:
    figure = _figure(width=min(4.5 + 0.12 * len(counts), 13), height=3.6)
    axes = figure.add_subplot()
    _draw_totals(axes, counts)
    _name_clients(axes, len(counts))
    axes.set_ylabel("training records")
    axes.set_title(_title(counts), loc="left", color=DARK)
    return figure


def _map(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """How each client's records spread over the labels, darker for more; above, the records of each client where they differ."""
    clients, labels = counts.shape
    unequal = len(set(counts.sum(axis=1).tolist())) > 1
    width, body_height, top_height = (
        min(max(3.0, 0.36 * clients), 11),
        min(max(0.9, 0.28 * labels), 9),
        0.8,
    )
    heights = (top_height, body_height) if unequal else (body_height,)
    figure = _figure(width=width + 2.4, height=sum(heights) + 1.0)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights, width_ratios=(width, 0.16))
    body = figure.add_subplot(grid[-1, 0])
    _name_clients(body, clients)
    shades = _draw_cells(body, counts, classes)
    if len(str(counts.max())) * DIGIT + 0.06 <= width / clients and 0.28 * labels <= body_height:
        _write_numbers(body, counts)
    top = figure.add_subplot(grid[0, 0], sharex=body) if unequal else body
    if unequal:
        _draw_totals(top, counts)
        top.tick_params(axis="x", which="both", length=0, labelbottom=False)
        top.set_ylabel("all labels")
    top.set_title(_title(counts), loc="left", color=DARK)
    bar = figure.colorbar(shades, cax=figure.add_subplot(grid[-1, 1]), label="training records")
    bar.outline.set_visible(False)
    return figure


def _draw_cells(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> AxesImage:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    clients, labels = counts.shape
    # The palest tones are left out, and tones follow the square root: a single record is seen beside a client of thousands.
    tones = ListedColormap(colormaps["YlGnBu"](np.linspace(0.16, 1, 256)))
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
    step = -(-labels // 34)
    axes.set_yticks(range(0, labels, step), [str(name) for name in classes[::step]], fontsize=8)
    axes.set_ylabel("label")
    if clients <= FEW_CLIENTS:
        axes.set_xticks(np.arange(-0.5, clients), minor=True)
        axes.set_yticks(np.arange(-0.5, labels), minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
    return shades


def _figure(*, width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_totals(axes: Axes, counts: np.ndarray) -> None:
    clients = len(counts)
    axes.bar(
        np.arange(clients),
        counts.sum(axis=1),
        width=0.8 if clients <= FEW_CLIENTS else 1.0,
        color=BLUE,
        linewidth=0,
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.locator_params(axis="y", nbins=4, integer=True)


def _name_clients(axes: Axes, clients: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(-0.5, clients - 0.5)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=min(clients, 26), integer=True, steps=[1, 2, 5, 10])
    )
    axes.set_xlabel("client")


def _write_numbers(axes: Axes, counts: np.ndarray) -> None:
    for client, label in zip(*np.nonzero(counts), strict=True):
        count = counts[client, label]
        axes.text(
            client,
            label,
            str(count),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if 5 * count > counts.max() else DARK,
        )


def _title(counts: np.ndarray) -> str:
    totals = counts.sum(axis=1)
    each = f", {totals[0]} each" if totals.min() == totals.max() else ""
    return f"{totals.sum()} training records of {len(counts)} clients{each}"
