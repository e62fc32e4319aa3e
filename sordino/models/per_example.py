"""Sums of per-example gradients, each clipped by its norm, within bounded memory.

Examples never mix. There are three ways, all of which clip exactly what they add up:

- A plain stack of known layers is passed once forwards and backwards, down to the layers' outputs
  only. The gradient of one example in a linear layer is an outer product, whose norm is the
  product of two norms; in a convolution it is one small matrix product of the unfolded input,
  which is kept until the clip is known.
- Any other module, or a loss that the module brings along, is called on one example at a time, as
  torch.func does it for many at once.
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

from sordino.models.clipping import (
    MOST_EXAMPLES,
    NORM_ORDERS,
    CompensatedSum,
    check_example_count,
    clip_factors,
    find_clippable,
)
from sordino.models.flat import FlatModel
from sordino.models.task_losses import SUMMED_LOSSES, Loss

# Numbers of per-example gradients that are held at once.
MOST_FLOATS = 1 << 24

# Examples whose clipped gradients are added up plainly before a compensated addition: their number
# decides how large a batch C7 in docs/theory.md covers.
MOST_AT_ONCE = 1024

# Layers that treat every example by itself and train nothing.
PASSIVE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.Dropout,
)


class ClippedSum(NamedTuple):
    """The sum of the clipped gradients of a batch.

    Attributes:
        total: the sum, a float64 vector.
        clipped: how many examples were clipped.
        nonfinite: how many gradients could not be clipped, and counted as zero.
        within: half the examples within the clip less half of the others; in a table, one a row.
    """

    total: Tensor
    clipped: int
    nonfinite: int
    within: Tensor | float = 0.0


class ExampleGradients:
    """Computes clipped sums for a flat model, at its present weights, in the way that suits it.

    Args:
        model: the model.
        loss: the mean loss of a batch.
    """

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._layers: list[nn.Module] | None = None
        if loss in SUMMED_LOSSES:
            self._layers = find_stacked_layers(model.net)
        self._vectorised = True
        self._chunk = 0

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        clip: float,
        norm: str = "l2",
    ) -> ClippedSum:
        """Returns the sum over a batch of every example's gradient, clipped.

        Args:
            inputs: the examples, possibly none.
            targets: their classes or quantities.
            clip: gradients that are longer are scaled down to this norm.
            norm: "l2" or "l1".

        Raises:
            UserError: there are more examples than their sum is precise for.
        """
        check_example_count(len(targets), MOST_EXAMPLES)
        order = NORM_ORDERS[norm]
        # In float32 a sum of a million gradients moves by more than one of them is long when one
        # is replaced, and in float64 a plain sum of millions does.
        total = CompensatedSum(self._model.weights)
        clipped = 0
        nonfinite = 0
        if len(targets) > 0 and self._chunk == 0:
            self._chunk = self._choose_chunk(inputs)
        for start in range(0, len(targets), max(1, self._chunk)):
            rows = slice(start, start + self._chunk)
            for piece in self._compute_pieces(inputs[rows], targets[rows]):
                norms = piece.find_norms(order)
                clippable = find_clippable(norms, clip)
                if not bool(clippable.all()):
                    nonfinite += len(norms) - int(clippable.sum())
                    piece = piece.select(clippable)
                    norms = norms[clippable]
                clipped += int((norms > clip).sum())
                part = torch.zeros_like(self._model.weights, dtype=torch.float64)
                piece.add_to(part, self._model, clip_factors(norms, clip))
                total.add(part)
        within = len(targets) / 2 - clipped - nonfinite
        return ClippedSum(total.value(), clipped, nonfinite, within)

    def _compute_pieces(self, inputs: Tensor, targets: Tensor) -> Iterator[Piece]:
        """Yields the gradients of some examples, all at once or one by one."""
        if self._layers is not None:
            summed_loss = SUMMED_LOSSES[self._loss]
            yield pass_layers(self._model.net, self._layers, inputs, targets, summed_loss)
            return
        if self._vectorised:
            try:
                table = vectorise_gradients(self._model, inputs, targets, self._loss)
            except RuntimeError:
                # torch.func cannot vectorise this module.
                self._vectorised = False
            else:
                yield GradientRows(table)
                return
        for example in range(len(targets)):
            row = slice(example, example + 1)
            self._model.loss_gradient(inputs[row], targets[row], self._loss)
            yield GradientRows(self._model.gradients.clone()[None])

    def _choose_chunk(self, inputs: Tensor) -> int:
        """Returns how many examples are worked on at once."""
        if self._layers is None:
            floats = len(self._model)
        else:
            floats = count_held_floats(self._layers, inputs[:1])
        return min(MOST_AT_ONCE, max(1, MOST_FLOATS // floats))


def count_held_floats(layers: list[nn.Module], example: Tensor) -> int:
    """Returns the numbers that the gradients of one example need in a plain stack.

    Args:
        layers: the layers of the stack.
        example: a batch of one example.
    """
    held = 1
    x = example
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for layer in layers:
            x = layer(x)
            if type(layer) is nn.Conv2d:
                held += layer.weight.numel() * (1 + x[0, 0].numel() // layer.out_channels)
    return held


@dataclass(frozen=True)
class GradientRows:
    """Gradients written out, one example a row."""

    rows: Tensor

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient.

        Args:
            order: of the norm, 1 or 2.
        """
        norms: Tensor = torch.linalg.vector_norm(self.rows, ord=order, dim=1, dtype=torch.float64)
        return norms

    def select(self, kept: Tensor) -> GradientRows:
        """Returns the gradients of some of the examples.

        Args:
            kept: a boolean for every example.
        """
        return GradientRows(self.rows[kept])

    def add_to(self, total: Tensor, model: FlatModel, factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to a vector.

        Args:
            total: the vector.
            model: the model that the gradients are of.
            factors: one for every example.
        """
        total += factors @ self.rows.double()


@dataclass(frozen=True)
class OuterProducts:
    """The gradients of a linear layer: outer products of output gradients and inputs.

    The bias is the weight of one more input, of 1.

    Attributes:
        layer: the layer.
        back: the gradient of every example's output.
        into: every example's input.
    """

    layer: nn.Linear
    back: Tensor
    into: Tensor

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient: a product of two norms.

        Args:
            order: of the norm, 1 or 2.
        """
        into = torch.zeros(len(self.back), dtype=torch.float64, device=self.back.device)
        if is_trained(self.layer.weight):
            inputs = torch.linalg.vector_norm(self.into, ord=order, dim=1, dtype=torch.float64)
            into = inputs**order
        if is_trained(self.layer.bias):
            into = into + 1.0
        back = torch.linalg.vector_norm(self.back, ord=order, dim=1, dtype=torch.float64)
        norms: Tensor = back * into ** (1 / order)
        return norms

    def select(self, kept: Tensor) -> OuterProducts:
        """Returns the gradients of some of the examples.

        Args:
            kept: a boolean for every example.
        """
        return OuterProducts(self.layer, self.back[kept], self.into[kept])

    def add_to(self, blocks: dict[int, Tensor], factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to the blocks of their parameters.

        Args:
            blocks: the part of the sum for every parameter, by its identity.
            factors: one for every example.
        """
        if is_trained(self.layer.weight):
            scaled = self.back * factors[:, None]
            blocks[id(self.layer.weight)].addmm_(scaled.T, self.into.double())
        if is_trained(self.layer.bias):
            blocks[id(self.layer.bias)].add_(factors @ self.back.double())


@dataclass(frozen=True)
class ParameterTables:
    """The gradients of another layer, written out: one table of examples for each parameter."""

    parameters: list[Tensor]
    tables: list[Tensor]

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient.

        Args:
            order: of the norm, 1 or 2.
        """
        norms = []
        for table in self.tables:
            norms.append(torch.linalg.vector_norm(table, ord=order, dim=1, dtype=torch.float64))
        joined: Tensor = torch.linalg.vector_norm(torch.stack(norms), ord=order, dim=0)
        return joined

    def select(self, kept: Tensor) -> ParameterTables:
        """Returns the gradients of some of the examples.

        Args:
            kept: a boolean for every example.
        """
        return ParameterTables(self.parameters, [table[kept] for table in self.tables])

    def add_to(self, blocks: dict[int, Tensor], factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to the blocks of their parameters.

        Args:
            blocks: the part of the sum for every parameter, by its identity.
            factors: one for every example.
        """
        for parameter, table in zip(self.parameters, self.tables, strict=True):
            blocks[id(parameter)].add_((factors @ table.double()).view(parameter.shape))


@dataclass(frozen=True)
class LayerGradients:
    """Gradients layer by layer."""

    parts: list[OuterProducts | ParameterTables]

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient in all layers together.

        Args:
            order: of the norm, 1 or 2.
        """
        norms = torch.stack([part.find_norms(order) for part in self.parts])
        joined: Tensor = torch.linalg.vector_norm(norms, ord=order, dim=0)
        return joined

    def select(self, kept: Tensor) -> LayerGradients:
        """Returns the gradients of some of the examples.

        Args:
            kept: a boolean for every example.
        """
        return LayerGradients([part.select(kept) for part in self.parts])

    def add_to(self, total: Tensor, model: FlatModel, factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to a vector.

        Args:
            total: the vector.
            model: the model that the gradients are of.
            factors: one for every example.
        """
        blocks = {}
        for parameter, block in zip(model.trained, model.blocks(total), strict=True):
            blocks[id(parameter)] = block
        for part in self.parts:
            part.add_to(blocks, factors)


Piece = GradientRows | LayerGradients


def is_trained(parameter: Tensor | None) -> bool:
    """Returns whether a parameter exists and is trained.

    Args:
        parameter: a parameter of a layer.
    """
    return parameter is not None and parameter.requires_grad


def find_stacked_layers(module: nn.Module) -> list[nn.Module] | None:
    """Returns the layers of a plain stack.

    Args:
        module: any module.

    Returns:
        The layers in order, each known to treat every example by itself and occurring once; None
        for any other module.
    """
    layers = list_layers(module)
    if not all(is_plain_layer(layer) for layer in layers):
        return None
    parameters = []
    for layer in layers:
        parameters += [id(parameter) for parameter in layer.parameters(recurse=False)]
    # A layer that occurs twice has gradients that add up before they are clipped.
    layers_once = len({id(layer) for layer in layers}) == len(layers)
    parameters_once = len(set(parameters)) == len(parameters)
    if not layers_once or not parameters_once:
        return None
    return layers


def list_layers(module: nn.Module) -> list[nn.Module]:
    """Returns the layers of nested stacks, in order.

    Args:
        module: a stack, or any other module, which counts as one layer.
    """
    if type(module) is not nn.Sequential:
        return [module]
    layers = []
    for child in module:
        layers += list_layers(child)
    return layers


def is_plain_layer(layer: nn.Module) -> bool:
    """Returns whether a layer is known to treat every example by itself.

    Args:
        layer: the layer. Its type must be one of the known ones: a class derived from one of them
            may do anything.
    """
    # Flattening must leave the examples apart.
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Conv2d:
        pads_with_zeros = layer.padding_mode == "zeros" and type(layer.padding) is not str
        return layer.groups == 1 and pads_with_zeros
    return type(layer) is nn.Linear or type(layer) in PASSIVE


def pass_layers(
    net: nn.Module,
    layers: list[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    summed_loss: Loss,
) -> LayerGradients:
    """Returns the gradients of a batch by one pass forwards and one backwards.

    The pass backwards ends at the outputs of the layers that are trained.

    Args:
        net: the module, which is put into training mode.
        layers: its layers in order.
        inputs: the examples.
        targets: their classes or quantities.
        summed_loss: the sum of the losses of a batch.
    """
    if not net.training:
        net.train()
    trained = []
    layer_inputs = []
    layer_outputs = []
    x = inputs
    for layer in layers:
        into = x
        x = layer(x)
        if any(is_trained(parameter) for parameter in layer.parameters(recurse=False)):
            # Detached: the pass back ends at outputs, and needs inputs as numbers alone.
            trained.append(layer)
            layer_inputs.append(into.detach())
            layer_outputs.append(x)
    backs = torch.autograd.grad(summed_loss(x, targets), layer_outputs)
    parts = []
    for layer, into, back in zip(trained, layer_inputs, backs, strict=True):
        parts.append(compute_layer_gradients(layer, into, back))
    return LayerGradients(parts)


def compute_layer_gradients(
    layer: nn.Module, into: Tensor, back: Tensor
) -> OuterProducts | ParameterTables:
    """Returns the per-example gradients of one layer.

    Args:
        layer: a linear layer or a convolution.
        into: the input of every example.
        back: the gradient of every example's output.

    Raises:
        TypeError: the layer is no layer of a plain stack.
    """
    if type(layer) is nn.Linear:
        # Of a sequence, an example has one input a position, and its gradient is written out.
        if back.dim() == 2:
            return OuterProducts(layer, back, into)
        into = into.flatten(1, -2)
        back = back.flatten(1, -2).transpose(1, 2)
    elif type(layer) is nn.Conv2d:
        into = unfold_images(layer, into).transpose(1, 2)
        back = back.flatten(2)
    else:
        raise TypeError(f"{type(layer).__name__} is not a layer of a plain stack")
    parameters: list[Tensor] = []
    tables = []
    if is_trained(layer.weight):
        parameters.append(layer.weight)
        tables.append(torch.bmm(back, into).flatten(1))
    if layer.bias is not None and is_trained(layer.bias):
        parameters.append(layer.bias)
        tables.append(back.sum(dim=2))
    return ParameterTables(parameters, tables)


def unfold_images(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Returns the patches that the outputs of a convolution see.

    As `functional.unfold`, but many times faster.

    Args:
        layer: the convolution.
        images: its inputs.

    Returns:
        A tensor of shape (examples, channels x kernel, outputs).

    Raises:
        TypeError: the padding is named by a word.
    """
    if type(layer.padding) is str:
        raise TypeError("a layer of a plain stack has a number as padding")
    up, left = (int(size) for size in layer.padding)
    padded = images
    if up + left > 0:
        padded = functional.pad(images, (left, left, up, up))
    image_step, channel_step, row_step, column_step = padded.stride()
    down, right = layer.stride
    skip_down, skip_right = layer.dilation
    height = (padded.shape[2] - skip_down * (layer.kernel_size[0] - 1) - 1) // down + 1
    width = (padded.shape[3] - skip_right * (layer.kernel_size[1] - 1) - 1) // right + 1
    sizes = (len(images), layer.in_channels, *layer.kernel_size, height, width)
    steps = (
        image_step,
        channel_step,
        row_step * skip_down,
        column_step * skip_right,
        row_step * down,
        column_step * right,
    )
    # A view in which windows overlap: nothing is copied until the reshape.
    patches = padded.as_strided(sizes, steps, padded.storage_offset())
    return patches.reshape(len(images), -1, height * width)


def vectorise_gradients(
    model: FlatModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
) -> Tensor:
    """Returns the gradients of all examples, one a row, each computed as if it were alone.

    Args:
        model: the model.
        inputs: the examples.
        targets: their classes or quantities.
        loss: the mean loss of a batch.

    Raises:
        RuntimeError: torch.func cannot vectorise the module.
    """
    net = model.net.train()
    names = [name for name, _ in model.layout]

    def find_loss(weights: tuple[Tensor, ...], example: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of one example.

        Args:
            weights: the model's parameters.
            example: the example's input.
            target: its label.
        """
        parameters = dict(zip(names, weights, strict=True))
        return loss(functional_call(net, parameters, (example[None],)), target[None])

    weights = tuple(parameter.detach() for parameter in model.trained)
    differentiate = vmap(grad(find_loss), in_dims=(None, 0, 0), randomness="different")
    tables = differentiate(weights, inputs, targets)
    return torch.cat([table.flatten(1) for table in tables], dim=1)
