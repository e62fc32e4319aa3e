"""Noisy-sgd, and what travels between clients and server, broken on purpose in the training alone (see `broken`).

Who looks on repeats a client's work by `ManyClients` as well. So a break is in force only while the training's own clients work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.federation import assignment, many, many_clients, noisy_sgd
from sordino.federation.assignment import Upload
from sordino.federation.companions import Controls, Leader
from sordino.federation.local import LocalSteps
from sordino.federation.many_clients import KindSums, ManyClients, Worked
from sordino.federation.many_kept import ManyKept
from sordino.federation.models.per_example import ClippedSum
from sordino.federation.noisy_sgd import noisy_mean
from sordino.federation.randomness import Stream
from tests.audit.broken import Break


def while_clients_work(change: Break) -> Break:
    """Break something for the clients of the training and for nobody else."""

    class Broken(ManyClients):
        def work(self, **where: Any) -> Worked:
            with pytest.MonkeyPatch.context() as patch:
                change(patch)
                return super().work(**where)

    return lambda patch: patch.setattr(many, "ManyClients", Broken)


def place_of(stream: Stream) -> tuple[int, int, int]:
    """The client, the round and the step that a stream of noise belongs to."""
    client, round, step = struct.unpack("<3I", stream.nonce)
    return client, round, step


def means(broken: Callable[[Tensor, float, int, Stream], Tensor]) -> Break:
    """Clients that make noisy means in another way."""
    return while_clients_work(lambda patch: patch.setattr(noisy_sgd, "noisy_mean", broken))


# Noise


@means
def noise_missing_in_one_step(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """The second step of every round adds none."""
    return noisy_mean(total, 0.0 if place_of(stream)[2] == 1 else sigma, batch, stream)


@means
def noise_halved(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """Half the noise."""
    return noisy_mean(total, sigma / 2, batch, stream)


@means
def noise_divided_twice(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """Noise of the size that suits a mean, on the sum."""
    return noisy_mean(total, sigma / batch, batch, stream)


@means
def same_noise_in_every_step(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """Streams are told apart by client and round alone."""
    client, round, _ = place_of(stream)
    return noisy_mean(
        total, sigma, batch, replace(stream, nonce=struct.pack("<3I", client, round, 0))
    )


@means
def same_noise_for_every_client(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """Streams are told apart by round and step alone."""
    _, round, step = place_of(stream)
    return noisy_mean(
        total, sigma, batch, replace(stream, nonce=struct.pack("<3I", 0, round, step))
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
    lambda patch: patch.setattr(many_clients, "KindSums", BatchClip)
)
clip_missing = while_clients_work(lambda patch: patch.setattr(many_clients, "KindSums", Unclipped))


def divided_by_the_own_size(patch: pytest.MonkeyPatch) -> None:
    """A noisy sum is divided by as many examples as the Poisson batch really has: how much noise is left tells how many."""
    sizes: list[Tensor] = []

    class Counting(KindSums):
        def clipped_sum(
            self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
        ) -> ClippedSum:
            sizes[:] = [targets.sum(dim=1, keepdim=True).clamp(min=1.0)]
            return super().clipped_sum(inputs, targets, clip=clip, norm=norm)

    def by_size(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
        return noisy_mean(total, sigma, batch, stream) * batch / sizes[0]

    def change(inner: pytest.MonkeyPatch) -> None:
        inner.setattr(many_clients, "KindSums", Counting)
        inner.setattr(noisy_sgd, "noisy_mean", by_size)

    while_clients_work(change)(patch)


def record_in_every_batch(patch: pytest.MonkeyPatch) -> None:
    """Batches are not drawn: the rare record is in all of them."""

    class Always(ManyClients):
        def _counts(self, client: int, round: int, first: int, trainings: int) -> np.ndarray:
            counts = super()._counts(client, round, first, trainings).copy()
            if counts.shape[-1] > 1:
                counts[..., 0], counts[..., 1] = 1, counts.sum(axis=-1) - 1
            return counts

    patch.setattr(many, "ManyClients", Always)


def same_batch_in_every_step(patch: pytest.MonkeyPatch) -> None:
    """One batch is drawn for all steps of a round."""

    class Lazy(ManyClients):
        def _counts(self, client: int, round: int, first: int, trainings: int) -> np.ndarray:
            counts = super()._counts(client, round, first, trainings)
            return np.broadcast_to(counts[:, :1], counts.shape)

    patch.setattr(many, "ManyClients", Lazy)


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
        multiplier,
        noise,
        optimizer,
        pull=None,
        on_step,
    ) -> LocalSteps:
        model.load(start)
        moment = torch.zeros_like(start)
        for step, (rate, (inputs, targets)) in enumerate(zip(rates, batches, strict=True)):
            total = gradients.clipped_sum(inputs, targets, clip=rule.clip).total
            noisy = noisy_mean(total, multiplier * rule.noise_unit, rule.batch, noise(step))
            on_step(noisy)
            clean = total / rule.batch
            moment = 0.9 * moment + clean
            model.weights.sub_(moment + (noisy - clean), alpha=rate)
        return many.UNCOUNTED

    while_clients_work(lambda inner: inner.setattr(many_clients, "train_noisily", train))(patch)


def clean(worked: Worked, client: ManyClients, where: dict[str, Any]) -> Tensor:
    """The models that a client's steps would have led to without noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            noisy_sgd,
            "noisy_mean",
            lambda total, sigma, batch, stream: noisy_mean(total, 0.0, batch, stream),
        )
        return ManyClients.work(client, **where).models


