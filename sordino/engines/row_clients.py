"""One client's work in many trainings at once: the local rules, on tables with one training a row.

Records of the small federations that audits train are few kinds repeated, and equal records have
equal gradients. So a batch is described by how many records of each kind it holds, which is drawn
by the very draws that `ClientWork` makes.
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

# Records of rare kinds that are followed through a shuffle one by one; more are looked up in the
# subset itself.
FOLLOWED = 8


class RowModels(Trainable, Interface):
    """Models of many trainings, one a row, whose loss is linear in a record."""

    def example_gradients(self, records: Tensor) -> Tensor:
        """Returns the gradient of each record's loss at each row: (rows, records, parameters).

        Args:
            records: Which records.
        """


class RowClients:
    """Trains one client at a time, in many trainings at once.

    It holds models that every call overwrites.

    Attributes:
        setup: The federation.
        loss: The loss that is minimised.
        record_steps: True: noisy-sgd always records the noisy mean of every step.
        like: For each client the first one that computes the same, so that work is done once for
            all: clients with equal records that draw, keep and are given nothing personal.
    """

    record_steps = True

    def __init__(self, setup: Setup) -> None:
        """Prepares the rows' models, and looks at which records are equal.

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
        # Rules that draw no batches compute with the weights themselves and need no models.
        if self._draws_batches:
            make_rows: Callable[[], RowModels] | None = getattr(setup.module, "many", None)
            if make_rows is None:
                raise UserError(
                    f"{type(setup.module).__name__} cannot be trained many times at once:"
                    " its method `many` is missing."
                )
            self._models = make_rows()
        whole = whole_records(setup)
        self._kinds = [kinds_of(whole[part]) for part in setup.parts]
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
        """Sums of clipped gradients over batches that are described by kinds."""
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
            client: Which client works.
            round_index: Number of the round, from 0.
            weights: The global models, one training a row, and in further tables what travels with
                them (see `broadcast_state`).
            first: The number of the training in the first row.
            kept: What the client has kept, arrays with one training a row.
            sums: With noisy-sgd, what takes the place of the client's own sums and of their noise.

        Returns:
            What the client was asked to do, and what came of it, without noise on the upload.
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
            # What clients have not kept yet is the initial model, broadcast to all rows.
            table = table.copy()
        return torch.from_numpy(table)

    def draw_batches(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the mean record of every step's batch: (trainings, 1, entries).

        Losses are linear in a record, so that the mean record of a batch represents all of it.

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
        """Yields a record of each kind, and how many of each every row's batch holds.

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
        """Returns the keystream of the noise of one step, of the first row.

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
        """Returns how many records of each kind the batch of every step holds.

        Their shape is (trainings, steps, kinds).
        """
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
            counts = poisson_counts(stream, kinds, rule.steps, rate, trainings)
        else:
            counts = fixed_counts(stream, kinds, rule.steps, batch, trainings)
        return counts.reshape(trainings, rule.steps, -1)

    def _kind_inputs(self, client: int) -> Tensor:
        """Returns one record of each kind, as the models see it."""
        rows = self.setup.parts[client][list(self._kinds[client].first)]
        return self.setup.train.inputs(torch.from_numpy(rows))


class KindSums:
    """Computes clipped sums over batches that are described by kinds of records.

    It holds the models, whose present weights count.
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
            targets: How many of each kind every row's batch holds.
            clip: The largest norm of an example's gradient, for all rows or one a row.
            norm: Which norm that is.
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
    """Kinds of a client's records, of which the last is the most common.

    Attributes:
        first: Where the first record of each kind is among the client's.
        of: The kind of every record.
    """

    first: tuple[int, ...]
    of: tuple[int, ...]


def kinds_of(records: Tensor) -> Kinds:
    """Returns the kinds of some records, one a row.

    Args:
        records: The records of a client.

    Example:
        >>> kinds_of(torch.tensor([[5.0], [2.0], [2.0]]))
        Kinds(first=(0, 1), of=(0, 1, 1))
    """
    _, first, of, counts = np.unique(
        records.numpy(), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(counts, kind="stable")
    return Kinds(tuple(first[order].tolist()), tuple(np.argsort(order)[of.reshape(-1)].tolist()))


# Cached: a training and the adversary that looks on draw the same.
@lru_cache(maxsize=4)
def poisson_counts(
    stream: Stream, kinds: Kinds, steps: int, rate: float, trainings: int
) -> np.ndarray:
    """Returns how many records of each kind Poisson batches hold, one batch a row.

    Args:
        stream: The source of the draws.
        kinds: The kinds of records.
        steps: How many steps there are.
        rate: The probability that a batch holds a record.
        trainings: How many trainings, one a row.
    """
    coins = stream.coins(steps, len(kinds.of), rate, trainings)
    of = np.array(kinds.of)
    return np.stack([coins[:, of == kind].sum(axis=1) for kind in range(len(kinds.first))], axis=1)


@lru_cache(maxsize=4)
def fixed_counts(
    stream: Stream, kinds: Kinds, steps: int, batch: int, trainings: int
) -> np.ndarray:
    """Returns how many records of each kind batches of a fixed size hold, one batch a row.

    Args:
        stream: The source of the draws.
        kinds: The kinds of records.
        steps: How many steps there are.
        batch: How many records a step draws.
        trainings: How many trainings, one a row.
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


def whole_records(setup: Setup) -> Tensor:
    """Returns every record with its label, one a row.

    Args:
        setup: The federation.
    """
    records = setup.train.x.reshape(len(setup.train.x), -1)
    labels = setup.train.y.reshape(len(setup.train.y), -1)
    return torch.cat([records.double(), labels.double()], dim=1)


def is_personal(setup: Setup) -> bool:
    """Returns whether no two clients compute the same.

    They are given or keep something personal, or draw noise in their steps.

    Args:
        setup: The federation.
    """
    protocol = setup.protocol
    corrected = protocol.local.corrected
    release = setup.release
    # How many records a Poisson batch holds shows in its sum.
    drawn = release.in_steps or release.varying_batches
    return keeps_state(protocol) or protocol.penalty or corrected or drawn


def find_alike_clients(setup: Setup, whole: Tensor, kinds: list[Kinds]) -> np.ndarray:
    """Returns for each client the first one that computes the same, whatever is drawn.

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
        # A minibatch of equal records is the same whatever their number.
        compared = part[:1] if rule.draws_batches and constant else part
        like[client] = seen.setdefault(whole[compared].numpy().tobytes(), client)
    return like
