"""Checks that a model can be trained privately at all, before any record is touched.

Only the trained parameters pass the clip and the noise. So nothing else in a model may take in
information about records: a module whose buffers change in a forward pass would carry data out of
the client that no guarantee covers.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sordino.protocol import InvalidValue, UserError


def parameter_count(model: nn.Module) -> int:
    """Returns how many numbers are trained.

    Args:
        model: The model. A parameter under several names counts once, a frozen one not at all.

    Example:
        >>> parameter_count(nn.Linear(4, 3))
        15
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def check_model(
    model: nn.Module,
    sample_inputs: Tensor,
    outputs: int,
    declared: int | None = None,
) -> None:
    """Refuses a model that cannot be trained privately on such records.

    Args:
        model: The model as it will be trained; it is not changed.
        sample_inputs: At least one record, with the batch dimension first. Only shapes and
            finiteness matter, so they may be invented.
        outputs: How many the data need: classes, or predicted quantities.
        declared: The protocol's `model.parameters`, where it is given.

    Raises:
        UserError: It cannot be trained; the message says why.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        >>> try:
        ...     check_model(model, torch.zeros(2, 4), outputs=3)
        ... except UserError as error:
        ...     print(str(error).split(". ")[0])
        model: layer 1 is BatchNorm1d
    """
    refuse_unfinished(model)
    refuse_batch_statistics(model)
    refuse_untrainable(model)
    probe_forward(model, sample_inputs[[0, -1]], outputs)
    count = parameter_count(model)
    if declared is not None and declared != count:
        raise InvalidValue(
            "model.parameters",
            declared,
            f"{count}, which is how many the model trains",
            "Correct it or leave it out.",
        )


def refuse_unfinished(model: nn.Module) -> None:
    """Refuses lazy layers: without a shape there is nothing yet to count or to send.

    Args:
        model: The network that is to be trained.

    Raises:
        UserError: A parameter or buffer is lazy; the first is named.
    """
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"model: {name} is lazy and has no shape yet. Use the layer that is not lazy, or "
                "call the model once first."
            )


def refuse_batch_statistics(model: nn.Module) -> None:
    """Refuses normalisation over the batch, and normalisation that remembers.

    Args:
        model: The network that is to be trained.

    Raises:
        UserError: There is such a layer; the first is named, with what to use instead.
    """
    for name, layer in model.named_modules():
        # Derived classes count too: they inherit the statistics.
        if isinstance(layer, _BatchNorm):
            reason = "Its statistics carry one record into the outputs of others, and its"
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            reason = "Its"
        else:
            continue
        groups = math.gcd(8, layer.num_features)
        raise UserError(
            f"model: layer {name or '(the model itself)'} is {type(layer).__name__}. {reason} "
            "running statistics leave the client without clip or noise. Use a layer that looks at "
            f"a single record, such as nn.GroupNorm({groups}, {layer.num_features})."
        )


def refuse_untrainable(model: nn.Module) -> None:
    """Refuses a model without trained parameters, or with trained parameters that are not float32.

    Float32 numbers are clipped, sent and averaged.

    Args:
        model: The network that is to be trained.

    Raises:
        UserError: There is no trained parameter, or one of another type.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise UserError(
                f"model: parameter {name} is {parameter.dtype}; trained parameters must be "
                "torch.float32. Call model.float()."
            )
    if parameter_count(model) == 0:
        raise UserError(
            f"model: {type(model).__name__} has no parameter to train (none at all, or none with "
            "requires_grad)"
        )


def probe_forward(model: nn.Module, inputs: Tensor, outputs: int) -> None:
    """Passes records through a copy in training mode, and refuses a model that does not fit.

    The outputs must fit the data, and the pass must leave the model as it was.

    Args:
        model: The network that is to be trained.
        inputs: Some records.
        outputs: How many the data need.

    Raises:
        UserError: It raises, gives other outputs, or changes.
    """
    given = f"model: for inputs of shape {tuple(inputs.shape)}"
    try:
        probe = copy.deepcopy(model).train()
        before = {name: tensor.clone() for name, tensor in collect_state(probe).items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            result = probe(inputs)
    except Exception as error:
        # Whatever the user's module raises.
        raise UserError(
            f"{given} the forward pass raised {type(error).__name__}: {error}"
        ) from error
    wanted = (len(inputs), outputs)
    if not isinstance(result, Tensor):
        raise UserError(
            f"{given} the model gave {type(result).__name__}; it must give one tensor of shape "
            f"{wanted}"
        )
    if result.shape != wanted:
        raise UserError(
            f"{given} the model gave outputs of shape {tuple(result.shape)}; the data need {wanted}"
        )
    if not result.isfinite().all():
        raise UserError(
            f"{given} the model gave outputs that are not finite; check its initial weights"
        )
    for name, tensor in collect_state(probe).items():
        if name not in before or not is_unchanged(before[name], tensor):
            raise UserError(
                f"model: the forward pass changes {name}, which would carry data out of the client "
                "without clip or noise. Use a layer that keeps no statistics."
            )


def collect_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns all parameters and buffers of a module under their names.

    Args:
        model: The module.
    """
    return dict(itertools.chain(model.named_parameters(), model.named_buffers()))


def is_unchanged(before: Tensor, after: Tensor) -> bool:
    """Returns whether two tensors are equal, also where both are NaN.

    Args:
        before: A tensor.
        after: Another one.
    """
    same_kind = before.shape == after.shape and before.dtype == after.dtype
    return same_kind and torch.allclose(before, after, rtol=0.0, atol=0.0, equal_nan=True)
