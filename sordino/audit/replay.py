"""Repeats a training from what was released: whatever cannot be repeated must be noise.

The auditor knows all data and every draw except the noise. It repeats the clients' work from what
they were sent; an upload, or a noisy step, less that work is the noise, which must follow the law
that was promised. Values that are computed from noisy ones alone must come out the same: the
server's models, those that clients are sent along with them, and with noisy-sgd the uploads. How
far such a value strays shows whether it was computed from anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sordino.audit.repeated_work import RepeatedWork, WorkRepeater
from sordino.audit.round_table import RoundTable
from sordino.federation.aggregation.joining import weigh_clients
from sordino.federation.broadcast_state import find_step_rate, restore_broadcast_state
from sordino.federation.integer_uploads import round_update
from sordino.federation.personal import HELPER, find_kept, merge_kept
from sordino.federation.rules.local_training import UNCOUNTED, ClientState, ClippedSums
from sordino.federation.server_optimizers import move_model
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.federation.upload import Upload
from sordino.models.per_example import ClippedSum
from sordino.protocol import Protocol
from sordino.protocol.aggregation_kinds import find_mixing

# The largest difference, relative to the largest value, that rounding in float32 explains.
STRAYED = 1e-5


class SeenSums:
    """Replaces a client's sums by the noisy ones that were seen.

    Attributes:
        noise: The noise of every step so far: the noisy sum less the client's own.
    """

    _clean: ClippedSums

    def __init__(self, means: np.ndarray, batch: int) -> None:
        """Takes the noisy means.

        Args:
            means: The noisy mean of every step: (trainings, steps, parameters).
            batch: The divisor by which sums became means.
        """
        self._means = means
        self._batch = batch
        self.noise: list[np.ndarray] = []

    def replace_sums(self, clean: ClippedSums) -> ClippedSums:
        """Returns itself in place of a client's sums.

        Args:
            clean: The client's own sums, from which the noise is found.
        """
        self._clean = clean
        return self

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """Returns the noisy sum of the next step.

        Args:
            inputs: The records of the step.
            targets: Their labels.
            clip: The largest norm of an example's gradient.
            norm: "l1" or "l2", the norm that is clipped.
        """
        found = self._clean.clipped_sum(inputs, targets, clip=clip, norm=norm)
        seen = torch.from_numpy(self._means[:, len(self.noise)]) * self._batch
        self.noise.append((seen.double() - found.total.double()).numpy().reshape(seen.shape))
        # The step is made with the noisy sum, so that the next one begins where the client's did.
        return ClippedSum(seen.reshape(found.total.shape).double(), 0, 0)


class Replay:
    """Repeats the first trainings of a table from what was released.

    It holds what clients and the server keep from round to round, as far as it follows from what
    was released.

    Attributes:
        strays: One array per round: how far the values that each client sent, or was sent, are from
            those that follow from noisy ones, and in the last place how far the server's model is;
            relative to the largest value.
    """

    def __init__(
        self,
        setup: Setup,
        clients: WorkRepeater,
        first: int,
        trainings: int,
        start: State | None = None,
    ) -> None:
        """Begins before the first round, or at a state that is known to be right.

        Args:
            setup: The federation.
            clients: Repeats the clients' work.
            first: The number of the training in the first row.
            trainings: How many rows are repeated.
            start: The state to continue from, with that many rows; None before the first round.
        """
        self._setup = setup
        self._clients = clients
        self._first = first
        self._count = trainings
        self._initial = setup.initial_weights()
        self._kept: dict[int, ClientState] = {} if start is None else dict(start.clients)
        self._server_state: dict[str, np.ndarray] = {} if start is None else dict(start.kept)
        # The server's optimizer follows joined updates, which are checked after the uploads.
        self._moments = dict(self._server_state)
        self._rate: float | np.ndarray = 1.0
        self.strays: list[np.ndarray] = []

    def see(self, seen: RoundTable) -> np.ndarray:
        """Takes in one round.

        Args:
            seen: The round.

        Returns:
            The noise: (trainings, steps or 1, clients, parameters), NaN where nothing was sent.
        """
        protocol = self._setup.protocol
        before = seen.before[: self._count]
        present = seen.present[: self._count]
        uploads = seen.uploads[:, : self._count]
        state = State(weights=before, round=seen.round, kept=self._server_state)
        broadcast_state = restore_broadcast_state(protocol, state)
        broadcast = broadcast_state.broadcast(before)
        found = find_kept(protocol, before, range(protocol.clients), self._kept) or {}
        astray = measure_stray(seen.broadcast[..., : self._count, :], broadcast)
        strays = np.full(protocol.clients, astray)
        noise = np.full((self._count, self._setup.release.noise_draws, *uploads.shape[::2]), np.nan)
        done: dict[int, RepeatedWork] = {}
        for client in np.flatnonzero(present.any(axis=0)).tolist():
            here = present[:, client]
            worked, left = self._repeat_client(seen, client, broadcast, found, done)
            noise[here, :, client] = left[here]
            apart = self._measure_client_stray(seen, client, found.get(client, {}), worked, here)
            strays[client] = max(strays[client], apart)
            self._keep_state(client, worked, uploads[client], here)
        for client in range(protocol.clients):
            count = seen.counts.get(client)
            upload = Upload(
                client=client,
                vector=uploads[client],
                steps=UNCOUNTED,
                rows=present[:, [client]],
                count=None if count is None else count[: self._count],
            )
            broadcast_state.note(upload)
        broadcast_state.note_clients(count_known(protocol, present))
        self._rate = find_step_rate(protocol, state)
        self._server_state = dict(broadcast_state.kept)
        self.strays.append(np.append(strays, self._measure_server_stray(seen)))
        return noise

    def _repeat_client(
        self,
        seen: RoundTable,
        client: int,
        broadcast: np.ndarray,
        found: Mapping[int, ClientState],
        done: dict[int, RepeatedWork],
    ) -> tuple[RepeatedWork, np.ndarray]:
        """Returns a client's work of a round, repeated, and the noise that was added to it.

        `found` has what clients kept from earlier rounds, `done` the work that was repeated before.
        """
        like = int(self._clients.like[client])
        work = partial(
            self._clients.work,
            client=like,
            round_index=seen.round,
            weights=broadcast,
            first=self._first,
            kept=found.get(like, {}),
        )
        if self._setup.release.in_steps:
            batch = self._setup.protocol.local.batch or 1
            sums = SeenSums(seen.means[client][: self._count], batch)
            worked = work(sums=sums.replace_sums)
            return worked, np.stack(sums.noise, axis=1)
        # Clients that compute the same are repeated once.
        if like not in done:
            done[like] = work()
        uploads = seen.uploads[client, : self._count]
        noise = self._find_noise(client, uploads, done[like], seen.before[: self._count])
        return done[like], noise[:, None]

    def _find_noise(
        self,
        client: int,
        uploads: np.ndarray,
        worked: RepeatedWork,
        before: np.ndarray,
    ) -> np.ndarray:
        """Returns a client's uploads less its work."""
        models = worked.models.numpy()
        if not self._setup.release.integers:
            left: np.ndarray = uploads - models
            return left
        grid = self._setup.grid
        # The client's work is rounded to the grid as the client did it, so that the difference is
        # the integers of the noise; exactly so, if the work is recomputed exactly.
        weight = self._setup.sum_weights[client]
        sent = np.rint((uploads - before.astype(np.float64)) * (grid.scale * weight))
        noise: np.ndarray = (sent - round_update((models - before) * weight, grid)) / grid.scale
        return noise

    def _measure_server_stray(self, seen: RoundTable) -> float:
        """Returns how far the server's models are from those that follow from the uploads."""
        expected = join_by_formula(self._setup, seen, self._count)
        if expected is None:
            return 0.0
        apart = measure_stray(seen.joined[: self._count], expected.astype(np.float32))
        after, self._moments = move_model(
            self._setup.protocol.server,
            seen.before[: self._count],
            seen.joined[: self._count],
            self._moments,
            rate=self._rate,
        )
        return max(apart, measure_stray(seen.after[: self._count], after))

    def _keep_state(
        self, client: int, worked: RepeatedWork, vector: np.ndarray, here: np.ndarray
    ) -> None:
        """Keeps a client's new state, in the trainings in which it took part."""
        upload = Upload(
            client=client,
            vector=vector,
            steps=UNCOUNTED,
            kept=worked.kept,
            rows=here[:, None],
        )
        before = self._kept.get(client, {})
        self._kept[client] = merge_kept(self._setup.protocol, self._initial, before, upload)

    def _measure_client_stray(
        self,
        seen: RoundTable,
        client: int,
        found: ClientState,
        worked: RepeatedWork,
        here: np.ndarray,
    ) -> float:
        """Returns how far a client's helper model, or noisy-sgd upload, is from what follows."""
        pairs = []
        if HELPER in found:
            # A client that has sent nothing yet gets the global model.
            given = seen.kept.get(client, {}).get(HELPER, seen.before)
            pairs.append((given[: self._count], found[HELPER]))
        if self._setup.release.in_steps:
            pairs.append((seen.uploads[client, : self._count], worked.models.numpy()))
        return max((measure_stray(one[here], other[here]) for one, other in pairs), default=0.0)


