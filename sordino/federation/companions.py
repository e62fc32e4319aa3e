"""What clients receive besides the global model: another client's model to be pulled to, or control variates.

Both are computed from uploads that the server has seen, noise included, so they cost nothing that the uploads did not cost. Models may be
vectors, or tables with one training a row, of which an upload may concern some rows only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol as Interface

import numpy as np

from sordino.federation.assignment import Upload
from sordino.federation.folder import State
from sordino.protocol import Protocol, Scaffold


class Companion(Interface):
    """What travels with the global model in one round."""

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """What clients receive: the global model, or a table whose first row it is."""

    def noted(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Pass uploads on and learn from them, for the next round."""

    @property
    def kept(self) -> Mapping[str, np.ndarray]:
        """What a checkpoint keeps."""


def companion_of(protocol: Protocol, state: State) -> Companion:
    """The companion of a protocol, as it was kept."""
    return (
        Controls(protocol, state)
        if isinstance(protocol.local, Scaffold)
        else Leader(protocol, state)
    )


class Leader:
    """The client with the largest epsilon, whose last upload the others are pulled to (udp-fl 3.3). It holds that upload.

    Until it has taken part there is none, and the others are pulled to the global model. Without the penalty there is no leader.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        self._client = (
            max(protocol.client, key=lambda budget: budget.epsilon).id if protocol.penalty else None
        )
        self._model = state.kept.get("leader")

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """The global model, and in a second row the leader's."""
        if self._client is None:
            return weights
        # In a table of trainings rows without an upload of the leader are NaN.
        model = (
            weights
            if self._model is None
            else np.where(np.isnan(self._model), weights, self._model)
        )
        return np.stack([weights, model.astype(weights.dtype)])

    def noted(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Keep the leader's upload."""
        for upload in uploads:
            if upload.client == self._client:
                before = np.full_like(upload.vector, np.nan) if self._model is None else self._model
                self._model = np.where(upload.rows, upload.vector, before)
            yield upload

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The leader's last upload."""
        return {} if self._model is None else {"leader": self._model}


class Controls:
    """Control variates of SCAFFOLD (Karimireddy et al. 2020, option II), from noisy uploads only. It holds c and every c_k.

    c_k <- c_k - c + (w_t - upload_k) / sum_j eta_j, and c is the mean of all c_k. Client k receives c - c_k, by which every step
    is corrected.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        rule = protocol.local
        self._total = float(sum(rule.schedule.rates(round=state.round, steps=rule.steps)))
        self._start = state.weights.astype(np.float64)
        empty = np.zeros((protocol.clients, *state.weights.shape), dtype=np.float32)
        self._own = np.array(state.kept.get("controls", empty))
        self._common = self._own.mean(axis=0, dtype=np.float64)

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """The global model, then c - c_k in row 1 + k."""
        return np.concatenate([weights[None], (self._common - self._own).astype(weights.dtype)])

    def noted(self, uploads: Iterator[Upload]) -> Iterator[Upload]:
        """Renew the control variate of every client that uploads."""
        common = self._common.copy()
        for upload in uploads:
            seen, before = (self._start - upload.vector) / self._total, self._own[upload.client]
            self._own[upload.client] = np.where(upload.rows, before - common + seen, before)
            yield upload

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """Every client's control variate."""
        return {"controls": self._own}
