"""A network as the native kernel runs it: tensors and layers in order, memory decided."""

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
    NORMALISATION = 6
    DROPOUT = 7


class Activation(IntEnum):
    """Functions of one value; numbered as in src/blocks.h."""

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    GELU = 4


class Loss(IntEnum):
    """What training minimises; numbered as in src/losses.h."""

    CROSS_ENTROPY = 0
    BINARY_CROSS_ENTROPY = 1
    SQUARED_ERROR = 2
    GIVEN = 3


# Monotone functions whose derivative is a function of their result. They can be applied where a
# value is stored, and after a maximum as well as before it.
FUSIBLE = (Activation.RELU, Activation.TANH, Activation.SIGMOID)

POOLINGS = (Kind.MAX_POOL, Kind.MEAN_POOL)

# Channels, height, width.
Shape = tuple[int, int, int]

# Settings of a layer that the kernel's table has room for.
SETTINGS = 6

# Rows of the kernel's tables, as in src/plan.h.
TENSOR_ROW = np.dtype(
    [
        ("channels", np.int64),
        ("height", np.int64),
        ("width", np.int64),
        ("frame_y", np.int64),
        ("frame_x", np.int64),
        ("activation", np.int64),
        ("apart", np.int64),
    ]
)
LAYER_ROW = np.dtype(
    [
        ("kind", np.int64),
        ("first", np.int64),
        ("second", np.int64),
        ("output", np.int64),
        ("first_carries_back", np.int64),
        ("first_adds", np.int64),
        ("second_carries_back", np.int64),
        ("second_adds", np.int64),
        ("weight", np.int64),
        ("bias", np.int64),
        ("settings", np.int64, SETTINGS),
    ]
)


@dataclass
class Tensor:
    """Values between two layers. `arrange` fills it in.

    Attributes:
        shape: Channels, height and width.
        activation: The function that values pass as they are stored.
        frame: Rows and columns of zeros on each side, for convolutions that pad.
        apart: Whether gradients have separate memory, or overwrite the values.
    """

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
    """One layer.

    Attributes:
        kind: What it computes.
        inputs: The tensors that it reads.
        output: The tensor that it writes.
        weight: Where its weights begin in the trained vector; -1: it has none.
        bias: Where its biases begin; -1: it has none.
        settings: Kernel, stride and padding; or groups, epsilon and whether
            pixels are scaled; or threshold, scale and first block of a dropout; or the activation.
    """

    kind: Kind
    inputs: tuple[int, ...]
    output: int
    weight: int = -1
    bias: int = -1
    settings: tuple[int, ...] = ()

    @property
    def activation(self) -> Activation:
        """What an elementwise layer applies; other layers apply nothing."""
        if self.kind is Kind.ELEMENTWISE:
            return Activation(self.settings[0])
        return Activation.NONE


@dataclass(frozen=True, kw_only=True)
class Program:
    """Tensors and layers in order.

    Attributes:
        tensors: The first holds the records, the last goes to the loss.
        layers: In the order in which they are computed.
        parameters: The length of the trained vector.
        description: For people.
    """

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
        """Returns the tensors as rows of `TENSOR_ROW`."""
        table = np.zeros(len(self.tensors), TENSOR_ROW)
        for row, tensor in zip(table, self.tensors, strict=True):
            row["channels"], row["height"], row["width"] = tensor.shape
            row["frame_y"], row["frame_x"] = tensor.frame
            row["activation"] = tensor.activation
            row["apart"] = tensor.apart
        return table

    def layer_table(self) -> np.ndarray:
        """Returns the layers as rows of `LAYER_ROW`.

        On the way back, from the last layer to the first, the first layer that writes a tensor's
        gradient stores it, and all later ones add to it.
        """
        table = np.zeros(len(self.layers), LAYER_ROW)
        wanted = find_wanted_gradients(self.layers, len(self.tensors))
        written: set[int] = set()
        for row, layer in zip(table[::-1], reversed(self.layers), strict=True):
            row["kind"] = layer.kind
            row["output"] = layer.output
            row["weight"] = layer.weight
            row["bias"] = layer.bias
            row["settings"][: len(layer.settings)] = layer.settings
            # Layers with one input have it twice.
            for name, tensor in (("first", layer.inputs[0]), ("second", layer.inputs[-1])):
                row[name] = tensor
                row[f"{name}_carries_back"] = wanted[tensor]
                row[f"{name}_adds"] = tensor in written
                written.add(tensor)
        return table


