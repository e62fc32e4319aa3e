"""Compares personal models with the global one at the same privacy (prifedsync, Figure 1).

There are 100 clients with four shards of MNIST each, so most have three or four digits. They train
by noisy Adam on batches of 16, one epoch a round, half of the clients in a round. Two federations
have the same noise, and so the same guarantee: in one, clients keep personal models and are helped
by (1 - alpha) own + alpha global (Eq. 2.1, alpha = 0.1); in the other every round starts from the
global model. All models are scored for every client, on 200 test records with labels as likely as
in that client's training records. A few minutes on 2 cores:

    SORDINO_DATA=... python -m experiments.personalized
        [--model lenet5] [--rounds 100] [--multiplier 1.0] [--sampling poisson] [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from experiments.markdown_tables import print_header, print_row
from sordino import (
    Constant,
    Data,
    Gaussian,
    Interpolate,
    Model,
    NoisySgd,
    Poisson,
    Protocol,
    Shards,
    certify,
)
from sordino.data import client_tests, load_dataset
from sordino.engines.choice import choose_engine
from sordino.federation.round import play_training
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup, prepare
from sordino.models import FlatModel
from sordino.protocol import NoPersonalization, Personalization

KINDS: dict[str, Personalization] = {
    "personal models": Interpolate(alpha=0.1),
    "global only": NoPersonalization(),
}


def make_federation(own: Personalization, options: argparse.Namespace) -> Protocol:
    """Returns the paper's setting (section 4.1).

    Args:
        own: How clients keep personal models.
        options: The options of the command line.
    """
    schedule = Constant(rate=options.rate)
    rule = NoisySgd(
        steps=38, batch=16, clip=1.0, schedule=schedule, optimizer="adam", sampling=options.sampling
    )
    return Protocol(
        seed=options.seed,
        clients=100,
        rounds=options.rounds,
        participation=Poisson(rate=0.5),
        personalization=own,
        local=rule,
        noise=Gaussian(multiplier=options.multiplier),
        data=Data(name="mnist", partition=Shards(per_client=4), records=600),
        model=Model(name=options.model),
    )


def train_rounds(
    setup: Setup, engine: str
) -> Iterator[tuple[np.ndarray, Mapping[int, ClientState]]]:
    """Yields the global model and the clients' states after every round.

    Args:
        setup: The federation.
        engine: The name of the engine.
    """
    # Not `train`: personal models are read after every round, and a run keeps only the last ones.
    with choose_engine(setup, engine).start(setup, workers=None, device="cpu") as work:
        for record in play_training(setup, work, setup.protocol.rounds):
            yield record.after.weights, record.after.clients


class ClientScorer:
    """Scores models on every client's own test records, by one network that it overwrites."""

    def __init__(self, setup: Setup) -> None:
        """Draws the test records.

        Args:
            setup: The federation.
        """
        self._setup = setup
        self._model = FlatModel(setup.module)
        self._tests = [
            torch.from_numpy(rows)
            for rows in client_tests(load_dataset("mnist"), setup.parts, setup.key, 200)
        ]

    def average_accuracy(self, models: list[np.ndarray]) -> float:
        """Returns the mean accuracy over clients.

        Args:
            models: One model for each client.
        """
        accuracies = []
        for model, rows in zip(models, self._tests, strict=True):
            accuracies.append(self._measure_accuracy(model, rows))
        return float(np.mean(accuracies))

    def _measure_accuracy(self, model: np.ndarray, rows: torch.Tensor) -> float:
        self._model.load(torch.from_numpy(model))
        outputs = self._model.predict(self._setup.test.inputs(rows))
        return float((outputs.argmax(dim=1) == self._setup.test.y[rows]).double().mean())


def trace_accuracies(name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns accuracies after some of the rounds.

    Args:
        name: The kind of federation, a key of `KINDS`.
        options: The options of the command line.
    """
    setup = prepare(make_federation(KINDS[name], options))
    scorer = ClientScorer(setup)
    clients = range(setup.protocol.clients)
    found: dict[str, list[float]] = {"round": [], "global": [], "own": []}
    rounds = track(
        train_rounds(setup, options.engine),
        name,
        total=options.rounds,
        console=Console(stderr=True),
    )
    for t, (weights, kept) in enumerate(rounds, start=1):
        if t % options.every == 0 or t == options.rounds:
            found["round"].append(t)
            found["global"].append(scorer.average_accuracy([weights for _ in clients]))
            if setup.protocol.keeps_models:
                # A client that has not taken part yet still has the global model.
                own = [kept.get(client, {}).get("model", weights) for client in clients]
                found["own"].append(scorer.average_accuracy(own))
    return found


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--multiplier", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--sampling", default="fixed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--out", type=Path, default=Path("personalized.json"))
    parser.add_argument("--quick", action="store_true", help="a look, of ten rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 10
        options.every = 5
        options.out = options.out.with_suffix(".quick.json")
    started = time.perf_counter()
    found = {name: trace_accuracies(name, options) for name in KINDS}
    protocol = make_federation(KINDS["personal models"], options)
    print_header(
        "round", "epsilon at 1e-5, strong", "personal models", "their global model", "global only"
    )
    for at, t in enumerate(found["personal models"]["round"]):
        spent = certify(protocol, "strong", rounds=range(int(t))).epsilon(1e-5)
        own = found["personal models"]["own"][at]
        mean = found["personal models"]["global"][at]
        alone = found["global only"]["global"][at]
        print_row(t, f"{spent:.2f}", f"{own:.1%}", f"{mean:.1%}", f"{alone:.1%}")
    print(f"{time.perf_counter() - started:.0f} seconds")
    options.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
