"""One training of a federation, round by round, as an observer sees it: what `loop.Training` does, without ledger, folder or scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np

from sordino.federation.assignment import Upload
from sordino.federation.exchange import exchanged
from sordino.federation.folder import State
from sordino.federation.participation import Attendance, participants
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup


class ClientUpload(Interface):
    """Who makes a client's upload: `ClientWork.upload`, or something in its place."""

    def __call__(
        self, *, client: int, round: int, weights: np.ndarray, kept: Kept | None = None
    ) -> Upload:
        """The upload of one client."""


class RoundUploads(Interface):
    """Who makes the uploads of a round: `uploads` of an engine, or something in its place."""

    def __call__(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """The uploads, in the order of the participants."""


def in_turn(upload: ClientUpload) -> RoundUploads:
    """The uploads of a round, made one client after another."""

    def uploads(
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        for client in participants.tolist():
            yield upload(
                client=client,
                round=round,
                weights=weights,
                kept=None if kept is None else kept[client],
            )

    return uploads


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One round: the model before and after, what was broadcast and what clients had kept, and the uploads by client."""

    round: int
    before: np.ndarray
    after: np.ndarray
    uploads: dict[int, np.ndarray]
    broadcast: np.ndarray
    kept: Mapping[int, Kept]


def rounds_seen(
    setup: Setup, uploads: RoundUploads, rounds: int, caps: Mapping[int, int]
) -> Iterator[Seen]:
    """Run a training; `caps` say how often clients with budgets of their own may take part."""
    state, attendance = State(weights=setup.initial_weights(), round=0), Attendance(caps, (), 0)
    for _ in range(rounds):
        drawn = participants(
            setup.protocol, round=state.round, key=setup.draw_key, training=setup.training
        )
        chosen = attendance.admit(drawn, round=state.round)
        exchange = _Exchange(uploads, state.round, chosen)
        after, _ = exchanged(setup, state, chosen, exchange.work)
        yield Seen(
            round=state.round,
            before=state.weights,
            after=after.weights,
            uploads=exchange.uploads,
            broadcast=exchange.broadcast,
            kept=exchange.kept,
        )
        state = after


class _Exchange:
    """The local work of one round. It holds what passed between clients and server."""

    broadcast: np.ndarray
    kept: Mapping[int, Kept]

    def __init__(self, make: RoundUploads, round: int, chosen: np.ndarray) -> None:
        self._make, self._round, self._chosen = make, round, chosen
        self.uploads: dict[int, np.ndarray] = {}

    def work(self, broadcast: np.ndarray, kept: Mapping[int, Kept] | None) -> Iterator[Upload]:
        """Uploads in the order of the clients."""
        self.broadcast, self.kept = broadcast, kept or {}
        return self._noted(
            self._make(round=self._round, weights=broadcast, participants=self._chosen, kept=kept)
        )

    def _noted(self, made: Iterator[Upload]) -> Iterator[Upload]:
        for upload in made:
            self.uploads[upload.client] = upload.vector
            yield upload
