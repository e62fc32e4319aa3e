"""Accuracy of Noisy-FedAvg against noise, clients and local steps (convergent-dp, Table 4).

LeNet-5 on MNIST, or on CIFAR-10 in the place of the paper's ResNet-18; Dirichlet(0.1), batches of
50, clip 10, TK = 30,000 steps. The paper writes the schedule 0.1/(t+1), which cannot have given its
numbers; its first author's public simulator multiplies the rate by 0.998 in every round and has a
weight decay of 0.001 (`--schedule decay`). Beside every accuracy stands the certified epsilon at
delta = 1e-5, one record replaced, against adversaries that see the models of all rounds and against
the server. Every finished cell is a line of a CSV file; cells that are in it are not trained again:

    SORDINO_DATA=... python -m experiments.noise_and_clients [--data mnist] [--schedule decay]
        [--sigmas 0,0.001,0.01,0.1] [--steps 50,100,200] [--clients 50,100] [--seeds 1]
        [--total 30000] [--out experiments/table_4.csv]

At the pace that was measured (32 seconds for ten rounds of 50 clients with K = 50, start and scores
included) all 24 cells take about 19 hours of one core's time.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sordino import (
    Data,
    Decay,
    Dirichlet,
    FedAvg,
    Gaussian,
    Model,
    Protocol,
    StageWise,
    certify,
    train,
)

RATE = 0.1
SCHEDULES = {
    "stage-wise": StageWise(rate=RATE),
    "decay": Decay(rate=RATE, factor=0.998, every="round"),
}
# The public simulator's; the paper names none.
WEIGHT_DECAY = {"stage-wise": 0.0, "decay": 1e-3}
RECORDS = {"mnist": 600, "cifar10": 500}
DELTA = 1e-5
# The noise of a single round moves its accuracy by several percent, so the last ten are averaged.
LAST_ROUNDS = 10
# The paper's accuracies on MNIST at K = 50, T = 600, by clients and sigma; it has no sigma = 0.
PAPER = {
    (50, 1e-3): 98.41,
    (50, 1e-2): 98.33,
    (50, 1e-1): 95.40,
    (100, 1e-1): 97.32,
}
COLUMNS = (
    "data",
    "schedule",
    "clients",
    "steps",
    "rounds",
    "sigma",
    "seed",
    "accuracy",
    "epsilon_rounds",
    "epsilon_server",
    "paper",
    "seconds",
)


class Cell(NamedTuple):
    """A cell of the table, as the first columns of its line."""

    data: str
    schedule: str
    clients: int
    steps: int
    rounds: int
    sigma: float
    seed: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every cell that is not in the file yet, and prints its line.

    Args:
        arguments: of the command line; by default those of the process.
    """
    options = read_options(arguments)
    done = read_cells(options.out)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for cell in list_cells(options):
        if cell in done:
            continue
        row = {**cell._asdict(), **train_cell(cell)}
        append_row(options.out, row)
        print("| " + " | ".join(str(row[name]) for name in COLUMNS) + " |", flush=True)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns what was asked for on the command line.

    Args:
        arguments: of the command line; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=tuple(RECORDS), default="mnist")
    parser.add_argument("--schedule", choices=tuple(SCHEDULES), default="decay")
    parser.add_argument("--sigmas", default="0,0.001,0.01,0.1")
    parser.add_argument("--steps", default="50,100,200")
    parser.add_argument("--clients", default="50,100")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--total", type=int, default=30_000, help="TK, steps over all rounds")
    parser.add_argument("--out", type=Path, default=Path("experiments/table_4.csv"))
    return parser.parse_args(arguments)


def list_cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yields the cells that were asked for, those with least noise first.

    Args:
        options: of the command line.
    """
    sigmas = map(float, options.sigmas.split(","))
    steps = map(int, options.steps.split(","))
    clients = map(int, options.clients.split(","))
    seeds = range(1, options.seeds + 1)
    for seed, clients_, steps_, sigma in itertools.product(seeds, clients, steps, sigmas):
        yield Cell(
            data=options.data,
            schedule=options.schedule,
            clients=clients_,
            steps=steps_,
            rounds=options.total // steps_,
            sigma=sigma,
            seed=seed,
        )


def train_cell(cell: Cell) -> dict[str, Any]:
    """Trains one cell.

    Args:
        cell: the cell.

    Returns:
        The rest of its line.
    """
    protocol = make_protocol(cell)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = train(protocol, folder=folder, report=False, evaluate_every=1)
    accuracies = 100 * run.metrics["accuracy"][-LAST_ROUNDS:]
    published = None
    if cell.data == "mnist" and cell.steps == 50:
        published = PAPER.get((cell.clients, cell.sigma))
    return {
        "accuracy": round(float(accuracies.mean()), 2),
        "epsilon_rounds": price_cell(run.protocol, "rounds"),
        "epsilon_server": price_cell(run.protocol, "server"),
        "paper": published,
        "seconds": round(time.monotonic() - started),
    }


def make_protocol(cell: Cell) -> Protocol:
    """Returns the federation of a cell.

    Args:
        cell: the cell.
    """
    return Protocol(
        seed=cell.seed,
        clients=cell.clients,
        rounds=cell.rounds,
        local=FedAvg(
            steps=cell.steps,
            batch=50,
            clip=10.0,
            schedule=SCHEDULES[cell.schedule],
            weight_decay=WEIGHT_DECAY[cell.schedule],
        ),
        noise=Gaussian(sigma=cell.sigma),
        data=Data(name=cell.data, partition=Dirichlet(beta=0.1), records=RECORDS[cell.data]),
        model=Model(name="lenet5"),
    )


def price_cell(protocol: Protocol, view: str) -> str:
    """Returns the certified epsilon of a view, with four digits.

    Args:
        protocol: the federation of a run.
        view: the adversary.
    """
    return f"{certify(protocol, view).epsilon(DELTA):.4g}"


def read_cells(path: Path) -> set[Cell]:
    """Returns the cells that a file holds already.

    Args:
        path: the file, which need not exist.
    """
    if not path.exists():
        return set()
    with path.open(newline="") as lines:
        return {
            Cell(
                data=row["data"],
                schedule=row["schedule"],
                clients=int(row["clients"]),
                steps=int(row["steps"]),
                rounds=int(row["rounds"]),
                sigma=float(row["sigma"]),
                seed=int(row["seed"]),
            )
            for row in csv.DictReader(lines)
        }


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Adds a line to a file, which gets its head with the first.

    Args:
        path: the file.
        row: the line, by its columns.
    """
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
