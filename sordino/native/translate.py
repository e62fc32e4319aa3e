"""From a module to a program of the native kernel, or the reason why there is none.

A module is traced with torch.fx, so an `nn.Sequential` and a module with a `forward` method go the
same way. A module that is not understood completely is refused: the torch engine runs it then.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from sordino.models.alterations import describe_alteration
from sordino.native.layer_translations import MODULES, add_pooling, flatten_value
from sordino.native.network_builder import KernelRefusal, LayerResult, NetworkBuilder
from sordino.native.program import Activation, Kind, Program

# Placeholders for x.size(0) and x.shape[0], and for x.shape, in a trace.
BATCH_SIZE = object()
SHAPE = object()


def translate(module: nn.Module, input_shape: tuple[int, ...]) -> Program:
    """Returns the program of a module for records of a shape.

    Args:
        module: The network that is translated.
        input_shape: The shape of a record.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.

    Example:
        >>> translate(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8)).parameters
        650
        >>> try:
        ...     translate(nn.Sequential(nn.Linear(4, 2), nn.Softplus()), (4,))
        ... except KernelRefusal as refusal:
        ...     print(refusal)
        layer 1 is Softplus, which the native kernel does not have
    """
    refuse_special_modules(module)
    refuse_special_parameters(module)
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:
        # Whatever the author's forward raises when it is traced.
        raise KernelRefusal(f"torch.fx cannot trace {type(module).__name__}: {error}") from None
    return Translation(module, input_shape).run(graph)


def refuse_special_modules(module: nn.Module) -> None:
    """Refuses what a trace would not show: hooks, parametrisations, patched forwards, buffers.

    Args:
        module: The network that is translated.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.
    """
    for name, layer in module.named_modules():
        label = name or type(layer).__name__
        alteration = describe_alteration(layer)
        if alteration is not None:
            raise KernelRefusal(f"layer {label} has {alteration}")
        if parametrize.is_parametrized(layer):
            raise KernelRefusal(f"layer {label} is parametrised")
        if list(layer.buffers(recurse=False)):
            raise KernelRefusal(f"layer {label} has buffers")


def refuse_special_parameters(module: nn.Module) -> None:
    """Refuses parameters that are frozen, used twice or have hooks.

    Args:
        module: The network that is translated.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.
    """
    seen: set[int] = set()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise KernelRefusal(f"parameter {name} is frozen")
        if id(parameter) in seen:
            raise KernelRefusal(f"parameter {name} is used twice")
        if parameter._backward_hooks:
            raise KernelRefusal(f"parameter {name} has a hook")
        seen.add(id(parameter))


class Translation:
    """Goes through a trace and builds a program. It holds what was found so far: use it once.

    Args:
        module: The module that was traced.
        input_shape: The shape of a record.

    Attributes:
        builder: The program so far.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        self.builder = NetworkBuilder(module.parameters(), input_shape)
        self._modules = dict(module.named_modules())
        self._values: dict[fx.Node, Any] = {}

    def run(self, graph: fx.Graph) -> Program:
        """Returns the program of a traced graph.

        Args:
            graph: The traced network.

        Raises:
            KernelRefusal: The kernel cannot run it; the message says why.
        """
        result: Any = None
        for node in graph.nodes:
            if node.op == "placeholder":
                if self._values:
                    raise KernelRefusal("the module takes more than one input")
                self._values[node] = self.builder.input
            elif node.op == "output":
                result = self.value_of(node.args[0])
            else:
                self._values[node] = self._translate_node(node)
        return self.builder.build_program(result)

    def value_of(self, argument: Any) -> LayerResult:
        """Returns the value that an argument of a traced call denotes.

        Args:
            argument: An argument of a traced call.

        Raises:
            KernelRefusal: It is not the result of a layer.
        """
        value = self.find_value(argument)
        if type(value) is not LayerResult:
            raise KernelRefusal("a layer works on something other than the result of a layer")
        return value

    def find_value(self, argument: Any) -> Any:
        """Returns what an argument of a traced call denotes; None if it is not traced.

        Args:
            argument: An argument of a traced call.
        """
        if not isinstance(argument, fx.Node):
            return None
        return self._values.get(argument)

    def _translate_node(self, node: fx.Node) -> Any:
        if node.op == "call_module":
            return self._translate_module(node)
        if node.op == "get_attr":
            raise KernelRefusal(f"the forward pass uses {node.target} directly")
        if node.op == "call_function":
            translate_call = FUNCTIONS.get(node.target)
        else:
            translate_call = METHODS.get(str(node.target))
        name = getattr(node.target, "__name__", node.target)
        if translate_call is None:
            raise KernelRefusal(
                f"the forward pass calls {name}, which the native kernel does not have"
            )
        # A call with arguments that the translation does not take is refused, not guessed.
        try:
            bound = inspect.signature(translate_call).bind(self, *node.args, **node.kwargs)
        except TypeError:
            raise KernelRefusal(
                f"the forward pass calls {name} with arguments that the native kernel does not know"
            ) from None
        return translate_call(*bound.args, **bound.kwargs)

    def _translate_module(self, node: fx.Node) -> LayerResult:
        layer = self._modules[str(node.target)]
        add_module = MODULES.get(type(layer))
        if add_module is None or len(node.args) != 1 or node.kwargs:
            raise KernelRefusal(
                f"layer {node.target} is {type(layer).__name__}, which the native kernel does not "
                "have"
            )
        # The kernel overwrites nothing that another layer reads.
        if getattr(layer, "inplace", False) and len(node.all_input_nodes[0].users) > 1:
            raise KernelRefusal(f"layer {node.target} overwrites a value that is used again")
        return add_module(self.builder, self.value_of(node.args[0]), layer)


