"""The named models, and how a model is made from its name and a seed."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable

import torch
from torch import nn

from sordino.models import deep, nets
from sordino.models.factories import Factory, build_from_path, call_factory
from sordino.protocol import InvalidValue

KNOWN: dict[str, Callable[[nets.Shape, int], nn.Module]] = {
    "logistic": nets.logistic,
    "mlp": nets.mlp,
    "lenet5": nets.lenet5,
    "prifedsync-mnist": nets.prifedsync_mnist,
    "prifedsync-cifar": nets.prifedsync_cifar,
    "udp-mnist": nets.udp_mnist,
    "udp-cnn": nets.udp_cnn,
    "udp-medical": nets.udp_medical,
    "udp-wind": nets.udp_wind,
    "power-curve": nets.power_curve,
    "resnet18": deep.resnet18,
    "vit-small": deep.vit_small,
}


def build_model(
    model: str | nn.Module | Factory,
    input_shape: nets.Shape,
    outputs: int,
    *,
    seed: int,
) -> nn.Module:
    """Returns a fresh model whose initial weights are decided by the seed.

    Args:
        model: A name in `KNOWN`, a path `package.module:factory`, a factory, or a module, which is
            copied with its weights.
        input_shape: The shape of one record, such as (1, 28, 28).
        outputs: Classes, or predicted quantities.
        seed: Decides what torch draws during the building. The caller's generators are left as
            they were.

    Raises:
        UserError: There is no such model, or it cannot be made.

    Example:
        >>> build_model("mlp", (1, 8, 8), 10, seed=7)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=64, out_features=32, bias=True)
          (2): ReLU()
          (3): Linear(in_features=32, out_features=10, bias=True)
        )
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reseed the caller's GPUs.
        torch.default_generator.manual_seed(seed)
        if not isinstance(model, str):
            description = f"model {getattr(model, '__name__', model)}"
            return call_factory(model, input_shape, outputs, description=description)
        if ":" in model:
            return build_from_path(model, input_shape, outputs)
        return find_known(model)(input_shape, outputs)


def find_known(name: str) -> Callable[[nets.Shape, int], nn.Module]:
    """Returns the factory of a named network.

    Args:
        name: A name in `KNOWN`.

    Raises:
        InvalidValue: There is no such name; the message names the nearest.
    """
    if name in KNOWN:
        return KNOWN[name]
    hint = ""
    near = difflib.get_close_matches(name, KNOWN, n=1)
    if near:
        hint = f"Did you mean {near[0]}?"
    allowed = f"one of {', '.join(KNOWN)}, or package.module:factory"
    raise InvalidValue("model.name", name, allowed, hint)
