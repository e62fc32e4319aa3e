"""One round of federated training, written once, as six stages in `play_rounds`.

Everything that trains drives it: `train` and `train_many`, the server across machines, and the
audit's games, twins and replays. A round works on one training, whose models are vectors, or on a
table of many trainings, whose models are tables with one training a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol as Interface

import numpy as np

from sordino.federation.aggregation.joining import (
    JOININGS,
    Incoming,
    Joining,
    project_model,
    start_joining,
    weigh_clients,
)
from sordino.federation.attendance import Attendance, draw_attendance
from sordino.federation.broadcast_state import (
    BroadcastState,
    find_step_rate,
    restore_broadcast_state,
)
from sordino.federation.channels.delivery import CHANNELS, Delivery, open_channel
from sordino.federation.personal import find_kept, merge_kept
from sordino.federation.rules.local_training import LOCAL_RULES, ClientState, LocalSteps
from sordino.federation.server_optimizers import SERVER_STEPS, move_model
from sordino.federation.setup import Setup
from sordino.federation.state import State, first_state
from sordino.federation.upload import Upload
from sordino.protocol import Protocol
from sordino.randomness import Purpose


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundTask:
    """What an engine is asked to compute in a round.

    Attributes:
        round_index: Number of the round, from 0.
        broadcast: What clients receive: the global model, or a stack whose first entry it is.
        participants: The clients that work, in ascending order.
        kept: What each of them has kept, where clients keep anything.
        attendance: In a table of trainings, who takes part in which: one training a row, one
            client a column. Then all clients work in all rows, and some of the work counts.
    """

    round_index: int
    broadcast: np.ndarray
    participants: np.ndarray
    kept: Mapping[int, ClientState] | None = None
    attendance: np.ndarray | None = None

    def kept_of(self, client: int) -> ClientState | None:
        """Returns what a client has kept, None where clients keep nothing.

        Args:
            client: Number of the client, from 0.
        """
        return None if self.kept is None else self.kept[client]

    def rows_of(self, client: int) -> np.ndarray | bool:
        """Returns in which rows of a table a client takes part, as a column; True for one training.

        Args:
            client: Number of the client, from 0.
        """
        return True if self.attendance is None else self.attendance[:, [client]]


class Engine(Interface):
    """Executes the local work of a round."""

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Yields the uploads of a round, in the order of the participants.

        Args:
            task: The round's work.
        """

    @property
    def absent(self) -> Mapping[int, str]:
        """The participants of the last task whose uploads do not come, each with the reason."""


class RoundControl(Interface):
    """What a training does between the stages of a round."""

    def charge(self, round_index: int, participants: np.ndarray) -> None:
        """Pays for a round before anything is computed in it.

        Args:
            round_index: Number of the round, from 0.
            participants: The clients of the round.
        """

    def confirm(self, task: RoundTask) -> np.ndarray:
        """Returns the participants whose uploads come, once the engine has been asked.

        Args:
            task: The round's work.
        """


class NoControl:
    """Pays for nothing, and expects everybody: for trainings that release nothing."""

    def charge(self, round_index: int, participants: np.ndarray) -> None:
        """Does nothing.

        Args:
            round_index: Number of the round, from 0.
            participants: The clients of the round.
        """

    def confirm(self, task: RoundTask) -> np.ndarray:
        """Returns all participants.

        Args:
            task: The round's work.
        """
        return task.participants


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRecord:
    """What happened in a round.

    Attributes:
        before: The state that the round began with.
        task: What clients were given.
        present: The participants that contributed.
        steps: What happened in all clients' steps.
        joined: What the uploads were joined to; a plain server has it as the next model.
        after: The next state.
        uploads: What clients sent, in their order, where the round was observed.
        delivered: The same as it reached the server, without names.
    """

    before: State
    task: RoundTask
    present: np.ndarray
    steps: LocalSteps
    joined: np.ndarray
    after: State
    uploads: tuple[Upload, ...] = ()
    delivered: tuple[np.ndarray, ...] = ()


