"""The rounds of a training, one after another: draw, charge, train, aggregate, record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from typing import Protocol as Interface

import numpy as np

from sordino.federation.assignment import Upload
from sordino.federation.client import Score
from sordino.federation.companions import Companion, companion_of
from sordino.federation.exchange import received
from sordino.federation.folder import State
from sordino.federation.mechanisms import mean_deviation
from sordino.federation.participation import Attendance, participants
from sordino.federation.personal import Kept, given_to
from sordino.federation.setup import Setup
from sordino.federation.storage import writing
from sordino.federation.uploads import Witness, unwitnessed
from sordino.privacy.ledger import Event, Missed
from sordino.privacy.spending import missed_in, promised
from sordino.protocol import Mean, NoisySgd, Protocol, SordinoError

TRIES = 3  # how often a round is asked for, where the protocol repeats rounds from which uploads are missing
NOBODY: Mapping[int, str] = MappingProxyType({})  # is absent: simulated clients always answer


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far budgets let a run go: `rounds` in all, and for some clients how often each may take part."""

    rounds: int
    caps: Mapping[int, int]


class Engine(Interface):
    """Who executes the local work."""

    def uploads(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants; `kept` is what clients have kept, where they keep anything."""

    @property
    def absent(self) -> Mapping[int, str]:
        """The participants of the last round that was asked for whose uploads do not come, each with the reason."""

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model on the test records; `Setup.tested_on` says whose they are."""


class Incomplete(SordinoError):
    """Uploads did not come, in a protocol that repeats such rounds; nothing was made of those that did."""

    def __init__(self, round: int, absent: Mapping[int, str]) -> None:
        self.round, self.absent = round, dict(absent)
        who = "; ".join(f"client {client}: {reason}" for client, reason in absent.items())
        super().__init__(
            f"round {round + 1} is not complete. {who}. Go on with `sordino resume` when they are back."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.round, self.absent)


class HidesTooLittle(Exception):
    """With the clients that fell silent, the model of a round would pass the budget; it is not made."""


class Keeping(Interface):
    """Where a training is kept: a run folder, or memory."""

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Take the metrics of a round."""

    def save_checkpoint(self, state: State) -> None:
        """Take the state after a round."""

    def note(self, **facts: Any) -> None:
        """Take what is to be known of the training besides."""


class Charges(Interface):
    """Who is told what is spent, before it is: a ledger on disk, or memory."""

    path: Path

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries so far."""

    def charge(self, *, round: int, clients: Iterable[int]) -> None:
        """Pay for a round."""

    def miss(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Take who contributed nothing to a round that was paid for, and why."""


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """What is recorded of a round. `loss` and `accuracy` are of the test records (`Setup.tested_on`), None where not asked for.

    `participants` counts who contributed. `clip_fraction` and `nonfinite_steps` come from clients' private data and are not covered by
    any guarantee.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A round as an engine gets it, in the words of `Engine.uploads`."""

    round: int
    weights: np.ndarray
    participants: np.ndarray
    kept: Mapping[int, Kept] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Opening(Task):
    """A round that has been paid for, and what the server needs to close it."""

    companion: Companion
    started: float


class Training:
    """A training under way, whoever does the local work. It holds the present state; `open` and `close` take turns until it has ended.

    Between the two the participants train. Several trainings may be opened before the first is closed, so that their clients can be
    trained together.

    Attributes:
        state: after the last round.
        status: "unfinished", and in the end "finished", "diverged" or "budget".
    """

    def __init__(
        self,
        setup: Setup,
        folder: Keeping,
        ledger: Charges,
        state: State,
        *,
        limits: Limits,
        evaluate_every: int,
        on_round: Callable[[RoundMetrics], None],
        witness: Witness = unwitnessed,
    ) -> None:
        self.setup, self.state, self.status = setup, state, "unfinished"
        self._folder, self._ledger, self._limits, self._every, self._on_round = (
            folder,
            ledger,
            limits,
            evaluate_every,
            on_round,
        )
        self._witness = witness
        self._short = len(missed_in(ledger.events)) > 0  # whether anyone has ever fallen silent
        self._keeper = Keeper(folder, every_round=setup.protocol.noise.secure)
        self._attendance = Attendance(limits.caps, ledger.events, state.round)
        self._note_end()

    def open(self) -> Opening:
        """Begin a round: who takes part is drawn, and paid for."""
        setup, state, protocol = self.setup, self.state, self.setup.protocol
        started = time.perf_counter()
        # Who takes part is drawn independently of all data; clients whose own budget is spent stay away.
        drawn = participants(
            protocol, round=state.round, key=setup.draw_key, training=setup.training
        )
        chosen = self._attendance.admit(drawn, round=state.round)
        # Charge, then release: the line is on disk before any upload exists.
        with writing(self._ledger.path):
            self._ledger.charge(round=state.round, clients=chosen)
        companion = companion_of(protocol, state)
        return Opening(
            round=state.round,
            weights=companion.broadcast(state.weights),
            participants=chosen,
            kept=given_to(protocol, state.weights, chosen, state.clients),
            companion=companion,
            started=started,
        )

    def close(
        self,
        opened: Opening,
        uploads: Iterator[Upload],
        score: Callable[[np.ndarray], Score],
        absent: Mapping[int, str] = NOBODY,
    ) -> None:
        """End a round: its uploads become the next model, which is scored, noted and kept.

        Raises:
            Incomplete: participants are absent, and the protocol repeats such a round; or all are.
        """
        present = opened.participants
        if absent or self._short:
            try:
                present = without_absent(self.setup, self._ledger, opened, absent)
            except HidesTooLittle as stop:
                self._folder.note(reason=str(stop))
                self.status = "budget"
                return
            self._short = True
        scored = is_evaluated(self.state.round, self._limits.rounds, self._every)
        after, metrics = joined_round(
            self.setup,
            self.state,
            opened,
            present,
            uploads,
            score if scored else None,
            self._witness,
        )
        self._folder.append_metrics(vars(metrics))
        self._on_round(metrics)
        if metrics.status == "diverged":
            self.status = "diverged"
            return
        self.state = after
        self._keeper.keep(self.state, last=self.state.round == self._limits.rounds)
        self._note_end()

    def run(self, engine: Engine) -> None:
        """Run the rounds that are left, all of them by one engine."""
        try:
            while self.status == "unfinished":
                self._run_round(engine)
        except KeyboardInterrupt:
            self.keep()
            raise

    def _run_round(self, engine: Engine) -> None:
        """One round, repeated a few times if the protocol says so and uploads are missing.

        Fresh noise pays for every try. Where there are budgets it is left to `resume`, which asks them what they still afford.
        """
        budgeted = self.setup.protocol.privacy.budget is not None or len(self._limits.caps) > 0
        for left in reversed(range(1 if self.setup.protocol.noise.secure and budgeted else TRIES)):
            now = self.open()
            uploads = engine.uploads(
                round=now.round, weights=now.weights, participants=now.participants, kept=now.kept
            )
            try:
                self.close(now, uploads, engine.score, engine.absent)
                return
            except Incomplete:
                if left == 0:
                    raise

    def keep(self) -> None:
        """Write the present state, because the training is interrupted."""
        self._keeper.keep(self.state, last=True)

    def _note_end(self) -> None:
        if self.state.round >= self._limits.rounds:
            self.status = "finished" if self.state.round == self.setup.protocol.rounds else "budget"


def run_rounds(
    setup: Setup,
    engine: Engine,
    folder: Keeping,
    ledger: Charges,
    state: State,
    *,
    limits: Limits,
    evaluate_every: int,
    on_round: Callable[[RoundMetrics], None],
    witness: Witness = unwitnessed,
) -> tuple[State, str]:
    """Run the rounds that are left. Returns the last state and how the run ended: "finished", "diverged" or "budget"."""
    training = Training(
        setup,
        folder,
        ledger,
        state,
        limits=limits,
        evaluate_every=evaluate_every,
        on_round=on_round,
        witness=witness,
    )
    training.run(engine)
    return training.state, training.status


def joined_round(
    setup: Setup,
    state: State,
    opened: Opening,
    present: np.ndarray,
    trained: Iterator[Upload],
    score: Callable[[np.ndarray], Score] | None,
    witness: Witness = unwitnessed,
) -> tuple[State, RoundMetrics]:
    """What becomes of the uploads of a round, which those present have made: the next state, and what is recorded."""
    protocol = setup.protocol
    after, tally = received(setup, state, present, opened.companion, trained, witness)
    weights = after.weights
    # Scores are exact: only on public records (setup.tested_on) do they tell nothing about anybody.
    diverged = not bool(np.isfinite(weights).all())
    scored = score(weights) if score is not None and not diverged else None
    return after, RoundMetrics(
        round=state.round,
        participants=len(present),
        loss=finite(scored.loss / scored.count) if scored is not None else None,
        accuracy=scored.correct / scored.count
        if scored is not None and setup.classification
        else None,
        signal_to_noise=None
        if diverged
        else signal_to_noise(protocol, state.weights, weights, len(present)),
        bytes_up=len(present) * weights.nbytes,
        bytes_down=len(opened.participants) * weights.nbytes,
        clip_fraction=tally.clipped / tally.clips if tally.clips > 0 else None,
        nonfinite_steps=tally.nonfinite,
        seconds=time.perf_counter() - opened.started,
        status="diverged" if diverged else "ok",
    )


def without_absent(
    setup: Setup, ledger: Charges, opened: Opening, absent: Mapping[int, str]
) -> np.ndarray:
    """The participants that contribute. Who does not is noted, and what the others' noise still hides is held against the budget.

    Raises:
        Incomplete: the protocol repeats such a round, or nobody contributed to it.
        HidesTooLittle: the budget does not allow what would be made of the others' uploads.
    """
    # A round in which nobody contributes is no round: a run of such would end with its first model.
    alone = len(absent) == len(opened.participants)
    if absent and (setup.protocol.missing == "repeat" or alone):
        raise Incomplete(opened.round, absent)
    short = (
        [Missed(round=opened.round, clients=tuple(absent), reasons=tuple(absent.values()))]
        if absent
        else []
    )
    refuse_hiding_too_little(setup, [*ledger.events, *short], opened.round)
    if not absent:
        return opened.participants
    with writing(ledger.path):
        ledger.miss(round=opened.round, reasons=absent)
    return opened.participants[[int(client) not in absent for client in opened.participants]]


def refuse_hiding_too_little(setup: Setup, events: Sequence[Event], round: int) -> None:
    """Hold what a run promises with the clients that fell silent against its budget."""
    budget = setup.protocol.privacy.budget
    if budget is None:
        return
    found = promised(
        setup.protocol,
        events,
        budget.view,
        budget.unit,
        delta=budget.delta,
        sizes=setup.sizes.tolist(),
    )
    if found.epsilon(budget.delta) > budget.epsilon:
        raise HidesTooLittle(
            f"clients fell silent, and with the noise of those who were left the model of round {round + 1} would have passed the "
            f"budget (epsilon = {budget.epsilon:g} at delta = {budget.delta:g}, view {budget.view}). It was not made."
        )


def is_evaluated(round: int, rounds: int, every: int) -> bool:
    """Whether a round's model is scored: every so many rounds, and the last one always; never for 0."""
    return every > 0 and ((round + 1) % every == 0 or round + 1 == rounds)


def finite(value: float) -> float | None:
    """The value, or None where it overflowed."""
    return value if math.isfinite(value) else None


def signal_to_noise(
    protocol: Protocol, before: np.ndarray, after: np.ndarray, uploads: int
) -> float | None:
    """Estimated norm of the noiseless move of the model over the expected norm of the noise in it, from released values only.

    The squared norm of the move has the expectation signal^2 + d noise^2, so the signal is what is left after taking the noise out.
    """
    plain = (
        isinstance(protocol.aggregation, Mean)
        and protocol.aggregation.weights == "equal"
        and protocol.assumptions.diameter is None
    )
    if (
        not plain
        or not isinstance(protocol.aggregation, Mean)
        or uploads == 0
        or isinstance(protocol.local, NoisySgd)
    ):
        return None
    noise = protocol.aggregation.mixing * mean_deviation(protocol, uploads) * math.sqrt(before.size)
    if noise == 0:
        return math.inf
    move = float(np.linalg.norm((after - before).astype(np.float64)))
    return math.sqrt(max(0.0, move**2 - noise**2)) / noise


class Keeper:
    """Decides when a state is worth a checkpoint. It remembers when the last one was written and how long that took."""

    def __init__(self, folder: Keeping, *, every_round: bool) -> None:
        # Noise that cannot be repeated makes a repeated round cost again, so there every round is kept.
        self._folder, self._every_round = folder, every_round
        self._cost, self._written = 0.0, time.monotonic()

    def keep(self, state: State, *, last: bool) -> None:
        """Write the state, unless the last checkpoint is so young that writing would cost more than a twentieth of the time."""
        started = time.monotonic()
        if last or self._every_round or started - self._written >= 20 * self._cost:
            self._folder.save_checkpoint(state)
            self._written = time.monotonic()
            self._cost = self._written - started
