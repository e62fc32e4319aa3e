"""Canaries: records that are put into a real client's data in order to be looked for afterwards.

"random"       an input drawn from the range of the data, with a random label
"mislabelled"  the record that is replaced, under another label
"crafted"      an input at the corners of the range and a label, searched for a large gradient of the model
a path         a .npz file with the arrays x and y of one record
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import module_loss
from sordino.federation.setup import Setup
from sordino.protocol import UserError

KINDS = ("random", "mislabelled", "crafted")
CORNERS = 48  # inputs from which the search for a large gradient starts
CLIMBS = 12  # steps of the search

Record = tuple[Tensor, Tensor]  # input and target, as the data set holds them


def make_canary(kind: str, setup: Setup, row: int, generator: np.random.Generator) -> Record:
    """A canary for the place of the record in `row`.

    Raises:
        UserError: neither a kind nor a file with a record that fits the data.

    Example:
        >>> make_canary("crafted", setup, 0, np.random.default_rng(1))  # doctest: +SKIP
    """
    if kind == "random":
        return random_record(setup, generator)
    if kind == "mislabelled":
        return setup.train.x[row].clone(), other_target(setup, setup.train.y[row])
    if kind == "crafted":
        return crafted_record(setup, generator)
    return given_record(Path(kind), setup)


def refuse_unknown(kind: str) -> None:
    """A canary must be of a known kind, or a file that exists."""
    if kind not in KINDS and not Path(kind).is_file():
        known = ", ".join(KINDS)
        raise UserError(
            f"canary = {kind!r}: expected {known}, or the path of a .npz file with the arrays x and y of one record."
        )


def value_range(setup: Setup) -> tuple[float, float]:
    """The smallest and the largest value of any input."""
    x = setup.train.x
    return float(x.min()), float(x.max())


def random_record(setup: Setup, generator: np.random.Generator) -> Record:
    """Uniform noise."""
    low, high = value_range(setup)
    noise = torch.from_numpy(generator.uniform(low, high, size=setup.train.x.shape[1:]))
    return noise.to(setup.train.x.dtype), random_target(setup, generator)


def random_target(setup: Setup, generator: np.random.Generator) -> Tensor:
    """The target of a record drawn at random."""
    return setup.train.y[int(generator.integers(len(setup.train.y)))].clone()


def other_target(setup: Setup, target: Tensor) -> Tensor:
    """Another class; or, for a quantity, the far end of its range."""
    if setup.classification:
        return (target + 1) % setup.outputs
    low, high = setup.train.y.min(), setup.train.y.max()
    return low if target > (low + high) / 2 else high


def crafted_record(setup: Setup, generator: np.random.Generator) -> Record:
    """The input and target with the largest gradient at the initial model that a short search finds.

    It starts from random corners of the range and climbs by the sign of the derivative of the gradient's norm.
    """
    low, high = value_range(setup)
    shape = setup.train.x.shape[1:]
    targets = (
        torch.arange(setup.outputs)
        if setup.classification
        else torch.stack([setup.train.y.min(), setup.train.y.max()])
    )
    best: tuple[float, Tensor, Tensor] | None = None
    for _ in range(CORNERS):
        share = generator.uniform(0.05, 0.95)
        x = torch.from_numpy(np.where(generator.random(shape) < share, low, high)).to(
            setup.train.x.dtype
        )
        for target in targets:
            size = gradient_norm(setup, x, target)[0]
            if np.isfinite(size) and (best is None or size > best[0]):
                best = size, x, target
    if best is None:
        raise UserError(
            "no input with a finite gradient was found: the model's loss is not finite on the range of the data."
        )
    for _ in range(CLIMBS):
        size, x, target = best
        slope = gradient_norm(setup, x, target)[1]
        moved = torch.where(slope == 0, x.double(), torch.where(slope > 0, high, low)).to(x.dtype)
        found = gradient_norm(setup, moved, target)[0]
        if not found > size * (1 + 1e-6):
            break
        best = found, moved, target
    return best[1], best[2].to(setup.train.y.dtype)


def gradient_norm(setup: Setup, x: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """The norm of the loss's gradient in the weights, and its derivative in the record's values."""
    module = FlatModel(setup.module).module().train()
    loss = module_loss(setup.module, setup.train.y)
    value = x.to(torch.float32).clone().requires_grad_(True)
    inputs = (value * setup.train.scale + setup.train.shift)[None]
    weights = [p for p in module.parameters() if p.requires_grad]
    grads = torch.autograd.grad(
        loss(module(inputs), target[None]), weights, create_graph=True, allow_unused=True
    )
    squared = torch.stack([(g**2).sum() for g in grads if g is not None]).sum()
    slope = (
        torch.autograd.grad(squared, value, allow_unused=True)[0] if squared.requires_grad else None
    )
    return float(squared.detach().sqrt()), torch.zeros_like(value) if slope is None else slope


def given_record(path: Path, setup: Setup) -> Record:
    """A record from a file."""
    if not path.exists():
        raise UserError(
            f"--canary {str(path)!r}: expected {', '.join(KINDS)}, or the path of a .npz file with the arrays x and y of one record."
        )
    try:
        with np.load(path) as arrays:
            x, y = np.asarray(arrays["x"]), np.asarray(arrays["y"])
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not a canary: expected a .npz file with the arrays x and y of one record ({error})."
        ) from None
    shape, dtype = tuple(setup.train.x.shape[1:]), setup.train.x.dtype
    if (
        x.shape != shape
        or y.size != 1
        or not np.isfinite(x.astype(float)).all()
        or not np.isfinite(y.astype(float)).all()
    ):
        raise UserError(
            f"{path}: x of shape {x.shape} and y of shape {y.shape}: expected a finite x of shape {shape} and one target y."
        )
    if setup.classification and not 0 <= float(y.reshape(())) < setup.outputs:
        raise UserError(
            f"{path}: y = {float(y.reshape(())):g}: expected a class from 0 to {setup.outputs - 1}."
        )
    return torch.from_numpy(np.ascontiguousarray(x)).to(dtype), torch.tensor(
        y.reshape(()).item()
    ).to(setup.train.y.dtype)
