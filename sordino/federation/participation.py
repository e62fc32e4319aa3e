"""Who takes part in a round."""

from __future__ import annotations

import numpy as np

from sordino.federation.randomness import Key, Purpose
from sordino.protocol import Everyone, FixedSize, Protocol


def participants(protocol: Protocol, *, round: int, key: Key) -> np.ndarray:
    """The clients of a round in ascending order, drawn independently of any data and of other rounds; possibly nobody.

    Example:
        >>> participants(protocol, round=0, key=Key.from_seed(1))  # doctest: +SKIP
        array([ 2,  3,  7])
    """
    rule = protocol.participation
    if isinstance(rule, Everyone):
        return np.arange(protocol.clients)
    stream = key.stream(Purpose.PARTICIPATION, round=round)
    if isinstance(rule, FixedSize):
        return np.sort(stream.subset(rule.size, protocol.clients))
    if rule.rate == 1.0:
        return np.arange(protocol.clients)
    # A 64-bit word is below floor(rate 2^64) with a probability that is at most the rate.
    return np.flatnonzero(stream.words(protocol.clients) < np.uint64(int(rule.rate * 2.0**64)))
