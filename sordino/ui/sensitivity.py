"""The command `sordino audit --sensitivity`: how far apart twins come, as a table, a plot and JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from sordino.protocol import Protocol, UserError
from sordino.report.formats import duration, percent
from sordino.ui.console import messages, print_json, results
from sordino.ui.plots import SUFFIXES
from sordino.ui.progress import LINES, whole

if TYPE_CHECKING:
    from sordino.audit.sensitivity import Sensitivity

REDRAWN = 0.2  # seconds between two redrawings of the display
FAR = 20.0  # a bound this many times above what was measured needs a logarithmic axis


def run_sensitivity(
    protocol: Protocol,
    *,
    sweep: str | None,
    values: list[Any] | None,
    seeds: int,
    out: Path,
    json: bool,
) -> None:
    """Measure the distance of twins, draw it, and print it.

    Args:
        protocol: what is trained, twice for every seed and value.
        sweep: the key that is varied, one of `sordino.audit.sensitivity.SWEEPS`; None for the protocol as it is.
        values: what it is set to, in words as in the file; by default the paper's.
        seeds: how often, from the protocol's own seed on.
        out: the plot, a .png, .svg or .pdf file; or a folder that it is written to, made if need be.
        json: print one JSON document and nothing else.

    Raises:
        UserError: a key that cannot vary, no values, fewer than one seed, a protocol that cannot be trained, no place for the plot.
    """
    from sordino.audit.sensitivity import checked_seeds, variants

    checked_seeds(seeds)
    variants(protocol, sweep, values)  # a mistake shows before a folder is made
    target = plot_path(out, sweep)
    rows = list(measured_rows(protocol, sweep, values, seeds))
    draw_sensitivity(rows, sweep, target)
    show_sensitivity(rows, sweep, json=json)
    messages.print(f"Plot: {target}", soft_wrap=True)


def measured_rows(
    protocol: Protocol,
    key: str | None,
    values: Sequence[Any] | None,
    seeds: int,
    *,
    score: bool = False,
) -> Iterator[Sensitivity]:
    """The rows of a sweep as they are found, with a live display."""
    from sordino.audit.sensitivity import sweep, variants

    work = seeds * sum(
        variant.protocol.rounds * effort(variant.protocol)
        for variant in variants(protocol, key, values)
    )
    with TwinProgress(work) as progress:
        yield from sweep(
            protocol,
            key,
            values,
            seeds=seeds,
            score=score,
            on_round=lambda plan: progress.advance(effort(plan)),
        )


def effort(protocol: Protocol) -> float:
    """What a round costs, in local steps: the measure of the time left."""
    return max(
        1.0, protocol.participation.expected(clients=protocol.clients) * protocol.local.steps
    )


def plot_path(out: Path, key: str | None) -> Path:
    """The file of the plot; its folder is made now, so that a mistake shows before anything is trained."""
    target = (
        out
        if out.suffix in SUFFIXES
        else out / (f"sensitivity-{key}.png" if key is not None else "sensitivity.png")
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {out}: the folder {target.parent} cannot be made: {error.strerror}."
        ) from None
    return target


def show_sensitivity(rows: Sequence[Sensitivity], key: str | None, *, json: bool = False) -> None:
    """Print the rows of a sweep, as a table or as JSON."""
    if json:
        print_json({"sweep": key, "rows": [row.as_document() for row in rows]})
        return
    results.print(sensitivity_table(rows, key))
    results.print(
        "Measured on one pair of data sets per seed, one record replaced; the bound holds for every pair.",
        soft_wrap=True,
    )


def sensitivity_table(rows: Sequence[Sensitivity], key: str | None) -> Table:
    """One row per value: the distance after the last round, and what it can be at most."""
    seeds, rounds = rows[0].distances.shape
    title = f"Distance of twins after {rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
    table = Table(title=title, title_justify="left")
    for column in (key or "", "mean", "spread (std)", "largest", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        spread = "unknown" if seeds == 1 else f"{row.spread[-1]:.4g}"
        table.add_row(
            shown(row.value),
            f"{row.mean[-1]:.4g}",
            spread,
            f"{row.largest[-1]:.4g}",
            f"{row.bound[-1]:.4g}",
        )
    return table


def shown(value: object) -> str:
    """A swept value in words."""
    if value is None:
        return "as it is"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def draw_sensitivity(rows: Sequence[Sensitivity], key: str | None, path: Path) -> None:
    """Draw the distance against rounds: the mean as a line, the spread as a band, the bound dashed in the same colour.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["viridis"](
        np.linspace(0, 0.85, len(rows))
    )  # differs in lightness too, so it suits every eye
    for row, colour in zip(rows, colours, strict=True):
        draw_row(axes, row, key, colour)
    axes.plot([], [], color="grey", linestyle="--", label="at most")
    logarithmic = (
        max(float(row.bound.max()) for row in rows)
        > FAR * max(float(row.largest.max()) for row in rows)
        > 0
    )
    axes.set(
        xlabel="rounds",
        ylabel="distance of the two models",
        yscale="log" if logarithmic else "linear",
    )
    axes.set_title("Twins that differ in one record: mean and spread over seeds", loc="left")
    if not logarithmic:
        axes.set_ylim(bottom=0)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None


def draw_row(axes: Any, row: Sensitivity, key: str | None, colour: Any) -> None:
    """One value of the sweep. What is zero or infinite is left out: a logarithmic axis has no place for it."""
    rounds = np.arange(1, len(row.bound) + 1)
    visible = lambda curve: np.where((curve > 0) & np.isfinite(curve), curve, np.nan)  # noqa: E731
    label = f"{key} = {shown(row.value)}" if key is not None else "measured"
    axes.plot(rounds, visible(row.mean), color=colour, label=label)
    axes.plot(rounds, visible(row.bound), color=colour, linestyle="--", linewidth=1)
    if len(row.distances) > 1:
        low = np.maximum(
            row.mean - row.spread, row.distances.min(axis=0)
        )  # a spread above the mean would reach below zero
        axes.fill_between(
            rounds,
            visible(low),
            visible(row.mean + row.spread),
            color=colour,
            alpha=0.2,
            linewidth=0,
        )


class TwinProgress:
    """Shows how much of a sweep is done and how long the rest takes. It holds the display: use it as a context.

    It redraws itself from `advance`, without a thread: worker processes are forked all along, and a fork does not go with threads.
    """

    def __init__(self, work: float) -> None:
        self._bar = Progress(
            whole("twins"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            whole("{task.percentage:.0f} %"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            whole("left"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=messages,
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=work) if messages.is_terminal else None
        self._work, self._done, self._lines = work, 0.0, 0
        self._started = self._drawn = time.monotonic()

    def __enter__(self) -> TwinProgress:
        if self._task is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._bar.stop()

    def advance(self, work: float) -> None:
        """Count some work."""
        self._done += work
        now = time.monotonic()
        if self._task is not None:
            due = now - self._drawn >= REDRAWN
            self._drawn = now if due else self._drawn
            self._bar.update(self._task, completed=self._done, refresh=due)
        elif self._done >= self._work * (self._lines + 1) / LINES:
            self._lines = int(self._done / self._work * LINES)
            spent = now - self._started
            left = spent * (self._work / self._done - 1)
            share = percent(self._done / self._work)
            messages.print(
                f"twins {share}  {duration(spent)} passed, {duration(left)} left", soft_wrap=True
            )
