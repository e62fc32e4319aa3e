"""What a training needs of the places that keep it: state, charges, uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from sordino.federation.round import RoundRecord
from sordino.federation.state import State
from sordino.privacy.ledger_lines import Event


class TrainingStore(Interface):
    """Where a training is kept: a run folder, or memory."""

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Takes the metrics of a round.

        Args:
            row: The metrics of the round.
        """

    def save_checkpoint(self, state: State) -> None:
        """Takes the state after a round.

        Args:
            state: The state after the round.
        """

    def note(self, **facts: Any) -> None:
        """Takes further facts about the training."""


class ChargeLog(Interface):
    """Records spending before it happens: a ledger on disk, or memory."""

    path: Path

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries so far."""

    def charge(self, *, round: int, clients: Iterable[int]) -> None:
        """Pays for a round.

        Args:
            round: Number of the round, from 0.
            clients: Those that take part.
        """

    def note_missing(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Takes the clients that contributed nothing to a round that was paid for, and why.

        Args:
            round: Number of the round, from 0.
            reasons: Why each missing client is missing.
        """


class RecordArchive(Interface):
    """Keeps the uploads of some rounds."""

    def wants(self, round_index: int) -> bool:
        """Returns whether the uploads of a round are kept.

        Args:
            round_index: Number of the round, from 0.
        """

    def store(self, record: RoundRecord) -> None:
        """Keeps the uploads of an observed round.

        Args:
            record: The round as it was played.
        """


class NoArchive:
    """Keeps no uploads."""

    def wants(self, round_index: int) -> bool:
        """Returns False.

        Args:
            round_index: Number of the round, from 0.
        """
        return False

    def store(self, record: RoundRecord) -> None:
        """Does nothing.

        Args:
            record: The round as it was played.
        """


class EveryRecord:
    """Observes every round and passes its record on, for observers of a training."""

    def __init__(self, on_record: Callable[[RoundRecord], None]) -> None:
        """Begins to watch.

        Args:
            on_record: Called with the record of every round.
        """
        self._on_record = on_record

    def wants(self, round_index: int) -> bool:
        """Returns True.

        Args:
            round_index: Number of the round, from 0.
        """
        return True

    def store(self, record: RoundRecord) -> None:
        """Passes the record on.

        Args:
            record: The round as it was played.
        """
        self._on_record(record)
