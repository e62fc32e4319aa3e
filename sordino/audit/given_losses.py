"""Models whose losses are given by the records: a slope for every parameter and a curvature along the diagonal u.

A record's loss is <slope, w> + curvature <u, w>^2 / 2, which is linear in the record. Worst cases are made of such losses: gradients
point where they should, whatever the model is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.federation.models.losses import Loss


class GivenLosses(nn.Module):
    """Parameters whose loss is given by the records.

    Example:
        >>> model = GivenLosses()
        >>> model(torch.tensor([[3.0, 0.0, 1.0]]))  # slope 3 of the first parameter, curvature 1, at zero
        tensor([[0.]], grad_fn=<UnsqueezeBackward0>)
    """

    def __init__(self, parameters: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, records: Tensor) -> Tensor:
        width = self.weight.numel()
        along = self.weight.sum() * width**-0.5
        return (records[:, :width] @ self.weight + records[:, width] / 2 * along**2).unsqueeze(1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The outputs are the losses."""
        return outputs.mean()

    def many(self) -> ManyGivenLosses:
        """The same for many trainings at once."""
        return ManyGivenLosses()


class ManyGivenLosses:
    """Models of many trainings, one a row, with the gradient of `GivenLosses` in closed form. It holds the rows."""

    weights: Tensor
    gradients: Tensor

    def load(self, vector: Tensor) -> None:
        """Take over the rows."""
        self.weights = vector.clone()

    def loss_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> float:
        """Gradients of one batch that all rows share, (records, entries), or of one for each row, (rows, records, entries)."""
        means = inputs.mean(dim=-2)
        width = self.weights.shape[-1]
        along = (
            self.weights.sum(dim=-1, keepdim=True) / width
        )  # <u, w> u, u having width^(-1/2) everywhere
        self.gradients = means[..., :width] + means[..., width:] * along
        return 0.0

    def example_gradients(self, records: Tensor) -> Tensor:
        """The gradient of each record's loss at each row: (rows, records, parameters)."""
        width = self.weights.shape[-1]
        along = self.weights.sum(dim=-1)[:, None, None] / width
        return records[:, :width] + records[:, width:] * along
