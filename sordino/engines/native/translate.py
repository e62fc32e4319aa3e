"""From a module to a program of the native kernel, or the reason why there is none.

A module is traced with torch.fx, so an `nn.Sequential` and a module with a forward of its own go the same way. Whatever is not
understood completely is refused: the torch engine runs it then.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils import parametrize

from sordino.engines.native.program import (
    Activation,
    Kind,
    Layer,
    Program,
    Shape,
    arrange,
    epsilon_bits,
)


class Refused(Exception):
    """The kernel cannot run this; the text is the reason, as it is shown."""


@dataclass(frozen=True)
class Value:
    """A tensor of the traced module: its number, and how many dimensions torch gives it besides the records'."""

    tensor: int
    dimensions: int


BATCH_SIZE = object()  # stands for x.size(0) and x.shape[0] in a trace
SHAPE = object()  # stands for x.shape


def translate(module: nn.Module, input_shape: tuple[int, ...]) -> Program:
    """The program of a module for records of a shape.

    Raises:
        Refused: with the reason.

    Example:
        >>> translate(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8)).parameters
        650
        >>> translate(nn.Sequential(nn.Linear(4, 2), nn.Softplus()), (4,))
        Traceback (most recent call last):
        sordino.engines.native.translate.Refused: layer 1 is Softplus, which the native kernel does not have
    """
    refuse_special(module)
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # whatever the user's forward raises when it is traced
        raise Refused(f"torch.fx cannot trace {type(module).__name__}: {error}") from None
    return Translation(module, input_shape).program(graph)


def refuse_special(module: nn.Module) -> None:
    """Refuse what a trace would not show: hooks, parametrisations, buffers, parameters that are frozen or used twice."""
    if _has_any_global_hook():
        raise Refused("a hook is registered for all modules")
    for name, layer in module.named_modules():
        label = name or type(layer).__name__
        if any(
            getattr(layer, hooks)
            for hooks in vars(layer)
            if hooks.endswith("_hooks") and "state_dict" not in hooks
        ):
            raise Refused(f"layer {label} has a hook")
        if parametrize.is_parametrized(layer):
            raise Refused(f"layer {label} is parametrised")
        if "forward" in vars(layer):
            raise Refused(f"layer {label} has a forward of its own")
        if any(True for _ in layer.buffers(recurse=False)):
            raise Refused(f"layer {label} has buffers")
    seen: set[int] = set()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise Refused(f"parameter {name} is frozen")
        if id(parameter) in seen:
            raise Refused(f"parameter {name} is used twice")
        if parameter._backward_hooks:
            raise Refused(f"parameter {name} has a hook")
        seen.add(id(parameter))