def find_wanted_gradients(layers: Sequence[Layer], tensors: int) -> list[bool]:
    """Returns which tensors depend on parameters; gradients of the others are never computed.

    Args:
        layers: All layers in order.
        tensors: How many tensors there are.
    """
    wanted = [False] * tensors
    for layer in layers:
        depends = any(wanted[source] for source in layer.inputs)
        # Before records there are no parameters, so that their gradient is spared.
        wanted[layer.output] = depends or layer.weight >= 0
    return wanted


def pack_double(value: float) -> int:
    """Returns an int64 with the bits of a float64, as the table of layers carries it.

    Args:
        value: The number.
    """
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def arrange(layers: Sequence[Layer], shapes: Sequence[Shape], parameters: int) -> Program:
    """Returns a program of layers in order.

    Activations are fused into the layer before, tensors get frames where convolutions pad, and
    gradients get their place in memory.

    Args:
        layers: The layers, numbered by the tensors that they read and write.
        shapes: The shape of every tensor.
        parameters: The length of the trained vector.

    Example:
        >>> linear = Layer(kind=Kind.LINEAR, inputs=(0,), output=1, weight=0, bias=8)
        >>> relu = Layer(kind=Kind.ELEMENTWISE, inputs=(1,), output=2, settings=(Activation.RELU,))
        >>> out = Layer(kind=Kind.LINEAR, inputs=(2,), output=3, weight=12, bias=20)
        >>> shapes = [(2, 1, 1), (4, 1, 1), (4, 1, 1), (2, 1, 1)]
        >>> program = arrange([linear, relu, out], shapes, parameters=22)
        >>> [layer.kind.name for layer in program.layers], program.tensors[1].activation.name
        (['LINEAR', 'LINEAR'], 'RELU')
    """
    # The order matters: a maximum moves before what is fused, and frames come last.
    tensors = [Tensor(shape) for shape in shapes]
    ordered = move_maxima_forward(list(layers), tensors)
    ordered = fuse_activations(ordered, tensors)
    ordered = add_frames(ordered, tensors)
    ordered, tensors = renumber_tensors(ordered, tensors)
    place_gradients(ordered, tensors)
    return Program(tensors=tuple(tensors), layers=tuple(ordered), parameters=parameters)


def find_readers(layers: Sequence[Layer], tensor: int) -> list[Layer]:
    """Returns the layers that read a tensor, once for every time they do.

    Args:
        layers: All layers.
        tensor: The number of the tensor.
    """
    readers = []
    for layer in layers:
        readers += [layer] * layer.inputs.count(tensor)
    return readers


