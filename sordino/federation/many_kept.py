"""What clients keep from round to round, and the helpers that the server makes for them, in many trainings at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sordino.federation.personal import HELPER, Kept, attended
from sordino.federation.setup import Setup
from sordino.protocol import Attention


class ManyKept:
    """What every client keeps, as tables with one training a row. It holds the tables, and what each client last sent where that is used.

    A client that has not taken part yet has the initial model as its own, and moments of zero.
    """

    def __init__(self, setup: Setup, trainings: int) -> None:
        self._protocol = setup.protocol
        initial = setup.initial_weights()
        shape = (trainings, initial.size)
        own = {"model": np.broadcast_to(initial, shape)} if setup.protocol.keeps_models else {}
        self._kept: dict[int, Kept] = dict.fromkeys(range(setup.protocol.clients), own)
        attentive = isinstance(setup.protocol.personalization, Attention)
        self._sent = (
            np.zeros((setup.protocol.clients, *shape), dtype=np.float32) if attentive else None
        )
        self._ever = np.zeros((trainings, setup.protocol.clients), dtype=bool)

    def found(self, weights: np.ndarray) -> Mapping[int, Kept]:
        """What every client finds when a round begins: what it has kept, and a helper of its own where the server makes one."""
        rule = self._protocol.personalization
        if self._sent is None or not isinstance(rule, Attention):
            return dict(self._kept)
        helpers = np.broadcast_to(weights, self._sent.shape).copy()
        for row, ever in enumerate(self._ever):
            sent = {int(client): self._sent[client, row] for client in np.flatnonzero(ever)}
            for client, helper in attended(rule, weights[row], list(sent), sent).items():
                helpers[client, row] = helper
        return {client: {**kept, HELPER: helpers[client]} for client, kept in self._kept.items()}

    def keep(self, client: int, kept: Kept, vector: np.ndarray, present: np.ndarray) -> None:
        """Take over what a client keeps, and what it sent, in the trainings in which it took part."""
        before, rows = self._kept[client], present[:, None]
        self._kept[client] = {
            name: np.where(rows, array, before.get(name, np.zeros_like(array)))
            for name, array in kept.items()
        }
        if self._sent is not None:
            self._sent[client] = np.where(rows, vector, self._sent[client])
            self._ever[:, client] |= present
