"""Which clients take part in a round: drawn independently of all data, within their budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from sordino.privacy.ledger_lines import Event, Opened, RoundCharged
from sordino.protocol import Everyone, FixedSize, Participation, Poisson, Protocol
from sordino.protocol.registry import Registry
from sordino.randomness import Key, Purpose, Stream

# How each kind of participation draws: (rule, number of clients, number of trainings, keystream)
# to True or False, one training a row, one client a column.
PARTICIPATION_DRAWS: Registry[Callable[[Any, int, int, Stream], np.ndarray]] = Registry(
    "draw of participants", "participation", Participation
)


@PARTICIPATION_DRAWS.register(Everyone)
def draw_everyone(
    rule: Everyone,
    clients: int,
    trainings: int,
    stream: Stream,
) -> np.ndarray:
    """Returns True for everybody; nothing is drawn.

    Args:
        rule: The rule, with its settings.
        clients: How many clients there are.
        trainings: How many trainings, one a row.
        stream: The source of the draws.
    """
    return np.ones((trainings, clients), dtype=bool)


@PARTICIPATION_DRAWS.register(Poisson)
def draw_coins(
    rule: Poisson,
    clients: int,
    trainings: int,
    stream: Stream,
) -> np.ndarray:
    """Returns a coin for every client.

    Args:
        rule: The rule, with its settings.
        clients: How many clients there are.
        trainings: How many trainings, one a row.
        stream: The source of the draws.
    """
    if rule.rate == 1.0:
        return np.ones((trainings, clients), dtype=bool)
    words = stream.words(clients, trainings).reshape(trainings, clients)
    # A 64-bit word is below floor(rate 2^64) with a probability that is at most the rate.
    return words < np.uint64(int(rule.rate * 2.0**64))


@PARTICIPATION_DRAWS.register(FixedSize)
def draw_subset(
    rule: FixedSize,
    clients: int,
    trainings: int,
    stream: Stream,
) -> np.ndarray:
    """Returns True for as many clients as the rule says.

    Args:
        rule: The rule, with its settings.
        clients: How many clients there are.
        trainings: How many trainings, one a row.
        stream: The source of the draws.
    """
    present = np.zeros((trainings, clients), dtype=bool)
    chosen = stream.subsets(1, rule.size, clients, trainings)
    np.put_along_axis(present, chosen, True, axis=1)
    return present


def draw_attendance(
    protocol: Protocol,
    *,
    round_index: int,
    key: Key,
    trainings: range,
) -> np.ndarray:
    """Draws who takes part in a round of each of several trainings.

    Args:
        protocol: Says who may.
        round_index: Number of the round, from 0.
        key: Key of the draws.
        trainings: The numbers of the trainings.

    Returns:
        True or False, one training a row, one client a column.

    Example:
        >>> draw_attendance(protocol, round_index=0, key=Key.from_seed(1), trainings=range(2)).shape
        ... # doctest: +SKIP
        (2, 50)
    """
    rule = protocol.participation
    stream = key.stream(Purpose.PARTICIPATION, training=trainings.start, round_index=round_index)
    return PARTICIPATION_DRAWS.of(rule)(rule, protocol.clients, len(trainings), stream)


def draw_participants(
    protocol: Protocol,
    *,
    round_index: int,
    key: Key,
    training: int = 0,
) -> np.ndarray:
    """Draws the clients of a round of one training.

    Args:
        protocol: Says who may take part.
        round_index: Number of the round, from 0.
        key: Key of the draws.
        training: The number of the training.

    Returns:
        The clients in ascending order, possibly nobody.

    Example:
        >>> draw_participants(protocol, round_index=0, key=Key.from_seed(1))  # doctest: +SKIP
        array([ 2,  3,  7])
    """
    one = range(training, training + 1)
    return np.flatnonzero(
        draw_attendance(protocol, round_index=round_index, key=key, trainings=one)
    )


class Attendance:
    """Counts how often clients with a cap have taken part, in one training or in several.

    It holds the counts, restored from the ledger when a run continues.

    Example:
        >>> attendance = Attendance({3: 1}, (), next_round=0)
        >>> drawn = np.array([[False, False, True, True]])
        >>> [attendance.admit(drawn, round_index=t).tolist() for t in (0, 1)]
        [[[False, False, True, True]], [[False, False, True, False]]]
    """

    def __init__(self, caps: Mapping[int, int], events: Iterable[Event], next_round: int) -> None:
        """Restores the counts.

        Args:
            caps: For some clients, how often each may take part.
            events: What a ledger says, of one training.
            next_round: The round that comes next.
        """
        self._capped = sorted(caps)
        self._caps = np.array([caps[client] for client in self._capped], dtype=np.int64)
        known = list(events)
        # What was paid for in a round that is run again counts too if its noise is fresh, since it
        # is then paid for again.
        self._fresh = any(isinstance(event, Opened) and not event.repeatable for event in known)
        counts: Counter[int] = Counter()
        for event in known:
            if isinstance(event, RoundCharged) and (event.round < next_round or self._fresh):
                counts.update(event.clients)
        self._taken = np.array([[counts[client] for client in self._capped]], dtype=np.int64)
        self._last: tuple[int, np.ndarray] | None = None

    def admit(self, drawn: np.ndarray, *, round_index: int) -> np.ndarray:
        """Returns who may still take part among those drawn, and counts them.

        Args:
            drawn: True or False, one training a row, one client a column.
            round_index: The round. One whose noise repeats counts once, however often it is asked
                for.
        """
        if self._last is not None and self._last[0] == round_index and not self._fresh:
            return self._last[1]
        admitted = drawn
        if self._capped:
            admitted = drawn.copy()
            admitted[:, self._capped] &= self._taken < self._caps
            self._taken = self._taken + admitted[:, self._capped]
        self._last = (round_index, admitted)
        return admitted
