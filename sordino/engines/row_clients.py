"""One client's work in many trainings at once: the local rules, on tables with one training a row.

The small federations that audits train have few distinct records, and equal records have equal
gradients. So a batch is described by how many records of each kind it holds, which follows from the
very draws that `ClientWork` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.federation.assignment import make_assignment
from sordino.federation.personal import keeps_state
from sordino.federation.rules.local_training import (
    Assignment,
    ClientState,
    LocalResult,
    Substitute,
    Trainable,
    train_client,
)
from sordino.federation.setup import Setup
from sordino.models.bounded import bounded_features
from sordino.models.clipping import NORM_ORDERS, clip_factors, find_clippable
from sordino.models.per_example import ClippedSum
from sordino.models.task_losses import module_loss
from sordino.protocol import UserError
from sordino.randomness import Purpose, Stream

# Up to this many records of rare kinds are followed through a shuffle one by one; more are looked
# up in the drawn subset.
FOLLOWED = 8


class RowModels(Trainable, Interface):
    """Models of many trainings, one a row, whose loss is linear in a record."""

    def example_gradients(self, records: Tensor) -> Tensor:
        """Returns the gradient of each record's loss at each row: (rows, records, parameters).

        Args:
            records: One record per row.
        """


class RowClients:
    """Trains one client at a time, in many trainings at once.

    It holds models that every call overwrites.

    Attributes:
        setup: The federation.
        loss: The loss that is minimised.
        record_steps: Whether noisy-sgd records the noisy mean of every step: always.
        like: For each client, the number of the first client that computes the same, so that work
            is done once for all of them: clients with equal records that draw, keep and are sent
            nothing personal.
    """

    record_steps = True

    def __init__(self, setup: Setup) -> None:
        """Makes the models of the rows, and finds out which records are equal.

        Args:
            setup: The federation.

        Raises:
            UserError: The model cannot be trained many times at once.
        """
        self.setup = setup
        self.loss = module_loss(setup.module, setup.train.y)
        self._initial = setup.initial_weights()
        self._first = 0
        self._models: RowModels | None = None
        # Rules that draw no batches compute with the weights alone and need no models.
        if self._draws_batches:
            make_rows: Callable[[], RowModels] | None = getattr(setup.module, "many", None)
            if make_rows is None:
                raise UserError(
                    f"{type(setup.module).__name__} cannot be trained many times at once: "
                    "its method `many` is missing."
                )
            self._models = make_rows()
        whole = join_labels(setup)
        self._kinds = [find_kinds(whole[part]) for part in setup.parts]
        self.like = np.arange(len(setup.parts))
        if not is_personal(setup):
            self.like = find_alike_clients(setup, whole, self._kinds)

    @property
    def _draws_batches(self) -> bool:
        return self.setup.protocol.local.draws_batches

    @property
    def model(self) -> RowModels:
        """The models, one training a row."""
        if self._models is None:
            raise RuntimeError("no models for this rule")
        return self._models

    @property
    def clipped_sums(self) -> KindSums:
        """The object that computes clipped sums over batches described by kinds."""
        return KindSums(self.model)

    def train(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        first: int,
        kept: ClientState | None = None,
        sums: Substitute | None = None,
    ) -> tuple[Assignment, LocalResult]:
        """Runs the steps of a client in all rows.

        Args:
            client: The number of the client.
            round_index: The number of the round, from 0.
            weights: The global models, one training a row, and in further tables whatever else the
                server sends (see `broadcast_state`).
            first: The number of the training in the first row.
            kept: The state that the client has kept, arrays with one training a row.
            sums: With noisy-sgd, values that replace the client's sums and their noise.

        Returns:
            The client's assignment, and its result without noise on the upload.
        """
        self._first = first
        initial = np.broadcast_to(self._initial, weights.shape[-2:])
        task = make_assignment(
            self.setup,
            initial,
            client=client,
            round_index=round_index,
            weights=weights,
            kept=kept or {},
            sums=sums,
        )
        return task, train_client(self, task)

    def as_tensor(self, vector: np.ndarray) -> Tensor:
        """Returns a table as a tensor.

        Args:
            vector: One vector, or a table with one a row.
        """
        table = np.ascontiguousarray(vector)
        if not table.flags.writeable:
            # The initial model, for clients that have kept none yet, is a read-only view.
            table = table.copy()
        return torch.from_numpy(table)

    def draw_batches(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the mean record of every step's batch: (trainings, 1, entries).

        Losses are linear in a record, so the mean record represents the whole batch.

        Args:
            task: The round's work.
        """
        batch = self.setup.protocol.local.batch
        counts = self._count_kinds(task)
        inputs = self._kind_inputs(task.client)
        nothing = torch.zeros(1)
        constant = None
        if bool((counts == counts[0, 0]).all()):
            constant = torch.from_numpy(counts[0, 0] / batch).float() @ inputs
        for step in range(counts.shape[1]):
            mean = constant
            if mean is None:
                mean = torch.from_numpy(counts[:, step] / batch).float() @ inputs
            yield mean.unsqueeze(-2), nothing

    def draw_examples(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields a record of each kind, and the number of each in every row's batch.

        Args:
            task: The round's work.
        """
        counts = self._count_kinds(task)
        inputs = self._kind_inputs(task.client)
        for step in range(counts.shape[1]):
            yield inputs, torch.from_numpy(counts[:, step].astype(np.float32))

    def bounded_records(self, task: Assignment, norm: float) -> tuple[Tensor, Tensor]:
        """Returns all records of a client, scaled into a ball, and their labels.

        Args:
            task: The round's work.
            norm: The largest norm.
        """
        rows = torch.from_numpy(self.setup.parts[task.client])
        features = bounded_features(self.setup.train.inputs(rows), norm)
        return features, self.setup.train.y.index_select(0, rows)

    def step_noise(self, task: Assignment, step: int) -> Stream:
        """Returns the keystream of the noise of one step, in the first row.

        Args:
            task: The round's work.
            step: The number of the step.
        """
        return self.setup.noise_key.stream(
            Purpose.STEP_NOISE,
            training=self._first,
            client=task.client,
            round_index=task.round_index,
            step=step,
        )

    def _count_kinds(self, task: Assignment) -> np.ndarray:
        """Returns the number of records of each kind in every batch: (trainings, steps, kinds)."""
        rule = self.setup.protocol.local
        kinds = self._kinds[task.client]
        records = len(self.setup.parts[task.client])
        batch = rule.batch or records
        trainings = len(task.start)
        varying = self.setup.release.varying_batches
        if not varying and (len(kinds.first) == 1 or batch == records):
            shares = np.array([batch])
            if batch == records:
                shares = np.bincount(kinds.of)
            return np.broadcast_to(shares, (trainings, rule.steps, len(shares)))
        stream = self.setup.draw_key.stream(
            Purpose.MINIBATCH,
            training=self._first,
            client=task.client,
            round_index=task.round_index,
        )
        if varying:
            rate = self.setup.find_draw_rate(task.client)
            counts = count_poisson_batches(stream, kinds, rule.steps, rate, trainings)
        else:
            counts = count_fixed_batches(stream, kinds, rule.steps, batch, trainings)
        return counts.reshape(trainings, rule.steps, -1)

    def _kind_inputs(self, client: int) -> Tensor:
        """Returns one record of each kind, as the models see it."""
        rows = self.setup.parts[client][list(self._kinds[client].first)]
        return self.setup.train.inputs(torch.from_numpy(rows))


class KindSums:
    """Computes clipped sums over batches that are described by kinds of records.

    It holds the models, at whose present weights gradients are computed.
    """

    def __init__(self, models: RowModels) -> None:
        """Takes the models.

        Args:
            models: One training a row.
        """
        self._models = models

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: Any, norm: str = "l2"
    ) -> ClippedSum:
        """Returns the sums, one training a row.

        Args:
            inputs: A record of each kind.
            targets: The number of records of each kind in every row's batch.
            clip: The largest norm of an example's gradient, for all rows or one a row.
            norm: "l1" or "l2", the norm that is clipped.
        """
        gradients = self._models.example_gradients(inputs)
        norms = torch.linalg.vector_norm(
            gradients, ord=NORM_ORDERS[norm], dim=-1, dtype=torch.float64
        )
        finite = find_clippable(norms, clip)
        gradients = torch.where(finite[..., None], gradients, 0.0)
        norms = torch.where(finite, norms, 0.0)
        total = torch.einsum("nk,nkd->nd", targets * clip_factors(norms, clip), gradients.double())
        clipped = int((targets * (norms > clip)).sum())
        inside = finite & (norms <= clip)
        within = (targets * torch.where(inside, 0.5, -0.5)).sum(dim=-1)
        return ClippedSum(total, clipped, int((targets * ~finite).sum()), within)


@dataclass(frozen=True)
class Kinds:
    """The kinds of a client's records, of which the last is the most common.

    Attributes:
        first: The place of the first record of each kind among the client's records.
        of: The kind of every record.
    """

    first: tuple[int, ...]
    of: tuple[int, ...]


def find_kinds(records: Tensor) -> Kinds:
    """Returns the kinds of some records.

    Args:
        records: The records of a client, one a row.

    Example:
        >>> find_kinds(torch.tensor([[5.0], [2.0], [2.0]]))
        Kinds(first=(0, 1), of=(0, 1, 1))
    """
    _, first, of, counts = np.unique(
        records.numpy(), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(counts, kind="stable")
    return Kinds(tuple(first[order].tolist()), tuple(np.argsort(order)[of.reshape(-1)].tolist()))


# Cached, since a training and the adversary that observes it make the same draws.
@lru_cache(maxsize=4)
def count_poisson_batches(
    stream: Stream, kinds: Kinds, steps: int, rate: float, trainings: int
) -> np.ndarray:
    """Returns how many records of each kind Poisson batches hold, one batch a row.

    Args:
        stream: The keystream of the draws.
        kinds: The kinds of the client's records.
        steps: The number of steps.
        rate: The probability that a batch holds a record.
        trainings: The number of trainings.
    """
    coins = stream.coins(steps, len(kinds.of), rate, trainings)
    of = np.array(kinds.of)
    return np.stack([coins[:, of == kind].sum(axis=1) for kind in range(len(kinds.first))], axis=1)


@lru_cache(maxsize=4)
def count_fixed_batches(
    stream: Stream, kinds: Kinds, steps: int, batch: int, trainings: int
) -> np.ndarray:
    """Returns how many records of each kind batches of a fixed size hold, one batch a row.

    Args:
        stream: The keystream of the draws.
        kinds: The kinds of the client's records.
        steps: The number of steps.
        batch: The number of records that a step draws.
        trainings: The number of trainings.
    """
    rare = range(len(kinds.first) - 1)
    of = np.array(kinds.of)
    if int((of < len(rare)).sum()) <= FOLLOWED:
        columns = [
            stream.count_in_subsets(np.flatnonzero(of == kind), steps, batch, len(of), trainings)
            for kind in rare
        ]
    else:
        drawn = of[stream.subsets(steps, batch, len(of), trainings)]
        columns = [(drawn == kind).sum(axis=1) for kind in rare]
    return np.stack([*columns, batch - np.sum(columns, axis=0)], axis=1)


def join_labels(setup: Setup) -> Tensor:
    """Returns every record with its label, one a row.

    Args:
        setup: The federation.
    """
    records = setup.train.x.reshape(len(setup.train.x), -1)
    labels = setup.train.y.reshape(len(setup.train.y), -1)
    return torch.cat([records.double(), labels.double()], dim=1)


def is_personal(setup: Setup) -> bool:
    """Returns whether every client computes something different.

    That is so if clients keep or are sent something personal, or draw noise in their steps.

    Args:
        setup: The federation.
    """
    protocol = setup.protocol
    corrected = protocol.local.corrected
    release = setup.release
    # Under Poisson sampling even clients with equal records draw batches of different sizes.
    drawn = release.in_steps or release.varying_batches
    return keeps_state(protocol) or protocol.penalty or corrected or drawn


def find_alike_clients(setup: Setup, whole: Tensor, kinds: list[Kinds]) -> np.ndarray:
    """Returns for each client the first one that computes the same, whichever records are drawn.

    Args:
        setup: The federation.
        whole: Every record with its label, one a row.
        kinds: The kinds of each client's records.
    """
    like = np.arange(len(setup.parts))
    seen: dict[bytes, int] = {}
    rule = setup.protocol.local
    for client, part in enumerate(setup.parts):
        constant = len(kinds[client].first) == 1
        if rule.draws_batches and not constant and rule.batch != len(part):
            continue
        # If all records are equal, a minibatch does not depend on how many there are.
        compared = part[:1] if rule.draws_batches and constant else part
        like[client] = seen.setdefault(whole[compared].numpy().tobytes(), client)
    return like
