"""What a client computes in a round: K clipped steps from the global model, then noise on what it uploads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np
import torch

from sordino.federation.models.losses import Loss
from sordino.federation.randomness import Stream
from sordino.protocol import FedAvg, FedProx, Noise

# Clipping aims this much inside the ball, so that rounding in float32 cannot leave it.
INSIDE = 1.0 - 1e-6


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """What happened in a client's steps, for the metrics. It comes from private data and is not covered by any guarantee."""

    clipped: int
    clips: int  # gradients that the clip looked at: one a step, or one an example
    nonfinite: int


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
    *,
    towards: torch.Tensor | None = None,
    strength: float = 0.0,
) -> tuple[LocalSteps, torch.Tensor]:
    """Run the local steps of convergent-dp Eq. 2 (FedAvg) or Eq. 4 (FedProx); returns what happened, and the model in float64.

    Steps add up in float64: in float32 a step is rounded against the weights by more than a small rate times the clip allows.
    The start may be one model or a table with one model a row: the parameters are the last axis. FedProx pulls to the start;
    `towards` is another model to be pulled to, with this strength.
    """
    model.load(start)
    pull = rule.proximal if isinstance(rule, FedProx) else strength
    exact, origin = start.double(), (start if towards is None else towards).double()
    clipped = nonfinite = 0
    for rate, (inputs, targets) in zip(rates, batches, strict=True):
        model.loss_gradient(inputs, targets, loss)
        if pull > 0:
            exact.lerp_(origin, rate * pull)  # w - eta alpha (w - w_t)
        over, broken = clipped_step(exact, model.gradients, rate, rule.clip)
        model.weights.copy_(exact)
        clipped, nonfinite = clipped + over, nonfinite + broken
    return LocalSteps(clipped=clipped, clips=rule.steps * math.prod(start.shape[:-1]), nonfinite=nonfinite), exact


def clipped_step(weights: torch.Tensor, gradients: torch.Tensor, rate: float, clip: float) -> tuple[int, int]:
    """Move every row of `weights` against its gradient, clipped to norm `clip`; counts the clipped rows and those not finite.

    A gradient that is not finite counts as zero: the step then depends on the data no more than a clipped one, and failing
    is no side channel.
    """
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True, dtype=torch.float64)
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

    A table with one training a row gets the noise of as many trainings, from the stream's own on.
    """
    local = weights.detach().cpu().numpy()
    if noise.sigma == 0:
        return local.astype(np.float32)
    rows = np.atleast_2d(local)
    draws = stream.normals_of(*rows.shape).reshape(local.shape)
    return (local + noise.sigma * draws).astype(np.float32)
