"""Models whose losses are prescribed by the records: a slope for every parameter, and a curvature.

A record's loss is <slope, w> + curvature <u, w>^2 / 2 with the unit vector u along the diagonal,
which is linear in the record. Worst cases are made of such losses, whose gradients can be chosen
freely.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sordino.engines.compiled import Kernel, KernelRefusal, make_given_loss_kernel
from sordino.federation.record_tensors import Tensors
from sordino.federation.setup import Setup
from sordino.models.per_example import GIVEN_GRADIENTS
from sordino.models.task_losses import Loss


class SyntheticLosses(nn.Module):
    """Holds parameters whose loss is prescribed by the records.

    Args:
        parameters: The number of parameters.

    Example:
        >>> model = SyntheticLosses()
        >>> model(torch.tensor([[3.0, 0.0, 1.0]]))  # slope 3 of the first, curvature 1, at zero
        tensor([[0.]], grad_fn=<UnsqueezeBackward0>)
    """

    def __init__(self, parameters: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, records: Tensor) -> Tensor:
        """Returns the losses of some records.

        Args:
            records: Slopes and, in the last column, curvatures; one record per row.
        """
        # As few operations as possible: a comparison with the torch engine takes thousands of steps
        # through them.
        curvature = self.weight.sum().square() * (0.5 / self.weight.numel())
        factors = torch.cat((self.weight, curvature.view(1)))
        losses: Tensor = (records @ factors).unsqueeze(1)
        return losses

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean of the outputs, which are the losses.

        Args:
            outputs: Losses of some records.
            targets: Not used.
        """
        return outputs.mean()

    def many(self) -> ManySyntheticLosses:
        """Returns the models of many trainings at once."""
        return ManySyntheticLosses()


def find_example_gradients(module: SyntheticLosses, records: Tensor) -> Tensor:
    """Returns the gradient of each record's loss, one a row.

    Args:
        module: The model.
        records: One record per row.
    """
    weight = module.weight.detach()
    width = weight.numel()
    return records[:, :width] + records[:, width:] * (weight.sum() / width)


# An audit repeats thousands of noisy steps one by one; torch.func would take a millisecond each.
GIVEN_GRADIENTS[SyntheticLosses] = find_example_gradients


class ManySyntheticLosses:
    """Holds the models of many trainings, one per row, with closed-form gradients.

    Attributes:
        weights: The models.
        gradients: The gradients that `loss_gradient` computed last.
    """

    weights: Tensor
    gradients: Tensor

    def load(self, vector: Tensor) -> None:
        """Takes over models.

        Args:
            vector: One model per row.
        """
        self.weights = vector.to(torch.float32, copy=True)

    def loss_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> float:
        """Computes the gradients of the models on a batch.

        Args:
            inputs: One batch for all rows, (records, entries), or one for each row, (rows, records,
                entries).
            targets: Not used.
            loss: Not used.

        Returns:
            0, since the loss itself is not needed.
        """
        means = inputs.mean(dim=-2)
        width = self.weights.shape[-1]
        # <u, w> u, since every entry of u is width^(-1/2).
        along = self.weights.sum(dim=-1, keepdim=True) / width
        self.gradients = means[..., :width] + means[..., width:] * along
        return 0.0

    def example_gradients(self, records: Tensor) -> Tensor:
        """Returns the gradient of each record's loss at each model.

        Args:
            records: One record per row.

        Returns:
            Gradients, (rows, records, parameters).
        """
        width = self.weights.shape[-1]
        along = self.weights.sum(dim=-1)[:, None, None] / width
        return records[:, :width] + records[:, width:] * along


def make_synthetic_kernel(setup: Setup) -> Kernel:
    """Returns the native kernel for a federation with synthetic losses.

    It has one linear layer, whose output is the loss.

    Args:
        setup: The federation.

    Raises:
        KernelRefusal: There is no compiled kernel, the model does not have synthetic losses, or the
            kernel cannot draw the noise.
    """
    if type(setup.module) is not SyntheticLosses:
        raise KernelRefusal(f"the rule {setup.protocol.local.tag} is trained only by torch")
    return make_given_loss_kernel(setup, setup.module.weight.numel())


def convert_for_kernel(setup: Setup) -> Setup:
    """Returns the same federation, with records in the form that the kernel reads.

    Args:
        setup: The federation.

    Raises:
        KernelRefusal: A record has both a slope and a curvature.
    """
    return replace(setup, train=convert_records(setup.train), test=convert_records(setup.test))


def convert_records(records: Tensors) -> Tensors:
    """Returns slopes and curvatures as inputs and targets of the kernel.

    The kernel reads a record as a slope, or as the diagonal u with the curvature as its target; no
    worst case needs both in one record.

    Args:
        records: Slopes and, in the last column, curvatures.

    Raises:
        KernelRefusal: A record has both a slope and a curvature.
    """
    slopes = records.x[:, :-1]
    curvatures = records.x[:, -1]
    curved = curvatures != 0
    if bool((curved & (slopes != 0).any(dim=1)).any()):
        raise KernelRefusal("a record has both a slope and a curvature")
    inputs = torch.where(curved[:, None], slopes.shape[1] ** -0.5, slopes)
    return replace(records, x=inputs.contiguous(), y=curvatures.contiguous())
