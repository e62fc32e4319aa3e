"""What a client computes in a round: K clipped steps from the global model, then noise on what it uploads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from sordino.federation.models.flat import FlatModel
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


def train_locally(
    model: FlatModel,
    start: torch.Tensor,
    rule: FedAvg,
    rates: Iterable[float],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    loss: Loss,
) -> tuple[LocalSteps, torch.Tensor]:
    """Run the local steps of convergent-dp Eq. 2 (FedAvg) or Eq. 4 (FedProx); returns what happened, and the model in float64.

    Steps add up in float64: in float32 a step is rounded against the weights by more than a small rate times the clip allows.

    A gradient that is not finite counts as zero: the step then depends on the data no more than a clipped one, and failing
    is no side channel.
    """
    model.load(start)
    pull = rule.proximal if isinstance(rule, FedProx) else 0.0
    exact, origin = start.double(), start.double()
    clipped = nonfinite = 0
    for rate, (inputs, targets) in zip(rates, batches, strict=True):
        model.loss_gradient(inputs, targets, loss)
        norm = float(torch.linalg.vector_norm(model.gradients, dtype=torch.float64))
        if pull > 0:
            exact.lerp_(origin, rate * pull)  # w - eta alpha (w - w_t)
            model.weights.copy_(exact)
        if not math.isfinite(norm):
            nonfinite += 1
            continue
        clipped += norm > rule.clip
        scale = min(1.0, rule.clip * INSIDE / norm) if norm > 0 else 1.0
        exact.add_(model.gradients.double(), alpha=-rate * scale)
        model.weights.copy_(exact)
    return LocalSteps(clipped=clipped, clips=rule.steps, nonfinite=nonfinite), exact


def noisy_upload(weights: torch.Tensor, noise: Noise, stream: Stream) -> np.ndarray:
    """The vector that leaves the client: its model with noise on every coordinate, rounded to float32 once."""
    local = weights.detach().cpu().numpy()
    if noise.sigma == 0:
        return local.astype(np.float32)
    return (local + noise.sigma * stream.normals(local.size)).astype(np.float32)
