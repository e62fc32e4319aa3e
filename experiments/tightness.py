"""How close the audit comes to every certified bound: four views, two rules, two schedules, each with noise for a certified mu of 3.

About two minutes on 2 cores with 5,000 trainings a side, six with 20,000:

    python -m experiments.tightness [--trainings 5000] [--clients 20] [--rounds 100] [--mu 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sordino import Constant, FedAvg, FedProx, Gaussian, Protocol, StageWise, View, certify
from sordino.audit.auditing import audit

VIEWS = (View.SERVER, View.ROUNDS, View.coalition(3), View.FINAL)


def federation(rule: str, schedule: Constant | StageWise, clients: int, rounds: int) -> Protocol:
    """A federation whose record is in every step."""
    local = FedAvg(steps=5, batch=8, clip=1.0, schedule=schedule)
    if rule == "fedprox":
        local = FedProx(steps=5, batch=8, clip=1.0, schedule=schedule, proximal=1.0)
    return Protocol(seed=1, clients=clients, rounds=rounds, local=local, noise=Gaussian(sigma=1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--mu", type=float, default=3.0)
    options = parser.parse_args()
    print(
        "| rule | schedule | view | certified mu | measured mu | tightness | seconds |\n|---|---|---|---|---|---|---|"
    )
    for rule in ("fedavg", "fedprox"):
        for schedule in (Constant(rate=0.1), StageWise(rate=0.1)):
            for view in VIEWS:
                loud = federation(rule, schedule, options.clients, options.rounds)
                protocol = replace(
                    loud, noise=Gaussian(sigma=(certify(loud, view).mu or 0.0) / options.mu)
                )
                started = time.perf_counter()
                with tempfile.TemporaryDirectory() as folder:
                    found = audit(
                        protocol, view, trainings=options.trainings, folder=Path(folder) / "audit"
                    )
                spent = time.perf_counter() - started
                row = (
                    rule,
                    schedule.tag,
                    view,
                    f"{options.mu:g}",
                    f"{found.mu_lower:.3f}",
                    f"{found.tightness or 0:.3f}",
                    f"{spent:.1f}",
                )
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
