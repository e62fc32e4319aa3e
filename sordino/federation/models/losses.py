"""What a model is trained to make small, and what is counted when it is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[
    [Tensor, Tensor], Tensor
]  # (outputs, targets) to the mean loss of a batch, a scalar that can be differentiated


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of a batch: `outputs` are logits (records, classes), `targets` are class numbers (records,).

    Example:
        >>> import torch
        >>> round(cross_entropy(torch.zeros(2, 10), torch.tensor([3, 7])).exp().item(), 4)
        10.0
    """
    return functional.cross_entropy(outputs, targets)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of a batch, averaged over records and outputs. Targets (records,) fit outputs (records, 1).

    Example:
        >>> import torch
        >>> mean_squared_error(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])).item()
        2.0
    """
    # Without the reshape, (records, 1) against (records,) would be broadcast to every pair of records.
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def loss_for(targets: Tensor) -> Loss:
    """The loss that suits the targets: whole numbers are classes, real numbers are quantities.

    Example:
        >>> import torch
        >>> loss_for(torch.tensor([0, 1])).__name__, loss_for(torch.tensor([0.5])).__name__
        ('cross_entropy', 'mean_squared_error')
    """
    return mean_squared_error if targets.is_floating_point() else cross_entropy


def module_loss(module: nn.Module, targets: Tensor) -> Loss:
    """The loss that a model brings along as its method `loss(outputs, targets)`, or else the one that suits the targets.

    Example:
        >>> import torch
        >>> module_loss(nn.Linear(2, 1), torch.tensor([0.5])).__name__
        'mean_squared_error'
    """
    own = getattr(module, "loss", None)
    return own if callable(own) else loss_for(targets)


class Evaluation(NamedTuple):
    """Sums over records, so that batches add up. `correct` is None where the targets are quantities."""

    loss_sum: float
    correct: int | None
    records: int


def evaluate_batch(outputs: Tensor, targets: Tensor) -> Evaluation:
    """The summed loss, the right answers and the number of records of one batch.

    Example:
        >>> import torch
        >>> evaluate_batch(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])).correct
        1
    """
    loss_sum = loss_for(targets)(outputs.double(), targets).item() * len(targets)
    correct = None if targets.is_floating_point() else int((outputs.argmax(dim=1) == targets).sum())
    return Evaluation(loss_sum, correct, len(targets))


def mean_predictor_loss(targets: Tensor) -> float | None:
    """The squared error of always predicting the mean of these targets, which a regression has to beat; None for classes.

    Example:
        >>> import torch
        >>> mean_predictor_loss(torch.tensor([[1.0, 5.0], [3.0, 5.0]])), mean_predictor_loss(torch.tensor([0, 1]))
        (0.5, None)
    """
    return (
        targets.double().var(dim=0, correction=0).mean().item()
        if targets.is_floating_point()
        else None
    )
