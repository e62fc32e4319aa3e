"""Ten classes whose privacy converges: softmax regression on public features of MNIST.

100 clients of 600 records, Dirichlet(0.1), one full-batch step a round at rate 3.9, weight decay
2e-4, features of norm 1; noise for epsilon(final) of at most 1.99 after any number of rounds. One
training of 1,000 rounds gives all rows, since shorter ones draw the same:

    SORDINO_DATA=... python -m experiments.converging_classes [--features scattering] [--quick]
        [--out experiments/converging_classes.csv]
    python -m experiments.converging_classes --draw docs/converging_classes.png

`--quick` trains 30 rounds into a file of its own.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.cells import Row, read_rows
from experiments.figures import make_axes, save_figure
from sordino import (
    ClippedGlm,
    Constant,
    Data,
    Dirichlet,
    Gaussian,
    Model,
    Protocol,
    calibrate,
    certify,
    train,
)

ROUNDS = (10, 30, 100, 200, 300, 500, 1000)
QUICK_ROUNDS = (10, 30)
# Rounds after which the price of the last model has reached its limit to every digit shown.
FOREVER = 100_000
EPSILON = 1.99
DELTA = 1e-5
COLUMNS = ("features", "rounds", "accuracy", "final", "rounds_view", "server", "limit_of_final")

BASE = Protocol(
    seed=1,
    clients=100,
    rounds=max(ROUNDS),
    local=ClippedGlm(
        loss="softmax", steps=1, schedule=Constant(rate=3.9), weight_decay=2e-4, feature_norm=1.0
    ),
    noise=Gaussian(sigma=1.0),
    data=Data(name="mnist", partition=Dirichlet(beta=0.1), records=600),
    model=Model(name="logistic"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains once, prints a row for every number of rounds and writes them.

    Args:
        arguments: The arguments of the command line; by default those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", default="experiments.public_features:whiten_scattering")
    parser.add_argument("--rounds", default=",".join(map(str, ROUNDS)))
    parser.add_argument("--out", type=Path, default=Path("experiments/converging_classes.csv"))
    parser.add_argument("--quick", action="store_true", help="a look")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="draw what was measured")
    options = parser.parse_args(arguments)
    out = options.out
    rounds = sorted(map(int, options.rounds.split(",")))
    if options.quick:
        out = out.with_suffix(".quick.csv")
        rounds = list(QUICK_ROUNDS)
    if options.draw is not None:
        draw_rounds(read_rows(out), options.draw)
        return
    protocol = calibrate_forever(
        replace(BASE, rounds=rounds[-1], data=replace(BASE.data, features=options.features))
    )
    with tempfile.TemporaryDirectory() as folder:
        run = train(protocol, folder=folder, report=False, evaluate_every=10)
    with out.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(COLUMNS)
        for number in rounds:
            accuracy = 100 * float(run.metrics["accuracy"][number - 1])
            row = (options.features, number, f"{accuracy:.2f}", *price_rounds(protocol, number))
            writer.writerow(row)
            print("| " + " | ".join(map(str, row)) + " |")


def draw_rounds(rows: Sequence[Row], path: Path) -> None:
    """Draws accuracy against rounds, and the epsilons of two views, as PNG and SVG.

    Args:
        rows: Of the file.
        path: Of the PNG file.
    """
    figure, axes = make_axes(xlabel="rounds", ylabel="accuracy on MNIST, %")
    rounds = [int(row["rounds"]) for row in rows]
    axes.semilogx(rounds, [float(row["accuracy"]) for row in rows], "k.-", label="accuracy")
    prices = axes.twinx()
    prices.set(ylabel="epsilon at delta = 1e-5", ylim=(0, 1.05 * EPSILON))
    for colour, (name, view) in enumerate((("final", "final"), ("rounds_view", "rounds"))):
        values = [float(row[name]) for row in rows]
        prices.semilogx(rounds, values, ".--", color=f"C{colour}")
        axes.plot([], [], ".--", color=f"C{colour}", label=f"epsilon, {view}")
    prices.axhline(EPSILON, color="C0", linewidth=0.8)
    axes.plot([], [], color="C0", linewidth=0.8, label="limit of epsilon, final")
    save_figure(figure, axes, path)


def calibrate_forever(protocol: Protocol) -> Protocol:
    """Returns the protocol with noise under which the last model keeps its epsilon for every T.

    Args:
        protocol: The protocol, with any noise.
    """
    endless = replace(protocol, rounds=FOREVER)
    found = calibrate(endless, view="final", epsilon=EPSILON, delta=DELTA)
    return replace(found.protocol, rounds=protocol.rounds)


def price_rounds(protocol: Protocol, rounds: int) -> tuple[str, ...]:
    """Returns the certified epsilons of three views, and what the first never exceeds.

    Args:
        protocol: The federation.
        rounds: The number of rounds.
    """
    plan = replace(protocol, rounds=rounds)
    prices = [certify(plan, view).epsilon(DELTA) for view in ("final", "rounds", "server")]
    limit = certify(replace(protocol, rounds=FOREVER), "final").epsilon(DELTA)
    return tuple(f"{price:.3g}" for price in (*prices, limit))


if __name__ == "__main__":
    main()
