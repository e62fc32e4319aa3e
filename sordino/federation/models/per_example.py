"""Sums of per-example gradients, each clipped by its own norm, without mixing examples and within bounded memory.

Three ways, all of which clip exactly what they add up:

- A plain stack of known layers is passed once forwards and backwards, down to the layers' outputs only. The gradient of one example
  in a linear layer is an outer product, whose norm is the product of two norms; in a convolution it is one small matrix product of
  the unfolded input, which is kept until the clip is known.
- Any other module, or a loss of the module's own, is called on one example at a time, as torch.func does it for many at once.
- A module that torch.func cannot vectorise gets its examples one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import Loss, cross_entropy, mean_squared_error

INSIDE = (
    1.0 - 1e-6
)  # clipping aims this much inside the ball, so that rounding in float32 cannot leave it
ORDERS = {"l2": 2.0, "l1": 1.0}
LONGEST = (
    2.0**100
)  # of a gradient, in clips: clip / norm is then a normal number of float32, at least 2^-126, and rounded by 2^-24 at most
FLOATS = 1 << 24  # numbers of per-example gradients that are held at once

# Layers that treat every example by itself and train nothing.
PASSIVE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout,
)  # fmt: skip


class ClippedSum(NamedTuple):
    """The sum as a float64 vector, how many examples were clipped, and how many gradients were not finite and counted as zero."""

    total: Tensor
    clipped: int
    nonfinite: int


class ExampleGradients:
    """Computes clipped sums for a flat model. It holds the model, whose present weights count, and the way that suits it."""

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model, self._loss = model, loss
        plain = loss in (
            cross_entropy,
            mean_squared_error,
        )  # means over examples, so that an example's share in them is known
        self._layers = stacked_layers(model.net) if plain else None
        self._vectorised = True
        self._chunk = 0

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """The sum over a batch, possibly empty, of every example's gradient, scaled down to norm `clip` where it is longer."""
        order = ORDERS[norm]
        # In float32 a sum of a million gradients moves by more than one of them is long when one is replaced.
        total = torch.zeros_like(self._model.weights, dtype=torch.float64)
        clipped = nonfinite = 0
        if len(targets) == 0:
            return ClippedSum(total, 0, 0)
        self._chunk = self._chunk or self._examples_at_once(inputs)
        for start in range(0, len(targets), self._chunk):
            rows = slice(start, start + self._chunk)
            for piece in self._pieces(inputs[rows], targets[rows]):
                norms = piece.norms(order)
                sound = can_be_clipped(norms, clip)
                if not bool(sound.all()):
                    nonfinite += len(norms) - int(sound.sum())
                    piece, norms = piece.only(sound), norms[sound]
                clipped += int((norms > clip).sum())
                piece.add_to(total, self._model, shrinking(norms, clip))
        return ClippedSum(total, clipped, nonfinite)

    def _pieces(self, inputs: Tensor, targets: Tensor) -> Iterator[Piece]:
        if self._layers is not None:
            yield layered(self._model.net, self._layers, inputs, targets, self._loss)
            return
        if self._vectorised:
            try:
                table = vectorised(self._model, inputs, targets, self._loss)
            except RuntimeError:  # what torch.func says to a module that it cannot vectorise
                self._vectorised = False
            else:
                yield Table(table)
                return
        for example in range(len(targets)):
            self._model.loss_gradient(
                inputs[example : example + 1], targets[example : example + 1], self._loss
            )
            yield Table(self._model.gradients.clone()[None])

    def _examples_at_once(self, inputs: Tensor) -> int:
        if self._layers is None:
            return max(1, FLOATS // len(self._model))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            held, x = 1, inputs[:1]
            for layer in self._layers:
                x = layer(x)
                if isinstance(layer, nn.Conv2d):
                    held += layer.weight.numel() * (1 + x[0, 0].numel() // layer.out_channels)
        return max(1, FLOATS // held)


def can_be_clipped(norms: Tensor, clip: float) -> Tensor:
    """Which gradients are finite, and not so long that float32 has no precise number to scale them by. The others count as zero.

    Example:
        >>> can_be_clipped(torch.tensor([1e20, 1e35, torch.inf]), 1.0)
        tensor([ True, False, False])
    """
    return torch.isfinite(norms) & (norms <= clip * LONGEST)


def shrinking(norms: Tensor, clip: float) -> Tensor:
    """By how much each gradient is scaled so that its norm is at most `clip`.

    Example:
        >>> shrinking(torch.tensor([0.0, 0.5, 4.0]), 1.0).round(decimals=3)
        tensor([1.0000, 1.0000, 0.2500])
    """
    return (clip * INSIDE / norms).clamp(max=1.0)  # a norm of zero gives infinity, and so 1


@dataclass(frozen=True)
class Table:
    """Gradients written out, one example a row."""

    rows: Tensor

    def norms(self, order: float) -> Tensor:
        return torch.linalg.vector_norm(self.rows, ord=order, dim=1, dtype=torch.float64)

    def only(self, kept: Tensor) -> Table:
        return Table(self.rows[kept])

    def add_to(self, total: Tensor, model: FlatModel, scale: Tensor) -> None:
        total += scale @ self.rows.double()


@dataclass(frozen=True)
class Outer:
    """A linear layer's gradients: outer products of what came back with what went in, with the bias as one more input of 1."""

    layer: nn.Linear
    back: Tensor
    into: Tensor

    def norms(self, order: float) -> Tensor:
        went = (
            torch.linalg.vector_norm(self.into, ord=order, dim=1, dtype=torch.float64) ** order
            if trains(self.layer.weight)
            else 0.0
        )
        went = went + (1.0 if trains(self.layer.bias) else 0.0)
        return torch.linalg.vector_norm(
            self.back, ord=order, dim=1, dtype=torch.float64
        ) * went ** (1 / order)

    def only(self, kept: Tensor) -> Outer:
        return Outer(self.layer, self.back[kept], self.into[kept])

    def add_to(self, blocks: dict[int, Tensor], scale: Tensor) -> None:
        if trains(self.layer.weight):
            blocks[id(self.layer.weight)].addmm_((self.back * scale[:, None]).T, self.into.double())
        if trains(self.layer.bias):
            blocks[id(self.layer.bias)].add_(scale @ self.back.double())


@dataclass(frozen=True)
class Written:
    """Another layer's gradients, written out: one table of examples for each of its parameters."""

    parameters: list[Tensor]
    tables: list[Tensor]

    def norms(self, order: float) -> Tensor:
        parts = [
            torch.linalg.vector_norm(table, ord=order, dim=1, dtype=torch.float64)
            for table in self.tables
        ]
        return torch.linalg.vector_norm(torch.stack(parts), ord=order, dim=0)

    def only(self, kept: Tensor) -> Written:
        return Written(self.parameters, [table[kept] for table in self.tables])

    def add_to(self, blocks: dict[int, Tensor], scale: Tensor) -> None:
        for parameter, table in zip(self.parameters, self.tables, strict=True):
            blocks[id(parameter)].add_((scale @ table.double()).view(parameter.shape))


@dataclass(frozen=True)
class Layered:
    """Gradients layer by layer; the norm of an example's whole gradient joins those of its layers."""

    parts: list[Outer | Written]

    def norms(self, order: float) -> Tensor:
        return torch.linalg.vector_norm(
            torch.stack([part.norms(order) for part in self.parts]), ord=order, dim=0
        )

    def only(self, kept: Tensor) -> Layered:
        return Layered([part.only(kept) for part in self.parts])

    def add_to(self, total: Tensor, model: FlatModel, scale: Tensor) -> None:
        blocks = {
            id(parameter): block
            for parameter, block in zip(model.trained, model.blocks(total), strict=True)
        }
        for part in self.parts:
            part.add_to(blocks, scale)


Piece = Table | Layered


def trains(parameter: Tensor | None) -> bool:
    """Whether a parameter is there and is trained."""
    return parameter is not None and parameter.requires_grad


def stacked_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain stack, each known to treat every example by itself and occurring once; None for any other module."""
    if type(module) is nn.Sequential:
        inner = [stacked_layers(child) for child in module]
        known = [layers for layers in inner if layers is not None]
        layers = [layer for part in known for layer in part]
        return layers if len(known) == len(inner) and used_once(layers) else None
    if type(module) is nn.Flatten:
        return [module] if (module.start_dim, module.end_dim) == (1, -1) else None
    if type(module) is nn.Conv2d:
        simple = (
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
        return [module] if simple else None
    return [module] if type(module) in PASSIVE or type(module) is nn.Linear else None


def used_once(layers: list[nn.Module]) -> bool:
    """Whether no layer and no trained parameter occurs twice."""
    parameters = [
        id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)
    ]
    return len({id(layer) for layer in layers}) == len(layers) and len(set(parameters)) == len(
        parameters
    )


def layered(
    net: nn.Module, layers: list[nn.Module], inputs: Tensor, targets: Tensor, loss: Loss
) -> Layered:
    """One pass forwards, one backwards to the outputs of the layers that are trained."""
    if not net.training:
        net.train()
    x, went, came = inputs, [], []
    trained = [
        any(trains(parameter) for parameter in layer.parameters(recurse=False)) for layer in layers
    ]
    for layer, wanted in zip(layers, trained, strict=True):
        into, x = x, layer(x)
        if wanted:
            went.append((layer, into.detach()))
            came.append(x)
    back = torch.autograd.grad(loss(x, targets) * len(targets), came)
    return Layered(
        [
            layer_gradients(layer, into, gradient)
            for (layer, into), gradient in zip(went, back, strict=True)
        ]
    )


def layer_gradients(layer: nn.Module, into: Tensor, back: Tensor) -> Outer | Written:
    """The per-example gradients of one layer, from what went into it and what came back to its output."""
    if isinstance(layer, nn.Linear):
        if back.dim() == 2:
            return Outer(layer, back, into)
        into, back = into.flatten(1, -2), back.flatten(1, -2).transpose(1, 2)
    elif isinstance(layer, nn.Conv2d):
        into = unfolded(layer, into).transpose(1, 2)
        back = back.flatten(2)
    else:
        raise TypeError(f"{type(layer).__name__} is not a layer of a plain stack")
    made = [
        (layer.weight, lambda: torch.bmm(back, into).flatten(1)),
        (layer.bias, lambda: back.sum(dim=2)),
    ]
    kept = [
        (parameter, make())
        for parameter, make in made
        if parameter is not None and trains(parameter)
    ]
    return Written([parameter for parameter, _ in kept], [table for _, table in kept])


def unfolded(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What each output of a convolution looks at: (examples, channels x kernel, outputs). As `functional.unfold`, but many times faster."""
    if not isinstance(layer.padding, tuple):
        raise TypeError("a padding in words is no plain stack's")
    up, left = layer.padding
    padded = functional.pad(images, (left, left, up, up)) if up + left > 0 else images
    records, channels, height, width = padded.stride()
    (down, right), (skip_down, skip_right) = layer.stride, layer.dilation
    high = (padded.shape[2] - skip_down * (layer.kernel_size[0] - 1) - 1) // down + 1
    wide = (padded.shape[3] - skip_right * (layer.kernel_size[1] - 1) - 1) // right + 1
    sizes = (len(images), layer.in_channels, *layer.kernel_size, high, wide)
    steps = (
        records,
        channels,
        height * skip_down,
        width * skip_right,
        height * down,
        width * right,
    )
    return padded.as_strided(sizes, steps, padded.storage_offset()).reshape(
        len(images), -1, high * wide
    )


def vectorised(model: FlatModel, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The gradients of all examples, one a row, each computed as if it were alone."""
    net = model.net.train()
    names = [name for name, _ in model.layout]

    def alone(weights: tuple[Tensor, ...], example: Tensor, target: Tensor) -> Tensor:
        return loss(
            functional_call(net, dict(zip(names, weights, strict=True)), (example[None],)),
            target[None],
        )

    weights = tuple(parameter.detach() for parameter in model.trained)
    tables = vmap(grad(alone), in_dims=(None, 0, 0), randomness="different")(
        weights, inputs, targets
    )
    return torch.cat([table.flatten(1) for table in tables], dim=1)
