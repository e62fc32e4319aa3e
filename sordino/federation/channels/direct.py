"""The direct channel: uploads reach the server one by one, in the order of the clients."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.federation.channels.delivery import CHANNELS
from sordino.protocol import Direct
from sordino.randomness import Stream


@CHANNELS.register(Direct)
class DirectDelivery:
    """Passes every upload on at once. It holds nothing."""

    def __init__(self, stream: Stream) -> None:
        """Opens the channel; nothing is drawn from the stream."""

    def carry(self, vector: np.ndarray) -> Iterable[np.ndarray]:
        """Returns the upload.

        Args:
            vector: An upload.
        """
        # With its sender known by its place: all that protects a client here is its own noise.
        return (vector,)

    def finish(self) -> Iterable[np.ndarray]:
        """Returns nothing: all has been delivered."""
        return ()
