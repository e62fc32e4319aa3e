"""One client's work in many trainings at once: the rules of `client`, on tables with a row for each training.

Records of the small federations that audits train are few kinds repeated, and equal records have equal gradients. So a batch is told by
how many records of each kind it holds, which is drawn by the very draws that `client` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.federation.assignment import Assignment, assigned
from sordino.federation.connectivity import sent_model
from sordino.federation.linear import train_clipped_glm
from sordino.federation.local import Trainable, train_locally
from sordino.federation.models.bounded import bounded_features
from sordino.federation.models.losses import module_loss
from sordino.federation.models.per_example import ORDERS, ClippedSum, can_be_clipped, shrinking
from sordino.federation.noisy_sgd import Substitute, train_noisily
from sordino.federation.optimizers import Optimizer
from sordino.federation.personal import Kept, keeps_state
from sordino.federation.randomness import Purpose, Stream
from sordino.federation.setup import Setup
from sordino.privacy.sizes import size_of
from sordino.protocol import ClippedGlm, FedAvg, NoisySgd, Scaffold, UserError

FOLLOWED = 8  # records of rare kinds that are followed through a shuffle one by one; more are looked up in the subset itself
NOTHING: Kept = {}


class ManyModels(Trainable, Interface):
    """Models of many trainings, one a row, whose loss is linear in a record."""

    def example_gradients(self, records: Tensor) -> Tensor:
        """The gradient of each record's loss at each row: (rows, records, parameters)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Worked:
    """What came of a client's work.

    Attributes:
        models: its models, one training a row, without noise on the upload.
        kept: what it keeps for its next round.
        means: with noisy-sgd the noisy mean of every step: (trainings, steps, parameters).
    """

    models: Tensor
    kept: Kept
    means: np.ndarray | None = None