class Round:
    """One round of a training. It holds what its stages pass to each other."""

    # Each is set by the stage named here, for those after it.
    _present_rows: np.ndarray  # draw_participants: who takes part, in every row
    _participants: np.ndarray  # draw_participants: the clients that work
    _broadcast_state: BroadcastState  # prepare_task: what travels with the model
    task: RoundTask  # prepare_task
    _present: np.ndarray  # open_server: the participants whose uploads come
    _opened: np.ndarray  # open_server: whether their sum is opened, in every row
    _channel: Delivery  # open_server
    _joining: Joining  # open_server

    def __init__(
        self,
        setup: Setup,
        state: State,
        attendance: Attendance,
        *,
        control: RoundControl | None = None,
        trainings: range | None = None,
        observed: bool = False,
    ) -> None:
        """Continues a training where it is.

        Args:
            setup: The federation.
            state: The present state; in a table, with one training a row.
            attendance: Counts who takes part.
            control: Pays, and knows the absent clients.
            trainings: The numbers of a table's rows; None for one training.
            observed: Whether the record holds the uploads.
        """
        self._setup = setup
        self._before = state
        self._initial = setup.initial_weights()
        self._attendance = attendance
        self._control: RoundControl = control or NoControl()
        self._table = trainings is not None
        self._trainings = trainings or range(setup.training, setup.training + 1)
        self._observed = observed
        self._uploads: list[Upload] = []
        self._delivered: list[np.ndarray] = []
        self._clients: dict[int, ClientState] = {}
        self._clipped = 0
        self._clips = 0
        self._nonfinite = 0

    def draw_participants(self) -> None:
        """Draws who takes part, independently of all data, and pays for them."""
        setup = self._setup
        t = self._before.round
        drawn = draw_attendance(
            setup.protocol, round_index=t, key=setup.draw_key, trainings=self._trainings
        )
        self._present_rows = self._attendance.admit(drawn, round_index=t)
        if self._table:
            self._participants = np.arange(setup.protocol.clients)
        else:
            self._participants = np.flatnonzero(self._present_rows[0])
        # Charge, then release: the line is on disk before any upload exists.
        self._control.charge(t, self._participants)

    def prepare_task(self) -> None:
        """Puts together what the participants are given."""
        protocol = self._setup.protocol
        before = self._before
        self._broadcast_state = restore_broadcast_state(protocol, before)
        self.task = RoundTask(
            round_index=before.round,
            broadcast=self._broadcast_state.broadcast(before.weights),
            participants=self._participants,
            kept=find_kept(protocol, before.weights, self._participants, before.clients),
            attendance=self._present_rows if self._table else None,
        )

    def open_server(self) -> None:
        """Prepares the channel and the joining for those whose uploads come."""
        setup = self._setup
        t = self._before.round
        self._present = self._control.confirm(self.task)
        self._opened = self._find_opened()
        shuffling = setup.draw_key.stream(Purpose.SHUFFLER, training=setup.training, round_index=t)
        self._channel = open_channel(setup.protocol.channel, shuffling)
        self._joining = start_joining(
            Incoming(
                setup=setup,
                current=self._before.weights,
                weights=self._weigh_uploads(),
                round_index=t,
                trainings=self._trainings,
            )
        )

    def _weigh_uploads(self) -> np.ndarray:
        setup = self._setup
        weights: np.ndarray = weigh_clients(setup)[self._present]
        if setup.release.secure_sum is not None:
            weights = setup.sum_weights[self._present]
        opened = bool(self._opened.all())
        if not self._table:
            # A sum that is not opened joins no upload.
            return weights if opened else weights[:0]
        if opened and bool(self._present_rows.all()):
            return weights
        # Where the participants differ between trainings, each row has its own weights.
        row_weights: np.ndarray = (self._present_rows * self._opened * weights).T[:, :, None]
        return row_weights

    def _find_opened(self) -> np.ndarray:
        """Returns whether enough clients contribute for their sum to be opened, in every row."""
        secure_sum = self._setup.release.secure_sum
        if secure_sum is None:
            return np.ones(1, dtype=bool)
        if not self._table:
            return np.array([len(self._present) >= secure_sum.threshold])
        counts: np.ndarray = self._present_rows.sum(axis=1, keepdims=True)
        return counts >= secure_sum.threshold

    def _count_known(self) -> np.ndarray:
        """Returns how many uploads are known, alone or in a sum, one row a training."""
        if not self._table:
            return len(self._present) * self._opened
        known: np.ndarray = self._present_rows.sum(axis=1, keepdims=True) * self._opened
        return known

    def note_upload(self, upload: Upload) -> None:
        """Notes what the server and the client keep of an upload, for the next round.

        Args:
            upload: What the client sends in the round.
        """
        self._broadcast_state.note(upload)
        if upload.kept is not None:
            self._clients[upload.client] = merge_kept(
                self._setup.protocol,
                self._initial,
                self._before.clients.get(upload.client, {}),
                upload,
            )
        self._clipped += upload.steps.clipped
        self._clips += upload.steps.clips
        self._nonfinite += upload.steps.nonfinite
        if self._observed:
            self._uploads.append(upload)

    def carry_upload(self, upload: Upload) -> Iterable[np.ndarray]:
        """Sends an upload through the channel; returns what reaches the server.

        Args:
            upload: What the client sends in the round.
        """
        if self._table and self._setup.release.secure_sum is not None:
            # In the rows of trainings in which a client does not take part it adds nothing.
            return self._channel.carry(np.where(upload.rows, upload.vector, 0))
        return self._channel.carry(upload.vector)

    def carry_rest(self) -> Iterable[np.ndarray]:
        """Returns what reaches the server once all clients have sent."""
        if self._opened.all():
            return self._channel.finish()
        if not self._table:
            return ()
        return [np.where(self._opened, vector, 0) for vector in self._channel.finish()]

    def join_upload(self, vector: np.ndarray) -> None:
        """Passes an upload to the server's joining.

        Args:
            vector: The upload as the channel delivers it.
        """
        if self._observed:
            self._delivered.append(vector)
        self._joining.add(vector)

    def keep_result(self) -> RoundRecord:
        """Makes the next global model, and the state and the record that are kept."""
        setup = self._setup
        before = self._before
        joined = self._joining.finish()
        self._broadcast_state.note_clients(self._count_known())
        weights, moments = move_model(
            setup.protocol.server,
            before.weights,
            joined,
            before.kept,
            rate=find_step_rate(setup.protocol, before),
        )
        diameter = setup.protocol.assumptions.diameter
        if diameter is not None:
            weights = project_model(weights, self._initial, diameter)
        after = State(
            weights=weights,
            round=before.round + 1,
            kept={**self._broadcast_state.kept, **moments},
            clients={**before.clients, **self._clients},
        )
        return RoundRecord(
            before=before,
            task=self.task,
            present=self._present,
            steps=LocalSteps(clipped=self._clipped, clips=self._clips, nonfinite=self._nonfinite),
            joined=joined,
            after=after,
            uploads=tuple(self._uploads),
            delivered=tuple(self._delivered),
        )


