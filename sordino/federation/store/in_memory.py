"""Keeps the metrics and charges of a training in memory, instead of a run folder and a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sordino.federation.state import State
from sordino.privacy.ledger_lines import Event, Missed, Opened, RoundCharged


class MemoryStore:
    """Takes what a run folder would.

    It holds the metrics. States are forgotten, so such a training cannot be taken up again.

    Example:
        >>> store = MemoryStore()
        >>> store.append_metrics({"round": 0, "loss": 0.5})
        >>> store.rows
        [{'round': 0, 'loss': 0.5}]
    """

    def __init__(self) -> None:
        """Begins without metrics."""
        self.rows: list[dict[str, Any]] = []

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Keeps the metrics of a round.

        Args:
            row: The metrics of the round.
        """
        self.rows.append(dict(row))

    def save_checkpoint(self, state: State) -> None:
        """Does nothing: nobody could read it.

        Args:
            state: The state after the round.
        """

    def note(self, **facts: Any) -> None:
        """Does nothing: nobody could read it."""


class MemoryLedger:
    """Notes every charge as a ledger does. It holds the entries.

    Example:
        >>> ledger = MemoryLedger()
        >>> ledger.open(Opened(protocol="9f2c", generator="chacha20", noise="seeded"))
        >>> ledger.charge(round=0, clients=[1, 4])
        >>> ledger.events[-1]
        RoundCharged(round=0, clients=(1, 4), attempt=0)
    """

    # For messages.
    path = Path("a ledger in memory")

    def __init__(self) -> None:
        """Begins without entries."""
        self._events: list[Event] = []

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries so far."""
        return tuple(self._events)

    def open(self, opened: Opened) -> None:
        """Takes the first entry, which says what the payments are for.

        Args:
            opened: The entry.
        """
        self._events.append(opened)

    def charge(self, *, round: int, clients: Iterable[int]) -> None:
        """Pays for a round; in memory no round is ever run twice.

        Args:
            round: Number of the round, from 0.
            clients: Those that take part.
        """
        paid = tuple(int(client) for client in clients)
        self._events.append(RoundCharged(round=round, clients=paid))

    def note_missing(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Notes which clients contributed nothing to a round, and why.

        Args:
            round: Number of the round, from 0.
            reasons: Why each missing client is missing.
        """
        absent = tuple(reasons)
        self._events.append(Missed(round=round, clients=absent, reasons=tuple(reasons.values())))
