"""Prints and draws what experiments/udp_fl.csv holds, the paper's values beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.cells import Row, select_rows
from experiments.figures import draw_curve, draw_printed, make_axes, save_figure
from experiments.markdown_tables import print_header, print_row
from experiments.udp_fl_cells import EPSILONS, FEDERATIONS, KEY, MECHANISMS

# Rounds between two scores.
SCORED = 10
# The epsilons and accuracies of Table 4, on CIFAR-10 with ResNet-18.
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
    "scaffold": "SCAFFOLD",
    "direct": "Gaussian, without a shuffler",
    "shuffled": "Gaussian, with a shuffler",
}
# Data whose federations have one size.
FIXED = [name for name, federation in FEDERATIONS.items() if federation.clients is not None]
# The names of data in the names of figures, where they differ.
NAMES = {
    "cifar10": "cifar",
    "pneumoniamnist": "pneumonia",
    "gefcom-wind": "wind",
    "digits": "shuffler",
}
CONVERGENCES = (
    ("mnist", 2.0, "udp-fl-convergence"),
    ("cifar10", 2.0, "udp-fl-cifar-convergence-2"),
    ("cifar10", 8.0, "udp-fl-cifar-convergence-8"),
    ("gefcom-wind", 2.0, "udp-fl-wind-convergence"),
)
# Seconds that the paper prints for 100 iterations with 50 clients, on graphics processors (Table 5).
TABLE_5 = {"mnist": 2056.34, "cifar10": 3515.08}


def read_score(row: Row) -> float:
    """Returns the accuracy of a line, or its squared error where it predicts numbers.

    Args:
        row: Of the file.
    """
    return float(row["loss" if is_regression(row) else "accuracy"])


def is_regression(row: Row) -> bool:
    """Returns whether a line is of a model that predicts numbers, which has no accuracy.

    Args:
        row: Of the file.
    """
    return math.isnan(float(row["accuracy"]))


def spell_scores(rows: Sequence[Row]) -> str:
    """Returns the mean and the spread of accuracies, in percent, or of squared errors.

    Args:
        rows: One for each seed.
    """
    if not rows:
        return ""
    unit, digits, sign = (1, 4, "") if is_regression(rows[0]) else (100, 1, " %")
    scores = [unit * read_score(row) for row in rows]
    mean = f"{statistics.fmean(scores):.{digits}f}"
    if len(scores) == 1:
        return f"{mean}{sign}"
    return f"{mean} ± {statistics.stdev(scores):.{digits}f}{sign}"


def spell_epsilon(text: str) -> str:
    """Returns an epsilon of the file, rounded up to two decimals.

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
        "accuracy (wind: squared error)",
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
            spell_scores(members),
            spell_scores(select_rows(rows, method="none", **places)),
            f"{statistics.fmean(float(one['seconds']) for one in members):.0f}",
        )


def print_costs(rows: Sequence[Row]) -> None:
    """Prints the time and the traffic of trainings, beside Table 5.

    Args:
        rows: Of the file.
    """
    print()
    print_header(
        *("data", "clients in a round", "rounds", "processor seconds, method by method"),
        *("megabytes sent", "seconds, paper: 100 rounds, 50 clients"),
    )
    places = dict.fromkeys(
        (row["data"], row["clients"], row["rate"], row["rounds"]) for row in rows
    )
    for data, clients, rate, rounds in places:
        found = select_rows(rows, data=data, clients=clients, rate=rate, rounds=rounds)
        seconds = {}
        for method in dict.fromkeys(row["method"] for row in found):
            times = [float(row["seconds"]) for row in found if row["method"] == method]
            seconds[method] = f"{method} {statistics.fmean(times):.0f}"
        sent = float(found[0]["bytes_up"])
        print_row(
            *(data, f"{clients} at rate {rate}", rounds, ", ".join(seconds.values())),
            *(f"{sent / 1e6:.0f}", TABLE_5.get(data, "")),
        )


