"""Per-example gradients of a plain stack of layers, by one pass forwards and one backwards.

The gradient of one example in a linear layer is an outer product, whose norm is the product of two
norms; in a convolution it is one small matrix product of the unfolded input, which is kept until
the clip is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.models.alterations import describe_alteration
from sordino.models.dropout import KeyedDropout
from sordino.models.flat import FlatModel
from sordino.models.task_losses import Loss

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
    KeyedDropout,
)


def count_held_floats(layers: list[nn.Module], example: Tensor) -> int:
    """Returns the numbers that the gradients of one example need in a plain stack.

    Args:
        layers: The layers of the stack.
        example: A batch of one example.
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
class OuterProducts:
    """The gradients of a linear layer: outer products of output gradients and inputs.

    The bias is the weight of one more input, of 1.

    Attributes:
        layer: The layer.
        back: The gradient of every example's output.
        into: Every example's input.
    """

    layer: nn.Linear
    back: Tensor
    into: Tensor

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient: a product of two norms.

        Args:
            order: Order of the norm, 1 or 2.
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
            kept: A boolean for every example.
        """
        return OuterProducts(self.layer, self.back[kept], self.into[kept])

    def add_to(self, blocks: dict[int, Tensor], factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to the blocks of their parameters.

        Args:
            blocks: The part of the sum for every parameter, by its identity.
            factors: One for every example.
        """
        if is_trained(self.layer.weight):
            scaled = self.back * factors[:, None]
            blocks[id(self.layer.weight)].addmm_(scaled.T, self.into.double())
        if is_trained(self.layer.bias):
            blocks[id(self.layer.bias)].add_(factors @ self.back.double())


@dataclass(frozen=True)
class ParameterTables:
    """The gradients of another layer, written out: one table of examples for each parameter.

    Attributes:
        parameters: The trained parameters of the layer.
        tables: For each of them the gradients, one example a row.
    """

    parameters: list[Tensor]
    tables: list[Tensor]

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient.

        Args:
            order: Order of the norm, 1 or 2.
        """
        norms = []
        for table in self.tables:
            norms.append(torch.linalg.vector_norm(table, ord=order, dim=1, dtype=torch.float64))
        joined: Tensor = torch.linalg.vector_norm(torch.stack(norms), ord=order, dim=0)
        return joined

    def select(self, kept: Tensor) -> ParameterTables:
        """Returns the gradients of some of the examples.

        Args:
            kept: A boolean for every example.
        """
        return ParameterTables(self.parameters, [table[kept] for table in self.tables])

    def add_to(self, blocks: dict[int, Tensor], factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to the blocks of their parameters.

        Args:
            blocks: The part of the sum for every parameter, by its identity.
            factors: One for every example.
        """
        for parameter, table in zip(self.parameters, self.tables, strict=True):
            blocks[id(parameter)].add_((factors @ table.double()).view(parameter.shape))


@dataclass(frozen=True)
class LayerGradients:
    """Gradients layer by layer.

    Attributes:
        parts: The gradients of every trained layer.
    """

    parts: list[OuterProducts | ParameterTables]

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient in all layers together.

        Args:
            order: Order of the norm, 1 or 2.
        """
        norms = torch.stack([part.find_norms(order) for part in self.parts])
        joined: Tensor = torch.linalg.vector_norm(norms, ord=order, dim=0)
        return joined

    def select(self, kept: Tensor) -> LayerGradients:
        """Returns the gradients of some of the examples.

        Args:
            kept: A boolean for every example.
        """
        return LayerGradients([part.select(kept) for part in self.parts])

    def add_to(self, total: Tensor, model: FlatModel, factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to a vector.

        Args:
            total: The vector.
            model: The model that the gradients are of.
            factors: One for every example.
        """
        blocks = {}
        for parameter, block in zip(model.trained, model.blocks(total), strict=True):
            blocks[id(parameter)] = block
        for part in self.parts:
            part.add_to(blocks, factors)


def is_trained(parameter: Tensor | None) -> bool:
    """Returns whether a parameter exists and is trained.

    Args:
        parameter: A parameter of a layer.
    """
    return parameter is not None and parameter.requires_grad


def find_stacked_layers(module: nn.Module) -> list[nn.Module] | None:
    """Returns the layers of a plain stack.

    Args:
        module: Any module.

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
        module: A stack, or any other module, which counts as one layer.
    """
    # A stack with a hook computes more than its layers do.
    if type(module) is not nn.Sequential or describe_alteration(module) is not None:
        return [module]
    layers = []
    for child in module:
        layers += list_layers(child)
    return layers


def is_plain_layer(layer: nn.Module) -> bool:
    """Returns whether a layer is known to treat every example by itself.

    Args:
        layer: The layer. Its type must be one of the known ones: a class derived from one of them
            may do anything.
    """
    # A hook may mix examples, which would then have no gradients of their own.
    if describe_alteration(layer) is not None:
        return False
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
        net: The module, which is put into training mode.
        layers: Its layers in order.
        inputs: The examples.
        targets: Their classes or quantities.
        summed_loss: The sum of the losses of a batch.
    """
    if not net.training:
        net.train()
    trained = []
    layer_inputs = []
    layer_outputs = []
    x = inputs
    for layer in layers:
        into = x
        # A layer in place would write over the output before it, where the pass backwards ends.
        if getattr(layer, "inplace", False):
            into = x.clone()
        x = layer(into)
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
        layer: A linear layer or a convolution.
        into: The input of every example.
        back: The gradient of every example's output.

    Raises:
        TypeError: The layer is no layer of a plain stack.
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
        layer: The convolution.
        images: Its inputs.

    Returns:
        A tensor of shape (examples, channels x kernel, outputs).

    Raises:
        TypeError: The padding is named by a word.
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
