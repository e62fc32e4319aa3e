"""Many trainings of one small federation side by side, for audits: the same rules, noise and aggregation, with a row for each training.

Everything that a round of `loop.Training` does to a vector is done here to a table whose rows are trainings. Row n is training n: it
draws what `train` would draw for that training alone, and ends with the same model to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.federation.aggregation import aggregate, projected, upload_weights
from sordino.federation.linear import train_clipped_glm
from sordino.federation.local import Trainable, noisy_upload, train_locally, upload_type
from sordino.federation.mechanisms import server_noise
from sordino.federation.models.bounded import bounded_features
from sordino.federation.models.losses import module_loss
from sordino.federation.participation import attendances
from sordino.federation.randomness import LANES, Purpose
from sordino.federation.setup import Setup
from sordino.protocol import ClippedGlm, FedAvg, Median, ModeConnectivity, NoisySgd, Scaffold, UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class ManyRound:
    """One round of many trainings.

    Attributes:
        round: its number.
        before: the global models, one training a row.
        present: who took part: one training a row, one client a column.
        uploads: what each client sent: (clients, trainings, parameters). Rows of trainings without the client mean nothing.
        after: the next global models.
    """

    round: int
    before: np.ndarray
    present: np.ndarray
    uploads: np.ndarray
    after: np.ndarray


class ManyClients:
    """Trains one client at a time, in many trainings at once. It holds models that every call overwrites.

    Clients with equal records whose steps draw nothing compute the same, so that work is done once for all of them.
    """

    def __init__(self, setup: Setup) -> None:
        if isinstance(setup.protocol.local, NoisySgd) or setup.protocol.keeps_models:
            raise UserError("noisy-sgd, and clients that keep models, cannot be trained many times at once: train them one by one.")
        self._setup = setup
        self._loss = module_loss(setup.module, setup.train.y)
        self._models: Trainable | None = None
        if not isinstance(setup.protocol.local, ClippedGlm):
            many: Callable[[], Trainable] | None = getattr(setup.module, "many", None)
            if many is None:
                raise UserError(f"{type(setup.module).__name__} cannot be trained many times at once: its method `many` is missing.")
            self._models = many()
        self.like, self._constant = alike_clients(setup)

    def trained(self, *, client: int, round: int, weights: np.ndarray, first: int) -> Tensor:
        """The client's models after its steps, in float64 and without noise.

        Args:
            client: which one.
            round: the round.
            weights: the global models, one training a row.
            first: the number of the training in the first row.
        """
        rule, start = self._setup.protocol.local, torch.from_numpy(weights)
        rates = rule.schedule.rates(round=round, steps=rule.steps)
        if isinstance(rule, ClippedGlm):
            rows = torch.from_numpy(self._setup.parts[client])
            features = bounded_features(self._setup.train.inputs(rows), rule.feature_norm)
            models = start.double()
            train_clipped_glm(models, features, self._setup.train.y.index_select(0, rows), rule, rates)
            return models
        if self._models is None or isinstance(rule, NoisySgd):
            raise RuntimeError("no models for this rule")
        return train_locally(self._models, start, rule, rates, self._batches(client, round, rule, first, len(weights)), self._loss)[1]

    def _batches(self, client: int, round: int, rule: FedAvg, first: int, trainings: int) -> Iterator[tuple[Tensor, Tensor]]:
        part, train = self._setup.parts[client], self._setup.train
        if rule.batch == len(part) or self._constant[client]:
            rows = torch.from_numpy(part[: rule.batch])
            inputs, targets = train.inputs(rows), train.y.index_select(0, rows)
            for _ in range(rule.steps):
                yield inputs, targets
            return
        stream = self._setup.draw_key.stream(Purpose.MINIBATCH, training=first, client=client, round=round)
        draws = stream.subsets(rule.steps, rule.batch, len(part), trainings).reshape(trainings, rule.steps, rule.batch)
        for step in range(rule.steps):
            rows = torch.from_numpy(part[draws[:, step]])
            yield train.inputs(rows.reshape(-1)).reshape(*rows.shape, -1), train.y[rows]


def alike_clients(setup: Setup) -> tuple[np.ndarray, np.ndarray]:
    """For each client the first one that computes the same, and whether all its records are equal, so that draws do not matter."""
    records, labels = setup.train.x.reshape(len(setup.train.x), -1), setup.train.y.reshape(len(setup.train.y), -1)
    whole = torch.cat([records.double(), labels.double()], dim=1)
    constant = np.array([bool((whole[part] == whole[part[:1]]).all()) for part in setup.parts])
    like = np.arange(len(setup.parts))
    seen: dict[bytes, int] = {}
    minibatches = not isinstance(setup.protocol.local, ClippedGlm)
    for client, part in enumerate(setup.parts):
        if not minibatches or constant[client] or setup.protocol.local.batch == len(part):
            # A minibatch of equal records is the same whatever their number.
            told = part[:1] if minibatches and constant[client] else part
            like[client] = seen.setdefault(whole[told].numpy().tobytes(), client)
    return like, constant


def rounds_of_many(
    setup: Setup, trainings: range, *, rounds: int | None = None, caps: Mapping[int, int] | None = None
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
    protocol, clients = setup.protocol, ManyClients(setup)
    if protocol.penalty or isinstance(protocol.local, Scaffold) or isinstance(protocol.aggregation, ModeConnectivity):
        raise UserError("trainings side by side know no penalty, no control variates and no mode connectivity.")
    initial = setup.initial_weights()
    weights = np.broadcast_to(initial, (len(trainings), initial.size)).copy()
    shares = upload_weights(protocol.aggregation, setup.sizes)
    left = np.full((len(trainings), protocol.clients), protocol.rounds)
    left[:, list(caps or {})] = list((caps or {}).values())
    for t in range(protocol.rounds if rounds is None else rounds):
        present = attendances(protocol, round=t, key=setup.draw_key, trainings=trainings) & (left > 0)
        left -= present
        uploads = np.empty((protocol.clients, *weights.shape), dtype=upload_type(protocol.noise))
        models: dict[int, Tensor] = {}
        for client in range(protocol.clients):
            like = int(clients.like[client])
            if like not in models:
                models[like] = clients.trained(client=like, round=t, weights=weights, first=trainings.start)
            stream = setup.noise_key.stream(Purpose.UPLOAD_NOISE, training=trainings.start, client=client, round=t)
            uploads[client] = noisy_upload(models[like], setup.noises[client], stream)
        after = joined(setup, weights, uploads, present, shares, server_noise(setup, round=t, trainings=trainings))
        if protocol.assumptions.diameter is not None:
            after = projected(after, initial, protocol.assumptions.diameter)
        yield ManyRound(round=t, before=weights, present=present, uploads=uploads, after=after)
        weights = after


def joined(
    setup: Setup, weights: np.ndarray, uploads: np.ndarray, present: np.ndarray, shares: np.ndarray, noise: np.ndarray | None = None
) -> np.ndarray:
    """The next global models; where who takes part differs between trainings, each has its own weights."""
    rule, expected = setup.protocol.aggregation, setup.protocol.participation.expected(clients=setup.protocol.clients)
    if bool(present.all()):
        return aggregate(rule, weights, uploads, shares, expected=expected, noise=noise)
    if isinstance(rule, Median):
        rows = [aggregate(rule, weights[n], uploads[present[n], n], shares[present[n]]) for n in range(len(weights))]
        return np.stack(rows)
    return aggregate(rule, weights, uploads, (present * shares).T[:, :, None], expected=expected, noise=noise)