def clean_models_kept(patch: pytest.MonkeyPatch) -> None:
    """What a client keeps, and starts from the next time, never had any noise."""

    class Keeping(ManyClients):
        def work(self, **where: Any) -> Worked:
            worked = super().work(**where)
            return replace(
                worked, kept={**worked.kept, "model": clean(worked, self, where).numpy()}
            )

    patch.setattr(many, "ManyClients", Keeping)


def clean_models_sent(patch: pytest.MonkeyPatch) -> None:
    """The noise is in the steps that are shown, and not in the model that is uploaded."""

    class Sending(ManyClients):
        def work(self, **where: Any) -> Worked:
            worked = super().work(**where)
            return replace(worked, models=clean(worked, self, where))

    patch.setattr(many, "ManyClients", Sending)


# What travels beside the global model


def _without_noise(uploads: Iterable[Upload], models: dict[int, np.ndarray]) -> Iterator[Upload]:
    for upload in uploads:
        yield replace(upload, vector=models[upload.client])


def remembering(models: dict[int, np.ndarray]) -> type[ManyClients]:
    """Clients whose models without noise somebody else gets hold of."""

    class Remembered(ManyClients):
        def work(self, *, client: int, **where: Any) -> Worked:
            worked = super().work(client=client, **where)
            models[client] = worked.models.numpy().astype(np.float32)
            return worked

    return Remembered


def companions_of_clean_models(patch: pytest.MonkeyPatch) -> None:
    """The leader's model, or the control variates, come from models as they were before the noise."""
    models: dict[int, np.ndarray] = {}

    def companion_of(protocol: Any, state: Any) -> Leader | Controls:
        kind = Controls if protocol.local.tag == "scaffold" else Leader

        class Leaking(kind):  # type: ignore[misc, valid-type]
            def noted(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
                return super().noted(_without_noise(uploads, models))

        return Leaking(protocol, state)

    patch.setattr(many, "ManyClients", remembering(models))
    patch.setattr(many, "companion_of", companion_of)


def helpers_of_clean_models(patch: pytest.MonkeyPatch) -> None:
    """The server makes helpers of models as they were before the noise."""
    models: dict[int, np.ndarray] = {}

    class Leaking(ManyKept):
        def keep(self, client: int, kept: Any, vector: np.ndarray, present: np.ndarray) -> None:
            super().keep(client, kept, models[client], present)

    patch.setattr(many, "ManyClients", remembering(models))
    patch.setattr(many, "ManyKept", Leaking)


def pull_missing(patch: pytest.MonkeyPatch) -> None:
    """Nobody is pulled to the leader, and the adversary does not know it."""
    while_clients_work(pull_missing_as_all_know)(patch)


def pull_missing_as_all_know(patch: pytest.MonkeyPatch) -> None:
    """Nobody is pulled to the leader, so steps add up without what was counted on to shrink them."""
    patch.setattr(assignment, "leader_pull", lambda *arguments: None)
