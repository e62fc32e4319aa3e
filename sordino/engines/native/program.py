"""A network as the native kernel runs it: tensors and layers in order, with who overwrites what decided."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """Layers that the kernel has; numbered as in src/plan.h."""

    LINEAR = 0
    CONVOLUTION = 1
    MAX_POOL = 2
    MEAN_POOL = 3
    ELEMENTWISE = 4
    SUM = 5
    GROUP_NORM = 6


class Activation(IntEnum):
    """Functions of one value; numbered as in src/blocks.h."""

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    GELU = 4


class Loss(IntEnum):
    """What is made small; numbered as in src/losses.h."""

    CROSS_ENTROPY = 0
    BINARY_CROSS_ENTROPY = 1
    SQUARED_ERROR = 2
    GIVEN = 3


# Growing functions whose derivative their result tells: they can be applied where a value is stored, and after a maximum as well as
# before it.
FUSED = (Activation.RELU, Activation.TANH, Activation.SIGMOID)

Shape = tuple[int, int, int]  # channels, height, width


@dataclass
class Tensor:
    """Values between two layers. It is filled in by `arrange`."""

    shape: Shape
    activation: Activation = Activation.NONE
    frame: tuple[int, int] = (0, 0)
    apart: bool = False

    @property
    def size(self) -> int:
        """Values per record."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: which tensors it reads and writes, where its parameters begin in the trained vector (-1: it has none)."""

    kind: Kind
    inputs: tuple[int, ...]
    output: int
    weight: int = -1
    bias: int = -1
    settings: tuple[
        int, ...
    ] = ()  # kernel, stride, padding; or groups and epsilon; or the activation

    @property
    def activation(self) -> Activation:
        """Of an elementwise layer."""
        return Activation(self.settings[0]) if self.kind is Kind.ELEMENTWISE else Activation.NONE


@dataclass(frozen=True, kw_only=True)
class Program:
    """Tensors and layers; tensor 0 holds the records, the last layer's output goes to the loss."""

    tensors: tuple[Tensor, ...]
    layers: tuple[Layer, ...]
    parameters: int
    description: str = field(default="", compare=False)

    @property
    def record_size(self) -> int:
        """Values of one record."""
        return self.tensors[0].size

    @property
    def outputs(self) -> int:
        """Values that the network gives for a record."""
        return self.tensors[-1].size

    def tensor_table(self) -> np.ndarray:
        """Rows as src/plan.h reads them."""
        return np.array(
            [(*t.shape, *t.frame, t.activation, t.apart) for t in self.tensors], dtype=np.int64
        )

    def layer_table(self) -> np.ndarray:
        """Rows as src/plan.h reads them, with who carries gradients back, and who adds to what another layer wrote."""
        wanted = wanted_gradients(self.layers, len(self.tensors))
        rows: list[tuple[int, ...]] = []
        written: set[int] = set()
        for layer in reversed(self.layers):
            first, second = layer.inputs[0], layer.inputs[-1]
            adds = first in written
            written.add(first)
            second_adds = second in written
            written.add(second)
            flags = (wanted[first], adds, wanted[second], second_adds)
            settings = (*layer.settings, *([0] * (6 - len(layer.settings))))
            rows.append(
                (
                    layer.kind,
                    first,
                    second,
                    layer.output,
                    *flags,
                    layer.weight,
                    layer.bias,
                    *settings,
                )
            )
        return np.array(rows[::-1], dtype=np.int64)


def wanted_gradients(layers: Sequence[Layer], tensors: int) -> list[bool]:
    """Which tensors depend on parameters: gradients of the others are never computed."""
    wanted = [False] * tensors
    for layer in layers:
        wanted[layer.output] = layer.weight >= 0 or any(wanted[source] for source in layer.inputs)
    return wanted


def epsilon_bits(epsilon: float) -> int:
    """A float64 in the bits of an int64, as the table carries it."""
    return int(struct.unpack("<q", struct.pack("<d", epsilon))[0])


def arrange(layers: Sequence[Layer], shapes: Sequence[Shape], parameters: int) -> Program:
    """A program from layers in order: activations fused into the layer before, frames where convolutions pad, gradients placed.

    Example:
        >>> linear = Layer(kind=Kind.LINEAR, inputs=(0,), output=1, weight=0, bias=8)
        >>> relu = Layer(kind=Kind.ELEMENTWISE, inputs=(1,), output=2, settings=(Activation.RELU,))
        >>> out = Layer(kind=Kind.LINEAR, inputs=(2,), output=3, weight=12, bias=20)
        >>> program = arrange([linear, relu, out], [(2, 1, 1), (4, 1, 1), (4, 1, 1), (2, 1, 1)], parameters=22)
        >>> [layer.kind.name for layer in program.layers], program.tensors[1].activation.name
        (['LINEAR', 'LINEAR'], 'RELU')
    """
    tensors = [Tensor(shape) for shape in shapes]
    ordered = pooled_first(list(layers), tensors)
    ordered = fused(ordered, tensors)
    ordered = framed(ordered, tensors)
    ordered, tensors = renumbered(ordered, tensors)
    place_gradients(ordered, tensors)
    return Program(tensors=tuple(tensors), layers=tuple(ordered), parameters=parameters)


