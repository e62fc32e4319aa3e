"""Rounds as audits see them: always a table, with one training a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sordino.engines.table_engine import TableEngine
from sordino.federation.personal import HELPER
from sordino.federation.round import Engine, RoundRecord, play_training
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.federation.upload import read_sent_model, upload_type


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundTable:
    """One round of one or many trainings.

    Attributes:
        round: The number of the round, from 0.
        before: The global models, one training a row.
        broadcast: The tables that clients were sent: the global models, and after them whatever
            else the server sent (see `broadcast_state`).
        kept: The states of clients when the round began, if they keep any.
        present: Who took part: one training a row, one client a column.
        uploads: The models that clients sent: (clients, trainings, parameters). Rows of trainings
            without the client mean nothing. Under secure aggregation each is the model that a
            client's share of the sum represents, which only the client knows.
        means: With noisy-sgd, the noisy mean of every step of a client:
            (trainings, steps, parameters).
        joined: The joined uploads; under a plain server, the next global models.
        after: The next global models.
        counts: Under a clip that follows the gradients, the noisy count of every client, as a
            column.
        state: The state with which the round began; None if trainings were played one by one.
    """

    round: int
    before: np.ndarray
    broadcast: np.ndarray
    present: np.ndarray
    uploads: np.ndarray
    joined: np.ndarray
    after: np.ndarray
    kept: Mapping[int, ClientState] = field(default_factory=dict)
    means: Mapping[int, np.ndarray] = field(default_factory=dict)
    counts: Mapping[int, np.ndarray] = field(default_factory=dict)
    state: State | None = None


def observe_table(setup: Setup, record: RoundRecord) -> RoundTable:
    """Returns the table of a round that was played for many trainings at once.

    Args:
        setup: The federation.
        record: The record of the round, with one training a row.
    """
    if record.task.attendance is None:
        raise TypeError("the record of one training is no table")
    means = {one.client: one.means for one in record.uploads if one.means is not None}
    return RoundTable(
        round=record.task.round_index,
        before=record.before.weights,
        broadcast=record.task.broadcast,
        kept=record.task.kept or {},
        present=record.task.attendance,
        uploads=np.stack(
            [
                read_sent_model(setup, one.client, record.before.weights, one.vector)
                for one in record.uploads
            ]
        ),
        means=means,
        counts={one.client: one.count for one in record.uploads if one.count is not None},
        joined=record.joined,
        after=record.after.weights,
        state=record.before,
    )


def observe_singles(setup: Setup, records: Sequence[RoundRecord]) -> RoundTable:
    """Returns the table of a round of several trainings, each of which was played alone.

    Args:
        setup: The federation.
        records: The records of the round, one for each training.
    """
    clients = setup.protocol.clients
    before = np.stack([record.before.weights for record in records])
    # Shares of sums are shown as the models that they represent.
    precision = np.float64 if setup.release.integers else upload_type(setup.protocol)
    uploads = np.zeros((clients, *before.shape), dtype=precision)
    # Participants are drawn for each training separately, so columns have gaps.
    present = np.zeros((len(records), clients), dtype=bool)
    means: dict[int, np.ndarray] = {}
    counts: dict[int, np.ndarray] = {}
    for row, record in enumerate(records):
        for upload in record.uploads:
            uploads[upload.client, row] = read_sent_model(
                setup, upload.client, record.before.weights, upload.vector
            )
            present[row, upload.client] = True
            if upload.means is not None:
                shape = (len(records), *upload.means.shape)
                table = means.setdefault(upload.client, np.zeros(shape, dtype=np.float32))
                table[row] = upload.means
            if upload.count is not None:
                # Residues are integers, which floating-point numbers would round.
                table = np.zeros((len(records), 1), dtype=upload.count.dtype)
                counts.setdefault(upload.client, table)[row] = upload.count
    return RoundTable(
        round=records[0].task.round_index,
        before=before,
        broadcast=np.stack([record.task.broadcast for record in records], axis=-2),
        kept=join_kept(records, before),
        present=present,
        uploads=uploads,
        means=means,
        counts=counts,
        joined=np.stack([record.joined for record in records]),
        after=np.stack([record.after.weights for record in records]),
    )


def join_kept(
    records: Sequence[RoundRecord], before: np.ndarray
) -> dict[int, dict[str, np.ndarray]]:
    """Returns the states of clients when a round began, with one training a row.

    Of several trainings only the helper models are joined: different clients have taken part in
    each, and have kept different states.

    Args:
        records: The records of the round, one for each training.
        before: The global models, which are the helpers of clients that have sent nothing yet.
    """
    joined: dict[int, dict[str, np.ndarray]] = {}
    if len(records) == 1:
        for client, kept in (records[0].task.kept or {}).items():
            joined[client] = {name: array[None] for name, array in kept.items()}
        return joined
    for row, record in enumerate(records):
        for client, kept in (record.task.kept or {}).items():
            helpers = joined.setdefault(client, {})
            if HELPER in kept:
                helpers.setdefault(HELPER, before.copy())[row] = kept[HELPER]
    return joined


def select_row(state: State, row: int) -> State:
    """Returns the state of one training of a table.

    Args:
        state: A state with one training a row.
        row: The row of the training.
    """
    kept = {name: array[..., row, :] for name, array in state.kept.items()}
    clients = {}
    for client, own in state.clients.items():
        arrays = {name: array[row] for name, array in own.items()}
        # Rows of clients that have sent nothing yet are NaN.
        clients[client] = {name: array for name, array in arrays.items() if is_known(array)}
    return State(
        weights=state.weights[row],
        round=state.round,
        kept={name: array for name, array in kept.items() if is_known(array)},
        clients=clients,
    )


def select_rows(state: State, rows: slice) -> State:
    """Returns the state of some trainings of a table, as a table.

    Args:
        state: State with one training a row.
        rows: Which of them.
    """
    clients = {}
    for client, own in state.clients.items():
        clients[client] = {name: array[rows] for name, array in own.items()}
    return State(
        weights=state.weights[rows],
        round=state.round,
        kept={name: array[..., rows, :] for name, array in state.kept.items()},
        clients=clients,
    )


def is_known(array: np.ndarray) -> bool:
    """Returns whether a row of a table holds values.

    Args:
        array: The row; NaN throughout if nothing is known.
    """
    return not bool(np.isnan(array).all())


def observe_trainings(
    setup: Setup, trainings: range, rounds: int, caps: Mapping[int, int] | None = None
) -> Iterator[RoundTable]:
    """Plays many trainings of a small federation side by side.

    Args:
        setup: The federation.
        trainings: The numbers of the trainings.
        rounds: How many rounds are played.
        caps: The most rounds in which each client with a personal budget may take part.

    Yields:
        Every round, with one training a row.
    """
    engine = TableEngine(setup, trainings)
    for record in play_training(setup, engine, rounds, caps=caps, trainings=trainings):
        yield observe_table(setup, record)


def observe_training(
    setup: Setup, engine: Engine, rounds: int, caps: Mapping[int, int] | None = None
) -> Iterator[RoundTable]:
    """Plays one training by an engine.

    Args:
        setup: The federation, with the number of the training.
        engine: The engine that trains its clients.
        rounds: How many rounds are played.
        caps: The most rounds in which each client with a personal budget may take part.

    Yields:
        Every round, as a table of one row.
    """
    for record in play_training(setup, engine, rounds, caps=caps):
        yield observe_singles(setup, [record])
