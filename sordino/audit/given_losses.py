"""Models whose losses are given by the records: a slope for every parameter and a curvature along the diagonal u.

A record's loss is <slope, w> + curvature <u, w>^2 / 2, which is linear in the record. Worst cases are made of such losses: gradients
point where they should, whatever the model is.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sordino.engines.native.kernel import Kernel
from sordino.engines.native.library import ABSENT, chosen
from sordino.engines.native.program import Kind, Layer, arrange
from sordino.engines.native.program import Loss as KernelLoss
from sordino.engines.native.translate import Refused
from sordino.federation.models.losses import Loss
from sordino.federation.setup import Setup, Tensors
from sordino.protocol import NoisySgd


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
        self.weights = vector.to(torch.float32, copy=True)

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


def given_kernel(setup: Setup) -> Kernel:
    """Returns the native kernel for a federation whose records are losses: one linear layer, whose output is the loss.

    Raises:
        Refused: there is no compiled kernel, or the module is another one.
    """
    simd = chosen()
    if simd is None:
        raise Refused(ABSENT)
    if not isinstance(setup.module, GivenLosses):
        raise Refused(f"the rule {setup.protocol.local.tag} is trained by torch alone")
    width, rule = setup.module.weight.numel(), setup.protocol.local
    layer = Layer(kind=Kind.LINEAR, inputs=(0,), output=1, weight=0)
    program = arrange([layer], [(width, 1, 1), (1, 1, 1)], parameters=width)
    varies = isinstance(rule, NoisySgd) and rule.sampling == "poisson"
    return Kernel(program, KernelLoss.GIVEN, batch=1 if varies else rule.batch or 1, simd=simd)


def for_kernel(setup: Setup) -> Setup:
    """Returns the same federation with its records as the kernel takes them.

    A record of the kernel is a slope, or the diagonal u with a curvature along it as its target: no worst case needs both in one.

    Raises:
        Refused: a record has a slope and a curvature.
    """
    return replace(setup, train=kernel_records(setup.train), test=kernel_records(setup.test))


def kernel_records(records: Tensors) -> Tensors:
    """Returns slopes and curvatures as inputs and targets of the kernel."""
    slopes, curvatures = records.x[:, :-1], records.x[:, -1]
    bent = curvatures != 0
    if bool((bent & (slopes != 0).any(dim=1)).any()):
        raise Refused("a record has both a slope and a curvature")
    inputs = torch.where(bent[:, None], slopes.shape[1] ** -0.5, slopes)
    return replace(records, x=inputs.contiguous(), y=curvatures.contiguous())
