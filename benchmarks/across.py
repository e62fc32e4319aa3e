"""Measures what a round across machines costs: `python -m benchmarks.across [--rounds N]`.

Three SuperNodes with keys train LeNet-5 on MNIST.

A round's seconds are split into the local work (loading the records, training), the guard
(agreement, ledger, custody of the upload), and the rest: polling, forking a process for every
message, the network. Everything runs on this machine: the
clients share its cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol, train
from sordino.data import load_dataset
from tests.flower.lab import Lab

CLIENTS, RECORDS = 3, 20_000


def federation(rounds: int, public: Path) -> Protocol:
    """LeNet-5 on MNIST, 100 local steps of 64 records, noise of every client's own."""
    rule = FedAvg(steps=100, batch=64, clip=1.0, schedule=Constant(rate=0.05))
    noise, data = (
        Gaussian(sigma=0.01, secure=True),
        Data(name=str(public), records=RECORDS, classes=10),
    )
    return Protocol(
        seed=1,
        clients=CLIENTS,
        rounds=rounds,
        local=rule,
        noise=noise,
        data=data,
        model=Model(name="lenet5"),
    )


def write_files(folder: Path) -> None:
    """A file of records for every client, and one with test records for the server."""
    mnist = load_dataset("mnist")
    test = {"x_test": mnist.x_test, "y_test": mnist.y_test}
    np.savez(folder / "public.npz", x_train=mnist.x_test[:100], y_train=mnist.y_test[:100], **test)
    for client in range(CLIENTS):
        own = slice(client * RECORDS, (client + 1) * RECORDS)
        few = {"x_test": mnist.x_test[:100], "y_test": mnist.y_test[:100]}
        np.savez(
            folder / f"{client}.npz", x_train=mnist.x_train[own], y_train=mnist.y_train[own], **few
        )


def measured(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Returns seconds of every round: all, the slowest work, the slowest guard, and the rest."""
    write_files(folder)
    protocol = federation(rounds, folder / "public.npz")
    with Lab(folder / "lab") as lab:
        lab.secure(CLIENTS)
        lab.start_link()
        lab.register(CLIENTS)
        for client in range(CLIENTS):
            lab.agree(client, protocol, "--data", folder / f"{client}.npz")
            lab.start_node(client)
        run = train(
            protocol,
            folder=folder / "run",
            engine="flower",
            superlink=lab.superlink,
            evaluate_every=0,
        )
        lines = [
            (lab.client(client) / "seconds.jsonl").read_text().splitlines()
            for client in range(CLIENTS)
        ]
    clients = [[json.loads(line) for line in each] for each in lines]
    work, guard = (
        [max(each[t][part] for each in clients) for t in range(rounds)]
        for part in ("work", "guard")
    )
    whole = run.metrics["seconds"].tolist()
    rest = [all_of_it - sum(ours) for all_of_it, *ours in zip(whole, work, guard, strict=True)]
    return {
        "round": whole,
        "local work": work,
        "guard": guard,
        "Flower": rest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        seconds = measured(Path(folder), rounds)
    table = Table(
        title=f"{CLIENTS} SuperNodes, LeNet-5 on MNIST, {rounds} rounds: seconds of a round",
        title_justify="left",
    )
    for column in ("part", "median", "least", "most", "share"):
        table.add_column(column, justify="left" if column == "part" else "right")
    whole = statistics.median(seconds["round"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        table.add_row(
            name,
            f"{middle:.3f}",
            f"{min(values):.3f}",
            f"{max(values):.3f}",
            f"{100 * middle / whole:.1f} %",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