class ManyClients:
    """Trains one client at a time, in many trainings at once. It holds models that every call overwrites.

    Clients with equal records that draw, keep and are given nothing of their own compute the same: `like` names the first of them, so that
    work is done once for all.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._loss = module_loss(setup.module, setup.train.y)
        self._initial = setup.initial_weights()
        self._models: ManyModels | None = None
        if not isinstance(setup.protocol.local, ClippedGlm):
            many: Callable[[], ManyModels] | None = getattr(setup.module, "many", None)
            if many is None:
                raise UserError(
                    f"{type(setup.module).__name__} cannot be trained many times at once: its method `many` is missing."
                )
            self._models = many()
        whole = whole_records(setup)
        self._kinds = [kinds_of(whole[part]) for part in setup.parts]
        self.like = (
            np.arange(len(setup.parts))
            if personal(setup)
            else alike_clients(setup, whole, self._kinds)
        )

    def trained(
        self, *, client: int, round: int, weights: np.ndarray, first: int, kept: Kept = NOTHING
    ) -> Tensor:
        """The client's models after its steps, in float64 and without noise on the upload; see `work`."""
        return self.work(client=client, round=round, weights=weights, first=first, kept=kept).models

    def work(
        self,
        *,
        client: int,
        round: int,
        weights: np.ndarray,
        first: int,
        kept: Kept = NOTHING,
        sums: Substitute | None = None,
    ) -> Worked:
        """Run the client's steps.

        Args:
            client: which one.
            round: the round.
            weights: the global models, one training a row, and in further tables what travels with them (see `companions`).
            first: the number of the training in the first row.
            kept: what the client has kept, arrays with one training a row.
            sums: with noisy-sgd, what takes the place of the client's own sums and of their noise.
        """
        protocol, rule = self._setup.protocol, self._setup.protocol.local
        initial = np.broadcast_to(self._initial, weights.shape[-2:])
        task = assigned(
            self._setup, initial, client=client, round=round, weights=weights, kept=kept
        )
        start = torch.from_numpy(np.ascontiguousarray(task.start))
        rates = rule.schedule.rates(round=round, steps=rule.steps)
        if isinstance(rule, ClippedGlm):
            return self._clipped_glm(client, start, rule, rates)
        if isinstance(rule, NoisySgd):
            return self._noisy_steps(task, start, rule, rates, first, sums)
        batches = self._mean_records(client, self._counts(client, round, first, len(start)), rule)
        correction = None if task.correction is None else torch.from_numpy(task.correction)
        models = train_locally(
            self._rows(), start, rule, rates, batches, self._loss, task.pull, correction
        )[1]
        kept = {"model": models.numpy().astype(np.float64)} if protocol.keeps_models else NOTHING
        return Worked(
            models=sent_model(self._setup, start, models, training=first, round=round), kept=kept
        )

    def _clipped_glm(
        self, client: int, start: Tensor, rule: ClippedGlm, rates: tuple[float, ...]
    ) -> Worked:
        rows = torch.from_numpy(self._setup.parts[client])
        features = bounded_features(self._setup.train.inputs(rows), rule.feature_norm)
        models = start.double()
        train_clipped_glm(models, features, self._setup.train.y.index_select(0, rows), rule, rates)
        return Worked(models=models, kept=NOTHING)

    def _noisy_steps(
        self,
        task: Assignment,
        start: Tensor,
        rule: NoisySgd,
        rates: tuple[float, ...],
        first: int,
        sums: Substitute | None,
    ) -> Worked:
        """The rule noisy-sgd: the noise is in the steps, whose noisy means are kept for who looks on."""
        rows, means, place = (
            self._rows(),
            list[np.ndarray](),
            {"training": first, "client": task.client, "round": task.round},
        )
        own_sums, optimizer = KindSums(rows), Optimizer(rule.optimizer, start, dict(task.kept))
        train_noisily(
            rows,
            own_sums if sums is None else sums(own_sums),
            start,
            rule,
            rates,
            self._tallied(task.client, self._counts(task.client, task.round, first, len(start))),
            multiplier=size_of(self._setup.protocol.noise) if sums is None else 0.0,
            noise=lambda step: self._setup.noise_key.stream(Purpose.STEP_NOISE, **place, step=step),
            optimizer=optimizer,
            pull=task.pull,
            on_step=lambda noisy: means.append(noisy.numpy().copy()),
        )
        vector = rows.weights.numpy().copy()
        own = {"model": vector} if self._setup.protocol.keeps_models else {}
        return Worked(
            models=torch.from_numpy(vector),
            kept={**own, **optimizer.state()},
            means=np.stack(means, axis=1),
        )

    def _rows(self) -> ManyModels:
        if self._models is None:
            raise RuntimeError("no models for this rule")
        return self._models

    def _counts(self, client: int, round: int, first: int, trainings: int) -> np.ndarray:
        """How many records of each kind the batch of every step holds: (trainings, steps, kinds)."""
        rule, kinds, records = (
            self._setup.protocol.local,
            self._kinds[client],
            len(self._setup.parts[client]),
        )
        batch, poisson = (
            rule.batch or records,
            isinstance(rule, NoisySgd) and rule.sampling == "poisson",
        )
        if not poisson and (len(kinds.first) == 1 or batch == records):
            shares = np.bincount(kinds.of) if batch == records else np.array([batch])
            return np.broadcast_to(shares, (trainings, rule.steps, len(shares)))
        stream = self._setup.draw_key.stream(
            Purpose.MINIBATCH, training=first, client=client, round=round
        )
        drawn = poisson_counts if poisson else fixed_counts
        return drawn(stream, kinds, rule.steps, batch, trainings).reshape(trainings, rule.steps, -1)

    def _inputs(self, client: int) -> Tensor:
        """One record of each kind, as the models see it."""
        return self._setup.train.inputs(
            torch.from_numpy(self._setup.parts[client][list(self._kinds[client].first)])
        )

    def _tallied(self, client: int, counts: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """For `KindSums`: records of each kind, and how many of each there are in a step's batch."""
        inputs = self._inputs(client)
        for step in range(counts.shape[1]):
            yield inputs, torch.from_numpy(counts[:, step].astype(np.float32))

    def _mean_records(
        self, client: int, counts: np.ndarray, rule: FedAvg
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Losses are linear in a record, so that the mean record of a batch stands for all of it: (trainings, 1, entries)."""
        inputs, nothing = self._inputs(client), torch.zeros(1)
        constant = (
            torch.from_numpy(counts[0, 0] / rule.batch).float() @ inputs
            if bool((counts == counts[0, 0]).all())
            else None
        )
        for step in range(counts.shape[1]):
            mean = (
                constant
                if constant is not None
                else torch.from_numpy(counts[:, step] / rule.batch).float() @ inputs
            )
            yield mean.unsqueeze(-2), nothing


class KindSums:
    """Clipped sums over batches that are told by kinds. It holds the models, whose present weights count."""

    def __init__(self, models: ManyModels) -> None:
        self._models = models

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """The sums, one training a row: `inputs` has a record of each kind, `targets` how many of them each row's batch holds."""
        gradients = self._models.example_gradients(inputs)
        norms = torch.linalg.vector_norm(gradients, ord=ORDERS[norm], dim=-1, dtype=torch.float64)
        finite = can_be_clipped(norms, clip)
        gradients, norms = (
            torch.where(finite[..., None], gradients, 0.0),
            torch.where(finite, norms, 0.0),
        )
        total = torch.einsum("nk,nkd->nd", targets * shrinking(norms, clip), gradients.double())
        return ClippedSum(
            total, int((targets * (norms > clip)).sum()), int((targets * ~finite).sum())
        )


@dataclass(frozen=True)
class Kinds:
    """Kinds of records: where the first of each stands among the client's, and the kind of every record. The last is the most common."""

    first: tuple[int, ...]
    of: tuple[int, ...]


def kinds_of(records: Tensor) -> Kinds:
    """The kinds of some records, one a row.

    Example:
        >>> kinds_of(torch.tensor([[5.0], [2.0], [2.0]]))
        Kinds(first=(0, 1), of=(0, 1, 1))
    """
    _, first, of, counts = np.unique(
        records.numpy(), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(counts, kind="stable")
    return Kinds(tuple(first[order].tolist()), tuple(np.argsort(order)[of.reshape(-1)].tolist()))


@lru_cache(maxsize=4)  # who trains and who looks on draw the same
def poisson_counts(
    stream: Stream, kinds: Kinds, steps: int, batch: int, trainings: int
) -> np.ndarray:
    """How many records of each kind Poisson batches hold, one batch a row."""
    coins, of = (
        stream.coins(steps, len(kinds.of), batch / len(kinds.of), trainings),
        np.array(kinds.of),
    )
    return np.stack([coins[:, of == kind].sum(axis=1) for kind in range(len(kinds.first))], axis=1)


@lru_cache(maxsize=4)
def fixed_counts(
    stream: Stream, kinds: Kinds, steps: int, batch: int, trainings: int
) -> np.ndarray:
    """How many records of each kind batches of a fixed size hold, one batch a row."""
    rare, of = range(len(kinds.first) - 1), np.array(kinds.of)
    if int((of < len(rare)).sum()) <= FOLLOWED:
        columns = [
            stream.held(np.flatnonzero(of == kind), steps, batch, len(of), trainings)
            for kind in rare
        ]
    else:
        drawn = of[stream.subsets(steps, batch, len(of), trainings)]
        columns = [(drawn == kind).sum(axis=1) for kind in rare]
    return np.stack([*columns, batch - np.sum(columns, axis=0)], axis=1)


def whole_records(setup: Setup) -> Tensor:
    """Every record with its label, one a row."""
    records, labels = (
        setup.train.x.reshape(len(setup.train.x), -1),
        setup.train.y.reshape(len(setup.train.y), -1),
    )
    return torch.cat([records.double(), labels.double()], dim=1)


def personal(setup: Setup) -> bool:
    """Whether clients are given or keep something of their own, or draw noise in their steps: then no two of them compute the same."""
    protocol = setup.protocol
    return (
        keeps_state(protocol)
        or protocol.penalty
        or isinstance(protocol.local, (Scaffold, NoisySgd))
    )


def alike_clients(setup: Setup, whole: Tensor, kinds: list[Kinds]) -> np.ndarray:
    """For each client the first one that computes the same, whatever is drawn."""
    like = np.arange(len(setup.parts))
    seen: dict[bytes, int] = {}
    minibatches = not isinstance(setup.protocol.local, ClippedGlm)
    for client, part in enumerate(setup.parts):
        constant = len(kinds[client].first) == 1
        if not minibatches or constant or setup.protocol.local.batch == len(part):
            # A minibatch of equal records is the same whatever their number.
            told = part[:1] if minibatches and constant else part
            like[client] = seen.setdefault(whole[told].numpy().tobytes(), client)
    return like
