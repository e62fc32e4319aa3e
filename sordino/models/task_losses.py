"""What a model is trained to minimise, and the counts of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

# From outputs and targets to the loss of a batch, a scalar that can be differentiated.
Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy of a batch.

    Args:
        outputs: Logits (records, classes).
        targets: Class numbers (records,).

    Example:
        >>> import torch
        >>> round(cross_entropy(torch.zeros(2, 10), torch.tensor([3, 7])).exp().item(), 4)
        10.0
    """
    return functional.cross_entropy(outputs, targets)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the squared error of a batch, averaged over records and outputs.

    Args:
        outputs: Predictions (records, outputs).
        targets: Quantities, as many; targets (records,) fit outputs (records, 1).

    Example:
        >>> import torch
        >>> mean_squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])).item()
        2.0
    """
    # Without the reshape, (records, 1) against (records,) would be broadcast to all pairs.
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def sum_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the sum of the cross-entropies of a batch.

    Args:
        outputs: Logits (records, classes).
        targets: Class numbers (records,).
    """
    return functional.cross_entropy(outputs, targets, reduction="sum")


def sum_squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the sum over a batch of every record's squared error, a mean over its outputs.

    Args:
        outputs: Predictions (records, outputs).
        targets: Quantities, as many.
    """
    wanted = targets.reshape(outputs.shape).to(outputs.dtype)
    each = outputs.shape[1:].numel()
    return functional.mse_loss(outputs, wanted, reduction="sum") / each


# Sums for losses that are means over examples. A mean times the size of the batch would not do: it
# is rounded by a factor that depends on the size, and with it the gradient of every example.
SUMMED_LOSSES: dict[Loss, Loss] = {
    cross_entropy: sum_cross_entropy,
    mean_squared_error: sum_squared_errors,
}


def loss_for(targets: Tensor) -> Loss:
    """Returns the loss that suits targets: integers are classes, real numbers are quantities.

    Args:
        targets: The targets of some records.

    Example:
        >>> import torch
        >>> loss_for(torch.tensor([0, 1])).__name__, loss_for(torch.tensor([0.5])).__name__
        ('cross_entropy', 'mean_squared_error')
    """
    if targets.is_floating_point():
        return mean_squared_error
    return cross_entropy


def module_loss(module: nn.Module, targets: Tensor) -> Loss:
    """Returns a model's method `loss(outputs, targets)`, or else the loss that suits the targets.

    Args:
        module: The model.
        targets: The targets of some records.

    Example:
        >>> import torch
        >>> module_loss(nn.Linear(2, 1), torch.tensor([0.5])).__name__
        'mean_squared_error'
    """
    method = getattr(module, "loss", None)
    if callable(method):
        loss: Loss = method
        return loss
    return loss_for(targets)


class Evaluation(NamedTuple):
    """Sums over records, so that batches add up.

    Attributes:
        loss_sum: The sum of the losses.
        correct: Right answers; None where the targets are quantities.
        records: How many records.
    """

    loss_sum: float
    correct: int | None
    records: int


def evaluate_batch(outputs: Tensor, targets: Tensor) -> Evaluation:
    """Returns the summed loss, the right answers and the number of records of one batch.

    Args:
        outputs: Logits or predictions.
        targets: Classes or quantities.

    Example:
        >>> import torch
        >>> evaluate_batch(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])).correct
        1
    """
    loss_sum = loss_for(targets)(outputs.double(), targets).item() * len(targets)
    correct = None
    if not targets.is_floating_point():
        correct = int((outputs.argmax(dim=1) == targets).sum())
    return Evaluation(loss_sum, correct, len(targets))


def mean_predictor_loss(targets: Tensor) -> float | None:
    """Returns the squared error of always predicting the mean, which a regression has to beat.

    Args:
        targets: The targets of some records.

    Returns:
        The error; None where the targets are classes.

    Example:
        >>> import torch
        >>> mean_predictor_loss(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        0.5
        >>> mean_predictor_loss(torch.tensor([0, 1])) is None
        True
    """
    if not targets.is_floating_point():
        return None
    return targets.double().var(dim=0, correction=0).mean().item()
