"""The local rule noisy-sgd (PriFedSync, Algorithm 2): sums of clipped per-example gradients, noise on every sum, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.federation.local import LocalSteps, Pull
from sordino.federation.models.per_example import ClippedSum
from sordino.federation.optimizers import Optimizer
from sordino.federation.randomness import Stream
from sordino.protocol import NoisySgd


class Weights(Interface):
    """A model as a vector, or many models as rows of a table."""

    weights: Tensor

    def load(self, vector: Tensor, /) -> None:
        """Take over these weights."""


class ClippedSums(Interface):
    """Who adds up clipped gradients at a model's present weights."""

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """The sum over a batch, possibly empty."""


Substitute = Callable[
    [ClippedSums], ClippedSums
]  # what takes the place of a client's own sums, made of them


def train_noisily(
    model: Weights,
    gradients: ClippedSums,
    start: Tensor,
    rule: NoisySgd,
    rates: Iterable[float],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    multiplier: float,
    noise: Callable[[int], Stream],
    optimizer: Optimizer,
    pull: Pull | None = None,
    on_step: Callable[[Tensor], None] = lambda noisy: None,
) -> LocalSteps:
    """Run the steps; the result is in `model.weights`, the moments are in `optimizer`.

    The start may be one model or a table with one model a row.

    Args:
        model: overwritten.
        gradients: the clipped sums of the same model.
        start: the weights to start from.
        rule: the rule.
        rates: the learning rate of every step.
        batches: inputs and targets of every step, possibly none.
        multiplier: noise on a sum, in units of `rule.noise_unit`.
        noise: the keystream of a step's noise.
        optimizer: what is made of the noisy gradients.
        pull: the helper, where it regularises.
        on_step: called with every noisy mean, which is all that a step reveals; what it keeps it must copy.
    """
    model.load(start)
    clipped = looked_at = nonfinite = 0
    for step, (rate, (inputs, targets)) in enumerate(zip(rates, batches, strict=True)):
        found = gradients.clipped_sum(inputs, targets, clip=rule.clip, norm=rule.clip_norm)
        gradient = noisy_mean(found.total, multiplier * rule.noise_unit, rule.batch, noise(step))
        on_step(gradient)
        # From here on all is post-processing of the noisy mean.
        if rule.weight_decay > 0:
            gradient.add_(model.weights, alpha=rule.weight_decay)
        if pull is not None:
            gradient.add_(model.weights - pull.model.to(model.weights), alpha=pull.strength)
        optimizer.step(model.weights, gradient, rate)
        clipped, looked_at, nonfinite = (
            clipped + found.clipped,
            looked_at + len(targets),
            nonfinite + found.nonfinite,
        )
    return LocalSteps(clipped=clipped, clips=looked_at, nonfinite=nonfinite)


def noisy_mean(total: Tensor, sigma: float, batch: int, stream: Stream) -> Tensor:
    """(total + N(0, sigma^2)) / B: B is the public constant also where a Poisson batch has another size, or none.

    A table with one training a row gets the noise of as many trainings, from the stream's own on.
    """
    if sigma == 0:
        return (total / batch).float()
    width = total.shape[-1]
    noisy = total.detach().cpu().numpy() + sigma * stream.normals_of(
        total.numel() // width, width
    ).reshape(total.shape)
    return torch.from_numpy((noisy / batch).astype(np.float32)).to(total.device)