def refuse_unplayable(protocol: Protocol) -> None:
    """Refuses a protocol with a part about which nothing says how it works in a round.

    Args:
        protocol: The protocol to be trained.

    Raises:
        UnknownKind: Names the part.
    """
    LOCAL_RULES.of(protocol.local)
    CHANNELS.of(protocol.channel)
    JOININGS.of(protocol.aggregation)
    SERVER_STEPS.of(protocol.server)


def play_rounds(
    rounds: Sequence[Round], train: Callable[[Sequence[RoundTask]], Iterator[Upload]]
) -> Iterator[RoundRecord]:
    """Plays one round of each of several trainings, whose clients are trained together.

    Args:
        rounds: One of each training.
        train: Has clients trained; it yields the uploads of all tasks, in their order.

    Yields:
        What happened in each round.
    """
    for each in rounds:
        # 1. Who takes part.
        each.draw_participants()
        # 2. What they are given.
        each.prepare_task()
    # 3. What they compute.
    uploads = train([each.task for each in rounds])
    for each in rounds:
        each.open_server()
        for upload in islice(uploads, len(each.task.participants)):
            each.note_upload(upload)
            # 4. How it travels.
            for vector in each.carry_upload(upload):
                # 5. How it is joined.
                each.join_upload(vector)
        for vector in each.carry_rest():
            each.join_upload(vector)
        # 6. What is kept.
        yield each.keep_result()


def play_round(one: Round, engine: Engine) -> RoundRecord:
    """Plays one round of one training.

    Args:
        one: The round.
        engine: Trains its clients.

    Returns:
        What happened.
    """
    return next(play_rounds([one], lambda tasks: engine.train(tasks[0])))


def play_training(
    setup: Setup,
    engine: Engine,
    rounds: int,
    *,
    caps: Mapping[int, int] | None = None,
    trainings: range | None = None,
    start: State | None = None,
) -> Iterator[RoundRecord]:
    """Plays the rounds of a training, observed, of which nothing is released or written.

    Args:
        setup: The federation.
        engine: Trains its clients.
        rounds: How many rounds are played.
        caps: How often a client with a budget may take part.
        trainings: The numbers of a table's rows; None for one training.
        start: The state to continue from; by default the model before the first round.

    Yields:
        What happened in each round.
    """
    state = start
    if state is None:
        state = first_state(setup, trainings)
    attendance = Attendance(caps or {}, (), next_round=state.round)
    for _ in range(rounds):
        one = Round(setup, state, attendance, trainings=trainings, observed=True)
        record = play_round(one, engine)
        yield record
        state = record.after
