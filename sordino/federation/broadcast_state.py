"""What the server broadcasts with the global model: a leader's model, or control variates.

Both are computed from uploads that the server has seen, noise included, so they cost nothing that
the uploads did not cost. Models may be vectors, or tables with one training a row, of which an
upload may concern some rows only.

A broadcast is the global model alone, or a stack whose first entry is the global model:
    with the penalty    the leader's model in the second entry
    with scaffold       c - c_k in entry 1 + k, or for one client alone in the second
    with a clip that follows    the clip in every place of the second entry
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol as Interface

import numpy as np

from sordino.federation.integer_uploads import open_residues
from sordino.federation.state import State
from sordino.federation.upload import Upload, upload_type
from sordino.protocol import (
    LocalRule,
    Protocol,
    Scaffold,
    UserError,
    noisy_upload_of,
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

    def note_clients(self, number: np.ndarray) -> None:
        """Learns how many clients' uploads are known to it, before its state is read.

        Args:
            number: How many; in a table, one a row as a column. Where no sum was opened, 0.
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
    if protocol.release.adaptive is not None:
        return FollowingClip(protocol, state)
    return BROADCAST_STATES.of(protocol.local)(protocol, state)


@BROADCAST_STATES.register_others
class LeaderModel:
    """The last upload of the client with the largest epsilon, which the others are pulled to.

    It holds that upload (udp-fl 3.3). Until the leader has taken part there is none, and the others
    are pulled to the global model. Without the penalty there is no leader.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        """Restores the leader's upload.

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

    def note_clients(self, number: np.ndarray) -> None:
        """Does nothing: one upload alone is kept.

        Args:
            number: How many clients contributed.
        """

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
        """Restores the control variates, which are zero before the first round.

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

    def note_clients(self, number: np.ndarray) -> None:
        """Does nothing: every upload is noted by itself.

        Args:
            number: How many clients contributed.
        """

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """Every client's control variate."""
        return {"controls": self._own}


class FollowingClip:
    """The clip that follows a quantile of what it clips (docs/theory.md#a22).

    It holds the clip, the sum of the round's noisy counts, and how many clients are in it.
    """

    def __init__(self, protocol: Protocol, state: State) -> None:
        """Restores the clip.

        Args:
            protocol: Its rule says where the clip begins, and what it follows.
            state: State of the training.
        """
        adaptive = protocol.local.adaptive
        if adaptive is None:
            raise TypeError(f"the clip of {protocol.local.tag} stays")
        self._adaptive = adaptive
        self._release = noisy_upload_of(protocol)
        self._protocol = protocol
        self._clip = find_present_clip(protocol, state)
        kind: type[np.generic] = np.float64
        if self._release.secure_sum is not None:
            kind = upload_type(protocol)
        self._counted = np.zeros(self._clip.shape, kind)
        self._clients = np.zeros(self._clip.shape)

    def broadcast(self, weights: np.ndarray) -> np.ndarray:
        """Returns the global model, and the clip in every place of a second entry.

        Args:
            weights: The global model.
        """
        clip = np.broadcast_to(self._clip, weights.shape)
        return np.stack([weights, clip.astype(weights.dtype)])

    def note(self, upload: Upload) -> None:
        """Adds a client's noisy count.

        Args:
            upload: What a client sent.
        """
        if upload.count is None:
            return
        # Residues wrap around, which is the modulus.
        self._counted += np.where(upload.rows, upload.count, 0).astype(self._counted.dtype)

    def note_clients(self, number: np.ndarray) -> None:
        """Notes how many clients' counts are known.

        Args:
            number: How many; in a table, one a row as a column.
        """
        self._clients = number.reshape(self._clip.shape).astype(np.float64)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The clip of the next round."""
        expected = np.maximum(self._clients, 1.0)
        if self._protocol.aggregation.fixed_denominator:
            everybody = self._protocol.participation.count_expected(clients=self._protocol.clients)
            expected = np.full(self._clip.shape, float(everybody))
        counted = self._open_counts() / self._release.count_length
        within = np.clip(0.5 + counted / (expected * self._release.counted), 0.0, 1.0)
        moved = self._clip * np.exp(-self._adaptive.rate * (within - self._adaptive.quantile))
        # Norms that vanish, or counts that are only noise, must not lead it to 0 or infinity.
        start = self._release.clip
        moved = np.clip(moved, start / FARTHEST_CLIP, start * FARTHEST_CLIP)
        # A round without counts says nothing.
        after = np.where(self._clients > 0, moved, self._clip)
        return {"clip": after.astype(np.float32).astype(np.float64)}

    def _open_counts(self) -> np.ndarray:
        """Returns the sum of the counts, as lengths; a secure sum is read from its residues."""
        grid = self._protocol.grid
        if self._release.secure_sum is None or grid is None:
            return self._counted
        # Where no sum is opened nothing is known of it.
        known = np.where(self._clients > 0, self._counted, 0).astype(self._counted.dtype)
        return open_residues(known, grid)


def find_present_clip(protocol: Protocol, state: State) -> np.ndarray:
    """Returns the clip of a round, as one number; in a table, one a row as a column.

    Args:
        protocol: Its rule says where the clip begins.
        state: State of the training.
    """
    shape = (*state.weights.shape[:-1], 1)
    start = np.full(shape, np.float32(protocol.release.clip), dtype=np.float64)
    return np.asarray(state.kept.get("clip", start))


def find_step_rate(protocol: Protocol, state: State) -> float | np.ndarray:
    """Returns what the server's step is multiplied by in a round.

    Where the clip follows, uploads come in units of it, and it is put back here.

    Args:
        protocol: The federation whose rounds are played.
        state: What the round began with.
    """
    rate = protocol.find_server_rate(state.round)
    if protocol.release.adaptive is None:
        return rate
    scaled: np.ndarray = rate * find_present_clip(protocol, state) / protocol.release.clip
    return scaled


def read_clip(protocol: Protocol, extras: np.ndarray | None) -> np.ndarray | None:
    """Returns the clip that travelled with the global model, None where it stays.

    Args:
        protocol: Its rule says whether the clip follows.
        extras: What travelled with the global model.
    """
    if protocol.release.adaptive is None or extras is None:
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
        raise UserError('local.rule = "scaffold": only `train` keeps control variates.')
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
        client: The receiver.
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
