"""What the server broadcasts with the global model: a leader's model, or control variates.

Both are computed from uploads that the server has seen, noise included, so they cost nothing that
the uploads did not cost. Models may be vectors, or tables with one training a row, of which an
upload may concern some rows only.

A broadcast is the global model alone, or a stack whose first entry is the global model:
    with the penalty    the leader's model in the second entry
    with scaffold       c - c_k in entry 1 + k, or for one client alone in the second
    with dp-sgd         where the clip follows the gradients, the clip in every place of the second
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol as Interface

import numpy as np

from sordino.federation.state import State
from sordino.federation.upload import Upload
from sordino.protocol import (
    DpSgd,
    LocalRule,
    Protocol,
    Scaffold,
    UserError,
)
from sordino.protocol.registry import Registry

# A clip that follows the gradients stays within this factor of where it began.
FARTHEST_CLIP = 1e4


class BroadcastState(Interface):
    """Holds what travels with the global model in one round."""

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """Returns what clients receive: the global model, or a stack whose first entry it is.

        Args:
            weights: The global model.
        """

    def note(self, upload: Upload) -> None:
        """Learns from an upload, for the next round.

        Args:
            upload: What a client sent.
        """

    @property
    def kept(self) -> Mapping[str, np.ndarray]:
        """What a checkpoint keeps."""


BROADCAST_STATES: Registry[Callable[[Protocol, State], BroadcastState]] = Registry(
    "broadcast state", "local rule", LocalRule
)


def restore_broadcast_state(protocol: Protocol, state: State) -> BroadcastState:
    """Returns the broadcast state of a protocol, as it was kept.

    Args:
        protocol: The federation whose rounds are played.
        state: The state after the last round.
    """
    return BROADCAST_STATES.of(protocol.local)(protocol, state)


@BROADCAST_STATES.register_others
class LeaderModel:
    """The last upload of the client with the largest epsilon, which the others are pulled to.

    It holds that upload (udp-fl 3.3). Until the leader has taken part there is none, and the others
    are pulled to the global model. Without the penalty there is no leader.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        """Takes up the leader's upload.

        Args:
            protocol: Says whether there is a leader, and which client it is.
            state: State of the training.
        """
        self._client: int | None = None
        if protocol.penalty:
            self._client = max(protocol.client, key=lambda budget: budget.epsilon).id
        self._model = state.kept.get("leader")

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """Returns the global model, and where there is a leader its model in a second entry.

        Args:
            weights: The global model.
        """
        if self._client is None:
            return weights
        model = weights
        if self._model is not None:
            # In a table of trainings, rows without an upload of the leader are NaN.
            model = np.where(np.isnan(self._model), weights, self._model)
        return np.stack([weights, model.astype(weights.dtype)])

    def note(self, upload: Upload) -> None:
        """Keeps the leader's upload.

        Args:
            upload: What a client sent.
        """
        if upload.client != self._client:
            return
        before = self._model
        if before is None:
            before = np.full_like(upload.vector, np.nan)
        self._model = np.where(upload.rows, upload.vector, before)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The leader's last upload."""
        if self._model is None:
            return {}
        return {"leader": self._model}


@BROADCAST_STATES.register(Scaffold)
class ControlVariates:
    """Control variates of SCAFFOLD (Karimireddy et al. 2020, option II), from noisy uploads only.

    It holds c and every c_k: c_k <- c_k - c + (w_t - upload_k) / sum_j eta_j, and c is the mean of
    all c_k. Client k receives c - c_k, by which every step is corrected.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        """Takes up the control variates, which are zero before the first round.

        Args:
            protocol: Its rule says how long the steps of a round are.
            state: State of the training.
        """
        rule = protocol.local
        self._total = float(sum(rule.schedule.rates(round=state.round, steps=rule.steps)))
        self._start = state.weights.astype(np.float64)
        empty = np.zeros((protocol.clients, *state.weights.shape), dtype=np.float32)
        self._own = np.array(state.kept.get("controls", empty))
        self._common = self._own.mean(axis=0, dtype=np.float64)

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """Returns the global model, then c - c_k in entry 1 + k.

        Args:
            weights: The global model.
        """
        return np.concatenate([weights[None], (self._common - self._own).astype(weights.dtype)])

    def note(self, upload: Upload) -> None:
        """Renews the control variate of a client that uploads.

        Args:
            upload: What a client sent.
        """
        seen = (self._start - upload.vector) / self._total
        before = self._own[upload.client]
        self._own[upload.client] = np.where(upload.rows, before - self._common + seen, before)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """Every client's control variate."""
        return {"controls": self._own}


