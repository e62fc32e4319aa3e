"""How uploads reach the server: what every channel offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol as Interface

import numpy as np

from sordino.protocol import Channel
from sordino.protocol.registry import Registry
from sordino.randomness import Stream


class Delivery(Interface):
    """Carries the uploads of a round to the server, as bare vectors without names."""

    def carry(self, vector: np.ndarray) -> Iterable[np.ndarray]:
        """Takes the next upload, in the order of the clients; returns what reaches the server now.

        Args:
            vector: An upload.
        """

    def finish(self) -> Iterable[np.ndarray]:
        """Returns what reaches the server once all clients have sent."""


CHANNELS: Registry[Callable[[Stream], Delivery]] = Registry("delivery", "channel", Channel)


def open_channel(channel: Channel, stream: Stream) -> Delivery:
    """Returns the channel of a round.

    Args:
        channel: How uploads reach the server.
        stream: What a shuffler draws its order from.

    Raises:
        UnknownKind: There is no such channel.
    """
    return CHANNELS.of(channel)(stream)
