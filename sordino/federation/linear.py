"""Local steps of the rule clipped-glm: per-example clipped logistic regression under the conditions of THEORY A9.

The gradient of one example is (sigmoid(<w, x>) - y) x, so clipping it to norm V clips the number in front to V / |x|. Weight decay
stands outside the clip and acts on every coordinate. Batches are all records, or fixed ones in turn: nothing is drawn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.federation.local import INSIDE, LocalSteps
from sordino.protocol import ClippedGlm


def train_clipped_glm(
    weights: Tensor, features: Tensor, labels: Tensor, rule: ClippedGlm, rates: tuple[float, ...]
) -> LocalSteps:
    """Run the steps, changing `weights` in place.

    Args:
        weights: one per feature; or a table, with one training a row.
        features: one record a row, of norm at most `rule.feature_norm`, its last coordinate belonging to the bias.
        labels: 0 or 1 for each record.
        rule: the rule.
        rates: the learning rate of every step.
    """
    features = features.double()
    limits = (
        rule.clip
        * INSIDE
        / torch.linalg.vector_norm(features, dim=1, dtype=torch.float64).clamp(min=1e-30)
    )
    targets = labels.to(torch.float64)
    size = rule.batch if rule.batch is not None else len(features)
    turns = len(features) // size
    clipped = 0
    for step, rate in enumerate(rates):
        turn = slice((step % turns) * size, (step % turns + 1) * size)
        residuals = torch.sigmoid(weights @ features[turn].t()) - targets[turn]
        clipped += int((residuals.abs() > limits[turn]).sum())
        bounded = torch.minimum(torch.maximum(residuals, -limits[turn]), limits[turn])
        gradient = (bounded / size) @ features[turn]
        weights.mul_(1.0 - rate * rule.weight_decay).sub_(gradient, alpha=rate)
    return LocalSteps(
        clipped=clipped, clips=len(rates) * size * math.prod(weights.shape[:-1]), nonfinite=0
    )
