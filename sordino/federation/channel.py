"""How uploads reach the server: directly, or through a shuffler that takes away their names and their order.

The server aggregates what `delivered` yields: bare vectors. Behind a shuffler they come in an order that is drawn afresh in every round,
from a key of the shuffler's own, so nothing that the server's code receives says whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sordino.federation.randomness import Stream


def delivered(channel: str, vectors: Iterable[np.ndarray], stream: Stream) -> Iterator[np.ndarray]:
    """The uploads of a round as the server receives them.

    Args:
        channel: "direct" or "shuffler".
        vectors: uploads in the order of the clients.
        stream: what the shuffler draws its order from.

    Example:
        >>> from sordino.federation.randomness import Key, Purpose
        >>> stream = Key.from_seed(1).stream(Purpose.SHUFFLER)
        >>> sorted(int(v[0]) for v in delivered("shuffler", [np.array([i]) for i in range(5)], stream))
        [0, 1, 2, 3, 4]
    """
    if channel == "direct":
        yield from vectors
        return
    held = list(vectors)
    for place in shuffled_order(len(held), stream):
        yield held[place]


def shuffled_order(count: int, stream: Stream) -> np.ndarray:
    """A random order of `count` things, all equally likely: that of as many random words."""
    return np.argsort(stream.words(count), kind="stable")
