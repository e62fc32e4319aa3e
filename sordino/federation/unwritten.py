"""A training that is kept nowhere but in memory: its metrics and its charges, in the places of a run folder and a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sordino.federation.folder import State
from sordino.privacy.ledger import Event, Missed, Opened, RoundCharged


class Unwritten:
    """Takes what a run folder would. It holds the metrics; states are forgotten, so such a training cannot be taken up again.

    Example:
        >>> place = Unwritten()
        >>> place.append_metrics({"round": 0, "loss": 0.5})
        >>> place.rows
        [{'round': 0, 'loss': 0.5}]
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Keep the metrics of a round."""
        self.rows.append(dict(row))

    def save_checkpoint(self, state: State) -> None:
        """Nothing: nobody could read it."""

    def note(self, **facts: Any) -> None:
        """Nothing: nobody could read it."""


class UnwrittenLedger:
    """Notes every charge as a ledger does. It holds the entries.

    Example:
        >>> ledger = UnwrittenLedger()
        >>> ledger.open(Opened(protocol="9f2c", generator="chacha20", noise="seeded"))
        >>> ledger.charge(round=0, clients=[1, 4])
        >>> ledger.events[-1]
        RoundCharged(round=0, clients=(1, 4), attempt=0)
    """

    path = Path("a ledger in memory")  # for messages

    def __init__(self) -> None:
        self._events: list[Event] = []

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries so far."""
        return tuple(self._events)

    def open(self, opened: Opened) -> None:
        """Say what is paid for."""
        self._events.append(opened)

    def charge(self, *, round: int, clients: Iterable[int]) -> None:
        """Pay for a round; in memory no round is ever run twice."""
        self._events.append(
            RoundCharged(round=round, clients=tuple(int(client) for client in clients))
        )

    def miss(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Note who contributed nothing to a round, and why."""
        self._events.append(
            Missed(round=round, clients=tuple(reasons), reasons=tuple(reasons.values()))
        )