class Translation:
    """Goes through a trace and collects layers. It holds what was found so far: use it once."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        self._modules = dict(module.named_modules())
        self._offsets: dict[int, int] = {}
        self._parameters = 0
        for parameter in module.parameters():
            self._offsets[id(parameter)] = self._parameters
            self._parameters += parameter.numel()
        self._used: set[int] = set()
        self._shapes: list[Shape] = [as_image(input_shape)]
        self._layers: list[Layer] = []
        self._values: dict[fx.Node, Any] = {}
        self._input = Value(0, len(input_shape))

    def program(self, graph: fx.Graph) -> Program:
        """The program of a traced graph."""
        result: Any = None
        for node in graph.nodes:
            if node.op == "placeholder":
                if self._values:
                    raise Refused("the module takes more than one input")
                self._values[node] = self._input
            elif node.op == "output":
                result = self._value(node.args[0])
            else:
                self._values[node] = self._apply(node)
        if result.dimensions != 1:
            raise Refused("the outputs are not one row per record")
        if not self._layers or result.tensor != self._layers[-1].output:
            raise Refused("the module's last layer does not give its result")
        if len(self._used) != len(self._offsets):
            raise Refused("some parameters are not used by any layer")
        idle = [
            layer
            for layer in self._layers[:-1]
            if not any(layer.output in other.inputs for other in self._layers)
        ]
        if idle:
            raise Refused("the result of a layer is not used")
        return arrange(self._layers, self._shapes, self._parameters)

    def _value(self, argument: Any) -> Value:
        value = self._values.get(argument) if isinstance(argument, fx.Node) else None
        if not isinstance(value, Value):
            raise Refused("a layer works on something else than the result of a layer")
        return value

    def _apply(self, node: fx.Node) -> Any:
        if node.op == "call_module":
            layer = self._modules[str(node.target)]
            make = MODULES.get(type(layer))
            if make is None or len(node.args) != 1 or node.kwargs:
                raise Refused(
                    f"layer {node.target} is {type(layer).__name__}, which the native kernel does not have"
                )
            if getattr(layer, "inplace", False) and len(node.all_input_nodes[0].users) > 1:
                raise Refused(f"layer {node.target} overwrites a value that is used again")
            return make(self, self._value(node.args[0]), layer)
        if node.op == "get_attr":
            raise Refused(f"the forward pass uses {node.target} directly")
        called = (
            FUNCTIONS.get(node.target)
            if node.op == "call_function"
            else METHODS.get(str(node.target))
        )
        if called is None:
            raise Refused(
                f"the forward pass calls {getattr(node.target, '__name__', node.target)}, which the native kernel does not have"
            )
        try:
            bound = inspect.signature(called).bind(self, *node.args, **node.kwargs)
        except TypeError:
            name = getattr(node.target, "__name__", node.target)
            raise Refused(
                f"the forward pass calls {name} with arguments that the native kernel does not know"
            ) from None
        return called(*bound.args, **bound.kwargs)

    # ---- layers

    def add(
        self, kind: Kind, inputs: tuple[Value, ...], shape: Shape, dimensions: int, **more: Any
    ) -> Value:
        """Note a layer; its result."""
        if min(shape) < 1:
            raise Refused(f"a layer gives an empty result of shape {shape}")
        self._shapes.append(shape)
        made = Layer(
            kind=kind,
            inputs=tuple(value.tensor for value in inputs),
            output=len(self._shapes) - 1,
            **more,
        )
        self._layers.append(made)
        return Value(made.output, dimensions)

    def shape(self, value: Value) -> Shape:
        """Channels, height and width of a value."""
        return self._shapes[value.tensor]

    def offset(self, parameter: torch.Tensor | None) -> int:
        """Where a parameter begins in the trained vector; -1 for none."""
        if parameter is None:
            return -1
        if id(parameter) in self._used:
            raise Refused("a layer is used twice")
        self._used.add(id(parameter))
        return self._offsets[id(parameter)]

    def linear(self, value: Value, layer: nn.Linear) -> Value:
        size = self._shapes[value.tensor]
        if value.dimensions != 1 or size[0] * size[1] * size[2] != layer.in_features:
            raise Refused("a linear layer works on something else than rows of features")
        places = {"weight": self.offset(layer.weight), "bias": self.offset(layer.bias)}
        return self.add(Kind.LINEAR, (value,), (layer.out_features, 1, 1), 1, **places)

    def convolution(self, value: Value, layer: nn.Conv1d | nn.Conv2d) -> Value:
        flat = isinstance(layer, nn.Conv1d)
        if value.dimensions != (2 if flat else 3):
            raise Refused("a convolution works on something else than series or images")
        if layer.groups != 1 or any(d != 1 for d in layer.dilation):
            raise Refused("a convolution has groups or dilation")
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise Refused("a convolution pads with something else than a number of zeros")
        kernel, stride = as_pair(layer.kernel_size, flat, 1), as_pair(layer.stride, flat, 1)
        padding = as_pair(layer.padding, flat, 0)
        shape = self.windows(value, layer.out_channels, kernel, stride, padding)
        places = {"weight": self.offset(layer.weight), "bias": self.offset(layer.bias)}
        return self.add(
            Kind.CONVOLUTION,
            (value,),
            shape,
            value.dimensions,
            settings=(*kernel, *stride, *padding),
            **places,
        )

    def windows(
        self,
        value: Value,
        channels: int,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Shape:
        """The shape after windows have gone over a value."""
        _, height, width = self.shape(value)
        return (
            channels,
            (height + 2 * padding[0] - kernel[0]) // stride[0] + 1,
            (width + 2 * padding[1] - kernel[1]) // stride[1] + 1,
        )

    def pool(
        self,
        kind: Kind,
        value: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        *,
        series: bool = False,
    ) -> Value:
        if value.dimensions != (2 if series else 3):
            raise Refused("a pooling works on something else than series or images")
        kernel, steps = (
            as_pair(kernel_size, series, 1),
            as_pair(kernel_size if stride is None else stride, series, 1),
        )
        border = as_pair(padding, series, 0)
        if kind is Kind.MEAN_POOL and border != (0, 0):
            raise Refused("an average pooling pads")
        shape = self.windows(value, self.shape(value)[0], kernel, steps, border)
        return self.add(
            kind, (value,), shape, value.dimensions, settings=(*kernel, *steps, *border)
        )

    def group_norm(self, value: Value, layer: nn.GroupNorm) -> Value:
        channels, height, width = self.shape(value)
        if channels != layer.num_channels or (value.dimensions == 1 and height * width > 1):
            raise Refused("a group normalisation works on something else than channels")
        if (layer.weight is None) != (layer.bias is None):
            raise Refused("a group normalisation has a scale or a shift alone")
        places = {"weight": self.offset(layer.weight), "bias": self.offset(layer.bias)}
        settings = (layer.num_groups, epsilon_bits(layer.eps))
        return self.add(
            Kind.GROUP_NORM,
            (value,),
            self.shape(value),
            value.dimensions,
            settings=settings,
            **places,
        )

    def activation(self, value: Value, kind: Activation) -> Value:
        return self.add(
            Kind.ELEMENTWISE, (value,), self.shape(value), value.dimensions, settings=(kind,)
        )

    def total(self, left: Any, right: Any, **more: Any) -> Value:
        a, b = self._value(left), self._value(right)
        if more or self.shape(a) != self.shape(b) or a.dimensions != b.dimensions:
            raise Refused("a sum is not of two values of one shape")
        return self.add(Kind.SUM, (a, b), self.shape(a), a.dimensions)

    def flatten(self, value: Value, start: int, end: int) -> Value:
        if start != 1 or end not in (-1, value.dimensions):
            raise Refused("flatten leaves dimensions as they are")
        return Value(value.tensor, 1)

    def reshape(self, argument: Any, *sizes: Any) -> Value:
        value, sizes = (
            self._value(argument),
            sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes,
        )
        known = [self._values.get(size) if isinstance(size, fx.Node) else size for size in sizes]
        channels, height, width = self.shape(value)
        if (
            len(known) != 2
            or known[1] not in (-1, channels * height * width)
            or not (known[0] is BATCH_SIZE or known[0] == -1 != known[1])
        ):
            raise Refused("a reshape does something else than flattening records")
        return Value(value.tensor, 1)

    def size(self, argument: Any, dimension: Any = None) -> Any:
        self._value(argument)
        return SHAPE if dimension is None else BATCH_SIZE if dimension == 0 else None

    def attribute(self, argument: Any, name: str) -> Any:
        self._value(argument)
        return SHAPE if name == "shape" else None

    def item(self, argument: Any, index: Any) -> Any:
        return (
            BATCH_SIZE
            if isinstance(argument, fx.Node) and self._values.get(argument) is SHAPE and index == 0
            else None
        )


def as_image(shape: tuple[int, ...]) -> Shape:
    """A record's shape as channels, height, width; a series has height 1, features are channels of one pixel."""
    if len(shape) not in (1, 2, 3):
        raise Refused(f"records of shape {shape} are neither features nor series nor images")
    if len(shape) == 2:
        return shape[0], 1, shape[1]
    return (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])


