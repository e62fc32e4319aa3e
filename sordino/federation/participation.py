"""Who takes part in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from sordino.federation.randomness import Key, Purpose
from sordino.privacy.ledger import Event, Opened, RoundCharged
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


class Attendance:
    """How often clients with a cap have taken part. It holds the counts, taken up from the ledger when a run goes on.

    Example:
        >>> attendance = Attendance({3: 1}, (), next_round=0)
        >>> attendance.admit(np.array([2, 3])).tolist(), attendance.admit(np.array([2, 3])).tolist()
        ([2, 3], [2])
    """

    def __init__(self, caps: Mapping[int, int], events: Iterable[Event], next_round: int) -> None:
        self._caps = dict(caps)
        known = list(events)
        # What was paid for in a round that is run again counts too if its noise is fresh, since it is then paid for anew.
        fresh = any(isinstance(event, Opened) and not event.repeatable for event in known)
        paid = [event for event in known if isinstance(event, RoundCharged) and (event.round < next_round or fresh)]
        self._taken = Counter(client for event in paid for client in event.clients)

    def admit(self, drawn: np.ndarray) -> np.ndarray:
        """The drawn clients that may still take part, counted as taking part."""
        admitted = [client for client in drawn.tolist() if self._taken[client] < self._caps.get(client, self._taken[client] + 1)]
        self._taken.update(admitted)
        return np.array(admitted, dtype=np.int64)