def draw_figures(rows: Sequence[Row], folder: Path) -> None:
    """Draws every figure for which there are measurements, as PNG and SVG.

    Args:
        rows: Of the file.
        folder: Of the pictures.
    """
    for data in dict.fromkeys(row["data"] for row in rows):
        draw_accuracies(rows, data, folder / f"udp-fl-{NAMES.get(data, data)}.png")
    for data, epsilon, name in CONVERGENCES:
        if select_rows(rows, data=data, epsilon=epsilon):
            draw_convergence(rows, data, epsilon, folder / f"{name}.png")
    for column, name, usual in (("clients", "clients", {"rate": 0.05}), ("rate", "rates", {})):
        draw_federations(rows, column, usual, folder / f"udp-fl-{name}.png")


def draw_accuracies(rows: Sequence[Row], data: str, path: Path) -> None:
    """Draws accuracy against epsilon, with the values of Table 4 as marks.

    Args:
        rows: Of the file.
        data: A name of `FEDERATIONS`.
        path: Of the PNG file.
    """
    found = select_rows(rows, data=data)
    # Figure 3 has its own picture.
    usual = {} if data in FIXED else {"clients": 10, "rate": 0.05}
    found = select_rows(found, **usual)
    if not found:
        return
    figure, axes = make_axes(
        xlabel="epsilon against the server, delta = 1e-5", ylabel=name_score(found[0])
    )
    methods = dict.fromkeys(row["method"] for row in found if row["method"] != "none")
    for index, method in enumerate(methods):
        points = []
        for epsilon in EPSILONS:
            members = select_rows(found, method=method, epsilon=epsilon)
            points.append((epsilon, [read_score(row) for row in members]))
        draw_curve(axes, points, label=TITLES[method], colour=index)
        if data == "cifar10" and method in TABLE_4:
            printed = zip(PRINTED_EPSILONS, TABLE_4[method], strict=True)
            draw_printed(axes, list(printed), colour=index)
    free = [read_score(row) for row in select_rows(found, method="none")]
    if free:
        axes.axhline(statistics.fmean(free), color="grey", linestyle="--", label="without noise")
    save_figure(figure, axes, path)


def draw_convergence(rows: Sequence[Row], data: str, epsilon: float, path: Path) -> None:
    """Draws scores against rounds, the mean over seeds.

    Args:
        rows: Of the file.
        data: A name of `FEDERATIONS`.
        epsilon: Against the server.
        path: Of the PNG file.
    """
    usual = {} if data in FIXED else {"clients": 10, "rate": 0.05}
    found = select_rows(rows, data=data, **usual)
    shown = [row for row in found if row["method"] == "none" or float(row["epsilon"]) == epsilon]
    figure, axes = make_axes(
        xlabel="rounds", ylabel=f"{name_score(shown[0])}, epsilon = {epsilon:g}"
    )
    for index, method in enumerate(dict.fromkeys(row["method"] for row in shown)):
        members = select_rows(shown, method=method)
        curves = [[float(value) for value in row["curve"].split(";")] for row in members]
        points = []
        for place, scores in enumerate(zip(*curves, strict=False)):
            points.append((SCORED * (place + 1), list(scores)))
        draw_curve(axes, points, label=TITLES[method], colour=index)
    save_figure(figure, axes, path)


def draw_federations(rows: Sequence[Row], column: str, usual: dict[str, float], path: Path) -> None:
    """Draws accuracy on MNIST at epsilon 8 against clients or the sampling rate (Figure 3).

    Args:
        rows: Of the file.
        column: "clients" or "rate".
        usual: Of the other column.
        path: Of the PNG file.
    """
    found = select_rows(rows, data="mnist", epsilon=8.0, **(usual or {"clients": 10}))
    places = sorted({float(row[column]) for row in found})
    if len(places) < 2:
        return
    figure, axes = make_axes(xlabel=column, ylabel="accuracy on mnist, epsilon = 8")
    for index, method in enumerate(MECHANISMS):
        points = []
        for place in places:
            members = [row for row in found if float(row[column]) == place]
            points.append((place, [read_score(row) for row in select_rows(members, method=method)]))
        draw_curve(axes, points, label=TITLES[method], colour=index)
    save_figure(figure, axes, path)


def name_score(row: Row) -> str:
    """Returns the name of a line's score.

    Args:
        row: Of the file.
    """
    return f"{'squared error' if is_regression(row) else 'accuracy'} on {row['data']}"