def readers(layers: Sequence[Layer], tensor: int) -> list[Layer]:
    """The layers that read a tensor, once for every time they do."""
    return [layer for layer in layers for source in layer.inputs if source == tensor]


def pooled_first(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Put a maximum before the growing activation that it follows: the same values, of which there are then fewer to compute.

    Where two values of a window become equal only through the activation, the gradient goes to the greater one instead of the
    first; a ReLU then has none, and tanh and sigmoid are flat there to the last digit of float32.
    """
    for place, layer in enumerate(layers):
        before, after = readers(layers, layer.inputs[0]), readers(layers, layer.output)
        if (
            layer.activation not in FUSED
            or len(before) != 1
            or len(after) != 1
            or after[0].kind is not Kind.MAX_POOL
        ):
            continue
        pool = after[0]
        tensors[layer.output].shape = tensors[pool.output].shape
        layers[layers.index(pool)] = replace(layer, inputs=(layer.output,), output=pool.output)
        layers[place] = replace(pool, inputs=layer.inputs, output=layer.output)
    return layers


def fused(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Let the layer before apply an activation as it stores its values. What the loss reads is left as it is."""
    kept: list[Layer] = []
    last = layers[-1].output
    for layer in layers:
        maker = next((other for other in kept if other.output == layer.inputs[0]), None)
        single = len(readers(layers, layer.inputs[0])) == 1
        plain = (
            maker is not None
            and maker.kind is not Kind.ELEMENTWISE
            and tensors[maker.output].activation is Activation.NONE
        )
        if (
            layer.activation in FUSED
            and maker is not None
            and single
            and plain
            and layer.output != last
        ):
            tensors[layer.output].activation = layer.activation
            kept[kept.index(maker)] = replace(maker, output=layer.output)
        else:
            kept.append(layer)
    return kept


def framed(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Give tensors the frame of zeros that convolutions ask for. Linear layers and the loss read a copy without one."""
    for layer in layers:
        if layer.kind is Kind.CONVOLUTION:
            (y, x), tensor = layer.settings[4:6], tensors[layer.inputs[0]]
            tensor.frame = (max(y, tensor.frame[0]), max(x, tensor.frame[1]))
    made: list[Layer] = []
    for layer in layers:
        source = layer.inputs[0]
        if layer.kind is Kind.LINEAR and tensors[source].frame != (0, 0):
            tensors.append(Tensor(tensors[source].shape))
            made.append(
                Layer(
                    kind=Kind.ELEMENTWISE,
                    inputs=(source,),
                    output=len(tensors) - 1,
                    settings=(Activation.NONE,),
                )
            )
            layer = replace(layer, inputs=(len(tensors) - 1,))
        made.append(layer)
    return made


def renumbered(layers: list[Layer], tensors: list[Tensor]) -> tuple[list[Layer], list[Tensor]]:
    """Tensors numbered in the order in which they are made, without those that fusion left over."""
    numbers = {0: 0, **{layer.output: place + 1 for place, layer in enumerate(layers)}}
    moved = [
        replace(layer, inputs=tuple(numbers[i] for i in layer.inputs), output=numbers[layer.output])
        for layer in layers
    ]
    return moved, [tensors[old] for old in numbers]


def place_gradients(layers: list[Layer], tensors: list[Tensor]) -> None:
    """Decide where gradients overwrite values, which keeps everything in a smaller cache.

    A linear layer needs its inputs until all norms are known (per-example clipping); several readers add their gradients up; and a
    pooling that overlaps or leaves pixels out adds to zeros. All others read a value for the last time where they write its gradient.
    """
    wanted = wanted_gradients(layers, len(tensors))
    for number, tensor in enumerate(tensors[:-1]):
        after = readers(layers, number)
        shared = len(after) > 1 or after[0].kind is Kind.LINEAR
        ragged = after[0].kind in (Kind.MAX_POOL, Kind.MEAN_POOL) and not tiles(
            after[0], tensor.shape
        )
        tensor.apart = wanted[number] and (shared or ragged)


def tiles(layer: Layer, shape: Shape) -> bool:
    """Whether the windows of a pooling cover every pixel exactly once."""
    kernel, stride, padding = layer.settings[0:2], layer.settings[2:4], layer.settings[4:6]
    return (
        kernel == stride
        and padding == (0, 0)
        and shape[1] % kernel[0] == 0
        and shape[2] % kernel[1] == 0
    )
