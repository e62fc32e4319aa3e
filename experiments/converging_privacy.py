"""Federated logistic regression whose privacy converges as rounds grow, by the rule clipped-glm.

The data are Adult and breast cancer. An adversary who sees only the final model learns no more from
1,000 rounds than from 100; one who sees every round learns ever more. Five minutes:

    SORDINO_DATA=... python -m experiments.converging_privacy [--plot converging_privacy.png] [--quick]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino import ClippedGlm, Constant, Data, Gaussian, Model, Protocol, certify, train

ROUNDS = (10, 30, 100, 300, 1000)
QUICK_ROUNDS = 30
DELTA = 1e-5
VIEWS = ("final", "rounds", "server")

# Full-batch steps with a small weight decay.
RULE = ClippedGlm(
    steps=10, clip=1.0, schedule=Constant(rate=0.45), weight_decay=0.003, feature_norm=4.0
)


def make_federation(data: str, clients: int, records: int, sigma: float) -> Protocol:
    """Returns a federation on one data set.

    Args:
        data: The name of the data set.
        clients: The number of clients.
        records: The number of records of each.
        sigma: The standard deviation of each client's noise.
    """
    return Protocol(
        seed=1,
        clients=clients,
        rounds=10,
        local=RULE,
        noise=Gaussian(sigma=sigma),
        data=Data(name=data, records=records),
        model=Model(name="logistic"),
    )


FEDERATIONS = {
    "adult": make_federation("adult", 50, 600, 0.05),
    "breast-cancer": make_federation("breast-cancer", 5, 90, 1.0),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every federation, prints the table and writes it as JSON.

    Args:
        arguments: The arguments of the command line; by default those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("converging_privacy.json"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true", help="a look, of 30 rounds at most")
    options = parser.parse_args(arguments)
    rounds_shown = ROUNDS
    if options.quick:
        rounds_shown = tuple(rounds for rounds in ROUNDS if rounds <= QUICK_ROUNDS)
        options.out = options.out.with_suffix(".quick.json")
    print("| data | rounds | accuracy | epsilon, final | epsilon, rounds | epsilon, server |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name, base in FEDERATIONS.items():
        for rounds in rounds_shown:
            row = train_cell(name, replace(base, rounds=rounds))
            rows.append(row)
            epsilon = row["epsilon"]
            print(
                f"| {name} | {rounds} | {row['accuracy']:.1f} | {epsilon['final']:.3f} "
                f"| {epsilon['rounds']:.3f} | {epsilon['server']:.2f} |",
                flush=True,
            )
            options.out.write_text(json.dumps(rows, indent=2) + "\n")
    if options.plot is not None:
        draw_epsilons(rows, options.plot)


def train_cell(name: str, protocol: Protocol) -> dict[str, Any]:
    """Trains one federation.

    Args:
        name: The name of the data set.
        protocol: The federation.

    Returns:
        A row: the number of rounds, the accuracy in percent after the last, and epsilon by view.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = train(protocol, folder=folder, report=False)
    return {
        "data": name,
        "rounds": protocol.rounds,
        "accuracy": 100 * float(run.metrics["accuracy"][-1]),
        # The number of rounds is kept apart, since one of the views is called `rounds` too.
        "epsilon": {view: certify(run.protocol, view).epsilon(DELTA) for view in VIEWS},
    }


def draw_epsilons(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws epsilon against rounds, a panel for each data set.

    Args:
        rows: The rows of the table.
        path: The file that is written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, len(FEDERATIONS))
    for axes, name in zip(panels, sorted(FEDERATIONS), strict=True):
        of_name = [row for row in rows if row["data"] == name]
        for view in ("final", "rounds"):
            rounds = [row["rounds"] for row in of_name]
            epsilons = [row["epsilon"][view] for row in of_name]
            axes.plot(rounds, epsilons, marker="o", label=f"view {view}")
        axes.set(xscale="log", yscale="log", xlabel="rounds", title=name)
        axes.set_ylabel(f"epsilon at delta = {DELTA:g}")
        axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