# ---- functions and methods that a forward pass may call: their first argument is the translation,
# the others are those of the call


def _call_activation(kind: Activation) -> Callable[..., LayerResult]:
    def call(work: Translation, argument: Any, **settings: Any) -> LayerResult:
        """Adds the activation to the network.

        Args:
            work: The translation under way.
            argument: What the activation is applied to.
            **settings: Of the activation.
        """
        if any(setting not in (False, "none") for setting in settings.values()):
            raise KernelRefusal("the forward pass calls an activation with settings")
        return work.builder.add_activation(work.value_of(argument), kind)

    return call


def _call_flatten(
    work: Translation,
    argument: Any,
    start_dim: int = 0,
    end_dim: int = -1,
) -> LayerResult:
    return flatten_value(work.value_of(argument), start_dim, end_dim)


def _call_max_pooling(
    work: Translation,
    argument: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    **settings: Any,
) -> LayerResult:
    if any(setting not in (1, False) for setting in settings.values()):
        raise KernelRefusal("a max pooling has dilation, rounds up or returns places")
    value = work.value_of(argument)
    return add_pooling(work.builder, Kind.MAX_POOL, value, kernel_size, stride, padding)


def _call_mean_pooling(
    work: Translation,
    argument: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
) -> LayerResult:
    value = work.value_of(argument)
    return add_pooling(work.builder, Kind.MEAN_POOL, value, kernel_size, stride, padding)


def _call_sum(
    work: Translation,
    left: Any,
    right: Any,
    **settings: Any,
) -> LayerResult:
    a = work.value_of(left)
    b = work.value_of(right)
    shape = work.builder.shape_of(a)
    if settings or shape != work.builder.shape_of(b) or a.dimensions != b.dimensions:
        raise KernelRefusal("a sum is not of two values of one shape")
    return work.builder.add_layer(Kind.SUM, (a, b), shape, a.dimensions)


def _call_reshape(work: Translation, argument: Any, *sizes: Any) -> LayerResult:
    value = work.value_of(argument)
    if len(sizes) == 1 and type(sizes[0]) is tuple:
        sizes = sizes[0]
    if len(sizes) != 2:
        raise KernelRefusal("a reshape does something other than flattening records")
    rows, columns = sizes
    channels, height, width = work.builder.shape_of(value)
    # One of the two may be left open, but not both.
    keeps_rows = work.find_value(rows) is BATCH_SIZE or (rows == -1 and columns != -1)
    flattens = columns in (-1, channels * height * width)
    if not keeps_rows or not flattens:
        raise KernelRefusal("a reshape does something other than flattening records")
    return LayerResult(value.tensor, 1)


def _call_size(work: Translation, argument: Any, dimension: Any = None) -> Any:
    work.value_of(argument)
    if dimension is None:
        return SHAPE
    if dimension == 0:
        return BATCH_SIZE
    return None


def _call_attribute(work: Translation, argument: Any, name: str) -> Any:
    work.value_of(argument)
    if name == "shape":
        return SHAPE
    return None


def _call_item(work: Translation, argument: Any, index: Any) -> Any:
    if work.find_value(argument) is SHAPE and index == 0:
        return BATCH_SIZE
    return None


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.relu: _call_activation(Activation.RELU),
    functional.relu: _call_activation(Activation.RELU),
    torch.tanh: _call_activation(Activation.TANH),
    functional.tanh: _call_activation(Activation.TANH),
    torch.sigmoid: _call_activation(Activation.SIGMOID),
    functional.sigmoid: _call_activation(Activation.SIGMOID),
    functional.gelu: _call_activation(Activation.GELU),
    functional.max_pool2d: _call_max_pooling,
    functional.avg_pool2d: _call_mean_pooling,
    torch.flatten: _call_flatten,
    torch.add: _call_sum,
    operator.add: _call_sum,
    torch.reshape: _call_reshape,
    getattr: _call_attribute,
    operator.getitem: _call_item,
}

METHODS: dict[str, Callable[..., Any]] = {
    "relu": _call_activation(Activation.RELU),
    "tanh": _call_activation(Activation.TANH),
    "sigmoid": _call_activation(Activation.SIGMOID),
    "flatten": _call_flatten,
    "view": _call_reshape,
    "reshape": _call_reshape,
    "add": _call_sum,
    "size": _call_size,
}
