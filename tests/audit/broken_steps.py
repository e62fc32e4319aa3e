"""Noisy-sgd, and what travels between clients and server, broken on purpose in the training alone (see `broken`).

The adversary repeats a client's work by `RowClients` as well. So a break is in force only while the training's own clients work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.engines import row_clients, table_engine
from sordino.engines.row_clients import KindSums, RowClients
from sordino.federation import assignment
from sordino.federation import round as one_round
from sordino.federation.broadcast_state import ControlVariates, LeaderModel
from sordino.federation.personal import merge_kept
from sordino.federation.rules import noisy_sgd_steps
from sordino.federation.rules.local_training import UNCOUNTED, Assignment, LocalResult, LocalSteps
from sordino.federation.rules.noisy_sgd_steps import SILENCE, noisy_mean
from sordino.federation.upload import Upload
from sordino.mechanisms import mechanism_of
from sordino.models.per_example import ClippedSum
from sordino.protocol import Noise
from sordino.randomness import Stream
from tests.audit.broken import Break

Trained = tuple[Assignment, LocalResult]


def while_clients_work(change: Break) -> Break:
    """Break something for the clients of the training and for nobody else."""

    class Broken(RowClients):
        def train(self, **where: Any) -> Trained:
            with pytest.MonkeyPatch.context() as patch:
                change(patch)
                return super().train(**where)

    return lambda patch: patch.setattr(table_engine, "RowClients", Broken)


def place_of(stream: Stream) -> tuple[int, int, int]:
    """The client, the round and the step that a stream of noise belongs to."""
    client, round, step = struct.unpack("<3I", stream.nonce)
    return client, round, step


def shrink(noise: Noise, divisor: float) -> Noise:
    """The same noise, that many times smaller."""
    mechanism = mechanism_of(noise)
    return mechanism.resize(mechanism.size / divisor)


def means(broken: Callable[[Tensor, Noise, int, Stream], Tensor]) -> Break:
    """Clients that make noisy means in another way."""
    return while_clients_work(lambda patch: patch.setattr(noisy_sgd_steps, "noisy_mean", broken))


# Noise


@means
def noise_missing_in_one_step(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
    """The second step of every round adds none."""
    return noisy_mean(total, SILENCE if place_of(stream)[2] == 1 else noise, batch, stream)


@means
def noise_halved(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
    """Half the noise."""
    return noisy_mean(total, shrink(noise, 2), batch, stream)


@means
def noise_divided_twice(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
    """Noise of the size that suits a mean, on the sum."""
    return noisy_mean(total, shrink(noise, batch), batch, stream)


@means
def same_noise_in_every_step(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
    """Streams are told apart by client and round alone."""
    client, round, _ = place_of(stream)
    return noisy_mean(
        total, noise, batch, replace(stream, nonce=struct.pack("<3I", client, round, 0))
    )


@means
def same_noise_for_every_client(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
    """Streams are told apart by round and step alone."""
    _, round, step = place_of(stream)
    return noisy_mean(
        total, noise, batch, replace(stream, nonce=struct.pack("<3I", 0, round, step))
    )


# Clip and batches


class BatchClip(KindSums):
    """The mean gradient of a batch is clipped, and not every example's: one example may move it by 2C, and the sum by 2BC."""

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        gradients = self._models.example_gradients(inputs)
        size = targets.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = torch.einsum("nk,nkd->nd", targets, gradients) / size
        return ClippedSum(
            size * mean * (clip / mean.norm(dim=1, keepdim=True)).clamp(max=1.0), 0, 0
        )


class Unclipped(KindSums):
    """Nothing is clipped."""

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        return super().clipped_sum(inputs, targets, clip=1e9, norm=norm)


clip_of_the_batch = while_clients_work(
    lambda patch: patch.setattr(row_clients, "KindSums", BatchClip)
)
clip_missing = while_clients_work(lambda patch: patch.setattr(row_clients, "KindSums", Unclipped))


def divided_by_the_own_size(patch: pytest.MonkeyPatch) -> None:
    """A noisy sum is divided by as many examples as the Poisson batch really has: how much noise is left tells how many."""
    sizes: list[Tensor] = []

    class Counting(KindSums):
        def clipped_sum(
            self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
        ) -> ClippedSum:
            sizes[:] = [targets.sum(dim=1, keepdim=True).clamp(min=1.0)]
            return super().clipped_sum(inputs, targets, clip=clip, norm=norm)

    def by_size(total: Tensor, noise: Noise, batch: int, stream: Stream) -> Tensor:
        return noisy_mean(total, noise, batch, stream) * batch / sizes[0]

    def change(inner: pytest.MonkeyPatch) -> None:
        inner.setattr(row_clients, "KindSums", Counting)
        inner.setattr(noisy_sgd_steps, "noisy_mean", by_size)

    while_clients_work(change)(patch)


