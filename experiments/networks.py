"""Networks of published experiments that are not among the named ones."""

from __future__ import annotations

import math

from torch import nn


def make_tanh_network(input_shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Returns the network for MNIST of Papernot et al. (2021): LeNet's layers, bounded activations.

    Args:
        input_shape: The shape of a record: (channels, height, width).
        outputs: Classes.

    Example:
        >>> sum(p.numel() for p in make_tanh_network((1, 28, 28), 10).parameters())
        26010
    """
    channels, height, width = input_shape
    left = [side_after_layers(side) for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * math.prod(left), 32),
        nn.Tanh(),
        nn.Linear(32, outputs),
    )


def side_after_layers(side: int) -> int:
    """Returns the number of pixels that both convolutions and poolings leave of a side.

    Args:
        side: Pixels of a side of the image.

    Example:
        >>> side_after_layers(28)
        4
    """
    first = (side + 2 * 3 - 8) // 2
    return (first - 4) // 2
