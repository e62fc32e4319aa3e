"""Many trainings of one small federation side by side, for audits: the same rules, noise and aggregation, with a row for each training.

Everything that a round of `loop.Training` does to a vector is done here to a table whose rows are trainings. Row n is training n: it
draws what `train` would draw for that training alone, and ends with the same model to the rounding of float32.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sordino.federation.aggregation import aggregate, projected, upload_weights
from sordino.federation.assignment import Upload
from sordino.federation.companions import companion_of
from sordino.federation.folder import State
from sordino.federation.local import LocalSteps, noisy_upload, upload_type
from sordino.federation.many_clients import ManyClients, Worked
from sordino.federation.many_kept import ManyKept
from sordino.federation.mechanisms import server_noise
from sordino.federation.participation import attendances
from sordino.federation.personal import Kept
from sordino.federation.randomness import LANES, Purpose
from sordino.federation.setup import Setup
from sordino.protocol import Median, ModeConnectivity, NoisySgd, UserError

UNCOUNTED = LocalSteps(clipped=0, clips=0, nonfinite=0)  # nobody reads metrics here


@dataclass(frozen=True, kw_only=True, eq=False)
class ManyRound:
    """One round of many trainings.

    Attributes:
        round: its number.
        before: the global models, one training a row.
        broadcast: what clients were sent: the same, or several tables of which it is the first (see `companions`).
        kept: what clients found when the round began, where they keep anything.
        present: who took part: one training a row, one client a column.
        uploads: what each client sent: (clients, trainings, parameters). Rows of trainings without the client mean nothing.
        means: with noisy-sgd, the noisy mean of every step of a client: (trainings, steps, parameters).
        after: the next global models.
    """

    round: int
    before: np.ndarray
    broadcast: np.ndarray
    present: np.ndarray
    uploads: np.ndarray
    after: np.ndarray
    kept: Mapping[int, Kept] = field(default_factory=dict)
    means: Mapping[int, np.ndarray] = field(default_factory=dict)


def rounds_of_many(
    setup: Setup,
    trainings: range,
    *,
    rounds: int | None = None,
    caps: Mapping[int, int] | None = None,
) -> Iterator[ManyRound]:
    """Run trainings of a federation side by side, a round at a time.

    Args:
        setup: the federation; its model must be one that can be trained many times at once.
        trainings: their numbers, all in one group of `LANES`; setup.training is not used.
        rounds: how many rounds, by default all of the protocol.
        caps: how often clients with budgets of their own may take part.
    """
    if trainings.start // LANES != (trainings.stop - 1) // LANES:
        raise UserError(
            f"trainings {trainings.start} to {trainings.stop - 1} do not share a keystream: at most {LANES}, from a multiple of it on"
        )
    protocol, clients, kept = setup.protocol, ManyClients(setup), ManyKept(setup, len(trainings))
    if isinstance(protocol.aggregation, ModeConnectivity):
        raise UserError(
            "trainings side by side know no mode connectivity, which trains on public records: train them one by one."
        )
    initial = setup.initial_weights()
    weights = np.broadcast_to(initial, (len(trainings), initial.size)).copy()
    beside: Mapping[str, np.ndarray] = {}
    left = np.full((len(trainings), protocol.clients), protocol.rounds)
    left[:, list(caps or {})] = list((caps or {}).values())
    for t in range(protocol.rounds if rounds is None else rounds):
        present = attendances(protocol, round=t, key=setup.draw_key, trainings=trainings) & (
            left > 0
        )
        left -= present
        companion = companion_of(protocol, State(weights=weights, round=t, kept=beside))
        broadcast, found = companion.broadcast(weights), kept.found(weights)
        uploads, worked = (
            np.empty((protocol.clients, *weights.shape), dtype=upload_type(protocol.noise)),
            dict[int, Worked](),
        )
        for client, like in enumerate(clients.like.tolist()):
            if like not in worked:
                worked[like] = clients.work(
                    client=like, round=t, weights=broadcast, first=trainings.start, kept=found[like]
                )
            uploads[client] = sent(setup, client, t, worked[like].models, trainings.start)
            kept.keep(client, worked[like].kept, uploads[client], present[:, client])
        noted = (
            Upload(client=c, vector=uploads[c], steps=UNCOUNTED, rows=present[:, [c]])
            for c in range(protocol.clients)
        )
        deque(companion.noted(noted), maxlen=0)
        beside = companion.kept
        after = joined(
            setup, weights, uploads, present, server_noise(setup, round=t, trainings=trainings)
        )
        if protocol.assumptions.diameter is not None:
            after = projected(after, initial, protocol.assumptions.diameter)
        means = {client: work.means for client, work in worked.items() if work.means is not None}
        yield ManyRound(
            round=t,
            before=weights,
            broadcast=broadcast,
            kept=found,
            present=present,
            uploads=uploads,
            means=means,
            after=after,
        )
        weights = after


def sent(setup: Setup, client: int, round: int, models: Tensor, first: int) -> np.ndarray:
    """What leaves a client: its models under noise, or as they are where the noise is in the steps."""
    if isinstance(setup.protocol.local, NoisySgd):
        return models.numpy()
    stream = setup.noise_key.stream(
        Purpose.UPLOAD_NOISE, training=first, client=client, round=round
    )
    return noisy_upload(models, setup.noises[client], stream)


def joined(
    setup: Setup,
    weights: np.ndarray,
    uploads: np.ndarray,
    present: np.ndarray,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """The next global models; where who takes part differs between trainings, each has its own weights."""
    rule, expected = (
        setup.protocol.aggregation,
        setup.protocol.participation.expected(clients=setup.protocol.clients),
    )
    shares = upload_weights(rule, setup.sizes)
    if bool(present.all()):
        return aggregate(rule, weights, uploads, shares, expected=expected, noise=noise)
    if isinstance(rule, Median):
        rows = [
            aggregate(rule, weights[n], uploads[present[n], n], shares[present[n]])
            for n in range(len(weights))
        ]
        return np.stack(rows)
    return aggregate(
        rule, weights, uploads, (present * shares).T[:, :, None], expected=expected, noise=noise
    )
