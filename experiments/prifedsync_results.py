"""Prints and draws what experiments/prifedsync.csv holds, the paper's values beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Row, select_rows
from experiments.figures import draw_printed, make_axes, save_figure
from experiments.markdown_tables import print_header, print_row
from experiments.prifedsync_cells import TARGETS
from sordino import Data
from sordino.data import load_dataset, partition
from sordino.papers.prifedsync_tables import PRINTED, PrintedRow
from sordino.protocol import Dirichlet
from sordino.randomness import Key

# The accuracies in percent that the paper prints, with noise and without (Tables 1 and 3).
ACCURACIES = {
    1: (
        *((90.03, 98.74), (90.25, 98.72), (90.10, 98.55)),
        *((90.02, 98.90), (90.02, 98.83), (90.11, 98.54)),
        *((90.00, 98.75), (90.00, 98.75), (90.04, 98.55)),
    ),
    3: (
        *((52.03, 64.72), (52.22, 62.55), (52.23, 59.61)),
        *((52.07, 64.65), (52.04, 62.53), (52.01, 59.85)),
    ),
}
# Clients whose labels Figure 6a shows.
SHOWN_CLIENTS = 10


def find_cells(rows: Sequence[Row], printed: PrintedRow, model: str) -> list[Row]:
    """Returns the lines of a printed row, one for each seed, without those of a quick look.

    Args:
        rows: Of the file.
        printed: Of the paper's tables.
        model: Of the registry.
    """
    return select_rows(
        rows,
        data=name_data(printed),
        model=model,
        probability=printed.probability,
        sigma=printed.sigma,
        batch=printed.batch,
    )


def name_data(printed: PrintedRow) -> str:
    """Returns the data set of a printed row.

    Args:
        printed: Of the paper's tables.
    """
    return "cifar10" if printed.table == 3 else "mnist"


def read_curve(row: Row, name: str) -> dict[int, float]:
    """Returns a curve of a line: accuracy by the round that it was measured after.

    Args:
        row: Of the file.
        name: "own", "worst" or "shared".
    """
    rounds = (int(text) for text in row["scored"].split(";"))
    return dict(zip(rounds, map(float, row[name].split(";")), strict=True))


def accuracy_after(row: Row, name: str, rounds: int) -> float | None:
    """Returns the last accuracy that was scored within some rounds, or None.

    Args:
        row: Of the file.
        name: "own", "worst" or "shared".
        rounds: After which it is wanted.
    """
    curve = read_curve(row, name)
    earlier = [one for one in curve if one <= rounds]
    return curve[max(earlier)] if earlier else None


def print_tables(rows: Sequence[Row]) -> None:
    """Prints Tables 1 to 3 for every model that was trained.

    Args:
        rows: Of the file.
    """
    for table in (1, 2, 3):
        for model in dict.fromkeys(row["model"] for row in rows):
            lines = list(list_lines(rows, table, model))
            if not lines:
                continue
            target = TARGETS["cifar10" if table == 3 else "mnist"]
            print(f"\nTable {table}, {model}, rounds until personal models have {target:.0%}:\n")
            print_header(
                *("p", "sigma", "B", "K", "seeds", "R", "R, paper"),
                *("accuracy of personal models", "worst client", "global model", "paper"),
                *("without noise after R", "without noise, paper"),
                *("epsilon certified, any view", "mu of the limit, ours", "mu, paper"),
                "seconds",
            )
            for line in lines:
                print_row(*line)


def list_lines(rows: Sequence[Row], table: int, model: str) -> Iterator[tuple[object, ...]]:
    """Yields the lines of a table that were measured.

    Args:
        rows: Of the file.
        table: Its number.
        model: Of the registry.
    """
    printed_rows = [row for row in PRINTED if row.table == table]
    for place, printed in enumerate(printed_rows):
        found = find_cells(rows, printed, model)
        if not found:
            continue
        accuracy, free = ACCURACIES[table][place] if table in ACCURACIES else (None, None)
        yield (
            *(f"{printed.probability:g}", f"{printed.sigma:g}", printed.batch, printed.steps),
            *(len(found), spell_rounds(found), printed.rounds),
            *(spell_last(found, name) for name in ("own", "worst", "shared")),
            "" if accuracy is None else f"{accuracy:.2f} %",
            spell_free(rows, printed, found),
            "" if free is None else f"{free:.2f} %",
            *(spell_most(found, name) for name in ("epsilon", "mu")),
            f"{printed.printed_mu:.2f}",
            f"{statistics.fmean(float(row['seconds']) for row in found):.0f}",
        )


def spell_rounds(found: Sequence[Row]) -> str:
    """Returns the mean over seeds of the rounds to the target, or words if it was not reached.

    Args:
        found: Lines of one cell.
    """
    if any(row["reached"] == "" for row in found):
        most = max(max(read_curve(row, "own")) for row in found)
        return f"not within {most}"
    return f"{statistics.fmean(int(row['reached']) for row in found):.0f}"


def spell_last(found: Sequence[Row], name: str) -> str:
    """Returns the last accuracy of a curve in percent, the mean over seeds.

    Args:
        found: Lines of one cell.
        name: "own", "worst" or "shared".
    """
    curves = [read_curve(row, name) for row in found]
    return f"{100 * statistics.fmean(curve[max(curve)] for curve in curves):.2f} %"


def spell_free(rows: Sequence[Row], printed: PrintedRow, found: Sequence[Row]) -> str:
    """Returns the accuracy of personal models without noise, after as many rounds as with it.

    Args:
        rows: Of the file.
        printed: The row.
        found: Its lines.
    """
    free = select_rows(
        rows,
        data=name_data(printed),
        model=found[0]["model"],
        probability=printed.probability,
        sigma=0.0,
        batch=printed.batch,
    )
    scores = []
    for row in found:
        for twin in select_rows(free, seed=row["seed"]):
            score = accuracy_after(twin, "own", max(read_curve(row, "own")))
            scores += [] if score is None else [score]
    return f"{100 * statistics.fmean(scores):.2f} %" if scores else "not measured"


def spell_most(found: Sequence[Row], name: str) -> str:
    """Returns the largest of a column over seeds, rounded up to two decimals.

    Args:
        found: Lines of one cell.
        name: Of the column.
    """
    return f"{math.ceil(100 * max(float(row[name]) for row in found)) / 100:.2f}"


def draw_figures(rows: Sequence[Row], folder: Path) -> None:
    """Draws every figure for which there are measurements, as PNG and SVG.

    Args:
        rows: Of the file.
        folder: Of the pictures.
    """
    for model in dict.fromkeys(row["model"] for row in rows):
        one = select_rows(rows, model=model)
        for name, wanted in FIGURES.items():
            shown = [row for row in PRINTED if wanted(row) and find_cells(one, row, model)]
            if shown:
                draw_figure(one, shown, name, folder / f"prifedsync-{name}-{model}.png")
    if select_rows(rows, data="cifar10"):
        draw_labels(folder / "prifedsync-figure-6a.png")


# The rows that a figure shows; rows of Table 2 that repeat Table 1 are shown once.
FIGURES: dict[str, Any] = {
    "figure-1": lambda row: row.table == 1 and row.probability == 0.5 and row.sigma != 0.9,
    "figure-2": lambda row: row.table == 2,
    "figure-3": lambda row: row.table == 3 and row.probability == 0.5,
    "figure-5": lambda row: row.table == 1 and row.sigma == 0.75,
    "figure-6b": lambda row: row.table == 3 and row.probability == 1,
}
# The figures that show the global model beside clients' own.
BOTH_MODELS = ("figure-1", "figure-3", "figure-6b")


def draw_figure(rows: Sequence[Row], shown: Sequence[PrintedRow], name: str, path: Path) -> None:
    """Draws accuracies against rounds, and where the paper's personal models reached the target.

    Args:
        rows: Of one model.
        shown: The rows of the paper that the figure is of.
        name: Of the figure.
        path: Of the PNG file.
    """
    data = name_data(shown[0])
    figure, axes = make_axes(xlabel="rounds", ylabel=f"mean accuracy over clients on {data}")
    for colour, printed in enumerate(shown):
        found = find_cells(rows, printed, rows[0]["model"])
        label = f"p = {printed.probability:g}, sigma = {printed.sigma:g}, B = {printed.batch}"
        draw_means(axes, found, "own", label=f"{label}: personal models", color=f"C{colour}")
        if name in BOTH_MODELS:
            dashes = {"color": f"C{colour}", "linestyle": "--"}
            draw_means(axes, found, "shared", label=f"{label}: global model", **dashes)
        draw_printed(axes, [(printed.rounds, TARGETS[data])], colour=colour)
    axes.plot([], [], "kx", label="the paper's personal models at the target")
    save_figure(figure, axes, path)


def draw_means(axes: Any, found: Sequence[Row], name: str, **style: Any) -> None:
    """Draws the mean of a curve over seeds, as far as all of them go.

    Args:
        axes: To draw on.
        found: Lines of one cell.
        name: "own" or "shared".
        **style: Of the line.
    """
    curves = [read_curve(row, name) for row in found]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    axes.plot(rounds, [np.mean([curve[one] for curve in curves]) for one in rounds], **style)


def draw_labels(path: Path) -> None:
    """Draws which labels ten clients of CIFAR-10 have (Figure 6a).

    Args:
        path: Of the PNG file.
    """
    dataset = load_dataset("cifar10")
    spec = Data(name="cifar10", partition=Dirichlet(beta=0.5), records=500)
    parts = partition(dataset, spec, 100, Key.from_seed(1))[:SHOWN_CLIENTS]
    counts = np.stack([np.bincount(dataset.y_train[part], minlength=10) for part in parts])
    shares = counts / counts.sum(axis=1, keepdims=True)
    figure, axes = make_axes(xlabel="share of the client's records", ylabel="client")
    left = np.zeros(len(parts))
    for label, column in enumerate(shares.T):
        name = (dataset.classes or ())[label]
        axes.barh(range(len(parts)), column, left=left, color=f"C{label}", label=name)
        left += column
    save_figure(figure, axes, path)
