"""The small networks, each a plain stack of layers, for records of a shape.

All end in logits (or predicted quantities). Where a paper ends in a softmax or log-softmax, that
belongs to the loss: the cross-entropy of Sordino takes logits, and is the same function of them.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from sordino.protocol import UserError

# Of one record: (features,), (channels, length) or (channels, height, width).
Shape = tuple[int, ...]


def logistic(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns logistic regression (linear regression, under the squared error).

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Example:
        >>> sum(p.numel() for p in logistic((1, 8, 8), 10).parameters())
        650
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), outputs))


def mlp(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns a network with one hidden layer of 32.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Example:
        >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
        2410
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 32), nn.ReLU(), nn.Linear(32, outputs)
    )


def lenet5(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns LeNet-5 as it is used today: unpadded, ReLU, max pooling.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in lenet5((1, 28, 28), 10).parameters())
        44426
    """
    channels = image_channels("lenet5", input_shape, smallest=16)
    features = [
        *make_convolution(channels, 6, kernel=5),
        nn.MaxPool2d(2),
        *make_convolution(6, 16, kernel=5),
        nn.MaxPool2d(2),
    ]
    return add_head(features, input_shape, 120, 84, outputs)


def prifedsync_mnist(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns the network of PriFedSync, section 4.1.

    The widths are those of its repository; its dropout is not in the paper and left out.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in prifedsync_mnist((1, 28, 28), 10).parameters())
        1199882
    """
    channels = image_channels("prifedsync-mnist", input_shape, smallest=6)
    features = [*make_convolution(channels, 32), *make_convolution(32, 64), nn.MaxPool2d(2)]
    return add_head(features, input_shape, 128, outputs)


def prifedsync_cifar(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns the network of PriFedSync, section 4.2: TensorFlow's tutorial on images.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in prifedsync_cifar((3, 32, 32), 10).parameters())
        122570
    """
    channels = image_channels("prifedsync-cifar", input_shape, smallest=18)
    features = [
        *make_convolution(channels, 32),
        nn.MaxPool2d(2),
        *make_convolution(32, 64),
        nn.MaxPool2d(2),
        *make_convolution(64, 64),
    ]
    return add_head(features, input_shape, 64, outputs)


def udp_mnist(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns UDP-FL's network for MNIST.

    The paper gives no widths; these are the ones of PyTorch's first MNIST example.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in udp_mnist((1, 28, 28), 10).parameters())
        21840
    """
    channels = image_channels("udp-mnist", input_shape, smallest=16)
    features = [
        *make_convolution(channels, 10, kernel=5),
        nn.MaxPool2d(2),
        *make_convolution(10, 20, kernel=5),
        nn.MaxPool2d(2),
    ]
    return add_head(features, input_shape, 50, outputs)


def udp_cnn(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns the network for MNIST of UDP-FL's published code.

    The paper says as much of it as that it has two convolutions and two dense layers.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in udp_cnn((1, 28, 28), 10).parameters())
        421642
    """
    channels = image_channels("udp-cnn", input_shape, smallest=4)
    features = [
        *make_convolution(channels, 32, padding=1),
        nn.MaxPool2d(2),
        *make_convolution(32, 64, padding=1),
        nn.MaxPool2d(2),
    ]
    return add_head(features, input_shape, 128, outputs)


def udp_medical(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns UDP-FL's four convolutions for Medical MNIST.

    The paper gives no widths; they double here while the image halves.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in udp_medical((3, 64, 64), 10).parameters())
        368618
    """
    channels = image_channels("udp-medical", input_shape, smallest=16)
    widths = [channels, 16, 32, 64, 128]
    features: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        features += [*make_convolution(before, after, padding=1), nn.MaxPool2d(2)]
    return add_head(features, input_shape, 128, 64, outputs)


def udp_wind(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns UDP-FL's "simple CNN" for wind power.

    It goes over time, from the last hours' series to the coming hours. Widths are ours.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not series.

    Example:
        >>> sum(p.numel() for p in udp_wind((7, 48), 48).parameters())
        75696
    """
    if len(input_shape) != 2:
        raise UserError(
            "model udp-wind takes series of shape (channels, hours); the records have shape "
            f"{input_shape}"
        )
    features = [
        nn.Conv1d(input_shape[0], 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(16, 32, 3, padding=1),
        nn.ReLU(),
    ]
    return add_head(features, input_shape, outputs)


def power_curve(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns one curve with eight hidden units, from every hour's inputs to its output.

    All hours share it: few parameters, so little noise.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not series with an output for every hour.

    Example:
        >>> sum(p.numel() for p in power_curve((3, 48), 48).parameters())
        41
    """
    if len(input_shape) != 2 or input_shape[1] != outputs:
        raise UserError(
            "model power-curve has an output for every hour: records of shape "
            f"(channels, {outputs}), and not {input_shape}"
        )
    return nn.Sequential(
        nn.Conv1d(input_shape[0], 8, 1), nn.Tanh(), nn.Conv1d(8, 1, 1), nn.Flatten()
    )


def make_convolution(
    channels: int,
    filters: int,
    *,
    kernel: int = 3,
    padding: int = 0,
) -> list[nn.Module]:
    """Returns a convolution and its ReLU.

    Args:
        channels: Channels of its input.
        filters: Channels of its output.
        kernel: Height and width of its windows.
        padding: Rows and columns of zeros on each side.
    """
    return [nn.Conv2d(channels, filters, kernel, padding=padding), nn.ReLU()]


def add_head(features: list[nn.Module], input_shape: Shape, *widths: int) -> nn.Sequential:
    """Returns features, flattened, then linear layers with ReLU between them.

    Args:
        features: The layers before.
        input_shape: The shape of a record.
        *widths: Outputs of every linear layer.
    """
    body = nn.Sequential(*features, nn.Flatten())
    with torch.no_grad():
        width = body(torch.zeros(1, *input_shape)).shape[1]
    head: list[nn.Module] = []
    for after in widths:
        head += [nn.Linear(width, after), nn.ReLU()]
        width = after
    return nn.Sequential(*body, *head[:-1])


def image_channels(model: str, input_shape: Shape, *, smallest: int) -> int:
    """Returns the channels of images.

    Args:
        model: The name of the model, for the refusal.
        input_shape: The shape of a record.
        smallest: Height and width that images must have at least.

    Raises:
        UserError: The records are not images, or too small ones.
    """
    if len(input_shape) != 3:
        raise UserError(
            f"model {model} takes images of shape (channels, height, width); the records have "
            f"shape {input_shape}"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise UserError(
            f"model {model} takes images of at least {smallest} x {smallest}; these are "
            f"{height} x {width}. Use mlp or logistic instead."
        )
    return channels
