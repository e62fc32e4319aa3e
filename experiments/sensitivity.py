"""Measures how far apart two trainings come that differ in one record and share every draw.

Remakes Figure 2 and Tables 5, 7, 9 and 12 of convergent-dp. The paper trains up to 80 clients for
600 rounds or more; these settings are smaller, so that each command takes minutes on 2 cores. Every
command prints a table with the paper's values beside ours, and writes a JSON document and a plot
for each sweep into a folder:

    SORDINO_DATA=... python -m experiments.sensitivity figure-2
        [--sweep local.clip] [--data digits | cifar10] [--rounds 100] [--seeds 2]
    SORDINO_DATA=... python -m experiments.sensitivity table-5 | table-7 | table-9 | table-12
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.markdown_tables import print_header, print_row
from sordino import Constant, Data, Dirichlet, FedAvg, Gaussian, Iid, Model, Protocol
from sordino.audit.twin_sweeps import Sensitivity
from sordino.cli.sensitivity_command import measure_rows
from sordino.protocol.documents import to_json_value
from sordino.report.sensitivity_plots import draw_sensitivity, value_in_words

# The general setting of Figure 2: m = 20, K = 5, V = 10, Dirichlet(0.1). Rate, batch and records
# per client are not in the paper.
BASE = Protocol(
    seed=1,
    clients=20,
    rounds=100,
    local=FedAvg(steps=5, batch=8, clip=10.0, schedule=Constant(rate=0.1)),
    noise=Gaussian(sigma=0.01),
    data=Data(name="mnist", partition=Dirichlet(beta=0.1), records=100),
    model=Model(name="lenet5"),
)

# Ten times as fast, for more rounds: handwritten digits of 8 x 8 pixels and a network with one
# hidden layer.
SMALL = replace(
    BASE,
    data=Data(name="digits", partition=Dirichlet(beta=0.1), records=32),
    model=Model(name="mlp"),
)

# Table 7 trains networks of 11 and 21 million parameters with m = 50, K = 5 for 1,000 rounds; here
# the federation is the smallest there is.
LARGE = replace(
    BASE,
    clients=2,
    rounds=5,
    local=FedAvg(steps=2, batch=4, clip=10.0, schedule=Constant(rate=0.1)),
    data=Data(name="cifar10", partition=Iid(), records=8),
)

# What Figure 2 varies. Its curves are in no text; V goes down as well, since gradients of this
# network are rarely longer than 10.
FIGURE_2: dict[str, tuple[Any, ...]] = {
    "federation.clients": (10, 20, 40),
    "local.steps": (2, 5, 10),
    "local.clip": (0.1, 1.0, 10.0),
    "local.proximal": (0.0, 0.01, 0.1, 1.0),
}

# The paper's values. Table 5: alpha to accuracy in percent and sensitivity, T = 600.
TABLE_5 = {0.0: (60.67, 31.33), 0.01: (60.69, 30.97), 0.1: (60.94, 18.52), 1.0: (56.33, 6.34)}
# Table 7: sensitivity at T = 200, 400, ..., 1000.
TABLE_7 = {
    "resnet18": (16.94, 23.13, 24.04, 24.11, 24.17),
    "vit-small": (23.52, 31.37, 35.66, 36.32, 36.58),
}
# Table 9: sensitivity at T = 100, 200, ..., 600.
TABLE_9 = {
    "constant": (19.77, 29.24, 33.52, 36.37, 37.52, 37.98),
    "cyclic": (15.36, 28.44, 33.37, 36.24, 37.82, 38.15),
    "stage-wise": (15.24, 24.33, 26.89, 27.77, 28.69, 29.03),
    "continuous": (14.33, 22.14, 23.35, 24.11, 24.52, 24.68),
}
# Table 12: sensitivity by clients m and records S, T = 500; the paper's S = 100, 300, 500 of five.
# Ours has half the clients, and a network with one hidden layer.
RECORDS = (100, 300, 500)
TABLE_12 = {
    10: ("m = 20", (30.12, 30.45, 30.08)),
    25: ("m = 50", (24.95, 24.62, 24.53)),
    40: ("m = 80", (17.41, 17.15, 17.25)),
}


class Study:
    """Holds the options of one command: how much is trained, and where results go."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Creates the folder of the results.

        Args:
            options: of the command line.
        """
        self.seeds: int = options.seeds
        self.out: Path = options.out
        self.rounds: int | None = options.rounds
        self.base = BASE
        if options.data == "digits":
            self.base = SMALL
        if options.data == "cifar10":
            self.base = replace(BASE, data=replace(BASE.data, name="cifar10"))
        self.out.mkdir(parents=True, exist_ok=True)

    def sweep_values(
        self, base: Protocol, key: str, values: Sequence[Any], name: str, *, score: bool = False
    ) -> list[Sensitivity]:
        """Trains twins at every value of a key, and draws the distances.

        Args:
            base: the protocol that is varied.
            key: of the protocol.
            values: of the key.
            name: of the files.
            score: whether models are scored too.
        """
        protocol = base
        if self.rounds is not None:
            protocol = replace(base, rounds=self.rounds)
        rows: list[Sensitivity] = []
        for row in measure_rows(protocol, key, values, self.seeds, score=score):
            rows.append(row)
            # Written after every row: a sweep that is stopped has not trained in vain.
            document = {"sweep": key, "rows": [row.as_document() for row in rows]}
            (self.out / f"{name}.json").write_text(json.dumps(to_json_value(document)) + "\n")
        draw_sensitivity(rows, key, self.out / f"{name}.png")
        return rows


def print_figure_2(study: Study, only: str | None) -> None:
    """Prints distances after a quarter, half and all of the rounds.

    The distance has converged where the last two agree.

    Args:
        study: the command.
        only: the one key that is swept; None for all.
    """
    for key, values in FIGURE_2.items():
        if only not in (None, key):
            continue
        rows = study.sweep_values(study.base, key, values, f"figure-2-{key}")
        places = find_quarters(rows[0])
        print_header(key, *(f"T = {place}" for place in places), "spread", "at most")
        for row in rows:
            print_numbers(
                row.value, *(row.mean[place - 1] for place in places), row.spread[-1], row.bound[-1]
            )


def print_table_5(study: Study) -> None:
    """Prints accuracy and sensitivity against alpha."""
    rows = study.sweep_values(study.base, "local.proximal", tuple(TABLE_5), "table-5", score=True)
    print_header(
        "alpha", "accuracy, %", "distance", "spread", "accuracy, paper", "sensitivity, paper"
    )
    for row, published in zip(rows, TABLE_5.values(), strict=True):
        print_numbers(
            row.value, 100 * row.accuracies.mean(), row.mean[-1], row.spread[-1], *published
        )


def print_table_7(study: Study) -> None:
    """Prints a residual network beside a vision transformer, at every fifth of the rounds."""
    print_fractions(
        study.sweep_values(LARGE, "model.name", tuple(TABLE_7), "table-7"), TABLE_7, "model"
    )


def print_table_9(study: Study) -> None:
    """Prints the four schedules, at every sixth of the rounds."""
    print_fractions(
        study.sweep_values(study.base, "local.schedule", tuple(TABLE_9), "table-9"),
        TABLE_9,
        "schedule",
    )


def print_fractions(
    rows: list[Sensitivity], published: dict[str, tuple[float, ...]], name: str
) -> None:
    """Prints our distances at equal parts of our rounds, then the paper's at equal parts of its.

    Args:
        rows: what was measured, a row for each value.
        published: for each value the paper's distances.
        name: of the first column.
    """
    parts = len(next(iter(published.values())))
    rounds = len(rows[0].bound)
    places = [max(1, rounds * (part + 1) // parts) for part in range(parts)]
    print_header(
        name,
        *(f"T = {place}" for place in places),
        *(f"paper, {part + 1}/{parts}" for part in range(parts)),
    )
    for row in rows:
        print_numbers(row.value, *(row.mean[place - 1] for place in places), *published[row.value])


def print_table_12(study: Study) -> None:
    """Prints clients against records per client."""
    print_header(
        "clients",
        *(f"S = {records}" for records in RECORDS),
        "paper",
        *(f"S = {records}, paper" for records in RECORDS),
    )
    for clients, (name, published) in TABLE_12.items():
        rows = study.sweep_values(
            replace(BASE, clients=clients, model=Model(name="mlp")),
            "data.records",
            RECORDS,
            f"table-12-{clients}",
        )
        print_numbers(clients, *(row.mean[-1] for row in rows), name, *published)


def find_quarters(row: Sensitivity) -> tuple[int, int, int]:
    """Returns a quarter, half and all of the rounds."""
    rounds = len(row.bound)
    return max(1, rounds // 4), max(1, rounds // 2), rounds


def print_numbers(first: object, *cells: object) -> None:
    """Prints a row whose numbers have four digits.

    Args:
        first: the swept value.
        cells: numbers and texts.
    """
    print_row(value_in_words(first), *(format_cell(cell) for cell in cells))


def format_cell(cell: object) -> str:
    """Returns a number with four digits, and any other value as it is."""
    if not isinstance(cell, float):
        return str(cell)
    # The spread of a single seed.
    if math.isnan(cell):
        return "unknown"
    return f"{cell:.4g}"


TABLES: dict[str, Callable[[Study], None]] = {
    "table-5": print_table_5,
    "table-7": print_table_7,
    "table-9": print_table_9,
    "table-12": print_table_12,
}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("figure-2", *TABLES))
    parser.add_argument("--sweep", choices=tuple(FIGURE_2), help="only this panel of figure-2")
    parser.add_argument(
        "--data",
        choices=("mnist", "digits", "cifar10"),
        default="mnist",
        help="for figure-2, table-5 and table-9",
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("sensitivity"))
    options = parser.parse_args()
    study = Study(options)
    if options.study == "figure-2":
        print_figure_2(study, options.sweep)
    else:
        TABLES[options.study](study)


if __name__ == "__main__":
    main()
