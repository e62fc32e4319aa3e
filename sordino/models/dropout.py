"""Dropout whose masks have addresses: the same in every engine, whatever else is drawn.

In a step every record has a row of 32-bit words, of which every dropout of the network reads its
own part. A value is dropped if its word is below 2^32 times the rate. A dropout that runs more than
once in a pass, or that has no words, draws as torch does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

# Every dropout begins at a whole block of the keystream.
WORDS_PER_BLOCK = 16
WORDS = 1 << 32


class DropoutMasks:
    """The words of the present step, which the dropouts of a network share.

    Attributes:
        rows: The words, one record a row; None where there are none.
        length: The length of a row; None before it has been found.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.length: int | None = None

    def give_words(self, words: np.ndarray, device: torch.device) -> None:
        """Sets the words of a step.

        Args:
            words: The words as uint32, one record a row.
            device: The device on which the network computes.
        """
        self.rows = torch.from_numpy(words.astype(np.int64)).to(device)

    @contextmanager
    def of_records(self, chosen: slice) -> Iterator[None]:
        """Keeps the words of some of the records only, while these pass through the network.

        Args:
            chosen: The places of these records.
        """
        whole = self.rows
        if whole is not None:
            self.rows = whole[chosen]
        try:
            yield
        finally:
            self.rows = whole


class KeyedDropout(nn.Dropout):
    """Dropout whose mask is made of given words.

    Args:
        rate: The probability that a value is dropped.
        masks: The words, shared with the network's other dropouts.
    """

    def __init__(self, rate: float, masks: DropoutMasks) -> None:
        super().__init__(rate)
        self.masks = masks
        self.first: int | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Returns the values, some of them set to zero and the others scaled up.

        Args:
            values: The values, one record a row.
        """
        rows = self.masks.rows
        if not self.training or rows is None or self.first is None:
            return super().forward(values)
        # Records beside those of the step, which an audit may ask about, have no words.
        if len(rows) != len(values):
            return super().forward(values)
        words = rows[:, self.first : self.first + values[0].numel()]
        kept = words >= find_threshold(self.p)
        return values * (kept * find_scale(self.p)).to(values.dtype).view(values.shape)


def find_threshold(rate: float) -> int:
    """Returns the number below which words drop a value.

    Args:
        rate: The probability that a value is dropped.
    """
    return round(rate * WORDS)


def find_scale(rate: float) -> float:
    """Returns the factor by which kept values are multiplied, as a number of float32.

    Args:
        rate: The probability that a value is dropped.
    """
    # With a rate of 1 nothing is kept.
    if rate >= 1:
        return 0.0
    return float(np.float32(1 / (1 - rate)))


def has_dropout(net: nn.Module) -> bool:
    """Returns whether a network drops values.

    Args:
        net: The network.
    """
    return any(type(layer) is nn.Dropout and layer.p > 0 for layer in net.modules())


def key_dropouts(net: nn.Module) -> DropoutMasks | None:
    """Replaces the dropouts of a network by dropouts whose masks have addresses.

    Args:
        net: The network, which is changed.

    Returns:
        The words that they share; None where the network drops nothing.
    """
    if not has_dropout(net):
        return None
    masks = DropoutMasks()
    for parent in list(net.modules()):
        for name, layer in parent._modules.items():
            if type(layer) is nn.Dropout:
                parent._modules[name] = KeyedDropout(layer.p, masks)
    return masks


def restore_dropouts(net: nn.Module) -> nn.Module:
    """Returns a network with torch's dropouts in place of those with addresses.

    Args:
        net: The network, which is changed.
    """
    for parent in list(net.modules()):
        for name, layer in parent._modules.items():
            if type(layer) is KeyedDropout:
                parent._modules[name] = nn.Dropout(layer.p).train(layer.training)
    return net


def place_dropouts(net: nn.Module, example: Tensor) -> int:
    """Gives every dropout its place in a row of words, in the order in which they run.

    Args:
        net: The network, whose dropouts have been replaced by `key_dropouts`.
        example: A batch of one record.

    Returns:
        The length of a row.
    """
    calls: list[tuple[KeyedDropout, int]] = []

    def note(layer: KeyedDropout, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Notes a call of a dropout."""
        calls.append((layer, output[0].numel()))

    dropouts = [layer for layer in net.modules() if type(layer) is KeyedDropout and layer.p > 0]
    handles = [layer.register_forward_hook(note) for layer in dropouts]
    was_training = net.training
    with torch.no_grad():
        net.eval()(example)
    net.train(was_training)
    for handle in handles:
        handle.remove()
    layers = [layer for layer, _ in calls]
    length = 0
    for layer, size in calls:
        if layers.count(layer) == 1:
            layer.first = length
            length += -(-size // WORDS_PER_BLOCK) * WORDS_PER_BLOCK
    return length
