"""Figure 1 and Table 4 of udp-fl with sound accounting: which mechanism learns best at the same epsilon about one record.

A small network (pixels averaged in squares, 16 hidden units), 250 clients, epsilon in {2, 8} at delta = 1e-5. Gaussian, Laplace, Staircase
and NbAFL are priced against the server, which is whom they are for, in the model's dimension; DP-FedAvg, whose server is trusted,
against who sees the models. "One-dimensional price" is noise that would do for a model of one parameter, which is how the paper prices;
its epsilon is the sound one. Every method has the best size of a step (its rate, or its clip) of four on one seed; what is reported is the
mean of two others. Under 30 minutes on 2 idle cores:

    SORDINO_DATA=... python -m experiments.udp_fl [--data mnist cifar10] [--rounds 200] [--out udp_fl.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from torch import nn

from sordino import (
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Laplace,
    Mean,
    Model,
    Poisson,
    Protocol,
    Staircase,
    calibrate,
    certify,
    train_many,
)
from sordino.privacy.mechanisms import deviation
from sordino.privacy.uploads import largest_move

CLIENTS = 250
RECORDS = {"mnist": 240, "cifar10": 200, "digits": 5}
PARAMETERS = {"mnist": 970, "cifar10": 954, "digits": 1210}
SIZES = (0.01, 0.03, 0.1, 0.3)  # of a step: rate times clip
TUNED_ON, REPORTED = 1, (2, 3)


def net(input_shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Pixels averaged in squares, and one hidden layer."""
    channels, side, _ = input_shape
    square = {28: 4, 32: 8}.get(side, 1)  # MNIST becomes 7 x 7, CIFAR-10 4 x 4
    return nn.Sequential(
        nn.AvgPool2d(square),
        nn.Flatten(),
        nn.Linear(channels * (side // square) ** 2, 16),
        nn.Tanh(),
        nn.Linear(16, outputs),
    )


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train privately: its federation for a size of step, and whom it is priced against."""

    plan: Callable[[Protocol, float], Protocol]
    view: str = "server"
    one_dimension: bool = False  # priced as if the model had one parameter


def clipped_steps(protocol: Protocol, size: float) -> Protocol:
    """One step a round, on four records."""
    return replace(protocol, local=FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=size)))


def clipped_update(protocol: Protocol, size: float) -> Protocol:
    """Five steps a round, and the whole update is clipped."""
    return replace(
        protocol,
        local=FedAvg(
            steps=5, batch=4, clip=size, clip_target="update", schedule=Constant(rate=0.1)
        ),
    )


def gaussian(protocol: Protocol, size: float) -> Protocol:
    return replace(clipped_steps(protocol, size), noise=Gaussian(sigma=1.0))


def laplace(protocol: Protocol, size: float) -> Protocol:
    return replace(clipped_steps(protocol, size), noise=Laplace(scale=1.0))


def staircase(protocol: Protocol, size: float) -> Protocol:
    plan = clipped_steps(protocol, size)
    return replace(plan, noise=Staircase(step=1.0, width=largest_move(plan)))


def nbafl(protocol: Protocol, size: float) -> Protocol:
    return replace(
        clipped_update(protocol, size), noise=Gaussian(sigma=1.0, server_sigma=1e-3, where="both")
    )


def dp_fedavg(protocol: Protocol, size: float) -> Protocol:
    plan = replace(protocol, participation=Poisson(rate=0.5), aggregation=Mean(denominator="fixed"))
    return replace(clipped_update(plan, size), noise=Gaussian(sigma=1.0, where="server"))


METHODS = {
    "Gaussian": Method(plan=gaussian),
    "Laplace": Method(plan=laplace),
    "Staircase": Method(plan=staircase),
    "NbAFL": Method(plan=nbafl),
    "DP-FedAvg": Method(plan=dp_fedavg, view="rounds"),
    "Staircase, one-dimensional price": Method(plan=staircase, one_dimension=True),
}


def federation(data: str, rounds: int) -> Protocol:
    """What all methods share."""
    return Protocol(
        seed=TUNED_ON,
        clients=CLIENTS,
        rounds=rounds,
        local=FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=1.0)),
        noise=Gaussian(sigma=0.0),
        data=Data(name=data, records=RECORDS[data]),
        model=Model(name="experiments.udp_fl:net", parameters=PARAMETERS[data]),
    )


def with_noise(plan: Protocol, method: Method, epsilon: float) -> Protocol:
    """The least noise for an epsilon, as the method prices it."""
    if plan.model is None:
        raise TypeError("a federation without a model")
    priced = (
        replace(plan, model=replace(plan.model, parameters=1)) if method.one_dimension else plan
    )
    return replace(plan, noise=calibrate(priced, method.view, epsilon=epsilon).protocol.noise)


def accuracies(plans: list[Protocol]) -> list[float]:
    """The accuracy of every federation's last model; a model that is no longer finite guesses."""
    trained = train_many(plans, evaluate_every=plans[0].rounds)
    return [
        float(run.metrics["accuracy"][-1]) if run.status == "finished" else 0.1 for run in trained
    ]


def best(plans: list[Protocol]) -> tuple[Protocol, float]:
    """The federation that learns best on the seed for tuning, and its accuracy on the others."""
    chosen = plans[int(np.argmax(accuracies(plans)))]
    return chosen, float(np.mean(accuracies([replace(chosen, seed=seed) for seed in REPORTED])))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. Without privacy there is no epsilon, no view and no noise."""

    data: str
    method: str
    target: float | None
    epsilon: float | None
    view: str
    size: float
    std: float
    accuracy: float

    def __str__(self) -> str:
        target, sound = (
            ("none", "none")
            if self.target is None
            else (f"{self.target:g}", f"{self.epsilon:.3g} ({self.view})")
        )
        ends = f"{self.size:g} | {self.std:.3g} | {100 * self.accuracy:.1f} %"
        return f"| {self.data} | {self.method} | {target} | {sound} | {ends} |"


HEAD = (
    "| data | method | target epsilon | sound epsilon | size of a step | std of the noise | accuracy |\n"
    + 7 * "|---"
    + "|"
)


def row_of(data: str, name: str, target: float | None, rounds: int) -> Row:
    """Train a method at every size of step, and the best of them again."""
    shared = federation(data, rounds)
    if target is None:
        sizes = (*SIZES, 1.0)
        plan, accuracy = best([clipped_steps(shared, size) for size in sizes])
        return Row(
            data=data,
            method=name,
            target=None,
            epsilon=None,
            view="",
            size=step_size(plan),
            std=0.0,
            accuracy=accuracy,
        )
    method = METHODS[name]
    plan, accuracy = best([with_noise(method.plan(shared, size), method, target) for size in SIZES])
    epsilon, std = certify(plan, method.view).epsilon(1e-5), deviation(plan.noise)
    return Row(
        data=data, method=name, target=target, epsilon=epsilon, view=method.view, size=step_size(plan), std=std, accuracy=accuracy
    )  # fmt: skip


def step_size(plan: Protocol) -> float:
    """What was tuned: the clip of an update, or the rate of a clipped step."""
    return (
        plan.local.clip
        if getattr(plan.local, "clip_target", "step") == "update"
        else plan.local.schedule.rate
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"], choices=tuple(RECORDS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[2.0, 8.0])
    parser.add_argument("--out", type=Path, default=Path("udp_fl.json"))
    options = parser.parse_args()
    wanted: list[tuple[str, str, float | None]] = []
    for data in options.data:
        wanted += [(data, "no privacy", None)] + [
            (data, name, epsilon) for epsilon in options.epsilon for name in METHODS
        ]
    rows: list[Row] = []
    print(HEAD, flush=True)
    for data, name, target in track(
        wanted, "training", console=Console(stderr=True), transient=True
    ):
        rows.append(row_of(data, name, target, options.rounds))
        print(rows[-1], flush=True)
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