def join_by_formula(setup: Setup, seen: RoundTable, count: int) -> np.ndarray | None:
    """Returns the mean of a round's uploads, computed by one formula.

    It shares no code with the server, which adds uploads one by one.

    Args:
        setup: The federation.
        seen: The round.
        count: The number of trainings that are repeated, from the first row on.

    Returns:
        One model a row; None where the server does not take a plain mean of the uploads.
    """
    protocol = setup.protocol
    rule = protocol.aggregation
    if not rule.averages or protocol.release.at_server or protocol.assumptions.diameter is not None:
        return None
    before = seen.before[:count].astype(np.float64)
    present = seen.present[:count]
    weights = present * weigh_clients(setup)
    if protocol.release.secure_sum is not None:
        # A sum of fewer uploads than the threshold was not opened.
        weights = weights * (count_known(protocol, present) > 0)
    sent = np.where(present.T[:, :, None], seen.uploads[:, :count], 0.0)
    total = np.einsum("nc,cnd->nd", weights, sent)
    shares = weights.sum(axis=1, keepdims=True)
    if rule.fixed_denominator:
        expected = protocol.participation.count_expected(clients=protocol.clients)
        mean = before + (total - shares * before) / expected
    else:
        mean = np.where(shares > 0, total / np.maximum(shares, 1e-300), before)
    mixing = find_mixing(rule, seen.round)
    mixed: np.ndarray = (1 - mixing) * before + mixing * mean
    return mixed


def count_known(protocol: Protocol, present: np.ndarray) -> np.ndarray:
    """Returns how many uploads the server has received, one by one or in a sum, as a column.

    Args:
        protocol: The protocol, whose channel states the fewest uploads of a sum.
        present: Who took part: one training a row, one client a column.
    """
    number: np.ndarray = present.sum(axis=1, keepdims=True)
    secure_sum = protocol.release.secure_sum
    if secure_sum is None:
        return number
    return number * (number >= secure_sum.threshold)


def measure_stray(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest value.

    Args:
        found: The values that were released.
        expected: The values as they should be.

    Returns:
        The difference; infinite if some value is finite in only one of the two.

    Example:
        >>> measure_stray(np.array([2.0, 1.5]), np.array([2.0, 1.0]))
        0.25
        >>> measure_stray(np.zeros(2), np.zeros(2))
        0.0
    """
    both = np.isfinite(found) & np.isfinite(expected)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    apart = float(np.abs(found[both].astype(np.float64) - expected[both]).max(initial=0.0))
    if apart == 0:
        return 0.0
    return apart / float(np.abs(expected[both]).max(initial=0.0) or 1.0)
