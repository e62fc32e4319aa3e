"""Clipped steps, which fedavg, fedprox, scaffold and bezier have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from sordino.federation.rules.local_training import (
    Assignment,
    LocalResult,
    LocalSteps,
    Pull,
    Trainable,
    Worker,
    clip_of_rows,
    rates_of,
)
from sordino.models.clipping import CLIP_FRACTION, NORM_ORDERS
from sordino.models.task_losses import Loss
from sordino.protocol import FedAvg


def take_clipped_steps(rule: FedAvg, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the clipped steps of an assignment.

    Args:
        rule: How many steps, of which length.
        worker: Runs them.
        task: Where they begin, what pulls and corrects them.

    Returns:
        The model after the steps, in float64.
    """
    correction = None
    if task.correction is not None:
        correction = worker.as_tensor(task.correction)
    start = worker.as_tensor(task.start)
    steps, trained = train_locally(
        worker.model,
        start,
        rule,
        rates_of(worker, task),
        worker.draw_batches(task),
        worker.loss,
        task.pull,
        correction,
    )
    if rule.clips_update:
        return clip_update(rule, start.double(), trained, steps.nonfinite, task.clip)
    return LocalResult(model=trained, steps=steps)


def train_locally(
    model: Trainable,
    start: torch.Tensor,
    rule: FedAvg,
    rates: Iterable[float],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    loss: Loss,
    pull: Pull | None = None,
    correction: torch.Tensor | None = None,
) -> tuple[LocalSteps, torch.Tensor]:
    """Runs the local steps of convergent-dp Eq. 2 (FedAvg) or Eq. 4 (FedProx).

    Every step's gradient is clipped, unless the whole update is, once it is known.

    Args:
        model: Overwritten by every step.
        start: One model, or a table with one model a row; the parameters are the last axis.
        rule: The clip, and how strongly steps are pulled to the start.
        rates: The learning rate of every step.
        batches: Inputs and targets of every step.
        loss: The loss that is minimised.
        pull: Another model that steps are pulled to.
        correction: Added to every gradient, outside the clip.

    Returns:
        What happened in the steps, and the model in float64.
    """
    model.load(start)
    origin = start.double()
    # Steps add up in float64: in float32 a step is rounded against the weights by more than a
    # small rate times the clip allows. A start in float64 is the client's own, and is not changed.
    exact = origin.clone()
    joint = join_pulls(rule, origin, pull)
    clipped = 0
    nonfinite = 0
    # Where the whole update is clipped, its steps may be of any length.
    limit = math.inf if rule.clips_update else rule.clip
    order = NORM_ORDERS[rule.clip_norm]
    for rate, (inputs, targets) in zip(rates, batches, strict=True):
        model.loss_gradient(inputs, targets, loss)
        if joint.strength > 0:
            # w - eta alpha (w - w_t)
            exact.lerp_(joint.model, rate * joint.strength)
        over, broken = clipped_step(exact, model.gradients, rate, limit, order)
        if correction is not None:
            # Outside the clip, since it is public.
            exact.sub_(correction.double(), alpha=rate)
        model.weights.copy_(exact)
        clipped += over
        nonfinite += broken
    clips = rule.steps * math.prod(start.shape[:-1])
    return LocalSteps(clipped=clipped, clips=clips, nonfinite=nonfinite), exact


def join_pulls(rule: FedAvg, origin: torch.Tensor, pull: Pull | None) -> Pull:
    """Returns one pull for all that pulls a step.

    A pull to the start and one to another model are a pull of their joint strength to a point
    between the two.

    Args:
        rule: Says how strongly steps are pulled to the start.
        origin: The start.
        pull: Pull to another model, if there is one.
    """
    near = rule.proximal_pull
    if pull is None:
        return Pull(model=origin, strength=near)
    strength = near + pull.strength
    between = torch.lerp(origin, pull.model.to(origin), pull.strength / strength)
    return Pull(model=between, strength=strength)


def clip_update(
    rule: FedAvg,
    origin: torch.Tensor,
    exact: torch.Tensor,
    nonfinite: int,
    present: np.ndarray | None = None,
) -> LocalResult:
    """Clips the whole move of steps of any length.

    Args:
        rule: The clip.
        origin: Where the steps began.
        exact: Where they led.
        nonfinite: How many gradients counted as zero.
        present: The present clip, where it follows the updates.

    Returns:
        The model that the clipped move leads to. Where the clip follows, the move is in units in
        which the clip is the rule's, and it is said whether it was within.
    """
    clip: float | torch.Tensor = rule.clip
    if present is not None:
        clip = clip_of_rows(present)
    update = torch.zeros_like(origin)
    order = NORM_ORDERS[rule.clip_norm]
    move = origin - exact
    # The move back as a gradient, with rate 1: steps and updates are clipped by the same code.
    over, broken = clipped_step(update, move, 1.0, clip, order)
    clips = math.prod(origin.shape[:-1])
    steps = LocalSteps(clipped=over, clips=clips, nonfinite=nonfinite + broken)
    if present is None:
        return LocalResult(model=origin + update, steps=steps)
    norms = torch.linalg.vector_norm(move, ord=order, dim=-1, keepdim=True)
    # Asked this way around, an update that is not finite is not within.
    within = torch.where(norms <= clip, 0.5, -0.5).double().cpu().numpy()
    # V / C_t takes the present clip out: an upload moves by at most 2V, whatever the clip has
    # become (docs/theory.md#a22).
    return LocalResult(
        model=origin + update * (rule.clip / clip),
        steps=steps,
        within=within.reshape(present.shape),
    )


def clipped_step(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    rate: float,
    clip: float | torch.Tensor,
    order: int = 2,
) -> tuple[int, int]:
    """Moves every row of `weights` against its gradient, clipped to norm `clip`.

    Args:
        weights: Weights in float64, changed in place.
        gradients: One for every row.
        rate: The learning rate.
        clip: The largest norm of a gradient, for all rows or one a row as a column.
        order: Order of the norm.

    Returns:
        How many rows were clipped, and how many were not finite.
    """
    norms = torch.linalg.vector_norm(
        gradients, ord=order, dim=-1, keepdim=True, dtype=torch.float64
    )
    broken = 0
    # A gradient that is not finite counts as zero: the step then depends on the data no more than
    # a clipped one, and failing is not a side channel.
    if not math.isfinite(float(norms.sum())):
        finite = torch.isfinite(norms)
        gradients = torch.where(finite, gradients, 0.0)
        norms = torch.where(finite, norms, 0.0)
        broken = norms.numel() - int(finite.sum())
    # A norm of zero gives infinity, and so a factor of 1.
    scale = (clip * CLIP_FRACTION / norms).clamp_(max=1.0)
    weights.addcmul_(gradients.double(), scale, value=-rate)
    return int((norms > clip).sum()), broken
