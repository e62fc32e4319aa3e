"""Linear models on features in a ball, bias coordinate included, for the rule clipped-glm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.models.clipping import CLIP_FRACTION


def bounded_features(inputs: Tensor, norm: float) -> Tensor:
    """Returns flattened records with a last coordinate of 1, scaled down to at most a norm.

    Args:
        inputs: The records. Values that are not finite count as zero.
        norm: The largest norm of a row.

    Example:
        >>> bounded_features(torch.tensor([[3.0, 0.0]]), 10.0)
        tensor([[3., 0., 1.]])
        >>> float(bounded_features(torch.tensor([[30.0, 40.0]]), 1.0).norm()) <= 1.0
        True
    """
    flat = inputs.reshape(len(inputs), -1)
    ones = torch.ones(len(flat), 1, dtype=flat.dtype, device=flat.device)
    features = torch.cat([flat, ones], dim=1)
    features = torch.nan_to_num(features, nan=0.0, posinf=0.0, neginf=0.0)
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
    factors = torch.clamp(norm * CLIP_FRACTION / lengths, max=1.0)
    return features * factors.to(features.dtype)


class BoundedLogistic(nn.Module):
    """Two-class logistic regression with one weight per feature and one for the bias.

    Its outputs are the logits (0, z).

    Args:
        inputs: The number of features of a record.
        feature_norm: The largest norm of a record with its bias coordinate.

    Example:
        >>> BoundedLogistic(2, 1.0)(torch.zeros(1, 2)).shape
        torch.Size([1, 2])
    """

    def __init__(self, inputs: int, feature_norm: float) -> None:
        super().__init__()
        self.feature_norm = feature_norm
        self.weight = nn.Parameter(torch.zeros(inputs + 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the logits of some records.

        Args:
            inputs: The records.
        """
        scores = bounded_features(inputs, self.feature_norm) @ self.weight
        return torch.stack([torch.zeros_like(scores), scores], dim=1)


class BoundedLinear(nn.Module):
    """A linear score for each of many classes, with one weight per feature and one for the bias.

    Args:
        inputs: The number of features of a record.
        classes: The number of classes.
        feature_norm: The largest norm of a record with its bias coordinate.

    Example:
        >>> BoundedLinear(2, 5, 1.0)(torch.zeros(1, 2)).shape
        torch.Size([1, 5])
    """

    def __init__(self, inputs: int, classes: int, feature_norm: float) -> None:
        super().__init__()
        self.feature_norm = feature_norm
        self.weight = nn.Parameter(torch.zeros(classes, inputs + 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the logits of some records.

        Args:
            inputs: The records.
        """
        return bounded_features(inputs, self.feature_norm) @ self.weight.t()


def build_bounded_model(
    loss: str,
    inputs: int,
    classes: int,
    feature_norm: float,
) -> nn.Module:
    """Returns the model that clipped-glm trains under a loss.

    Args:
        loss: The loss that the rule names.
        inputs: The number of features of a record.
        classes: The number of classes.
        feature_norm: The largest norm of a record with its bias coordinate.
    """
    if loss == "logistic":
        return BoundedLogistic(inputs, feature_norm)
    return BoundedLinear(inputs, classes, feature_norm)
