"""Layers as they are found in a module, collected into a program of the native kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from sordino.models.dropout import WORDS_PER_BLOCK
from sordino.native.program import Activation, Kind, Layer, Program, Shape, arrange


class KernelRefusal(Exception):
    """The kernel cannot run this; the text is the reason, as it is shown to people."""


@dataclass(frozen=True)
class LayerResult:
    """The result of a layer.

    Attributes:
        tensor: Its number in the program.
        dimensions: How many dimensions torch gives it in addition to the records'.
    """

    tensor: int
    dimensions: int


class NetworkBuilder:
    """Collects layers in the order in which they are computed. It holds state: use it once.

    Args:
        parameters: The trained parameters, in the order of the trained vector.
        input_shape: The shape of a record.

    Attributes:
        input: The records.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], input_shape: tuple[int, ...]) -> None:
        self._offsets: dict[int, int] = {}
        self._parameters = 0
        for parameter in parameters:
            self._offsets[id(parameter)] = self._parameters
            self._parameters += parameter.numel()
        # Parameters that a layer has claimed, by identity.
        self._used: set[int] = set()
        self._shapes: list[Shape] = [image_shape(input_shape)]
        self._layers: list[Layer] = []
        # Blocks of an example's keystream that dropouts read.
        self._mask_blocks = 0
        self._dropouts: set[int] = set()
        self.input = LayerResult(0, len(input_shape))

    def shape_of(self, value: LayerResult) -> Shape:
        """Returns channels, height and width of a value.

        Args:
            value: The value.
        """
        return self._shapes[value.tensor]

    def add_layer(
        self,
        kind: Kind,
        inputs: tuple[LayerResult, ...],
        shape: Shape,
        dimensions: int,
        **fields: Any,
    ) -> LayerResult:
        """Adds a layer and returns its result.

        Args:
            kind: What the layer computes.
            inputs: What it reads.
            shape: Channels, height and width of its result.
            dimensions: Dimensions of its result in torch, in addition to the records'.
            **fields: Further fields of `Layer`.

        Raises:
            KernelRefusal: The result is empty.
        """
        if min(shape) < 1:
            raise KernelRefusal(f"a layer gives an empty result of shape {shape}")
        self._shapes.append(shape)
        output = len(self._shapes) - 1
        tensors = tuple(value.tensor for value in inputs)
        self._layers.append(
            Layer(
                kind=kind,
                inputs=tensors,
                output=output,
                **fields,
            )
        )
        return LayerResult(output, dimensions)

    def add_activation(self, value: LayerResult, kind: Activation) -> LayerResult:
        """Adds a function of every value and returns its result.

        Args:
            value: What it is applied to.
            kind: The function.
        """
        shape = self.shape_of(value)
        return self.add_layer(Kind.ELEMENTWISE, (value,), shape, value.dimensions, settings=(kind,))

    def claim_mask_blocks(self, layer: Any, values: int) -> int:
        """Returns where a dropout begins in an example's keystream, in blocks.

        Args:
            layer: The dropout.
            values: The values of an example that pass through it.

        Raises:
            KernelRefusal: It has passed others before.
        """
        if id(layer) in self._dropouts:
            raise KernelRefusal("a dropout is used twice")
        self._dropouts.add(id(layer))
        first = self._mask_blocks
        # Divisions are rounded up.
        self._mask_blocks += -(-values // WORDS_PER_BLOCK)
        return first

    def claim_parameters(self, layer: Any) -> dict[str, int]:
        """Returns where the weight and the bias of a layer begin in the trained vector.

        Args:
            layer: A module with the attributes `weight` and `bias`.

        Raises:
            KernelRefusal: Another layer has claimed one of them.
        """
        return {
            "weight": self._claim_parameter(layer.weight),
            "bias": self._claim_parameter(layer.bias),
        }

    def _claim_parameter(self, parameter: torch.Tensor | None) -> int:
        if parameter is None:
            return -1
        if id(parameter) in self._used:
            raise KernelRefusal("a layer is used twice")
        self._used.add(id(parameter))
        return self._offsets[id(parameter)]

    def build_program(self, result: Any) -> Program:
        """Returns the program of all layers.

        Args:
            result: What the module returns.

        Raises:
            KernelRefusal: It is not the last layer's row of outputs, or something is left over.
        """
        if type(result) is not LayerResult or result.dimensions != 1:
            raise KernelRefusal("the outputs are not one row per record")
        if not self._layers or result.tensor != self._layers[-1].output:
            raise KernelRefusal("the module's last layer does not give its result")
        # The kernel trains what it knows: anything else would stay as it was, unnoticed.
        if len(self._used) != len(self._offsets):
            raise KernelRefusal("some parameters are not used by any layer")
        read: set[int] = set()
        for layer in self._layers:
            read.update(layer.inputs)
        if any(layer.output not in read for layer in self._layers[:-1]):
            raise KernelRefusal("the result of a layer is not used")
        return arrange(self._layers, self._shapes, self._parameters)


def image_shape(shape: tuple[int, ...]) -> Shape:
    """Returns a record's shape as channels, height and width.

    A series has height 1; features are channels of one pixel.

    Args:
        shape: The shape of a record.

    Raises:
        KernelRefusal: It has other than one to three dimensions.

    Example:
        >>> image_shape((3, 100)), image_shape((64,))
        ((3, 1, 100), (64, 1, 1))
    """
    if len(shape) == 1:
        return shape[0], 1, 1
    if len(shape) == 2:
        return shape[0], 1, shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise KernelRefusal(f"records of shape {shape} are neither features nor series nor images")


def slide_windows(
    shape: Shape,
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Shape:
    """Returns the shape after windows have gone over an image.

    Args:
        shape: Channels, height and width of the image.
        channels: Channels of the result.
        kernel: Height and width of the windows.
        stride: Their distance.
        padding: Rows and columns of zeros on each side.

    Example:
        >>> slide_windows((1, 28, 28), 6, (5, 5), (1, 1), (2, 2))
        (6, 28, 28)
    """
    _, height, width = shape
    return (
        channels,
        (height + 2 * padding[0] - kernel[0]) // stride[0] + 1,
        (width + 2 * padding[1] - kernel[1]) // stride[1] + 1,
    )


def setting_pair(setting: Any, *, series: bool, height: int) -> tuple[int, int]:
    """Returns a setting of a layer for height and width.

    Args:
        setting: One number, or one for each dimension.
        series: Whether the layer works on series, and so has it only for their length.
        height: The setting for the height of a series.

    Raises:
        KernelRefusal: The setting is something else.

    Example:
        >>> setting_pair(3, series=False, height=1), setting_pair((5,), series=True, height=1)
        ((3, 3), (1, 5))
    """
    if type(setting) in (tuple, list):
        values = tuple(setting)
    elif series:
        values = (setting,)
    else:
        values = (setting, setting)
    if series:
        values = (height, *values[:1])
    # A bool is an int to Python, but not a size.
    if len(values) != 2 or any(type(value) is not int for value in values):
        raise KernelRefusal(f"a layer has the setting {setting!r}")
    return values[0], values[1]
