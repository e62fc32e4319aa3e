"""How near the certified curves of both systems the audit comes: noisy steps, own models, mechanisms, hidden and shuffled clients.

Some minutes on 2 cores. Where the certificate is Gaussian `attained` is measured over certified mu; elsewhere it is measured mu over what
the certified curve allows at one of the test's error rates.

    python -m experiments.attained [--trainings 5000] [--only noisy|own|mechanisms]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sordino import (
    Attention,
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Identity,
    Interpolate,
    Laplace,
    Mean,
    Model,
    NoisySgd,
    Poisson,
    Protocol,
    Scaffold,
    Staircase,
    certify,
)
from sordino.audit.auditing import audit
from sordino.protocol import Privacy

Row = tuple[str, Protocol, str, str]  # in words, the protocol, the view, the unit


def noisy(
    sampling: str,
    multiplier: float,
    *,
    steps: int = 10,
    rounds: int = 10,
    rate: float = 1.0,
    records: int = 64,
) -> Protocol:
    """A federation of noisy-sgd with batches of 8."""
    rule = NoisySgd(
        steps=steps,
        batch=8,
        clip=1.0,
        schedule=Constant(rate=0.1),
        sampling=sampling,
        optimizer="adam",
    )
    return Protocol(
        seed=1,
        clients=20,
        rounds=rounds,
        participation=Poisson(rate=rate),
        personalization=Interpolate(alpha=0.1),
        local=rule,
        noise=Gaussian(multiplier=multiplier),
        data=Data(name="digits", records=records),
    )


def noisy_rows() -> list[Row]:
    """Batches of 8 of 64 records."""
    replaced = replace(noisy("poisson", 1.0), privacy=Privacy(adjacency="replace-one"))
    return [
        ("Poisson batches, multiplier 1", noisy("poisson", 1.0), "strong", "record"),
        (
            "Poisson batches, multiplier 0.7, every second round",
            noisy("poisson", 0.7, rate=0.5),
            "strong",
            "record",
        ),
        (
            "fixed batches, multiplier 0.7, one step",
            noisy("fixed", 0.7, steps=1, rounds=1, records=16),
            "strong",
            "record",
        ),
        ("fixed batches, multiplier 1", noisy("fixed", 1.0), "strong", "record"),
        ("fixed batches, multiplier 2", noisy("fixed", 2.0), "strong", "record"),
        (
            "fixed batches, multiplier 4, 40 rounds",
            noisy("fixed", 4.0, rounds=40),
            "strong",
            "record",
        ),
        ("Poisson batches, multiplier 1, replaced", replaced, "strong", "record"),
        ("fixed batches, multiplier 40, all records", noisy("fixed", 40.0), "strong", "client"),
    ]


def own_rows() -> list[Row]:
    """Clients that keep models on which no noise ever was, and control variates; noise for a certified mu of 3."""
    found: list[Row] = []
    rule = {"steps": 5, "batch": 8, "clip": 1.0, "schedule": Constant(rate=0.1)}
    for own in (Identity(), Interpolate(alpha=0.1), Identity(pull=0.5), Attention(own=0.5)):
        for view in ("server", "strong", "rounds", "final"):
            protocol = Protocol(
                seed=1,
                clients=6,
                rounds=10,
                local=FedAvg(**rule),
                noise=Gaussian(sigma=1.0),
                personalization=own,
            )
            found.append((f"fedavg, {own}", protocol, view, "record"))
    found.append(
        (
            "SCAFFOLD",
            Protocol(
                seed=1, clients=6, rounds=10, local=Scaffold(**rule), noise=Gaussian(sigma=1.0)
            ),
            "server",
            "record",
        )
    )
    return [
        (words, replace(p, noise=Gaussian(sigma=(certify(p, view).mu or 0.0) / 3)), view, unit)
        for words, p, view, unit in found
    ]


def mechanism_rows() -> list[Row]:
    """One release of each kind of noise, a hidden draw of clients, and a shuffler."""
    step, update = (
        {"steps": n, "batch": 1, "clip": 0.5, "schedule": Constant(rate=1.0)} for n in (1, 2)
    )
    found: list[Row] = []
    for parameters in (1, 10):
        for noise in (Gaussian(sigma=1.0), Laplace(scale=1.0), Staircase(step=1.0, width=1.0)):
            model = Model(name="logistic", parameters=parameters)
            protocol = Protocol(
                seed=1, clients=3, rounds=1, local=FedAvg(**step), noise=noise, model=model
            )
            found.append((f"{noise.tag}, {parameters} parameters", protocol, "server", "client"))
    hidden = Protocol(
        seed=1,
        clients=4,
        rounds=3,
        local=FedAvg(**update, clip_target="update"),
        noise=Gaussian(sigma=0.25, where="server"),
        participation=Poisson(rate=0.5),
        aggregation=Mean(denominator="fixed"),
    )
    found += [
        (
            f"hidden clients, {kind}",
            replace(hidden, privacy=Privacy(adjacency=kind)),
            "rounds",
            "client",
        )
        for kind in KINDS
    ]
    laplace = FedAvg(**step, clip_norm="l1")
    shuffled = Protocol(
        seed=1, clients=12, rounds=1, local=laplace, noise=Laplace(scale=0.5), channel="shuffler"
    )
    return [*found, ("shuffled, 12 clients", shuffled, "server", "client")]


KINDS = ("add-or-remove", "replace-one")
TABLES = {"noisy": noisy_rows, "own": own_rows, "mechanisms": mechanism_rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--only", choices=TABLES)
    options = parser.parse_args()
    print(
        "| what | view | certified epsilon | measured epsilon | measured mu | attained | seconds |\n|---|---|---|---|---|---|---|"
    )
    for name, rows in TABLES.items():
        if options.only in (None, name):
            for words, protocol, view, unit in rows():
                started = time.perf_counter()
                with tempfile.TemporaryDirectory() as folder:
                    found = audit(
                        protocol,
                        view,
                        unit,
                        trainings=options.trainings,
                        folder=Path(folder) / "audit",
                    )
                numbers = (
                    f"{found.certified.epsilon(1e-5):.2f} | {found.epsilon_lower:.2f} | "
                    f"{found.mu_lower:.3f} | {found.attained or 0:.3f}"
                )
                print(
                    f"| {words} | {view} | {numbers} | {time.perf_counter() - started:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
