"""Prints and draws what experiments/udp_fl.csv holds, the paper's values beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.cells import Row, select_rows
from experiments.figures import draw_curve, draw_printed, make_axes, save_figure
from experiments.markdown_tables import print_header, print_row
from experiments.udp_fl_cells import EPSILONS, KEY, MECHANISMS

# Rounds between two scores.
SCORED = 10
# Of what the paper prints in numbers: Table 4, on CIFAR-10 with ResNet-18.
PRINTED_EPSILONS = (2.0, 4.0, 6.0, 8.0)
TABLE_4 = {
    "gaussian": (0.704, 0.714, 0.719, 0.742),
    "laplace": (0.475, 0.461, 0.506, 0.638),
    "staircase": (0.633, 0.691, 0.733, 0.780),
}
TITLES = {
    "none": "without noise",
    "gaussian": "Gaussian (DP-SGD)",
    "laplace": "Laplace",
    "staircase": "staircase",
    "nbafl": "NbAFL",
}


def find_scores(rows: Sequence[Row], **wanted: object) -> list[float]:
    """Returns the accuracies of all seeds of a cell.

    Args:
        rows: Of the file.
        **wanted: Values by column.
    """
    usual = {"clients": 10, "rate": 0.05}
    return [float(row["accuracy"]) for row in select_rows(rows, **{**usual, **wanted})]


def spell_scores(scores: Sequence[float]) -> str:
    """Returns mean and spread in percent.

    Args:
        scores: One for each seed.
    """
    if not scores:
        return ""
    mean = f"{100 * statistics.fmean(scores):.1f}"
    if len(scores) == 1:
        return f"{mean} %"
    return f"{mean} ± {100 * statistics.stdev(scores):.1f} %"


def spell_epsilon(text: str) -> str:
    """Returns an epsilon of the file in two decimals, never below what it is.

    Args:
        text: As the file has it, in six digits.
    """
    return f"{math.ceil(100 * float(text)) / 100:.2f}"


def print_table(rows: Sequence[Row]) -> None:
    """Prints every cell: accuracy over seeds, beside both epsilons and the accuracy without noise.

    Args:
        rows: Of the file.
    """
    print_header(
        "data",
        "method",
        "epsilon, `server`",
        "epsilon in one dimension",
        "std of the noise, in clips",
        "clients",
        "rate",
        "seeds",
        "accuracy",
        "without noise",
        "seconds",
    )
    cells: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        shared = tuple(row[name] for name in KEY if name != "seed")
        cells.setdefault(shared, []).append(row)
    for members in cells.values():
        row = members[0]
        if row["method"] == "none":
            continue
        places = {name: row[name] for name in ("data", "clients", "rate", "rounds")}
        print_row(
            row["data"],
            TITLES[row["method"]],
            spell_epsilon(row["epsilon_server"]),
            spell_epsilon(row["epsilon_one_dimension"]),
            row["noise_std"],
            row["clients"],
            row["rate"],
            len(members),
            spell_scores([float(one["accuracy"]) for one in members]),
            spell_scores(find_scores(rows, method="none", **places)),
            f"{statistics.fmean(float(one['seconds']) for one in members):.0f}",
        )


def draw_figures(rows: Sequence[Row], folder: Path) -> None:
    """Draws every figure of which something was measured, as PNG and SVG.

    Args:
        rows: Of the file.
        folder: Of the pictures.
    """
    for data, name in (("mnist", "udp-fl-mnist"), ("cifar10", "udp-fl-cifar")):
        if select_rows(rows, data=data):
            draw_accuracies(rows, data, folder / f"{name}.png")
    if select_rows(rows, data="mnist", epsilon=2.0):
        draw_convergence(rows, 2.0, folder / "udp-fl-convergence.png")


def draw_accuracies(rows: Sequence[Row], data: str, path: Path) -> None:
    """Draws accuracy against epsilon, with the values of Table 4 as marks.

    Args:
        rows: Of the file.
        data: A name of `FEDERATIONS`.
        path: Of the PNG file.
    """
    figure, axes = make_axes(
        xlabel="epsilon against the server, delta = 1e-5", ylabel=f"accuracy on {data}"
    )
    for index, method in enumerate((*MECHANISMS, "nbafl")):
        points = []
        for epsilon in EPSILONS:
            points.append((epsilon, find_scores(rows, data=data, method=method, epsilon=epsilon)))
        draw_curve(axes, points, label=TITLES[method], colour=index)
        if data == "cifar10" and method in TABLE_4:
            printed = zip(PRINTED_EPSILONS, TABLE_4[method], strict=True)
            draw_printed(axes, list(printed), colour=index)
    free = find_scores(rows, data=data, method="none")
    if free:
        axes.axhline(statistics.fmean(free), color="grey", linestyle="--", label="without noise")
    save_figure(figure, axes, path)


def draw_convergence(rows: Sequence[Row], epsilon: float, path: Path) -> None:
    """Draws accuracy against rounds on MNIST, the mean over seeds.

    Args:
        rows: Of the file.
        epsilon: Against the server.
        path: Of the PNG file.
    """
    figure, axes = make_axes(xlabel="rounds", ylabel=f"accuracy on MNIST, epsilon = {epsilon:g}")
    for index, method in enumerate((*MECHANISMS, "nbafl", "none")):
        target = np.inf if method == "none" else epsilon
        found = select_rows(
            rows, data="mnist", method=method, epsilon=target, clients=10, rate=0.05
        )
        curves = [[float(value) for value in row["curve"].split(";")] for row in found]
        points = []
        for place, scores in enumerate(zip(*curves, strict=False)):
            points.append((SCORED * (place + 1), list(scores)))
        draw_curve(axes, points, label=TITLES[method], colour=index)
    save_figure(figure, axes, path)
