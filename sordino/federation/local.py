"""What a client computes in a round: K clipped steps from the global model, then noise on what it uploads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import torch

from sordino.federation.mechanisms import drawn
from sordino.federation.models.losses import Loss
from sordino.federation.randomness import Stream
from sordino.privacy.mechanisms import silent
from sordino.protocol import FedAvg, FedProx, Noise

# Clipping aims this much inside the ball, so that rounding in float32 cannot leave it.
INSIDE = 1.0 - 1e-6
NORMS = {"l2": 2, "l1": 1}


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """What happened in a client's steps, for the metrics. It comes from private data and is not covered by any guarantee."""

    clipped: int
    clips: int  # gradients that the clip looked at: one a step, or one an example
    nonfinite: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Pull:
    """A model that every step is pulled to, with this strength: a leader's (udp-fl 3.3), or a helper (PriFedSync 2)."""

    model: torch.Tensor
    strength: float


class Trainable(Interface):
    """A model as a vector, or many models as rows of a table, whose loss can be differentiated."""

    weights: torch.Tensor
    gradients: torch.Tensor

    def load(self, vector: torch.Tensor) -> None:
        """Take over these weights."""

    def loss_gradient(self, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss) -> float:
        """Leave the gradient of the loss of one batch in `gradients`."""


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
    """Run the local steps of convergent-dp Eq. 2 (FedAvg) or Eq. 4 (FedProx); returns what happened, and the model in float64.

    Every step's gradient is clipped, or else the whole update once at the end.

    Steps add up in float64: in float32 a step is rounded against the weights by more than a small rate times the clip allows.
    The start may be one model or a table with one model a row: the parameters are the last axis. FedProx pulls to the start,
    `pull` to another model; `correction` joins every step.
    """
    model.load(start)
    origin = start.double()
    exact = origin.clone()  # a start in float64 is what the client has kept, and stays as it is
    joint = joint_pull(rule, origin, pull)
    clipped = nonfinite = 0
    limit = rule.clip if rule.clip_target == "step" else math.inf
    for rate, (inputs, targets) in zip(rates, batches, strict=True):
        model.loss_gradient(inputs, targets, loss)
        if joint.strength > 0:
            exact.lerp_(joint.model, rate * joint.strength)  # w - eta alpha (w - w_t)
        over, broken = clipped_step(exact, model.gradients, rate, limit, NORMS[rule.clip_norm])
        if correction is not None:
            exact.sub_(correction.double(), alpha=rate)  # outside the clip: it is public
        model.weights.copy_(exact)
        clipped, nonfinite = clipped + over, nonfinite + broken
    trainings = math.prod(start.shape[:-1])
    if rule.clip_target == "step":
        return LocalSteps(clipped=clipped, clips=rule.steps * trainings, nonfinite=nonfinite), exact
    return clipped_update(rule, origin, exact, nonfinite)


def joint_pull(rule: FedAvg, origin: torch.Tensor, pull: Pull | None) -> Pull:
    """All that pulls a step: FedProx's pull to the start and another one are one of their joint strength, to the point between."""
    near = rule.proximal if isinstance(rule, FedProx) else 0.0
    if pull is None:
        return Pull(model=origin, strength=near)
    strength = near + pull.strength
    return Pull(
        model=torch.lerp(origin, pull.model.to(origin), pull.strength / strength), strength=strength
    )


def clipped_update(
    rule: FedAvg, origin: torch.Tensor, exact: torch.Tensor, nonfinite: int
) -> tuple[LocalSteps, torch.Tensor]:
    """The model after steps of any length, its whole move from the start clipped; `nonfinite` of the steps counted as zero."""
    update = torch.zeros_like(origin)
    over, broken = clipped_step(update, origin - exact, 1.0, rule.clip, NORMS[rule.clip_norm])
    return LocalSteps(
        clipped=over, clips=math.prod(origin.shape[:-1]), nonfinite=nonfinite + broken
    ), origin + update


def clipped_step(
    weights: torch.Tensor, gradients: torch.Tensor, rate: float, clip: float, order: int = 2
) -> tuple[int, int]:
    """Move every row of `weights` against its gradient, clipped to norm `clip`; counts the clipped rows and those not finite.

    A gradient that is not finite counts as zero: the step then depends on the data no more than a clipped one, and failing
    is no side channel.
    """
    norms = torch.linalg.vector_norm(
        gradients, ord=order, dim=-1, keepdim=True, dtype=torch.float64
    )
    broken = 0
    if not math.isfinite(float(norms.sum())):
        finite = torch.isfinite(norms)
        gradients, norms = torch.where(finite, gradients, 0.0), torch.where(finite, norms, 0.0)
        broken = norms.numel() - int(finite.sum())
    scale = (clip * INSIDE / norms).clamp_(max=1.0)  # a norm of zero gives infinity, and so 1
    weights.addcmul_(gradients.double(), scale, value=-rate)
    return int((norms > clip).sum()), broken


def noisy_upload(weights: torch.Tensor, noise: Noise, stream: Stream) -> np.ndarray:
    """The vector that leaves the client: its model with noise on every coordinate, rounded to float32 once.

    Where the server adds noise, uploads keep float64: rounding before the noise would move them by more than the clip allows.

    A table with one training a row gets the noise of as many trainings, from the stream's own on.
    """
    local = weights.detach().cpu().numpy()
    kept = upload_type(noise)
    if silent(noise) or noise.where == "server":
        return local.astype(kept)
    trainings, count = np.atleast_2d(local).shape
    return (local + drawn(noise, stream, trainings, count).reshape(local.shape)).astype(kept)


def upload_type(noise: Noise) -> type[np.floating]:
    """How precise an upload is."""
    return np.float32 if noise.where == "client" else np.float64
