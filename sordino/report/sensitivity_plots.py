"""Shows the distance of twins: as a table in a terminal, and as a plot against rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from sordino.protocol import UserError
from sordino.protocol.file import toml_value
from sordino.report.certificate_plots import SUFFIXES, save_figure

if TYPE_CHECKING:
    from sordino.audit.twin_sweeps import Sensitivity

# The axis is logarithmic if a bound is more than this many times as large as the measurements.
FAR = 20.0


def plot_path(out: Path, key: str | None) -> Path:
    """Returns the file of a plot, and makes its folder.

    The folder is made before anything is trained, so that a mistake shows at once.

    Args:
        out: A file whose suffix is that of a picture, or a folder.
        key: The key that is varied; None if none is.

    Returns:
        The file.

    Raises:
        UserError: The folder cannot be made.
    """
    target = out
    # A name without a known ending is a folder.
    if out.suffix not in SUFFIXES:
        target = out / default_plot_name(key)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {out}: the folder {target.parent} cannot be made: {error.strerror}."
        ) from None
    return target


def default_plot_name(key: str | None) -> str:
    """Returns the name of the file of a plot.

    Args:
        key: The key that is varied; None if none is.
    """
    if key is None:
        return "sensitivity.png"
    return f"sensitivity-{key}.png"


def sensitivity_table(rows: Sequence[Sensitivity], key: str | None) -> Table:
    """Builds a table of distances after the last round, and of their bounds.

    Args:
        rows: The distances for every value of the key.
        key: The key that is varied; None if none is.

    Returns:
        The table for a terminal.
    """
    seeds, rounds = rows[0].distances.shape
    title = f"Distance of twins after {rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
    table = Table(title=title, title_justify="left")
    for column in (key or "", "mean", "spread (std)", "largest", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            value_in_words(row.value),
            f"{row.mean[-1]:.4g}",
            "unknown" if seeds == 1 else f"{row.spread[-1]:.4g}",
            f"{row.largest[-1]:.4g}",
            f"{row.bound[-1]:.4g}",
        )
    return table


def value_in_words(value: object) -> str:
    """Returns a swept value in words.

    Args:
        value: A number, a text, a table, or None where nothing is varied.
    """
    if value is None:
        return "as it is"
    if isinstance(value, dict):
        return toml_value(value)
    if isinstance(value, (int, float)):
        return f"{value:g}"
    return str(value)


def draw_sensitivity(rows: Sequence[Sensitivity], key: str | None, path: Path) -> None:
    """Draws distances against rounds: means as lines, spreads as bands, bounds dashed.

    Args:
        rows: The distances for every value of the key, each drawn in another colour.
        key: The key that is varied; None if none is.
        path: The file, whose suffix determines the format.

    Raises:
        UserError: The file cannot be written.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    # These colours differ in lightness as well, so that everybody can tell them apart.
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(rows)))
    for row, colour in zip(rows, colours, strict=True):
        draw_row(axes, row, key, colour)
    axes.plot([], [], color="grey", linestyle="--", label="at most")
    highest_bound = max(float(row.bound.max()) for row in rows)
    highest_measured = max(float(row.largest.max()) for row in rows)
    # A bound far above the measurements would press them to the ground.
    logarithmic = highest_bound > FAR * highest_measured > 0
    axes.set(
        xlabel="rounds",
        ylabel="distance of the two models",
        yscale="log" if logarithmic else "linear",
    )
    axes.set_title("Twins that differ in one record: mean and spread over seeds", loc="left")
    if not logarithmic:
        axes.set_ylim(bottom=0)
    axes.legend()
    save_figure(figure, path)


def draw_row(
    axes: Any,
    row: Sensitivity,
    key: str | None,
    colour: Any,
) -> None:
    """Draws one value of a sweep.

    Args:
        axes: The axes to draw on.
        row: The value with its distances.
        key: The key that is varied; None if none is.
        colour: The colour of its line, band and bound.
    """
    rounds = np.arange(1, len(row.bound) + 1)
    label = f"{key} = {value_in_words(row.value)}" if key is not None else "measured"
    axes.plot(rounds, _hide_undrawable(row.mean), color=colour, label=label)
    axes.plot(rounds, _hide_undrawable(row.bound), color=colour, linestyle="--", linewidth=1)
    if len(row.distances) > 1:
        # A spread above the mean would reach below zero.
        low = np.maximum(row.mean - row.spread, row.distances.min(axis=0))
        axes.fill_between(
            rounds,
            _hide_undrawable(low),
            _hide_undrawable(row.mean + row.spread),
            color=colour,
            alpha=0.2,
            linewidth=0,
        )


def _hide_undrawable(curve: np.ndarray) -> np.ndarray:
    """Replaces zeros and infinities by nan: a logarithmic axis has no place for them."""
    return np.where((curve > 0) & np.isfinite(curve), curve, np.nan)
