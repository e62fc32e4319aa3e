"""Figure 1 and Table 4 of udp-fl with sound accounting: which mechanism learns best at the same epsilon against the server.

Small nets, epsilon in {2, 8} at delta = 1e-5 about one record. Every mechanism gets the noise that the model's dimension really needs;
NbAFL and DP-FedAvg are priced against who sees the models, which is what they protect. Under 30 minutes on 2 idle cores:

    SORDINO_DATA=... python -m experiments.udp_fl [--data mnist cifar10] [--rounds 40] [--out udp_fl.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from sordino import Constant, Data, FedAvg, Gaussian, Laplace, Mean, Model, Poisson, Protocol, Staircase, UserError, calibrate, train
from sordino.privacy.harmonizer import largest_move
from sordino.privacy.mechanisms import deviation

NETS = {"mnist": ("logistic", 7850), "cifar10": ("logistic", 30730), "digits": ("logistic", 650)}
RECORDS = {"mnist": 1200, "cifar10": 1000, "digits": 28}
STEPS = FedAvg(steps=5, batch=64, clip=1.0, schedule=Constant(rate=0.1))
UPDATE = replace(STEPS, clip=0.5, clip_target="update")


def base(data: str, rounds: int) -> Protocol:
    name, parameters = NETS[data]
    local = STEPS if RECORDS[data] > 64 else replace(STEPS, batch=8)
    return Protocol(
        seed=1, clients=50, rounds=rounds, local=local, noise=Gaussian(sigma=0.0),
        data=Data(name=data, records=RECORDS[data]), model=Model(name=name, parameters=parameters),
    )  # fmt: skip


def methods(plan: Protocol) -> dict[str, tuple[Protocol, str]]:
    """Every method with the view that it is priced in."""
    whole = replace(plan, local=replace(plan.local, clip=0.5, clip_target="update"))
    mean = Mean(denominator="fixed")
    return {
        "Gaussian": (replace(plan, noise=Gaussian(sigma=1.0)), "server"),
        "Laplace, l2 clip": (replace(plan, noise=Laplace(scale=1.0)), "server"),
        "Staircase": (replace(plan, noise=Staircase(step=1.0, width=largest_move(plan))), "server"),
        "NbAFL, models only": (replace(whole, noise=Gaussian(sigma=1.0, server_sigma=1e-3, where="both")), "rounds"),
        "DP-FedAvg, models only": (
            replace(whole, noise=Gaussian(sigma=1.0, where="server"), participation=Poisson(rate=0.5), aggregation=mean), "rounds",
        ),
    }  # fmt: skip


def accuracy(protocol: Protocol) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return float(train(protocol, folder=folder, evaluate_every=protocol.rounds, report=False).metrics["accuracy"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[2.0, 8.0])
    parser.add_argument("--out", type=Path, default=Path("udp_fl.json"))
    options = parser.parse_args()
    rows = []
    print("| data | method | epsilon | view | std of the noise | accuracy |\n|---|---|---|---|---|---|")
    for data in options.data:
        plan = base(data, options.rounds)
        rows.append({"data": data, "method": "no privacy", "epsilon": None, "accuracy": accuracy(plan)})
        print(f"| {data} | no privacy | none | | 0 | {100 * rows[-1]['accuracy']:.1f} % |", flush=True)
        for epsilon in options.epsilon:
            for method, (protocol, view) in methods(plan).items():
                try:
                    found = calibrate(protocol, view, epsilon=epsilon).protocol
                except UserError as error:
                    print(f"| {data} | {method} | {epsilon:g} | {view} | refused: {error} | |", flush=True)
                    continue
                reached, noise = accuracy(found), deviation(found.noise)
                rows.append({"data": data, "method": method, "epsilon": epsilon, "view": view, "std": noise, "accuracy": reached})
                print(f"| {data} | {method} | {epsilon:g} | {view} | {noise:.3g} | {100 * reached:.1f} % |", flush=True)
                options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
