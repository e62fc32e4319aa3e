"""The rounds of a training, one after another: draw, charge, train, aggregate, record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol as Interface

import numpy as np

from sordino.federation.aggregation import aggregate, projected, upload_weights
from sordino.federation.channel import delivered
from sordino.federation.client import Score, Upload
from sordino.federation.companions import companion_of
from sordino.federation.folder import RunFolder, State
from sordino.federation.mechanisms import mean_deviation, server_noise
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import module_loss
from sordino.federation.participation import Attendance, participants
from sordino.federation.personal import Kept, given_to, remembered
from sordino.federation.randomness import Purpose
from sordino.federation.setup import Setup
from sordino.federation.storage import writing
from sordino.privacy.ledger import Ledger, Missed
from sordino.privacy.spending import missed_in, promised
from sordino.protocol import Mean, ModeConnectivity, NoisySgd, Protocol, SordinoError

TRIES = 3  # how often a round is asked for, where the protocol repeats rounds from which uploads are missing


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far budgets let a run go: `rounds` in all, and for some clients how often each may take part."""

    rounds: int
    caps: Mapping[int, int]


class Engine(Interface):
    """Who executes the local work."""

    def uploads(
        self, *, round: int, weights: np.ndarray, participants: np.ndarray, kept: Mapping[int, Kept] | None = None
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants; `kept` is what clients have kept, where they keep anything."""

    @property
    def absent(self) -> Mapping[int, str]:
        """The participants of the last round that was asked for whose uploads do not come, each with the reason."""

    def score(self, weights: np.ndarray) -> Score:
        """Score a model on the public test records."""


class Incomplete(SordinoError):
    """Uploads did not come, in a protocol that repeats such rounds; nothing was made of those that did."""

    def __init__(self, round: int, absent: Mapping[int, str]) -> None:
        self.round, self.absent = round, dict(absent)
        who = "; ".join(f"client {client}: {reason}" for client, reason in absent.items())
        super().__init__(f"round {round + 1} is not complete. {who}. Go on with `sordino resume` when they are back.")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.round, self.absent)


class HidesTooLittle(Exception):
    """With the clients that fell silent, the model of a round would pass the budget; it is not made."""


@dataclass(frozen=True, kw_only=True)
class RoundMetrics:
    """What is recorded of a round. `loss` and `accuracy` are of the public test records, None where they were not asked for.

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


@dataclass
class Tally:
    """Counts over the uploads of one round, filled while they stream by."""

    clipped: int = 0
    clips: int = 0
    nonfinite: int = 0
    kept: dict[int, Kept] = field(default_factory=dict)

    def counted(self, uploads: Iterator[Upload], protocol: Protocol) -> Iterator[np.ndarray]:
        """Pass the vectors on, count, and put aside what clients keep."""
        for upload in uploads:
            if upload.kept is not None:
                self.kept[upload.client] = remembered(protocol, upload.kept, upload.vector)
            self.clipped += upload.steps.clipped
            self.clips += upload.steps.clips
            self.nonfinite += upload.steps.nonfinite
            yield upload.vector


def run_rounds(
    setup: Setup,
    engine: Engine,
    folder: RunFolder,
    ledger: Ledger,
    state: State,
    *,
    limits: Limits,
    evaluate_every: int,
    on_round: Callable[[RoundMetrics], None],
) -> tuple[State, str]:
    """Run the rounds that are left. Returns the last state and how the run ended: "finished", "diverged" or "budget"."""
    protocol = setup.protocol
    keeper = Keeper(folder, every_round=protocol.noise.secure)
    attendance = Attendance(limits.caps, ledger.events, state.round)
    try:
        while state.round < limits.rounds:
            evaluate = is_evaluated(state.round, limits.rounds, evaluate_every)
            try:
                after, metrics = complete_round(setup, engine, ledger, state, attendance, evaluate=evaluate)
            except HidesTooLittle as stop:
                folder.note(reason=str(stop))
                return state, "budget"
            folder.append_metrics(asdict(metrics))
            on_round(metrics)
            if metrics.status == "diverged":
                return state, "diverged"
            state = after
            keeper.keep(state, last=state.round == limits.rounds)
    except KeyboardInterrupt:
        keeper.keep(state, last=True)
        raise
    return state, "finished" if state.round == protocol.rounds else "budget"


def complete_round(
    setup: Setup, engine: Engine, ledger: Ledger, state: State, attendance: Attendance, *, evaluate: bool
) -> tuple[State, RoundMetrics]:
    """One round of the federation, repeated a few times if the protocol says so and uploads are missing.

    Raises:
        Incomplete: they are missing still.
    """
    for _ in range(TRIES - 1):
        try:
            return one_round(setup, engine, ledger, state, attendance, evaluate=evaluate)
        except Incomplete:
            continue
    return one_round(setup, engine, ledger, state, attendance, evaluate=evaluate)


def one_round(
    setup: Setup, engine: Engine, ledger: Ledger, state: State, attendance: Attendance, *, evaluate: bool
) -> tuple[State, RoundMetrics]:
    """One round of the federation."""
    started = time.perf_counter()
    protocol, t = setup.protocol, state.round
    # Who takes part is drawn independently of all data; clients whose own budget is spent stay away.
    chosen = attendance.admit(participants(protocol, round=t, key=setup.draw_key, training=setup.training))
    # Charge, then release: the line is on disk before any upload exists.
    with writing(ledger.path):
        ledger.charge(round=t, clients=chosen)
    # Clients train and upload; the server reads the uploads in the order of the clients.
    tally, companion = Tally(), companion_of(protocol, state)
    kept = given_to(protocol, state.weights, chosen, state.clients)
    trained = engine.uploads(round=t, weights=companion.broadcast(state.weights), participants=chosen, kept=kept)
    present = without_absent(setup, ledger, chosen, engine.absent, round=t)
    sent = tally.counted(companion.noted(trained), protocol)
    uploads = delivered(protocol.channel, sent, setup.draw_key.stream(Purpose.SHUFFLER, training=setup.training, round=t))
    weights = next_model(setup, state.weights, uploads, present, round=t)
    # The new model is scored on public records.
    diverged = not bool(np.isfinite(weights).all())
    score = engine.score(weights) if evaluate and not diverged else None
    own = {**state.clients, **tally.kept}
    return State(weights=weights, round=t + 1, kept=companion.kept, clients=own), RoundMetrics(
        round=t,
        participants=len(present),
        loss=finite(score.loss / score.count) if score is not None else None,
        accuracy=score.correct / score.count if score is not None and setup.classification else None,
        signal_to_noise=None if diverged else signal_to_noise(protocol, state.weights, weights, len(present)),
        bytes_up=len(present) * weights.nbytes,
        bytes_down=len(chosen) * weights.nbytes,
        clip_fraction=tally.clipped / tally.clips if tally.clips > 0 else None,
        nonfinite_steps=tally.nonfinite,
        seconds=time.perf_counter() - started,
        status="diverged" if diverged else "ok",
    )


def without_absent(setup: Setup, ledger: Ledger, chosen: np.ndarray, absent: Mapping[int, str], *, round: int) -> np.ndarray:
    """The participants that contribute. Who does not is noted, and what the others' noise still hides is held against the budget.

    Raises:
        Incomplete: the protocol repeats such a round.
        HidesTooLittle: the budget does not allow what would be made of the others' uploads.
    """
    if absent and setup.protocol.missing == "repeat":
        raise Incomplete(round, absent)
    budget, short = setup.protocol.privacy.budget, [Missed(round=round, clients=tuple(absent), reasons=tuple(absent.values()))]
    events = [*ledger.events, *(short if absent else [])]
    if budget is not None and missed_in(events):
        found = promised(setup.protocol, events, budget.view, budget.unit, delta=budget.delta, sizes=setup.sizes.tolist())
        if found.epsilon(budget.delta) > budget.epsilon:
            raise HidesTooLittle(
                f"clients fell silent, and with the noise of those who were left the model of round {round + 1} would have passed the "
                f"budget (epsilon = {budget.epsilon:g} at delta = {budget.delta:g}, view {budget.view}). It was not made."
            )
    if not absent:
        return chosen
    with writing(ledger.path):
        ledger.miss(round=round, reasons=absent)
    return chosen[[int(client) not in absent for client in chosen]]


def next_model(setup: Setup, weights: np.ndarray, uploads: Iterable[np.ndarray], chosen: np.ndarray, *, round: int) -> np.ndarray:
    """The global model that the server makes of the uploads of the chosen clients, with its own noise where it adds some."""
    rule, diameter = setup.protocol.aggregation, setup.protocol.assumptions.diameter
    if isinstance(rule, ModeConnectivity):
        connected = joined_modes(setup, weights, uploads, round)
        return connected if diameter is None else projected(connected, setup.initial_weights(), diameter)
    noise = server_noise(setup, round=round, trainings=range(setup.training, setup.training + 1))
    expected = setup.protocol.participation.expected(clients=setup.protocol.clients)
    shares = upload_weights(rule, setup.sizes[chosen])
    joined = aggregate(rule, weights, uploads, shares, expected=expected, noise=None if noise is None else noise[0])
    return joined if diameter is None else projected(joined, setup.initial_weights(), diameter)


def joined_modes(setup: Setup, weights: np.ndarray, uploads: Iterable[np.ndarray], round: int) -> np.ndarray:
    """The uploads joined by mode connectivity, on one thread so that the result is the same everywhere."""
    import torch

    from sordino.federation.connectivity import Connector

    models, rule = list(uploads), setup.protocol.aggregation
    if setup.public is None or not isinstance(rule, ModeConnectivity):
        raise RuntimeError("mode connectivity without public records")
    if not models:
        return weights
    streams = (setup.key.stream(Purpose.CONNECTIVITY, training=setup.training, round=round, step=join) for join in range(len(models)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        connector = Connector(FlatModel(setup.module), setup.public, module_loss(setup.module, setup.public.y), rule)
        return connector.joined(models, streams).astype(weights.dtype)
    finally:
        torch.set_num_threads(threads)


def is_evaluated(round: int, rounds: int, every: int) -> bool:
    """Whether a round's model is scored: every so many rounds, and the last one always; never for 0."""
    return every > 0 and ((round + 1) % every == 0 or round + 1 == rounds)


def finite(value: float) -> float | None:
    """The value, or None where it overflowed."""
    return value if math.isfinite(value) else None


def signal_to_noise(protocol: Protocol, before: np.ndarray, after: np.ndarray, uploads: int) -> float | None:
    """Estimated norm of the noiseless move of the model over the expected norm of the noise in it, from released values only.

    The squared norm of the move has the expectation signal^2 + d noise^2, so the signal is what is left after taking the noise out.
    """
    plain = isinstance(protocol.aggregation, Mean) and protocol.aggregation.weights == "equal" and protocol.assumptions.diameter is None
    if not plain or not isinstance(protocol.aggregation, Mean) or uploads == 0 or isinstance(protocol.local, NoisySgd):
        return None
    noise = protocol.aggregation.mixing * mean_deviation(protocol, uploads) * math.sqrt(before.size)
    if noise == 0:
        return math.inf
    move = float(np.linalg.norm((after - before).astype(np.float64)))
    return math.sqrt(max(0.0, move**2 - noise**2)) / noise


class Keeper:
    """Decides when a state is worth a checkpoint. It remembers when the last one was written and how long that took."""

    def __init__(self, folder: RunFolder, *, every_round: bool) -> None:
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
