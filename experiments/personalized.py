"""PriFedSync, Figure 1: own models against the global one, at the same privacy, on MNIST whose labels are spread unevenly.

100 clients with four shards of MNIST each, so most have three or four digits. Noisy Adam on batches of 16, one epoch a round, half of
the clients in a round. Two federations with the same noise, and so with the same guarantee: in one, clients keep models of their own
and are helped by (1 - alpha) own + alpha global (Eq. 2.1, alpha = 0.1); in the other every round starts from the global model. All
models are scored for every client, on 200 test records with labels as likely as in that client's training records.
A few minutes on 2 cores:

    SORDINO_DATA=... python -m experiments.personalized [--model lenet5] [--rounds 100] [--multiplier 1.0] [--sampling poisson]
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
from sordino.engines.choice import choose
from sordino.federation.aggregation import aggregate, upload_weights
from sordino.federation.data import client_tests, load_dataset
from sordino.federation.models import FlatModel
from sordino.federation.participation import participants
from sordino.federation.personal import Kept, given_to, remembered
from sordino.federation.setup import Setup, prepare
from sordino.protocol import Nobody, Personalization

KINDS: dict[str, Personalization] = {"own models": Interpolate(alpha=0.1), "global only": Nobody()}


def federation(own: Personalization, options: argparse.Namespace) -> Protocol:
    """The paper's setting (section 4.1)."""
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


def states(setup: Setup, engine: str) -> Iterator[tuple[np.ndarray, Mapping[int, Kept]]]:
    """After every round, the global model and what clients have kept."""
    protocol, weights = setup.protocol, setup.initial_weights()
    kept: dict[int, Kept] = {}
    with choose(setup, engine).start(setup, workers=None, device="cpu") as work:
        for t in range(protocol.rounds):
            chosen = participants(protocol, round=t, key=setup.draw_key)
            given = given_to(protocol, weights, chosen, kept)
            uploads = list(work.uploads(round=t, weights=weights, participants=chosen, kept=given))
            kept.update(
                {
                    upload.client: remembered(protocol, upload.kept or {}, upload.vector)
                    for upload in uploads
                }
            )
            shares = upload_weights(protocol.aggregation, setup.sizes[chosen])
            weights = aggregate(
                protocol.aggregation, weights, (upload.vector for upload in uploads), shares
            )
            yield weights, kept


class Scores:
    """Mean accuracy over clients, each on its own test records. It holds a model that is overwritten."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._model = setup, FlatModel(setup.module)
        self._tests = [
            torch.from_numpy(rows)
            for rows in client_tests(load_dataset("mnist"), setup.parts, setup.key, 200)
        ]

    def of(self, models: list[np.ndarray]) -> float:
        """One model for each client."""
        return float(
            np.mean(
                [
                    self._accuracy(model, rows)
                    for model, rows in zip(models, self._tests, strict=True)
                ]
            )
        )

    def _accuracy(self, model: np.ndarray, rows: torch.Tensor) -> float:
        self._model.load(torch.from_numpy(model))
        outputs = self._model.predict(self._setup.test.inputs(rows))
        return float((outputs.argmax(dim=1) == self._setup.test.y[rows]).double().mean())


def followed(name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Accuracies every so many rounds."""
    setup = prepare(federation(KINDS[name], options))
    scores, clients = Scores(setup), range(setup.protocol.clients)
    found: dict[str, list[float]] = {"round": [], "global": [], "own": []}
    rounds = track(
        states(setup, options.engine), name, total=options.rounds, console=Console(stderr=True)
    )
    for t, (weights, kept) in enumerate(rounds, start=1):
        if t % options.every == 0 or t == options.rounds:
            found["round"].append(t)
            found["global"].append(scores.of([weights for _ in clients]))
            if setup.protocol.keeps_models:
                found["own"].append(
                    scores.of([kept.get(client, {}).get("model", weights) for client in clients])
                )
    return found


def main() -> None:
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
    options = parser.parse_args()
    started = time.perf_counter()
    found = {name: followed(name, options) for name in KINDS}
    protocol = federation(KINDS["own models"], options)
    print(
        "| round | epsilon at 1e-5, strong | own models | their global model | global only |\n|---|---|---|---|---|"
    )
    for at, t in enumerate(found["own models"]["round"]):
        spent = certify(protocol, "strong", rounds=range(int(t))).epsilon(1e-5)
        own, mean, alone = (
            found["own models"]["own"][at],
            found["own models"]["global"][at],
            found["global only"]["global"][at],
        )
        print(f"| {t} | {spent:.2f} | {own:.1%} | {mean:.1%} | {alone:.1%} |", flush=True)
    print(f"{time.perf_counter() - started:.0f} seconds")
    options.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