def as_pair(given: Any, series: bool, rest: int) -> tuple[int, int]:
    """A setting of a layer for height and width; a series has it for its length alone, and `rest` for the height."""
    values = tuple(given) if isinstance(given, tuple | list) else (given,) * (1 if series else 2)
    if series:
        values = (rest, values[0])
    if len(values) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise Refused(f"a layer has the setting {given!r}")
    return values[0], values[1]


def maximum(work: Translation, value: Value, layer: nn.MaxPool1d | nn.MaxPool2d) -> Value:
    if layer.return_indices or layer.ceil_mode or layer.dilation not in (1, (1, 1)):
        raise Refused("a max pooling has dilation, rounds up or returns places")
    return work.pool(
        Kind.MAX_POOL,
        value,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        series=isinstance(layer, nn.MaxPool1d),
    )


def mean(work: Translation, value: Value, layer: nn.AvgPool2d) -> Value:
    if layer.ceil_mode or layer.divisor_override is not None:
        raise Refused("an average pooling rounds up or has a divisor of its own")
    return work.pool(Kind.MEAN_POOL, value, layer.kernel_size, layer.stride, layer.padding)


def global_mean(work: Translation, value: Value, layer: nn.AdaptiveAvgPool2d) -> Value:
    if layer.output_size not in (1, (1, 1)):
        raise Refused("an adaptive pooling gives more than one pixel")
    return work.pool(Kind.MEAN_POOL, value, work.shape(value)[1:], None, 0)


