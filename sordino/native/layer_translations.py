"""Which of torch's layers the native kernel has, and how each is added to a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from sordino.models.dropout import WORDS, find_scale, find_threshold
from sordino.native.network_builder import (
    KernelRefusal,
    LayerResult,
    NetworkBuilder,
    setting_pair,
    slide_windows,
)
from sordino.native.program import Activation, Kind, pack_double


def _add_linear(builder: NetworkBuilder, value: LayerResult, layer: nn.Linear) -> LayerResult:
    """Adds a linear layer."""
    channels, height, width = builder.shape_of(value)
    if value.dimensions != 1 or channels * height * width != layer.in_features:
        raise KernelRefusal("a linear layer works on something other than rows of features")
    places = builder.claim_parameters(layer)
    return builder.add_layer(Kind.LINEAR, (value,), (layer.out_features, 1, 1), 1, **places)


def _add_convolution(
    builder: NetworkBuilder, value: LayerResult, layer: nn.Conv1d | nn.Conv2d
) -> LayerResult:
    """Adds a convolution."""
    series = type(layer) is nn.Conv1d
    if value.dimensions != (2 if series else 3):
        raise KernelRefusal("a convolution works on something other than series or images")
    if layer.groups != 1 or any(dilation != 1 for dilation in layer.dilation):
        raise KernelRefusal("a convolution has groups or dilation")
    if layer.padding_mode != "zeros" or type(layer.padding) is str:
        raise KernelRefusal("a convolution pads with something other than a number of zeros")
    kernel = setting_pair(layer.kernel_size, series=series, height=1)
    stride = setting_pair(layer.stride, series=series, height=1)
    padding = setting_pair(layer.padding, series=series, height=0)
    shape = slide_windows(builder.shape_of(value), layer.out_channels, kernel, stride, padding)
    places = builder.claim_parameters(layer)
    settings = (*kernel, *stride, *padding)
    return builder.add_layer(
        Kind.CONVOLUTION, (value,), shape, value.dimensions, settings=settings, **places
    )


def add_pooling(
    builder: NetworkBuilder,
    kind: Kind,
    value: LayerResult,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    series: bool = False,
) -> LayerResult:
    """Adds a pooling and returns its result.

    Args:
        builder: The program so far.
        kind: Maximum or mean.
        value: The images or series.
        kernel_size: Height and width of the windows.
        stride: Their distance; None: they tile.
        padding: Rows and columns on each side.
        series: Whether it pools series, and not images.

    Raises:
        KernelRefusal: The kernel does not have it.
    """
    if value.dimensions != (2 if series else 3):
        raise KernelRefusal("a pooling works on something other than series or images")
    if stride is None:
        stride = kernel_size
    kernel = setting_pair(kernel_size, series=series, height=1)
    steps = setting_pair(stride, series=series, height=1)
    border = setting_pair(padding, series=series, height=0)
    # Whether padding counts in a mean is a setting of torch.
    if kind is Kind.MEAN_POOL and border != (0, 0):
        raise KernelRefusal("an average pooling pads")
    before = builder.shape_of(value)
    shape = slide_windows(before, before[0], kernel, steps, border)
    settings = (*kernel, *steps, *border)
    return builder.add_layer(kind, (value,), shape, value.dimensions, settings=settings)


def _add_max_pooling(
    builder: NetworkBuilder, value: LayerResult, layer: nn.MaxPool1d | nn.MaxPool2d
) -> LayerResult:
    """Adds a max pooling."""
    if layer.return_indices or layer.ceil_mode or layer.dilation not in (1, (1, 1)):
        raise KernelRefusal("a max pooling has dilation, rounds up or returns places")
    return add_pooling(
        builder,
        Kind.MAX_POOL,
        value,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        series=type(layer) is nn.MaxPool1d,
    )


def _add_mean_pooling(
    builder: NetworkBuilder, value: LayerResult, layer: nn.AvgPool2d
) -> LayerResult:
    """Adds an average pooling."""
    if layer.ceil_mode or layer.divisor_override is not None:
        raise KernelRefusal("an average pooling rounds up or has its own divisor")
    return add_pooling(
        builder, Kind.MEAN_POOL, value, layer.kernel_size, layer.stride, layer.padding
    )


def _add_global_mean(
    builder: NetworkBuilder, value: LayerResult, layer: nn.AdaptiveAvgPool2d
) -> LayerResult:
    """Adds a mean over the whole image."""
    if layer.output_size not in (1, (1, 1)):
        raise KernelRefusal("an adaptive pooling gives more than one pixel")
    return add_pooling(builder, Kind.MEAN_POOL, value, builder.shape_of(value)[1:])


def _add_group_norm(
    builder: NetworkBuilder, value: LayerResult, layer: nn.GroupNorm
) -> LayerResult:
    """Adds a group normalisation."""
    channels, height, width = builder.shape_of(value)
    if channels != layer.num_channels or (value.dimensions == 1 and height * width > 1):
        raise KernelRefusal("a group normalisation works on something other than channels")
    return _add_normalisation(builder, value, layer, layer.num_groups, scales_pixels=False)


def _add_layer_norm(
    builder: NetworkBuilder, value: LayerResult, layer: nn.LayerNorm
) -> LayerResult:
    """Adds a normalisation of a whole record, or of every channel by itself."""
    channels, height, width = builder.shape_of(value)
    # The shape that torch sees: of rows of features, of series, or of images.
    shape = {
        1: (channels * height * width,),
        2: (channels, width),
        3: (channels, height, width),
    }[value.dimensions]
    if layer.normalized_shape == shape:
        groups = 1
    elif layer.normalized_shape == shape[1:]:
        groups = channels
    else:
        raise KernelRefusal(
            "a layer normalisation works on something other than records or channels"
        )
    return _add_normalisation(builder, value, layer, groups, scales_pixels=True)


def _add_normalisation(
    builder: NetworkBuilder,
    value: LayerResult,
    layer: nn.GroupNorm | nn.LayerNorm,
    groups: int,
    *,
    scales_pixels: bool,
) -> LayerResult:
    """Adds a normalisation of groups of channels."""
    places = builder.claim_parameters(layer)
    settings = (groups, pack_double(layer.eps), int(scales_pixels))
    shape = builder.shape_of(value)
    return builder.add_layer(
        Kind.NORMALISATION, (value,), shape, value.dimensions, settings=settings, **places
    )


def _add_relu(builder: NetworkBuilder, value: LayerResult, layer: nn.ReLU) -> LayerResult:
    """Adds a ReLU."""
    return builder.add_activation(value, Activation.RELU)


def _add_tanh(builder: NetworkBuilder, value: LayerResult, layer: nn.Tanh) -> LayerResult:
    """Adds a hyperbolic tangent."""
    return builder.add_activation(value, Activation.TANH)


def _add_sigmoid(builder: NetworkBuilder, value: LayerResult, layer: nn.Sigmoid) -> LayerResult:
    """Adds a logistic function."""
    return builder.add_activation(value, Activation.SIGMOID)


def _add_gelu(builder: NetworkBuilder, value: LayerResult, layer: nn.GELU) -> LayerResult:
    """Adds a GELU."""
    if layer.approximate != "none":
        raise KernelRefusal(f"GELU is approximated by {layer.approximate!r}")
    return builder.add_activation(value, Activation.GELU)


def flatten_value(value: LayerResult, start: int, end: int) -> LayerResult:
    """Returns a value as rows of features, which it is in memory already.

    Args:
        value: The value.
        start: The first dimension that is flattened.
        end: The last one.

    Raises:
        KernelRefusal: Some dimensions are left as they are.
    """
    if start != 1 or end not in (-1, value.dimensions):
        raise KernelRefusal("flatten leaves dimensions as they are")
    return LayerResult(value.tensor, 1)


def _skip_flatten(builder: NetworkBuilder, value: LayerResult, layer: nn.Flatten) -> LayerResult:
    """Adds nothing for a flattening."""
    return flatten_value(value, layer.start_dim, layer.end_dim)


def _add_dropout(builder: NetworkBuilder, value: LayerResult, layer: nn.Dropout) -> LayerResult:
    """Adds a dropout, or nothing for one that drops nothing."""
    if layer.p == 0:
        return value
    if find_threshold(layer.p) == WORDS:
        raise KernelRefusal("a dropout drops everything")
    shape = builder.shape_of(value)
    first_block = builder.claim_mask_blocks(layer, math.prod(shape))
    settings = (find_threshold(layer.p), pack_double(find_scale(layer.p)), first_block)
    return builder.add_layer(Kind.DROPOUT, (value,), shape, value.dimensions, settings=settings)


def _skip_identity(builder: NetworkBuilder, value: LayerResult, layer: nn.Identity) -> LayerResult:
    """Adds nothing for an identity."""
    return value


# Functions of the program so far, a layer's input and the layer, which add the layer and return its
# result, or raise `KernelRefusal`. By exact type: a derived class may do anything.
MODULES: dict[type, Callable[[NetworkBuilder, LayerResult, Any], LayerResult]] = {
    nn.Linear: _add_linear,
    nn.Conv1d: _add_convolution,
    nn.Conv2d: _add_convolution,
    nn.MaxPool1d: _add_max_pooling,
    nn.MaxPool2d: _add_max_pooling,
    nn.AvgPool2d: _add_mean_pooling,
    nn.AdaptiveAvgPool2d: _add_global_mean,
    nn.GroupNorm: _add_group_norm,
    nn.LayerNorm: _add_layer_norm,
    nn.ReLU: _add_relu,
    nn.Tanh: _add_tanh,
    nn.Sigmoid: _add_sigmoid,
    nn.GELU: _add_gelu,
    nn.Flatten: _skip_flatten,
    nn.Dropout: _add_dropout,
    nn.Identity: _skip_identity,
}
