"""The local rule noisy-sgd (PriFedSync, Algorithm 2): noise on every sum of clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.federation.rules.local_training import (
    LOCAL_RULES,
    Assignment,
    ClippedSums,
    LocalResult,
    LocalSteps,
    Pull,
    Worker,
    copy_step,
    rates_of,
)
from sordino.federation.rules.optimizers import Optimizer
from sordino.mechanisms import mechanism_of
from sordino.protocol import Gaussian, Noise, NoisySgd
from sordino.randomness import Stream

# For sums that were seen, which have their noise already.
SILENCE = Gaussian(sigma=0.0)


class Weights(Interface):
    """A model as a vector, or many models as rows of a table."""

    weights: Tensor

    def load(self, vector: Tensor, /) -> None:
        """Takes over these weights."""


def ignore_step(noisy: Tensor) -> None:
    """Does nothing with a noisy mean.

    Args:
        noisy: The noisy mean of a step.
    """


@LOCAL_RULES.register(NoisySgd)
def train_noisy_sgd(rule: NoisySgd, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the noisy steps of one client; the moments of its optimizer are what it keeps.

    Args:
        rule: The rule.
        worker: Runs the steps.
        task: Where they begin; `task.sums`, if given, takes the place of sums and noise.
    """
    start = worker.as_tensor(task.start)
    optimizer = Optimizer(rule.optimizer, start, dict(task.kept))
    means: list[np.ndarray] = []
    sums = worker.clipped_sums
    sum_noise = worker.setup.noises[task.client].fit_unit(rule.noise_unit)
    if task.sums is not None:
        sums = task.sums(sums)
        sum_noise = SILENCE
    steps = train_noisily(
        worker.model,
        sums,
        start,
        rule,
        rates_of(worker, task),
        worker.draw_examples(task),
        sum_noise=sum_noise,
        stream_of=partial(worker.step_noise, task),
        optimizer=optimizer,
        pull=task.pull,
        on_step=partial(copy_step, means) if worker.record_steps else ignore_step,
    )
    recorded = None
    if means:
        recorded = np.stack(means, axis=-2)
    model = worker.model.weights.cpu().clone()
    return LocalResult(
        model=model,
        steps=steps,
        kept=optimizer.state(),
        means=recorded,
    )


def train_noisily(
    model: Weights,
    gradients: ClippedSums,
    start: Tensor,
    rule: NoisySgd,
    rates: Iterable[float],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    sum_noise: Noise,
    stream_of: Callable[[int], Stream],
    optimizer: Optimizer,
    pull: Pull | None = None,
    on_step: Callable[[Tensor], None] = ignore_step,
) -> LocalSteps:
    """Runs noisy steps; the result is in `model.weights`, the moments are in `optimizer`.

    Args:
        model: Overwritten.
        gradients: The clipped sums of the same model.
        start: The weights to start from, one model or a table with one model a row.
        rule: The rule.
        rates: The learning rate of every step.
        batches: Inputs and targets of every step, possibly none.
        sum_noise: The noise on a sum.
        stream_of: The keystream of a step's noise.
        optimizer: Turns noisy gradients into steps.
        pull: The helper, where it regularises.
        on_step: Called with every noisy mean, which is all that a step reveals; it must copy what
            it keeps.

    Returns:
        What happened in the steps.
    """
    model.load(start)
    clipped = 0
    clips = 0
    nonfinite = 0
    for step, (rate, (inputs, targets)) in enumerate(zip(rates, batches, strict=True)):
        found = gradients.clipped_sum(inputs, targets, clip=rule.clip, norm=rule.clip_norm)
        gradient = noisy_mean(found.total, sum_noise, rule.batch, stream_of(step))
        on_step(gradient)
        # From here on all is post-processing of the noisy mean.
        if rule.weight_decay > 0:
            gradient.add_(model.weights, alpha=rule.weight_decay)
        if pull is not None:
            gradient.add_(model.weights - pull.model.to(model.weights), alpha=pull.strength)
        optimizer.step(model.weights, gradient, rate)
        clipped += found.clipped
        clips += len(targets)
        nonfinite += found.nonfinite
    return LocalSteps(clipped=clipped, clips=clips, nonfinite=nonfinite)


def noisy_mean(
    total: Tensor,
    noise: Noise,
    batch: int,
    stream: Stream,
) -> Tensor:
    """Returns (total + noise) / B, rounded to float32.

    Args:
        total: A sum of clipped gradients, or one a row; a row each then gets the noise of a
            training, from the stream's own on.
        noise: Noise on every coordinate of the sum.
        batch: B, the public constant also where a Poisson batch has another size, or none.
        stream: The keystream of the noise.
    """
    mechanism = mechanism_of(noise)
    if mechanism.silent:
        return (total / batch).float()
    width = total.shape[-1]
    draws = mechanism.draw(stream, total.numel() // width, width).reshape(total.shape)
    # Noise is added in float64, and what follows, rounding included, is post-processing.
    noisy = total.detach().cpu().numpy() + draws
    return torch.from_numpy((noisy / batch).astype(np.float32)).to(total.device)