def gelu(work: Translation, value: Value, layer: nn.GELU) -> Value:
    if layer.approximate != "none":
        raise Refused(f"GELU is approximated by {layer.approximate!r}")
    return work.activation(value, Activation.GELU)


def dropout(work: Translation, value: Value, layer: nn.Dropout) -> Value:
    if layer.p != 0:
        raise Refused("dropout draws random numbers")
    return value


def identity(work: Translation, value: Value, layer: nn.Module) -> Value:
    return value


def activated(kind: Activation) -> Callable[..., Value]:
    return lambda work, value, layer: work.activation(value, kind)


def called(kind: Activation) -> Callable[..., Value]:
    def call(work: Translation, argument: Any, **more: Any) -> Value:
        if any(setting not in (False, "none") for setting in more.values()):
            raise Refused("the forward pass calls an activation with settings")
        return work.activation(work._value(argument), kind)

    return call


def flattened(work: Translation, argument: Any, start_dim: int = 0, end_dim: int = -1) -> Value:
    return work.flatten(work._value(argument), start_dim, end_dim)


def max_pooled(
    work: Translation,
    argument: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    **more: Any,
) -> Value:
    if any(setting not in (1, False) for setting in more.values()):
        raise Refused("a max pooling has dilation, rounds up or returns places")
    return work.pool(Kind.MAX_POOL, work._value(argument), kernel_size, stride, padding)


def mean_pooled(
    work: Translation, argument: Any, kernel_size: Any, stride: Any = None, padding: Any = 0
) -> Value:
    return work.pool(Kind.MEAN_POOL, work._value(argument), kernel_size, stride, padding)


# By exact type: a class derived from one of these may do anything.
MODULES: dict[type, Callable[..., Value]] = {
    nn.Linear: Translation.linear,
    nn.Conv1d: Translation.convolution,
    nn.Conv2d: Translation.convolution,
    nn.MaxPool1d: maximum,
    nn.MaxPool2d: maximum,
    nn.AvgPool2d: mean,
    nn.AdaptiveAvgPool2d: global_mean,
    nn.GroupNorm: Translation.group_norm,
    nn.ReLU: activated(Activation.RELU),
    nn.Tanh: activated(Activation.TANH),
    nn.Sigmoid: activated(Activation.SIGMOID),
    nn.GELU: gelu,
    nn.Flatten: lambda work, value, layer: work.flatten(value, layer.start_dim, layer.end_dim),
    nn.Dropout: dropout,
    nn.Identity: identity,
}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.relu: called(Activation.RELU),
    functional.relu: called(Activation.RELU),
    torch.tanh: called(Activation.TANH),
    functional.tanh: called(Activation.TANH),
    torch.sigmoid: called(Activation.SIGMOID),
    functional.sigmoid: called(Activation.SIGMOID),
    functional.gelu: called(Activation.GELU),
    functional.max_pool2d: max_pooled,
    functional.avg_pool2d: mean_pooled,
    torch.flatten: flattened,
    torch.add: Translation.total,
    operator.add: Translation.total,
    torch.reshape: Translation.reshape,
    getattr: Translation.attribute,
    operator.getitem: Translation.item,
}

METHODS: dict[str, Callable[..., Any]] = {
    "relu": called(Activation.RELU),
    "tanh": called(Activation.TANH),
    "sigmoid": called(Activation.SIGMOID),
    "flatten": flattened,
    "view": Translation.reshape,
    "reshape": Translation.reshape,
    "add": Translation.total,
    "size": Translation.size,
}
