"""Who takes part in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from sordino.federation.randomness import Key, Purpose
from sordino.privacy.ledger import Event, Opened, RoundCharged
from sordino.protocol import Everyone, Poisson, Protocol


def participants(protocol: Protocol, *, round: int, key: Key, training: int = 0) -> np.ndarray:
    """The clients of a round in ascending order, drawn independently of any data and of other rounds; possibly nobody.

    Example:
        >>> participants(protocol, round=0, key=Key.from_seed(1))  # doctest: +SKIP
        array([ 2,  3,  7])
    """
    return np.flatnonzero(
        attendances(protocol, round=round, key=key, trainings=range(training, training + 1))[0]
    )


def attendances(protocol: Protocol, *, round: int, key: Key, trainings: range) -> np.ndarray:
    """Who takes part in a round of each of several trainings: True or False, one training a row, one client a column.

    Example:
        >>> attendances(protocol, round=0, key=Key.from_seed(1), trainings=range(2)).shape  # doctest: +SKIP
        (2, 50)
    """
    rule, shape = protocol.participation, (len(trainings), protocol.clients)
    if isinstance(rule, Everyone) or (isinstance(rule, Poisson) and rule.rate == 1.0):
        return np.ones(shape, dtype=bool)
    stream = key.stream(Purpose.PARTICIPATION, training=trainings.start, round=round)
    if isinstance(rule, Poisson):
        # A 64-bit word is below floor(rate 2^64) with a probability that is at most the rate.
        return stream.words(protocol.clients, len(trainings)).reshape(shape) < np.uint64(
            int(rule.rate * 2.0**64)
        )
    present = np.zeros(shape, dtype=bool)
    np.put_along_axis(
        present, stream.subsets(1, rule.size, protocol.clients, len(trainings)), True, axis=1
    )
    return present


class Attendance:
    """How often clients with a cap have taken part. It holds the counts, taken up from the ledger when a run goes on.

    Example:
        >>> attendance = Attendance({3: 1}, (), next_round=0)
        >>> [attendance.admit(np.array([2, 3]), round=t).tolist() for t in (0, 1)]
        [[2, 3], [2]]
    """

    def __init__(self, caps: Mapping[int, int], events: Iterable[Event], next_round: int) -> None:
        self._caps = dict(caps)
        known = list(events)
        # What was paid for in a round that is run again counts too if its noise is fresh, since it is then paid for anew.
        self._fresh = any(isinstance(event, Opened) and not event.repeatable for event in known)
        paid = [
            event
            for event in known
            if isinstance(event, RoundCharged) and (event.round < next_round or self._fresh)
        ]
        self._taken = Counter(client for event in paid for client in event.clients)
        self._last: tuple[int, np.ndarray] | None = None

    def admit(self, drawn: np.ndarray, *, round: int) -> np.ndarray:
        """The drawn clients that may still take part, counted as taking part; once, if a round that can be repeated is asked for again."""
        if self._last is not None and self._last[0] == round and not self._fresh:
            return self._last[1]
        admitted = [
            client
            for client in drawn.tolist()
            if self._taken[client] < self._caps.get(client, self._taken[client] + 1)
        ]
        self._taken.update(admitted)
        self._last = round, np.array(admitted, dtype=np.int64)
        return self._last[1]
