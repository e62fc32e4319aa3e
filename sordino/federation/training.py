"""The rounds of a training, with what surrounds them: ledger, budget, scores, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import numpy as np

from sordino.federation.attendance import Attendance
from sordino.federation.client import Score
from sordino.federation.round import Engine, Round, RoundRecord, RoundTask, play_round
from sordino.federation.server_noise import mean_deviation
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.federation.store.files import writing
from sordino.privacy.ledger import Event, Missed
from sordino.privacy.spending import certify_run, find_missing_clients
from sordino.protocol import Protocol, SordinoError

# How often a round is asked for, where the protocol repeats rounds from which uploads are missing.
TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far budgets let a run go.

    Attributes:
        rounds: how many rounds in all.
        caps: for some clients, how often each may take part.
    """

    rounds: int
    caps: Mapping[int, int]


class ScoringEngine(Engine, Interface):
    """Executes the local work of rounds, and scores their models."""

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model on the test records; `Setup.tested_on` says whose they are.

        Args:
            weights: the model.
        """


class Incomplete(SordinoError):
    """Uploads are missing in a protocol that repeats such rounds; those that came are not used."""

    def __init__(self, round_index: int, absent: Mapping[int, str]) -> None:
        """Says which round is not complete.

        Args:
            round_index: the round.
            absent: whose uploads did not come, with the reasons.
        """
        self.round_index = round_index
        self.absent = dict(absent)
        who = "; ".join(f"client {client}: {reason}" for client, reason in absent.items())
        super().__init__(
            f"round {round_index + 1} is not complete. {who}."
            " Go on with `sordino resume` when they are back."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.round_index, self.absent)


class HidesTooLittle(Exception):
    """A round's model is not made: without the absent clients' noise it would pass the budget."""


class TrainingStore(Interface):
    """Where a training is kept: a run folder, or memory."""

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Takes the metrics of a round.

        Args:
            row: the metrics of the round.
        """

    def save_checkpoint(self, state: State) -> None:
        """Takes the state after a round.

        Args:
            state: the state after the round.
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
            round: the round.
            clients: those that take part.
        """

    def note_missing(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Takes the clients that contributed nothing to a round that was paid for, and why.

        Args:
            round: the round.
            reasons: why each missing client is missing.
        """


class RecordArchive(Interface):
    """Keeps the uploads of some rounds."""

    def wants(self, round_index: int) -> bool:
        """Returns whether the uploads of a round are kept.

        Args:
            round_index: the round.
        """

    def store(self, record: RoundRecord) -> None:
        """Keeps the uploads of an observed round.

        Args:
            record: the round as it was played.
        """


class NoArchive:
    """Keeps no uploads."""

    def wants(self, round_index: int) -> bool:
        """Returns False.

        Args:
            round_index: the round.
        """
        return False

    def store(self, record: RoundRecord) -> None:
        """Does nothing.

        Args:
            record: the round as it was played.
        """


class EveryRecord:
    """Observes every round and hands its record on, for observers of a training."""

    def __init__(self, on_record: Callable[[RoundRecord], None]) -> None:
        """Begins to watch.

        Args:
            on_record: called with the record of every round.
        """
        self._on_record = on_record

    def wants(self, round_index: int) -> bool:
        """Returns True.

        Args:
            round_index: the round.
        """
        return True

    def store(self, record: RoundRecord) -> None:
        """Hands the record on.

        Args:
            record: the round as it was played.
        """
        self._on_record(record)


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """The record of a round.

    `clip_fraction` and `nonfinite_steps` come from clients' private data and are not covered by
    any guarantee.

    Attributes:
        round: its number, from 0.
        participants: how many clients contributed.
        loss: on the test records (`Setup.tested_on`), None where not asked for.
        accuracy: on the test records, None where not asked for.
        signal_to_noise: see `signal_to_noise`.
        bytes_up: all uploads together.
        bytes_down: all models that were sent to clients.
        clip_fraction: the share of gradients that were clipped.
        nonfinite_steps: gradients that were not finite and counted as zero.
        seconds: how long the round took.
        status: "ok" or "diverged".
    """

    round: int
    participants: int
    loss: float | None
    accuracy: float | None
    signal_to_noise: float | None
    bytes_up: int
    bytes_down: int
    clip_fraction: float | None
    nonfinite_steps: int
    seconds: float
    status: str

    @property
    def short(self) -> bool:
        """Whether someone who was asked contributed nothing: less came up than went down."""
        return self.bytes_up < self.bytes_down


def ignore_metrics(metrics: RoundMetrics) -> None:
    """Does nothing with the metrics of a round.

    Args:
        metrics: the metrics of a round.
    """


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a training is watched, whatever it trains.

    Attributes:
        evaluate_every: rounds between two scorings; 0 for none.
        on_round: called with the metrics of every round.
        archive: keeps the uploads of some rounds.
    """

    evaluate_every: int = 0
    on_round: Callable[[RoundMetrics], None] = ignore_metrics
    archive: RecordArchive = NoArchive()


class Training:
    """A training under way, whichever engine does the local work.

    It holds the present state. `next_round` and `finish_round` take turns until it has ended;
    between the two the round is played. Several trainings may begin a round before the first
    finishes it, so that their clients can be trained together.

    Attributes:
        setup: the federation.
        state: after the last round.
        status: "unfinished", and in the end "finished", "diverged" or "budget".
    """

    def __init__(
        self,
        setup: Setup,
        store: TrainingStore,
        ledger: ChargeLog,
        state: State,
        *,
        limits: Limits,
        options: TrainingOptions,
    ) -> None:
        """Takes up a training.

        Args:
            setup: the federation.
            store: where it is kept.
            ledger: is charged before every round.
            state: where it goes on.
            limits: how far it may go.
            options: how it is watched.
        """
        self.setup = setup
        self.state = state
        self.status = "unfinished"
        self._store = store
        self._ledger = ledger
        self._limits = limits
        self._options = options
        self._attendance = Attendance(limits.caps, ledger.events, state.round)
        # Noise that cannot be repeated makes a repeated round cost again, so there every round is
        # kept.
        self._checkpoints = CheckpointPolicy(store, every_round=setup.protocol.noise.secure)
        # Whether anyone has ever fallen silent.
        self._short = len(find_missing_clients(ledger.events)) > 0
        self._absent: Callable[[], Mapping[int, str]] = dict
        self._started = time.perf_counter()
        self._note_end()

    def run(self, engine: ScoringEngine) -> None:
        """Plays the rounds that are left, all of them by one engine.

        Args:
            engine: what trains the clients.
        """
        try:
            while self.status == "unfinished":
                self._run_round(engine)
        except KeyboardInterrupt:
            self.save()
            raise

    def _run_round(self, engine: ScoringEngine) -> None:
        """Plays one round, a few times if the protocol says so and uploads are missing."""
        self._absent = lambda: engine.absent
        # Fresh noise pays for every try. Where there are budgets it is left to `resume`, which asks
        # them what they still afford.
        protocol = self.setup.protocol
        budgeted = protocol.privacy.budget is not None or len(self._limits.caps) > 0
        tries = 1 if protocol.noise.secure and budgeted else TRIES
        for left in reversed(range(tries)):
            try:
                record = play_round(self.next_round(), engine)
            except HidesTooLittle as stop:
                self._store.note(reason=str(stop))
                self.status = "budget"
                return
            except Incomplete:
                if left == 0:
                    raise
                continue
            self.finish_round(record, engine.score)
            return

    def next_round(self) -> Round:
        """Returns the round that comes next, to be played."""
        self._started = time.perf_counter()
        return Round(
            self.setup,
            self.state,
            self._attendance,
            control=self,
            observed=self._options.archive.wants(self.state.round),
        )

    def charge(self, round_index: int, participants: np.ndarray) -> None:
        """Pays for a round: the line is on disk when this returns.

        Args:
            round_index: the round.
            participants: the clients of the round.
        """
        with writing(self._ledger.path):
            self._ledger.charge(round=round_index, clients=participants)

    def confirm(self, task: RoundTask) -> np.ndarray:
        """Returns the participants that contribute, and notes the others.

        Args:
            task: the round's work.

        Raises:
            Incomplete: the protocol repeats a round from which uploads are missing, or all are.
            HidesTooLittle: the budget does not allow what would be made of the others' uploads.
        """
        absent = self._absent()
        if not absent and not self._short:
            return task.participants
        present = without_absent(self.setup, self._ledger, task, absent)
        self._short = True
        return present

    def finish_round(self, record: RoundRecord, score: Callable[[np.ndarray], Score]) -> None:
        """Scores, notes and keeps what a round has made.

        Args:
            record: what happened in the round.
            score: scores a model on the test records.
        """
        round_index = record.task.round_index
        if self._options.archive.wants(round_index):
            self._options.archive.store(record)
        scored = None
        if is_evaluated(round_index, self._limits.rounds, self._options.evaluate_every):
            scored = score
        metrics = measure_round(self.setup, record, scored, self._started)
        self._store.append_metrics(vars(metrics))
        self._options.on_round(metrics)
        if metrics.status == "diverged":
            self.status = "diverged"
            return
        self.state = record.after
        self._checkpoints.save(self.state, last=self.state.round == self._limits.rounds)
        self._note_end()

    def save(self) -> None:
        """Writes the present state, because the training is interrupted."""
        self._checkpoints.save(self.state, last=True)

    def _note_end(self) -> None:
        if self.state.round < self._limits.rounds:
            return
        self.status = "budget"
        if self.state.round == self.setup.protocol.rounds:
            self.status = "finished"


def measure_round(
    setup: Setup,
    record: RoundRecord,
    score: Callable[[np.ndarray], Score] | None,
    started: float,
) -> RoundMetrics:
    """Returns the record of a round.

    Args:
        setup: the federation.
        record: what happened in the round.
        score: scores its model; None where it is not scored.
        started: when the round began, by `time.perf_counter`.
    """
    weights = record.after.weights
    loss = None
    accuracy = None
    ratio = None
    status = "diverged"
    if bool(np.isfinite(weights).all()):
        status = "ok"
        before = record.before.weights
        # The joined update: what the server makes of it brings in earlier moves and their noise.
        ratio = signal_to_noise(setup.protocol, before, record.joined, len(record.present))
        if score is not None:
            # Scores are exact: only on public records (setup.tested_on) do they tell nothing
            # about anybody.
            scored = score(weights)
            loss = finite(scored.loss / scored.count)
            if setup.classification:
                accuracy = scored.correct / scored.count
    clip_fraction = None
    if record.steps.clips > 0:
        clip_fraction = record.steps.clipped / record.steps.clips
    return RoundMetrics(
        round=record.task.round_index,
        participants=len(record.present),
        loss=loss,
        accuracy=accuracy,
        signal_to_noise=ratio,
        bytes_up=len(record.present) * weights.nbytes,
        bytes_down=len(record.task.participants) * weights.nbytes,
        clip_fraction=clip_fraction,
        nonfinite_steps=record.steps.nonfinite,
        seconds=time.perf_counter() - started,
        status=status,
    )


def without_absent(
    setup: Setup, ledger: ChargeLog, task: RoundTask, absent: Mapping[int, str]
) -> np.ndarray:
    """Returns the participants that contribute, and notes the others in the ledger.

    What the noise of those who contribute still hides is held against the budget.

    Args:
        setup: the federation.
        ledger: of the training.
        task: what clients were asked to do.
        absent: whose uploads do not come, with the reasons.

    Raises:
        Incomplete: the protocol repeats such a round, or nobody contributed to it.
        HidesTooLittle: the budget does not allow what would be made of the others' uploads.
    """
    # A round in which nobody contributes is no round: a run of such would end with its first model.
    alone = len(absent) == len(task.participants)
    if absent and (setup.protocol.missing == "repeat" or alone):
        raise Incomplete(task.round_index, absent)
    events = list(ledger.events)
    if absent:
        events.append(
            Missed(round=task.round_index, clients=tuple(absent), reasons=tuple(absent.values()))
        )
    refuse_hiding_too_little(setup, events, task.round_index)
    if not absent:
        return task.participants
    with writing(ledger.path):
        ledger.note_missing(round=task.round_index, reasons=absent)
    contributed = [int(client) not in absent for client in task.participants]
    return task.participants[contributed]


def refuse_hiding_too_little(setup: Setup, events: Sequence[Event], round_index: int) -> None:
    """Holds what a run promises with the clients that fell silent against its budget.

    Args:
        setup: the federation.
        events: what the ledger says, and the clients absent now.
        round_index: the round.

    Raises:
        HidesTooLittle: the budget would be passed.
    """
    budget = setup.protocol.privacy.budget
    if budget is None:
        return
    found = certify_run(
        setup.protocol,
        events,
        budget.view,
        budget.unit,
        delta=budget.delta,
        sizes=setup.sizes.tolist(),
    )
    if found.epsilon(budget.delta) > budget.epsilon:
        raise HidesTooLittle(
            f"clients fell silent, and with the noise of those who were left the model of round"
            f" {round_index + 1} would have passed the budget (epsilon = {budget.epsilon:g} at"
            f" delta = {budget.delta:g}, view {budget.view}). It was not made."
        )


def is_evaluated(round_index: int, rounds: int, every: int) -> bool:
    """Returns whether a round's model is scored.

    Args:
        round_index: the round.
        rounds: how many there are; the last is always scored.
        every: rounds between two scorings; 0 for none.
    """
    return every > 0 and ((round_index + 1) % every == 0 or round_index + 1 == rounds)


def finite(value: float) -> float | None:
    """Returns the value, or None where it overflowed.

    Args:
        value: any number.
    """
    return value if math.isfinite(value) else None


def signal_to_noise(
    protocol: Protocol, before: np.ndarray, after: np.ndarray, uploads: int
) -> float | None:
    """Estimates the norm of the noiseless move of a model over that of the noise in it.

    Only released values are used. The squared norm of the move has the expectation
    signal^2 + d noise^2, so the signal is the rest after taking the noise out.

    Args:
        protocol: the protocol.
        before: the global model before the round.
        after: what the uploads were joined to.
        uploads: how many were joined.

    Returns:
        The ratio; None where the noise of a move is not known.
    """
    rule = protocol.aggregation
    known = rule.averages and not rule.weighs_records and protocol.assumptions.diameter is None
    if not known or uploads == 0 or protocol.release.in_steps:
        return None
    noise = rule.mixing * mean_deviation(protocol, uploads) * math.sqrt(before.size)
    if noise == 0:
        return math.inf
    move = float(np.linalg.norm((after - before).astype(np.float64)))
    return math.sqrt(max(0.0, move**2 - noise**2)) / noise


class CheckpointPolicy:
    """Decides when a state is worth a checkpoint.

    It remembers when the last one was written and how long that took.
    """

    def __init__(self, store: TrainingStore, *, every_round: bool) -> None:
        """Begins without a checkpoint.

        Args:
            store: where checkpoints go.
            every_round: whether every state is written, however long that takes.
        """
        self._store = store
        self._every_round = every_round
        self._cost = 0.0
        self._written = time.monotonic()

    def save(self, state: State, *, last: bool) -> None:
        """Writes the state, unless that would cost more than a twentieth of the time.

        Args:
            state: after a round.
            last: whether it is the last one, which is always written.
        """
        started = time.monotonic()
        if last or self._every_round or started - self._written >= 20 * self._cost:
            self._store.save_checkpoint(state)
            self._written = time.monotonic()
            self._cost = self._written - started