def record_in_every_batch(patch: pytest.MonkeyPatch) -> None:
    """Batches are not drawn: the rare record is in all of them."""

    class Always(RowClients):
        def _count_kinds(self, task: Assignment) -> np.ndarray:
            counts = super()._count_kinds(task).copy()
            if counts.shape[-1] > 1:
                counts[..., 0], counts[..., 1] = 1, counts.sum(axis=-1) - 1
            return counts

    patch.setattr(table_engine, "RowClients", Always)


def same_batch_in_every_step(patch: pytest.MonkeyPatch) -> None:
    """One batch is drawn for all steps of a round."""

    class Lazy(RowClients):
        def _count_kinds(self, task: Assignment) -> np.ndarray:
            counts = super()._count_kinds(task)
            return np.broadcast_to(counts[:, :1], counts.shape)

    patch.setattr(table_engine, "RowClients", Lazy)


# What is made of the noisy means


def momentum_of_clean_gradients(patch: pytest.MonkeyPatch) -> None:
    """The moment adds up gradients as they were before the noise."""

    def train(
        model,
        gradients,
        start,
        rule,
        rates,
        batches,
        *,
        sum_noise,
        stream_of,
        optimizer,
        pull=None,
        on_step,
    ) -> LocalSteps:
        model.load(start)
        moment = torch.zeros_like(start)
        for step, (rate, (inputs, targets)) in enumerate(zip(rates, batches, strict=True)):
            total = gradients.clipped_sum(inputs, targets, clip=rule.clip).total
            noisy = noisy_mean(total, sum_noise, rule.batch, stream_of(step))
            on_step(noisy)
            clean = total / rule.batch
            moment = 0.9 * moment + clean
            model.weights.sub_(moment + (noisy - clean), alpha=rate)
        return UNCOUNTED

    while_clients_work(lambda inner: inner.setattr(noisy_sgd_steps, "train_noisily", train))(patch)


def clean(clients: RowClients, where: dict[str, Any]) -> Tensor:
    """The models that a client's steps would have led to without noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            noisy_sgd_steps,
            "noisy_mean",
            lambda total, noise, batch, stream: noisy_mean(total, SILENCE, batch, stream),
        )
        return RowClients.train(clients, **where)[1].model


def clean_models_kept(patch: pytest.MonkeyPatch) -> None:
    """What a client keeps, and starts from the next time, never had any noise."""

    class Keeping(RowClients):
        def train(self, **where: Any) -> Trained:
            task, result = super().train(**where)
            kept = {**result.kept, "model": clean(self, where).numpy()}
            return task, replace(result, kept=kept)

    patch.setattr(table_engine, "RowClients", Keeping)


def clean_models_sent(patch: pytest.MonkeyPatch) -> None:
    """The noise is in the steps that are shown, and not in the model that is uploaded."""

    class Sending(RowClients):
        def train(self, **where: Any) -> Trained:
            task, result = super().train(**where)
            return task, replace(result, model=clean(self, where))

    patch.setattr(table_engine, "RowClients", Sending)


# What travels beside the global model


def remembering(models: dict[int, np.ndarray]) -> type[RowClients]:
    """Clients whose models without noise somebody else gets hold of."""

    class Remembered(RowClients):
        def train(self, *, client: int, **where: Any) -> Trained:
            task, result = super().train(client=client, **where)
            models[client] = result.model.numpy().astype(np.float32)
            return task, result

    return Remembered


def companions_of_clean_models(patch: pytest.MonkeyPatch) -> None:
    """The leader's model, or the control variates, come from models as they were before the noise."""
    models: dict[int, np.ndarray] = {}

    def restore(protocol: Any, state: Any) -> LeaderModel | ControlVariates:
        kind = ControlVariates if protocol.local.tag == "scaffold" else LeaderModel

        class Leaking(kind):  # type: ignore[misc, valid-type]
            def note(self, upload: Upload) -> None:
                super().note(replace(upload, vector=models[upload.client]))

        return Leaking(protocol, state)

    patch.setattr(table_engine, "RowClients", remembering(models))
    patch.setattr(one_round, "restore_broadcast_state", restore)


def helpers_of_clean_models(patch: pytest.MonkeyPatch) -> None:
    """The server makes helpers of models as they were before the noise."""
    models: dict[int, np.ndarray] = {}

    def merge(protocol: Any, initial: np.ndarray, before: Any, upload: Upload) -> Any:
        return merge_kept(protocol, initial, before, replace(upload, vector=models[upload.client]))

    patch.setattr(table_engine, "RowClients", remembering(models))
    patch.setattr(one_round, "merge_kept", merge)


def pull_missing(patch: pytest.MonkeyPatch) -> None:
    """Nobody is pulled to the leader, and the adversary does not know it."""
    while_clients_work(pull_missing_as_all_know)(patch)


def pull_missing_as_all_know(patch: pytest.MonkeyPatch) -> None:
    """Nobody is pulled to the leader, so steps add up without what was counted on to shrink them."""
    patch.setattr(assignment, "leader_pull", lambda *arguments: None)