@BROADCAST_STATES.register(DpSgd)
class FollowingClip:
    """The clip of dp-sgd, which may follow a quantile of the gradients' norms (docs/theory.md#a22).

    It holds the clip and the sum of the round's noisy counts. Where the clip stays, nothing travels
    with the model.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        """Takes up the clip.

        Args:
            protocol: Its rule says where the clip begins, and what it follows.
            state: State of the training.
        """
        lot = protocol.release.lot
        if lot is None:
            raise TypeError(f"{protocol.local.tag} draws no lots")
        self._lot = lot
        self._fixed = protocol.aggregation.fixed_denominator
        self._clip = find_present_clip(protocol, state)
        self._counted = np.zeros(self._clip.shape)
        self._clients = np.zeros(self._clip.shape)

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """Returns the global model, and the clip where it does not stay.

        Args:
            weights: The global model.
        """
        if self._lot.adaptive is None:
            return weights
        clip = np.broadcast_to(self._clip, weights.shape)
        return np.stack([weights, clip.astype(weights.dtype)])

    def note(self, upload: Upload) -> None:
        """Adds a client's noisy count.

        Args:
            upload: What a client sent.
        """
        if upload.count is None:
            return
        self._counted += np.where(upload.rows, upload.count, 0.0)
        self._clients += np.where(upload.rows, 1.0, 0.0)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The clip of the next round."""
        adaptive = self._lot.adaptive
        if adaptive is None:
            return {}
        clients = self._clients
        if self._fixed:
            clients = np.full(self._clip.shape, self._lot.clients)
        expected = np.maximum(clients, 1.0) * self._lot.batch
        within = np.clip(0.5 + self._counted / expected, 0.0, 1.0)
        moved = self._clip * np.exp(-adaptive.rate * (within - adaptive.quantile))
        # Gradients that vanish, or counts that are only noise, must not lead it to 0 or infinity.
        moved = np.clip(moved, self._lot.clip / FARTHEST_CLIP, self._lot.clip * FARTHEST_CLIP)
        # A round without counts says nothing.
        after = np.where(self._clients > 0, moved, self._clip)
        return {"clip": after.astype(np.float32).astype(np.float64)}


def find_present_clip(protocol: Protocol, state: State) -> np.ndarray:
    """Returns the clip of a round, as one number; in a table, one a row as a column.

    Args:
        protocol: Its rule says where the clip begins.
        state: State of the training.
    """
    shape = (*state.weights.shape[:-1], 1)
    start = np.full(shape, np.float32(protocol.local.clip), dtype=np.float64)
    return np.asarray(state.kept.get("clip", start))


def find_step_rate(protocol: Protocol, state: State) -> float | np.ndarray:
    """Returns what the server's step is multiplied by in a round.

    Sums come in units of the clip, which is put back here.

    Args:
        protocol: The federation whose rounds are played.
        state: What the round began with.
    """
    rate = protocol.find_server_rate(state.round)
    lot = protocol.release.lot
    if lot is None or lot.adaptive is None:
        return rate
    scaled: np.ndarray = rate * find_present_clip(protocol, state) / lot.clip
    return scaled


def read_clip(protocol: Protocol, extras: np.ndarray | None) -> np.ndarray | None:
    """Returns the clip that travelled with the global model, None where it stays.

    Args:
        protocol: Its rule says whether the clip follows the gradients.
        extras: What travelled with the global model.
    """
    lot = protocol.release.lot
    if lot is None or lot.adaptive is None or extras is None:
        return None
    clip: np.ndarray = extras[0][..., :1].astype(np.float64)
    return clip


def read_correction(
    protocol: Protocol, client: int, extras: np.ndarray | None
) -> np.ndarray | None:
    """Returns the correction c - c_k of a client's steps, None where its rule has none.

    Args:
        protocol: Its rule says whether steps are corrected.
        client: The reader.
        extras: What travels with the global model.

    Raises:
        UserError: No control variates were sent.
    """
    if not protocol.local.corrected:
        return None
    if extras is None:
        raise UserError('local.rule = "scaffold": control variates are kept by `train` alone.')
    return find_own_entry(client, extras)


def read_leader(extras: np.ndarray | None) -> np.ndarray | None:
    """Returns the leader's model, None where nothing travels with the global model.

    Args:
        extras: What travelled with the global model.
    """
    if extras is None:
        return None
    entry: np.ndarray = extras[0]
    return entry


def find_own_entry(client: int, extras: np.ndarray) -> np.ndarray:
    """Returns the part for one client; a single entry is for its receiver.

    Args:
        client: Number of the client, from 0.
        extras: What travelled with the global model.
    """
    entry: np.ndarray = extras[client] if len(extras) > 1 else extras[0]
    return entry


def select_received(client: int, broadcast: np.ndarray) -> np.ndarray:
    """Returns what one client needs of a broadcast of one training.

    Args:
        client: Who receives it.
        broadcast: The global model, or a stack whose first entry it is.

    Returns:
        The global model, and in a second entry the part for the client, if there is any.

    Example:
        >>> select_received(1, np.array([[0.0], [1.0], [2.0]])).ravel().tolist()
        [0.0, 2.0]
    """
    if broadcast.ndim == 1:
        return broadcast
    return np.stack([broadcast[0], find_own_entry(client, broadcast[1:])])
