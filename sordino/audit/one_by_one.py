"""One training of a federation, round by round, as an observer sees it: what `loop.Training` does, without ledger, folder or scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sordino.federation.loop import next_model
from sordino.federation.participation import Attendance, participants
from sordino.federation.setup import Setup

Work = Callable[[int, int, np.ndarray], np.ndarray]  # client, round and global model to the client's upload


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One round: the model before and after, and the uploads by client."""

    round: int
    before: np.ndarray
    after: np.ndarray
    uploads: dict[int, np.ndarray]


def rounds_seen(setup: Setup, work: Work, rounds: int, caps: Mapping[int, int]) -> Iterator[Seen]:
    """Run a training; `work` makes the uploads, and `caps` say how often clients with budgets of their own may take part."""
    weights, attendance = setup.initial_weights(), Attendance(caps, (), 0)
    for t in range(rounds):
        chosen = attendance.admit(participants(setup.protocol, round=t, key=setup.draw_key, training=setup.training))
        uploads = {client: work(client, t, weights) for client in chosen.tolist()}
        after = next_model(setup, weights, list(uploads.values()), chosen, round=t)
        yield Seen(round=t, before=weights, after=after, uploads=uploads)
        weights = after
