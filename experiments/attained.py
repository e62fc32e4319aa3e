"""Measures how near the audit comes to the certified curves.

The tables are about views, noisy steps, personal models, mechanisms, hidden and shuffled clients.
Some minutes on 2 cores. Where the certificate is Gaussian, `attained` is measured over certified
mu; elsewhere it is measured mu over the mu that the certified curve allows at one of the test's
error rates.

    python -m experiments.attained [--trainings 5000] [--only views|noisy|own|mechanisms] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from experiments.markdown_tables import print_header, print_row
from sordino import (
    Attention,
    Constant,
    Data,
    FedAvg,
    FedProx,
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
    StageWise,
    Staircase,
    certify,
)
from sordino.audit.auditing import audit
from sordino.protocol import Privacy

# A description, the protocol, the view and the unit.
Row = tuple[str, Protocol, str, str]


def list_view_rows() -> list[Row]:
    """Returns four views, two rules, two schedules, with noise for a certified mu of 3.

    The record in question is in every step.
    """
    found: list[Row] = []
    for rule in (FedAvg, FedProx):
        for schedule in (Constant(rate=0.1), StageWise(rate=0.1)):
            settings = {"steps": 5, "batch": 8, "clip": 1.0, "schedule": schedule}
            if rule is FedProx:
                settings["proximal"] = 1.0
            for view in ("server", "rounds", "coalition:3", "final"):
                protocol = Protocol(
                    seed=1,
                    clients=20,
                    rounds=100,
                    local=rule(**settings),
                    noise=Gaussian(sigma=1.0),
                )
                found.append((f"{rule.tag}, {schedule.tag}", protocol, view, "record"))
    return calibrate_rows(found)


def calibrate_rows(rows: list[Row], mu: float = 3.0) -> list[Row]:
    """Returns the rows with the noise that gives them a certified mu.

    Args:
        rows: The rows at sigma = 1.
        mu: The certified mu; 3 is far from both certainty and guessing.
    """
    found: list[Row] = []
    for words, protocol, view, unit in rows:
        # The certified mu is inversely proportional to sigma.
        sigma = (certify(protocol, view).mu or 0.0) / mu
        found.append((words, replace(protocol, noise=Gaussian(sigma=sigma)), view, unit))
    return found


def make_noisy_federation(
    sampling: str,
    multiplier: float,
    *,
    steps: int = 10,
    rounds: int = 10,
    rate: float = 1.0,
    records: int = 64,
) -> Protocol:
    """Returns a federation of noisy-sgd with batches of 8.

    Args:
        sampling: How batches are sampled.
        multiplier: The noise multiplier.
        steps: The local steps of a round.
        rounds: The rounds of the training.
        rate: The probability that a client takes part.
        records: The records of a client.
    """
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


def list_noisy_rows() -> list[Row]:
    """Returns federations with batches of 8 of 64 records."""
    replaced = replace(
        make_noisy_federation("poisson", 1.0), privacy=Privacy(adjacency="replace-one")
    )
    return [
        (
            "Poisson batches, multiplier 1",
            make_noisy_federation("poisson", 1.0),
            "strong",
            "record",
        ),
        (
            "Poisson batches, multiplier 0.7, every second round",
            make_noisy_federation("poisson", 0.7, rate=0.5),
            "strong",
            "record",
        ),
        (
            "fixed batches, multiplier 0.7, one step",
            make_noisy_federation("fixed", 0.7, steps=1, rounds=1, records=16),
            "strong",
            "record",
        ),
        ("fixed batches, multiplier 1", make_noisy_federation("fixed", 1.0), "strong", "record"),
        ("fixed batches, multiplier 2", make_noisy_federation("fixed", 2.0), "strong", "record"),
        (
            "fixed batches, multiplier 4, 40 rounds",
            make_noisy_federation("fixed", 4.0, rounds=40),
            "strong",
            "record",
        ),
        ("Poisson batches, multiplier 1, replaced", replaced, "strong", "record"),
        (
            "fixed batches, multiplier 40, all records",
            make_noisy_federation("fixed", 40.0),
            "strong",
            "client",
        ),
    ]


def list_personal_rows() -> list[Row]:
    """Returns clients with personal models without noise, and control variates, at mu = 3."""
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
    return calibrate_rows(found)


def list_mechanism_rows() -> list[Row]:
    """Returns one release of each kind of noise, a hidden draw of clients, and a shuffler."""
    step = {"steps": 1, "batch": 1, "clip": 0.5, "schedule": Constant(rate=1.0)}
    update = {**step, "steps": 2}
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


# The sizes of a quick look.
QUICK_ROWS = 3
QUICK_TRAININGS = 500
KINDS = ("add-or-remove", "replace-one")
TABLES = {
    "views": list_view_rows,
    "noisy": list_noisy_rows,
    "own": list_personal_rows,
    "mechanisms": list_mechanism_rows,
}


def print_audit(row: Row, trainings: int) -> None:
    """Audits one federation, and prints its line.

    Args:
        row: The federation, the view and the unit.
        trainings: The trainings on each side.
    """
    words, protocol, view, unit = row
    started = time.perf_counter()
    # A fresh folder: an audit that exists would be read in place of a new one.
    with tempfile.TemporaryDirectory() as folder:
        found = audit(protocol, view, unit, trainings=trainings, folder=Path(folder) / "audit")
    print_row(
        words,
        view,
        f"{found.certified.epsilon(1e-5):.2f}",
        f"{found.epsilon_lower:.2f}",
        f"{found.mu_lower:.3f}",
        f"{found.attained or 0:.3f}",
        f"{time.perf_counter() - started:.1f}",
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--quick", action="store_true", help="a look, of few rows and trainings")
    options = parser.parse_args()
    trainings = QUICK_TRAININGS if options.quick else options.trainings
    print_header(
        "what",
        "view",
        "certified epsilon",
        "measured epsilon",
        "measured mu",
        "attained",
        "seconds",
    )
    for name, list_rows in TABLES.items():
        if options.only in (None, name):
            for row in islice(list_rows(), QUICK_ROWS if options.quick else None):
                print_audit(row, trainings)


if __name__ == "__main__":
    main()
