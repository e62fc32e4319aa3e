"""Logistic regression on features that are scaled into a ball, bias coordinate included: the model of the rule clipped-glm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Scaling aims this much inside the ball, so that rounding in float32 cannot leave it.
INSIDE = 1.0 - 1e-6


def bounded_features(inputs: Tensor, norm: float) -> Tensor:
    """Flattened records with a last coordinate of 1, each scaled down to at most this norm; what is not finite becomes zero.

    Example:
        >>> bounded_features(torch.tensor([[3.0, 0.0]]), 10.0)
        tensor([[3., 0., 1.]])
        >>> float(bounded_features(torch.tensor([[30.0, 40.0]]), 1.0).norm()) <= 1.0
        True
    """
    flat = inputs.reshape(len(inputs), -1)
    features = torch.cat(
        [flat, torch.ones(len(flat), 1, dtype=flat.dtype, device=flat.device)], dim=1
    )
    features = torch.nan_to_num(features, nan=0.0, posinf=0.0, neginf=0.0)
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
    return features * torch.clamp(norm * INSIDE / lengths, max=1.0).to(features.dtype)


class BoundedLogistic(nn.Module):
    """Two-class logistic regression with one weight per feature and one for the bias; its outputs are the logits (0, z).

    Example:
        >>> BoundedLogistic(2, 1.0)(torch.zeros(1, 2)).shape
        torch.Size([1, 2])
    """

    def __init__(self, inputs: int, feature_norm: float) -> None:
        super().__init__()
        self.feature_norm = feature_norm
        self.weight = nn.Parameter(torch.zeros(inputs + 1))

    def forward(self, inputs: Tensor) -> Tensor:
        scores = bounded_features(inputs, self.feature_norm) @ self.weight
        return torch.stack([torch.zeros_like(scores), scores], dim=1)
