"""The rounds of a training, with what surrounds them: ledger, budget, scores, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol as Interface

import numpy as np

from sordino.federation.attendance import Attendance
from sordino.federation.client import Score
from sordino.federation.own_models import OwnModelScorer, has_own_scores
from sordino.federation.round import Engine, Round, RoundRecord, RoundTask, play_round
from sordino.federation.round_metrics import (
    RoundMetrics,
    ignore_metrics,
    is_evaluated,
    measure_round,
    with_own_scores,
)
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.federation.store.files import writing
from sordino.federation.training_stores import ChargeLog, NoArchive, RecordArchive, TrainingStore
from sordino.privacy.guarantee import format_delta
from sordino.privacy.ledger_lines import Event, Missed
from sordino.privacy.spending import certify_run, find_missing_clients
from sordino.protocol import SordinoError

# How often a round is asked for, where the protocol repeats rounds from which uploads are missing.
TRIES = 3


@dataclass(frozen=True, kw_only=True)
class TrainingLimits:
    """How far budgets let a run go.

    Attributes:
        rounds: How many rounds in all.
        caps: For some clients, how often each may take part.
    """

    rounds: int
    caps: Mapping[int, int]


class ScoringEngine(Engine, Interface):
    """Executes the local work of rounds, and scores their models."""

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model on the test records; `Setup.tested_on` says whose they are.

        Args:
            weights: The model.
        """


class Incomplete(SordinoError):
    """Uploads are missing in a protocol that repeats such rounds; those that came are not used."""

    def __init__(self, round_index: int, absent: Mapping[int, str]) -> None:
        """Says which round is not complete.

        Args:
            round_index: Number of the round, from 0.
            absent: Whose uploads did not come, with the reasons.
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


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a training is watched, whatever it trains.

    Attributes:
        evaluate_every: Rounds between two scorings; 0 for none.
        on_round: Called with the metrics of every round.
        archive: Keeps the uploads of some rounds.
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
        setup: The federation.
        state: After the last round.
        status: "unfinished", and in the end "finished", "diverged" or "budget".
    """

    def __init__(
        self,
        setup: Setup,
        store: TrainingStore,
        ledger: ChargeLog,
        state: State,
        *,
        limits: TrainingLimits,
        options: TrainingOptions,
    ) -> None:
        """Takes up a training.

        Args:
            setup: The federation.
            store: Where it is kept.
            ledger: Is charged before every round.
            state: Where it continues.
            limits: How far it may go.
            options: How it is watched.
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
        self._own_models = None
        if options.evaluate_every > 0 and has_own_scores(setup):
            self._own_models = OwnModelScorer(setup)
        self._note_end()

    def run(self, engine: ScoringEngine) -> None:
        """Plays the rounds that are left, all of them by one engine.

        Args:
            engine: What trains the clients.
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
            round_index: Number of the round, from 0.
            participants: The clients of the round.
        """
        with writing(self._ledger.path):
            self._ledger.charge(round=round_index, clients=participants)

    def confirm(self, task: RoundTask) -> np.ndarray:
        """Returns the participants that contribute, and notes the others.

        Args:
            task: The round's work.

        Raises:
            Incomplete: The protocol repeats a round from which uploads are missing, or all are.
            HidesTooLittle: The budget does not allow what would be made of the others' uploads.
        """
        absent = self._absent()
        if not absent and not self._short:
            return task.participants
        present = drop_absent(self.setup, self._ledger, task, absent)
        self._short = True
        return present

    def finish_round(self, record: RoundRecord, score: Callable[[np.ndarray], Score]) -> None:
        """Scores, notes and keeps what a round has made.

        Args:
            record: What happened in the round.
            score: Scores a model on the test records.
        """
        round_index = record.task.round_index
        if self._options.archive.wants(round_index):
            self._options.archive.store(record)
        scored = None
        if is_evaluated(round_index, self._limits.rounds, self._options.evaluate_every):
            scored = score
        metrics = measure_round(self.setup, record, scored, self._started)
        if scored is not None and self._own_models is not None and metrics.status == "ok":
            metrics = with_own_scores(metrics, self._own_models.score(record.after))
        self._store.append_metrics(metrics.as_row())
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


def drop_absent(
    setup: Setup, ledger: ChargeLog, task: RoundTask, absent: Mapping[int, str]
) -> np.ndarray:
    """Returns the participants that contribute, and notes the others in the ledger.

    What the noise of those who contribute still hides is held against the budget.

    Args:
        setup: The federation.
        ledger: Ledger of the training.
        task: What clients were asked to do.
        absent: Whose uploads do not come, with the reasons.

    Raises:
        Incomplete: The protocol repeats such a round, or nobody contributed to it.
        HidesTooLittle: The budget does not allow what would be made of the others' uploads.
    """
    # A round in which nobody contributes is not a round: a run of such would end with its first
    # model.
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
        setup: The federation.
        events: What the ledger says, and the clients absent now.
        round_index: Number of the round, from 0.

    Raises:
        HidesTooLittle: The budget would be passed.
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
            f" delta = {format_delta(budget.delta)}, view {budget.view}). It was not made."
        )


class CheckpointPolicy:
    """Decides when a state is worth a checkpoint.

    It remembers when the last one was written and how long that took.
    """

    def __init__(self, store: TrainingStore, *, every_round: bool) -> None:
        """Begins without a checkpoint.

        Args:
            store: Where checkpoints go.
            every_round: Whether every state is written, however long that takes.
        """
        self._store = store
        self._every_round = every_round
        self._cost = 0.0
        self._written = time.monotonic()

    def save(self, state: State, *, last: bool) -> None:
        """Writes the state, unless that would cost more than a twentieth of the time.

        Args:
            state: After a round.
            last: Whether it is the last one, which is always written.
        """
        started = time.monotonic()
        if last or self._every_round or started - self._written >= 20 * self._cost:
            self._store.save_checkpoint(state)
            self._written = time.monotonic()
            self._cost = self._written - started
