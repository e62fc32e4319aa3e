"""Whole federations run in numpy, client by client, as an oracle for the counterexamples: nothing here knows a formula of a paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

Rates = Callable[[int], list[float]]


def last_model(
    slopes: np.ndarray, noises: np.ndarray, rates: Rates, *, clip: float, proximal: float = 0.0
) -> float:
    """The last global model when client i has the loss slopes[i] w and adds noises[t, i] to its upload in round t."""
    model = 0.0
    for round_number, noise in enumerate(noises):
        local = np.full(slopes.size, model)
        for rate in rates(round_number):
            local = local - rate * (np.clip(slopes, -clip, clip) + proximal * (local - model))
        model = float((local + noise).mean())
    return model


def exact_mu(
    *,
    rounds: int,
    clients: int,
    sigma: float,
    clip: float,
    rates: Rates,
    proximal: float = 0.0,
    seed: int = 0,
) -> float:
    """Gaussian parameter of the last model: an affine function of all noises, so its law is known from its response to each of them."""
    others = np.random.default_rng(seed).uniform(-clip, clip, clients)
    data, neighbour = others.copy(), others.copy()
    data[0], neighbour[0] = 2 * clip, -2 * clip  # beyond the clip, as a record may be
    silent = np.zeros((rounds, clients))

    def model(slopes: np.ndarray, noises: np.ndarray) -> float:
        return last_model(slopes, noises, rates, clip=clip, proximal=proximal)

    means = model(data, silent), model(neighbour, silent)
    responses = []
    for entry in itertools.product(range(rounds), range(clients)):
        noises = silent.copy()
        noises[entry] = 1.0
        responses.append(model(data, noises) - means[0])
    return abs(means[0] - means[1]) / (sigma * math.sqrt(math.fsum(r * r for r in responses)))


def sampled_runs(
    probability: float,
    rounds: int,
    clients: int,
    upload: float,
    mixing: float = 0.5,
    seen: int | None = None,
) -> dict[tuple[object, ...], float]:
    """The law of everything that clients 1, ..., m-1, or one of them, receive in PriFedSync without noise; client 0's data enter as `upload`.

    Each sequence of sampled sets is one run: local training adds a client's own number to its helper model, the server mixes.
    """
    own = [upload, *(math.sqrt(prime) for prime in (2, 3, 5, 7, 11)[: clients - 1])]
    sets = list(itertools.product((False, True), repeat=clients))
    law: dict[tuple[object, ...], float] = {}
    for sequence in itertools.product(sets, repeat=rounds):
        weight, server, helpers, received = 1.0, 0.0, [0.0] * clients, []
        for sampled in sequence:
            weight *= math.prod(probability if is_in else 1 - probability for is_in in sampled)
            if any(sampled):
                uploads = [helpers[i] + own[i] for i in range(clients) if sampled[i]]
                server = (1 - mixing) * server + mixing * sum(uploads) / len(uploads)
            helpers = [server if sampled[i] else helpers[i] for i in range(clients)]
            received.append(
                tuple(
                    round(server, 9) if sampled[i] else None
                    for i in (range(1, clients) if seen is None else (seen,))
                )
            )
        law[tuple(received)] = law.get(tuple(received), 0.0) + weight
    return law


def total_variation(
    first: dict[tuple[object, ...], float], second: dict[tuple[object, ...], float]
) -> float:
    """Total variation of two discrete laws."""
    return sum(max(0.0, mass - second.get(outcome, 0.0)) for outcome, mass in first.items())
