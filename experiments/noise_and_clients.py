"""Accuracy of Noisy-FedAvg on MNIST against noise and number of clients (convergent-dp, Table 4).

LeNet-5, Dirichlet(0.1), 600 records per client, K = 50, stage-wise rate. The paper trains TK = 30,000 steps, T = 600 rounds at K = 50;
this runs T = 60, so its accuracies are lower. About 30 minutes on 2 cores:

    SORDINO_DATA=... python -m experiments.noise_and_clients [--rounds 60] [--out noise_and_clients.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from sordino import Data, Dirichlet, FedAvg, Gaussian, Model, Protocol, StageWise, train

BASE = Protocol(
    seed=1,
    clients=50,
    rounds=60,
    local=FedAvg(steps=50, batch=32, clip=10.0, schedule=StageWise(rate=0.1)),
    noise=Gaussian(sigma=0.0),
    data=Data(name="mnist", partition=Dirichlet(beta=0.1), records=600),
    model=Model(name="lenet5"),
)

# (clients, sigma) to the paper's accuracy in percent at K = 50, T = 600; it has no row for sigma = 0.
PAPER = {
    (50, 0.0): None,
    (50, 1e-3): 98.41,
    (50, 1e-2): 98.33,
    (50, 1e-1): 95.40,
    (100, 1e-1): 97.32,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("noise_and_clients.json"))
    options = parser.parse_args()
    rows = []
    print(
        f"| clients | sigma | accuracy, T = {options.rounds}, mean of the last 10 rounds | paper, T = 600 |\n|---|---|---|---|"
    )
    for (clients, sigma), published in PAPER.items():
        protocol = replace(
            BASE, clients=clients, rounds=options.rounds, noise=Gaussian(sigma=sigma)
        )
        with tempfile.TemporaryDirectory() as folder:
            run = train(protocol, folder=folder, report=False)
        tail = (
            100 * run.metrics["accuracy"][-10:]
        )  # the noise of the last round alone moves a single accuracy by several percent
        accuracy = float(tail.mean())
        rows.append(
            {
                "clients": clients,
                "sigma": sigma,
                "accuracy": accuracy,
                "paper": published,
                "seconds": float(run.metrics["seconds"].sum()),
            }
        )
        print(
            f"| {clients} | {sigma:g} | {accuracy:.2f} | {published if published is not None else 'not given'} |",
            flush=True,
        )
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
