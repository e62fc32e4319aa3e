"""The shuffler: it takes away the names of uploads and their order.

Uploads come in an order that is drawn afresh in every round, from a key of the shuffler's own, so
nothing that the server's code receives says whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.federation.channels.delivery import CHANNELS
from sordino.protocol import Shuffler
from sordino.randomness import Stream


@CHANNELS.register(Shuffler)
class ShuffledDelivery:
    """Collects the uploads of a round and passes them on in a random order. It holds all of them.

    A table of many trainings is passed through as it comes: the participants differ from row to
    row, so there is no common order, and of a sum nothing depends on the order but rounding in
    float64.

    Example:
        >>> from sordino.randomness import Key, Purpose
        >>> channel = ShuffledDelivery(Key.from_seed(1).stream(Purpose.SHUFFLER))
        >>> [list(channel.carry(np.array([i]))) for i in range(5)]
        [[], [], [], [], []]
        >>> sorted(int(vector[0]) for vector in channel.finish())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, stream: Stream) -> None:
        """Opens the channel.

        Args:
            stream: What the order is drawn from.
        """
        self._stream = stream
        self._held: list[np.ndarray] = []

    def carry(self, vector: np.ndarray) -> Iterable[np.ndarray]:
        """Takes an upload and returns nothing yet.

        Args:
            vector: An upload.
        """
        if vector.ndim > 1:
            return (vector,)
        self._held.append(vector)
        return ()

    def finish(self) -> Iterable[np.ndarray]:
        """Returns all uploads in a random order."""
        order = shuffled_order(len(self._held), self._stream)
        return [self._held[place] for place in order]


def shuffled_order(count: int, stream: Stream) -> np.ndarray:
    """Returns a random order of `count` things, all equally likely: that of as many random words.

    Args:
        count: How many there are.
        stream: The source of the draws.
    """
    # Equal words keep their order: among n uploads that has a probability below n^2 / 2^65.
    return np.argsort(stream.words(count), kind="stable")
