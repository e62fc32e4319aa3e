"""Which models there are, and how one is made from its name and a seed."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable

import torch
from torch import nn

from sordino.federation.models import deep, nets
from sordino.federation.models.factories import Factory, made_by, model_at
from sordino.protocol import InvalidValue

KNOWN: dict[str, Callable[[nets.Shape, int], nn.Module]] = {
    "logistic": nets.logistic,
    "mlp": nets.mlp,
    "lenet5": nets.lenet5,
    "prifedsync-mnist": nets.prifedsync_mnist,
    "prifedsync-cifar": nets.prifedsync_cifar,
    "udp-mnist": nets.udp_mnist,
    "udp-medical": nets.udp_medical,
    "udp-wind": nets.udp_wind,
    "power-curve": nets.power_curve,
    "resnet18": deep.resnet18,
    "vit-small": deep.vit_small,
}


def build_model(
    model: str | nn.Module | Factory, input_shape: nets.Shape, outputs: int, *, seed: int
) -> nn.Module:
    """A fresh model for records of `input_shape`, its initial weights decided by the seed.

    Args:
        model: a name in `KNOWN`, a path `package.module:factory`, a factory, or a module, which is copied with its own weights.
        input_shape: the shape of one record, such as (1, 28, 28).
        outputs: classes, or predicted quantities.
        seed: decides what torch draws during the building. The caller's generators are left as they were.

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
        torch.default_generator.manual_seed(
            seed
        )  # not torch.manual_seed, which would also reseed the caller's GPUs
        if not isinstance(model, str):
            return made_by(
                model, input_shape, outputs, described=f"model {getattr(model, '__name__', model)}"
            )
        if ":" in model:
            return model_at(model, input_shape, outputs)
        return known(model)(input_shape, outputs)


def known(name: str) -> Callable[[nets.Shape, int], nn.Module]:
    """The named network, or an error that says which name is nearest."""
    if name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, n=1)
        allowed = f"one of {', '.join(KNOWN)}, or package.module:factory"
        raise InvalidValue("model.name", name, allowed, f"Did you mean {near[0]}?" if near else "")
    return KNOWN[name]