def move_maxima_forward(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Puts a maximum before the monotone activation that it follows.

    The values are the same, and there are fewer of them to compute. Where two values of a window
    become equal only through the activation, the gradient goes to the greater one instead of the
    first; a ReLU then has none, and tanh and sigmoid are flat there to the last digit of float32.

    Args:
        layers: The layers, which are changed.
        tensors: The tensors, whose shapes are changed.

    Returns:
        The layers.
    """
    for place, layer in enumerate(layers):
        if layer.activation not in FUSIBLE:
            continue
        before = find_readers(layers, layer.inputs[0])
        after = find_readers(layers, layer.output)
        if len(before) != 1 or len(after) != 1 or after[0].kind is not Kind.MAX_POOL:
            continue
        # The two layers change places; the tensor between them gets the smaller shape.
        pool = after[0]
        tensors[layer.output].shape = tensors[pool.output].shape
        layers[layers.index(pool)] = replace(layer, inputs=(layer.output,), output=pool.output)
        layers[place] = replace(pool, inputs=layer.inputs, output=layer.output)
    return layers


def fuse_activations(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Lets the layer before an activation apply it as it stores its values.

    Args:
        layers: Layers of the program, in the order in which they run.
        tensors: The tensors, which get the activations.

    Returns:
        The layers without those that were fused.
    """
    fused: list[Layer] = []
    last = layers[-1].output
    for layer in layers:
        maker = next((other for other in fused if other.output == layer.inputs[0]), None)
        # The tensor that the loss reads stays as it is.
        # Fused, only the result is stored, and the derivative has to be found from it.
        can_fuse = layer.activation in FUSIBLE and layer.output != last
        read_once = len(find_readers(layers, layer.inputs[0])) == 1
        if can_fuse and read_once and maker is not None and stores_plain(maker, tensors):
            tensors[layer.output].activation = layer.activation
            fused[fused.index(maker)] = replace(maker, output=layer.output)
        else:
            fused.append(layer)
    return fused


def stores_plain(layer: Layer, tensors: Sequence[Tensor]) -> bool:
    """Returns whether a layer applies no activation yet.

    Args:
        layer: A layer of the program.
        tensors: All tensors.
    """
    if layer.kind is Kind.ELEMENTWISE:
        return False
    return tensors[layer.output].activation is Activation.NONE


def add_frames(layers: list[Layer], tensors: list[Tensor]) -> list[Layer]:
    """Gives tensors the frame of zeros that convolutions ask for.

    Linear layers read a copy without one.

    Args:
        layers: Layers of the program, in the order in which they run.
        tensors: The tensors, which get frames, and to which copies are added.

    Returns:
        The layers, with those that copy.
    """
    # Several convolutions may read one tensor: it gets the widest frame.
    for layer in layers:
        if layer.kind is Kind.CONVOLUTION:
            y, x = layer.settings[4:6]
            tensor = tensors[layer.inputs[0]]
            tensor.frame = (max(y, tensor.frame[0]), max(x, tensor.frame[1]))
    framed: list[Layer] = []
    for layer in layers:
        source = layer.inputs[0]
        if layer.kind is not Kind.LINEAR or tensors[source].frame == (0, 0):
            framed.append(layer)
            continue
        # A linear layer reads a plain matrix.
        copy = Layer(
            kind=Kind.ELEMENTWISE,
            inputs=(source,),
            output=len(tensors),
            settings=(Activation.NONE,),
        )
        tensors.append(Tensor(tensors[source].shape))
        framed += [copy, replace(layer, inputs=(copy.output,))]
    return framed


def renumber_tensors(
    layers: list[Layer], tensors: list[Tensor]
) -> tuple[list[Layer], list[Tensor]]:
    """Numbers tensors in the order in which they are made, without those that fusion left over.

    Args:
        layers: Layers of the program, in the order in which they run.
        tensors: Values between the layers, in order.

    Returns:
        Both with the new numbers.
    """
    numbers = {0: 0}
    for place, layer in enumerate(layers):
        numbers[layer.output] = place + 1
    renumbered = []
    for layer in layers:
        inputs = tuple(numbers[source] for source in layer.inputs)
        renumbered.append(replace(layer, inputs=inputs, output=numbers[layer.output]))
    return renumbered, [tensors[old] for old in numbers]


def place_gradients(layers: list[Layer], tensors: list[Tensor]) -> None:
    """Decides where gradients overwrite values, which keeps everything in a smaller cache.

    A linear layer needs its inputs until all norms are known (per-example clipping); several
    readers add their gradients up; and a pooling that overlaps or leaves pixels out adds to zeros.
    All others read a value for the last time where they write its gradient.

    Args:
        layers: Layers of the program, in the order in which they run.
        tensors: The tensors, whose `apart` is set.
    """
    wanted = find_wanted_gradients(layers, len(tensors))
    for number, tensor in enumerate(tensors[:-1]):
        readers = find_readers(layers, number)
        first = readers[0]
        needed_later = len(readers) > 1 or first.kind is Kind.LINEAR
        ragged = first.kind in POOLINGS and not covers_exactly(first, tensor.shape)
        tensor.apart = wanted[number] and (needed_later or ragged)


def covers_exactly(layer: Layer, shape: Shape) -> bool:
    """Returns whether the windows of a pooling cover every pixel exactly once.

    Args:
        layer: The pooling.
        shape: The shape of its input.
    """
    kernel = layer.settings[0:2]
    stride = layer.settings[2:4]
    padding = layer.settings[4:6]
    whole = shape[1] % kernel[0] == 0 and shape[2] % kernel[1] == 0
    return whole and kernel == stride and padding == (0, 0)
