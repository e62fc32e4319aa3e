"""Shows a sweep: as a table in a terminal, as CSV, and as a figure with error bars."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sordino.federation.store.files import write_whole, writing
from sordino.privacy.guarantee import format_delta
from sordino.report.certificate_plots import save_figure
from sordino.report.drawing import COLOURS, DASHES, SERIES, new_figure
from sordino.report.number_formats import (
    MISSING,
    format_measurement,
    format_percent,
    format_upper_bound,
)
from sordino.report.phrasing import join_test_records
from sordino.report.sensitivity_plots import value_in_words
from sordino.report.terminal_tables import Justify, make_table

if TYPE_CHECKING:
    from sordino.sweeps.sweep_results import SettingSummary, Sweep

# The number of characters that fit next to the axis of a score.
LABEL_COLUMNS = 50
# The axis is logarithmic if the largest value is more than this many times the smallest.
WIDE = 8.0


def sweep_table(sweep: Sweep) -> Table:
    """Builds a table with a line for every setting.

    Args:
        sweep: What was found.

    Returns:
        The table for a terminal.
    """
    summary = sweep.summary
    keys = list(summary[0].settings)
    right: Justify = "right"
    columns = {"target epsilon" if key == "epsilon" else key: right for key in keys}
    columns |= {f"mean {sweep.score}": right, "spread (std)": right, "runs": right}
    columns |= {f"epsilon, {sweep.view}": right}
    own_models = any(math.isfinite(one.own_mean) for one in summary)
    if own_models:
        columns |= {"personal models, mean (not covered)": right, "worst of them": right}
    ended_early = any(one.ended_early for one in summary)
    if ended_early:
        columns["ended early"] = right
    title = (
        f"Scores on {join_test_records(sweep.sources)}\n"
        f"Epsilon of one run, at delta = {format_delta(sweep.delta)}"
    )
    table = make_table(columns, title)
    for one in summary:
        cells = [
            *(value_in_words(one.settings[key]) for key in keys),
            format_score(one.mean, sweep.score),
            format_score(one.spread, sweep.score) if one.runs > 1 else MISSING,
            str(one.runs),
            MISSING if math.isnan(one.epsilon) else format_upper_bound(one.epsilon),
        ]
        if own_models:
            cells += [format_percent(one.own_mean), format_percent(one.own_worst)]
        if ended_early:
            cells.append(str(one.ended_early))
        table.add_row(*cells)
    return table


def format_score(value: float, score: str) -> str:
    """Returns a score for people.

    Args:
        value: The score, or its spread.
        score: The name of the score.
    """
    if score == "accuracy":
        return format_percent(value)
    return format_measurement(value)


def write_sweep_files(sweep: Sweep) -> list[Path]:
    """Writes the CSV file and the figures of a sweep into its folder.

    Args:
        sweep: What was found.

    Returns:
        The files.

    Raises:
        UserError: One of them cannot be written.
    """
    table = sweep.folder / "sweep.csv"
    with writing(table):
        write_whole(table, sweep_csv(sweep).encode())
    pictures = [sweep.folder / "sweep.png", sweep.folder / "sweep.svg"]
    draw_sweep(sweep, pictures)
    return [table, *pictures]


def sweep_csv(sweep: Sweep) -> str:
    """Returns all rows of a sweep as CSV.

    Args:
        sweep: What was found.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = list(sweep.rows[0].settings)
    # A target and what was spent are both called epsilon, and need two columns.
    heads = ["target epsilon" if key == "epsilon" else key for key in keys]
    facts = ["seed", "accuracy", "loss", "tested_on", "epsilon", "view", "status", "run"]
    # No guarantee covers the accuracies of clients' personal models.
    facts += ["own_accuracy", "own_worst", "own_spread"]
    writer.writerow([*heads, *facts])
    for row in sweep.rows:
        settings = [row.settings[key] for key in keys]
        writer.writerow([*settings, *(getattr(row, name) for name in facts)])
    return text.getvalue()


def draw_sweep(sweep: Sweep, paths: Sequence[Path]) -> None:
    """Draws the score against one key, a line for every combination of the others.

    Args:
        sweep: What was found.
        paths: The files, whose suffixes determine the formats.

    Raises:
        UserError: A file cannot be written.
    """
    summary = sweep.summary
    key = choose_axis(summary)
    figure, axes = new_figure(4.0, width=6.5)
    figure.patch.set_alpha(1)
    lines: dict[str, list[SettingSummary]] = {}
    for one in summary:
        others = [
            f"{name} = {value_in_words(v)}" for name, v in one.settings.items() if name != key
        ]
        lines.setdefault(", ".join(others), []).append(one)
    positions = place_values([one.settings[key] for one in summary])
    for index, (label, points) in enumerate(lines.items()):
        axes.errorbar(
            [positions[repr(one.settings[key])] for one in points],
            [one.mean for one in points],
            # The spread of a single seed is not known, so its bar has no length.
            yerr=[0.0 if math.isnan(one.spread) else one.spread for one in points],
            label=label or sweep.score,
            color=COLOURS[SERIES[index % len(SERIES)]],
            linestyle=DASHES[index // len(SERIES) % len(DASHES)],
            marker="o",
            markersize=4,
            capsize=3,
        )
    name_axis(axes, key, [one.settings[key] for one in summary], sweep)
    # The picture is shown without its table, so it must say whose records were scored.
    label = f"{sweep.score} on {join_test_records(sweep.sources)}"
    axes.set_ylabel(textwrap.fill(label, LABEL_COLUMNS))
    axes.set_title("Mean over seeds; bars: one standard deviation", loc="left", fontsize=9.5)
    if len(lines) > 1:
        axes.legend(fontsize=8)
    for path in paths:
        save_figure(figure, path)


def choose_axis(summary: Sequence[SettingSummary]) -> str:
    """Returns the key of the horizontal axis: the target epsilon, or the key with most values.

    Args:
        summary: Summary of every setting.
    """
    keys = list(summary[0].settings)
    if "epsilon" in keys:
        return "epsilon"
    return max(keys, key=lambda key: len({repr(one.settings[key]) for one in summary}))


def place_values(values: Sequence[Any]) -> dict[str, float]:
    """Returns the positions of values on an axis: numbers as they are, words side by side.

    Args:
        values: The values of one key.

    Returns:
        The positions, by the representations of the values.

    Example:
        >>> place_values(["iid", "shards", "iid"])
        {"'iid'": 0.0, "'shards'": 1.0}
    """
    if are_numbers(values):
        return {repr(value): float(value) for value in values}
    return {text: float(index) for index, text in enumerate(dict.fromkeys(map(repr, values)))}


def are_numbers(values: Sequence[Any]) -> bool:
    """Returns whether all values are numbers; truth values count as words.

    Args:
        values: The values of one key.
    """
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)


def name_axis(
    axes: Any,
    key: str,
    values: Sequence[Any],
    sweep: Sweep,
) -> None:
    """Labels the horizontal axis and its ticks.

    Args:
        axes: The axes of the figure.
        key: The key of the horizontal axis.
        values: All values of that key.
        sweep: The sweep, whose view and delta belong to a target.
    """
    label = key
    if key == "epsilon":
        label = f"epsilon in the view {sweep.view}, delta = {format_delta(sweep.delta)}"
    axes.set_xlabel(label)
    places = place_values(values)
    words = {repr(value): value_in_words(value) for value in values}
    if are_numbers(values) and min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(list(places.values()), [words[text] for text in places])
