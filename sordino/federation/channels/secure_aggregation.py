"""Secure aggregation: of the uploads of a round the server learns their sum, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.federation.channels.delivery import CHANNELS
from sordino.protocol import SecureAggregation
from sordino.randomness import Stream


@CHANNELS.register(SecureAggregation)
class SummedDelivery:
    """Adds up the residues of a round's uploads. It holds their sum, and no upload.

    Example:
        >>> from sordino.randomness import Key, Purpose
        >>> channel = SummedDelivery(Key.from_seed(1).stream(Purpose.SHUFFLER))
        >>> [list(channel.carry(np.array([n], dtype=np.uint32))) for n in (5, 2**32 - 2)]
        [[], []]
        >>> list(channel.finish())
        [array([3], dtype=uint32)]
    """

    def __init__(self, stream: Stream) -> None:
        """Begins an empty sum; nothing is drawn from the stream."""
        self._sum: np.ndarray | None = None

    def carry(self, vector: np.ndarray) -> Iterable[np.ndarray]:
        """Adds an upload and returns nothing yet.

        Args:
            vector: An upload, as residues.
        """
        # Integers of numpy wrap around, which is the modulus.
        if self._sum is None:
            # A copy, since the sum grows in place and the vector belongs to the upload.
            self._sum = vector.copy()
        else:
            self._sum += vector
        return ()

    def finish(self) -> Iterable[np.ndarray]:
        """Returns the sum, if anybody has sent."""
        return () if self._sum is None else (self._sum,)
