"""Whether the engine that trains does what the game plays: some of the game's trainings go through it, in the loop of `train`.

The game plays thousands of trainings side by side (`federation/many.py`), which no engine does. Its finding is one about the engine only
if the engine makes the same of the same draws. So a sample of the trainings is repeated one by one, by the rounds of `loop.Training` and
the engine itself, worker processes and compiled kernel included: uploads and models must be those of the game's rows, to rounding. What
is left of the engine's uploads without their means is held against the law of the noise, as that of the game's is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from sordino.audit.game import Game, WorstCaseGame, play_all
from sordino.audit.given_losses import for_kernel, given_kernel
from sordino.audit.replay import Replay, noise_report, shows_noise
from sordino.audit.residuals import ResidualReport
from sordino.engines.native.kernel import Kernel
from sordino.engines.native.translate import Refused
from sordino.engines.native_engine import NativeEngine, kernel_for
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.assignment import Upload
from sordino.federation.client import Score
from sordino.federation.folder import State
from sordino.federation.local import upload_type
from sordino.federation.loop import Engine, Limits, Training
from sordino.federation.many import ManyRound
from sordino.federation.many_clients import ManyClients
from sordino.federation.personal import HELPER, Kept
from sordino.federation.setup import Setup
from sordino.federation.unwritten import Unwritten, UnwrittenLedger
from sordino.protocol import NoisySgd

SAMPLE = 16  # trainings on each data set
TOGETHER = 8  # of which are compared in one go
FEWEST_ROUNDS = 2  # what clients and server carry over shows in the second
# Local steps that the sample may take: they bound its rounds, so that it usually costs less than half of the game.
STEPS = {"torch": 4_000, "native": 60_000}
WORKERS = 2  # of the engine that repeats one training in worker processes or threads
# Difference that rounding may make, relative to the largest value: a few hundred units in the last place of float32.
ROUNDED = 5e-5


@dataclass(frozen=True, kw_only=True)
class EngineCheck:
    """What came of the comparison.

    Attributes:
        name: the engine, or both of them where either could train.
        trainings: how many went through each engine.
        rounds: how many rounds of each.
        largest: the largest difference of an upload or a model from the game's, relative to the largest value in it.
        place: which engine, client and round differ first; empty where none does.
        reason: why nothing was compared; empty where something was.
        residuals: what the noise on the engine's uploads was found to be, where it can be seen.
    """

    name: str
    trainings: int
    rounds: int
    largest: float
    place: str = ""
    reason: str = ""
    residuals: ResidualReport | None = field(default=None, repr=False)

    @property
    def verdict(self) -> str:
        """ "equal", "differs", or "not compared"."""
        if self.reason:
            return "not compared"
        noisy = self.residuals is not None and len(self.residuals.failed) > 0
        return "differs" if self.place or noisy else "equal"

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: not compared with the game: {self.reason}."
        if self.place:
            return f"{self.place}: the engine does not do what the game plays."
        said = (
            f"{self.name}: {self.trainings} trainings of {self.rounds} rounds repeated by it are the game's, "
            f"to {self.largest:.1g} of the largest value"
        )
        if self.residuals is None:
            return said + "."
        return said + f"; the noise on its uploads: {self.residuals}"

    def as_document(self) -> dict[str, Any]:
        """Returns the comparison as JSON says it."""
        failed = () if self.residuals is None else self.residuals.failed
        return {
            "name": self.name,
            "trainings_compared": self.trainings,
            "rounds_compared": self.rounds,
            "largest_difference": self.largest,
            "verdict": self.verdict,
            "found": str(self),
            "noise_tests_failed": [test.name for test in failed],
        }


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Trainings on one data set that one engine repeats, or the reason why it cannot."""

    engine: str
    side: int
    trainings: range
    workers: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """What came of a sample: the largest difference, the first place where there is one, and what is left of the uploads."""

    sample: Sample
    largest: float
    round: int = -1
    place: str = ""
    noise: np.ndarray | None = None
    strays: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineRound:
    """One round as an engine was asked for it, and what it answered; `after` is the next global model."""

    broadcast: np.ndarray
    participants: tuple[int, ...]
    kept: Mapping[int, Kept]
    uploads: Mapping[int, np.ndarray]
    means: Mapping[int, np.ndarray]
    after: np.ndarray | None


class Recorder:
    """An engine that notes what it is asked and what the engine behind it answers. It holds the rounds so far."""

    def __init__(self, engine: Engine, steps: list[np.ndarray]) -> None:
        self._engine, self._steps = engine, steps
        self.rounds: list[EngineRound] = []

    def uploads(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """Notes what the engine is asked, whether or not its answer is read: nobody reads the uploads of an empty round."""
        sent: dict[int, np.ndarray] = {}
        means: dict[int, np.ndarray] = {}
        self.rounds.append(
            EngineRound(
                broadcast=weights,
                participants=tuple(participants.tolist()),
                kept=kept or {},
                uploads=sent,
                means=means,
                after=None,
            )
        )
        made = self._engine.uploads(
            round=round, weights=weights, participants=participants, kept=kept
        )
        return self._noted(made, sent, means)

    def _noted(
        self, made: Iterator[Upload], sent: dict[int, np.ndarray], means: dict[int, np.ndarray]
    ) -> Iterator[Upload]:
        for upload in made:
            sent[upload.client] = upload.vector
            if self._steps:
                means[upload.client] = np.stack(self._steps)
                self._steps.clear()
            yield upload

    @property
    def absent(self) -> Mapping[int, str]:
        """Returns who does not answer."""
        return self._engine.absent

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model."""
        return self._engine.score(weights)


def engine_rounds(
    setup: Setup, engine: Engine, rounds: int, caps: Mapping[int, int], steps: list[np.ndarray]
) -> list[EngineRound]:
    """Trains as `train` does, with nothing written, and returns what passed between clients and server."""
    recorder, initial = Recorder(engine, steps), setup.initial_weights()
    training = Training(
        setup,
        Unwritten(),
        UnwrittenLedger(),
        State(weights=initial, round=0),
        limits=Limits(rounds=rounds, caps=caps),
        evaluate_every=0,
        on_round=lambda metrics: None,
    )
    training.run(recorder)
    seen = recorder.rounds
    models = [one.broadcast if one.broadcast.ndim == 1 else one.broadcast[0] for one in seen[1:]]
    last = None if training.status == "diverged" else training.state.weights
    return [replace(one, after=after) for one, after in zip(seen, [*models, last], strict=True)]


class EngineTrial:
    """Repeats samples of a game's trainings by engines. It holds the game, and the kernel and its records once they are made."""

    def __init__(self, game: Game, engines: Sequence[str]) -> None:
        self._game, self._engines = game, engines
        self._kernel: Kernel | None = None
        self.refusals: dict[str, str] = {}

    def prepare(self) -> None:
        """Makes the pair, and the kernel where the native engine is among those that are asked."""
        self._game.prepare()
        if "native" not in self._engines or self._kernel is not None:
            return
        try:
            worst = isinstance(self._game, WorstCaseGame)
            self._kernel = (given_kernel if worst else kernel_for)(self._game.pair.zero)
            for side in (0, 1):
                self._kernel_setup(side)
        except Refused as refusal:
            self.refusals["native"] = str(refusal)

    def _kernel_setup(self, side: int) -> Setup:
        setup = self._game.pair.side(side)
        return for_kernel(setup) if isinstance(self._game, WorstCaseGame) else setup

    @property
    def able(self) -> tuple[str, ...]:
        """The engines that can repeat the game."""
        return tuple(name for name in self._engines if name not in self.refusals)

    def rounds(self, engine: str) -> int:
        """Returns how many rounds an engine repeats: as many as the sample may cost, and two at least."""
        protocol = self._game.pair.zero.protocol
        each = 2 * SAMPLE * protocol.clients * protocol.local.steps
        return min(self._game.rounds, max(FEWEST_ROUNDS, STEPS[engine] // each))

    def samples(self) -> list[Sample]:
        """Returns the trainings that are repeated: the game's first, and the first of all once more in worker processes or threads."""
        found = []
        for chunk in self._game.chunks():
            if chunk.half == 0 and chunk.start < SAMPLE:
                taken = chunk.trainings[: SAMPLE - chunk.start]
                for engine in self.able:
                    found += [
                        Sample(engine=engine, side=chunk.side, trainings=taken[at : at + TOGETHER])
                        for at in range(0, len(taken), TOGETHER)
                    ]
        firsts = [replace(one, trainings=one.trainings[:1], workers=WORKERS) for one in found]
        return found + [next(one for one in firsts if one.engine == name) for name in self.able]

    def play(self, sample: Sample, /) -> Compared:
        """Repeats the trainings of a sample and compares them with the game's rows."""
        rounds = self.rounds(sample.engine)
        rows = list(self._game.rows(sample.side, sample.trainings, rounds))
        made = [self._repeated(sample, training, rounds) for training in sample.trainings]
        found = compared(sample, rows, made)
        if not isinstance(self._game, WorstCaseGame) or sample.workers > 1:
            return found
        return self._with_noise(found, rows, made)

    def _repeated(self, sample: Sample, training: int, rounds: int) -> list[EngineRound]:
        steps: list[np.ndarray] = []
        caps = self._game.pair.caps

        def keep(noisy: Tensor) -> None:
            steps.append(noisy.cpu().numpy().copy())

        if sample.engine == "native":
            setup = replace(self._kernel_setup(sample.side), training=training)
            native = NativeEngine(setup, workers=sample.workers, kernel=self._kernel)
            return engine_rounds(setup, native, rounds, caps, steps)
        setup = replace(self._game.pair.side(sample.side), training=training)
        with TorchEngine(setup, workers=sample.workers, on_step=keep) as engine:
            return engine_rounds(setup, engine, rounds, caps, steps)

    def _with_noise(
        self, found: Compared, rows: Sequence[ManyRound], made: Sequence[list[EngineRound]]
    ) -> Compared:
        """Adds what is left of the engine's uploads without their means. The kernel does not show its noisy steps."""
        setup, count = self._game.pair.side(found.sample.side), len(made)
        hidden = isinstance(setup.protocol.local, NoisySgd) and found.sample.engine == "native"
        if hidden or any(len(one) < len(rows) for one in made):
            return found
        replay = Replay(setup, ManyClients(setup), found.sample.trainings.start, count)
        noise, fine = [], True
        for t in range(len(rows)):
            seen = as_table(setup, t, [one[t] for one in made])
            noise.append(replay.see(seen))
            fine = fine and shows_noise(seen, setup, count)
        left = np.concatenate(noise, axis=1) if fine else None
        return replace(found, noise=left, strays=np.stack(replay.strays))


def compared(
    sample: Sample, rows: Sequence[ManyRound], made: Sequence[list[EngineRound]]
) -> Compared:
    """Holds what an engine made against the game's rows, round by round."""
    found = Compared(sample=sample, largest=0.0)
    for t, row in enumerate(rows):
        for n, rounds in enumerate(made):
            if t < len(rounds):
                found = worse(found, differences(sample, row, n, rounds[t]), t)
    return found


def worse(found: Compared, seen: Iterator[tuple[float, str]], round: int) -> Compared:
    """Joins the differences of one more round: the largest of all, and the place of the first that rounding does not explain."""
    for apart, place in seen:
        if apart > ROUNDED and found.round < 0:
            found = replace(found, round=round, place=place)
        found = replace(found, largest=max(found.largest, apart))
    return found


def differences(
    sample: Sample, row: ManyRound, n: int, made: EngineRound
) -> Iterator[tuple[float, str]]:
    """Yields how far every upload and the next model are from the game's, and in words what differs."""
    where = f"round {row.round} of training {sample.trainings[n]}"
    engine = f"engine {sample.engine}"
    present = tuple(np.flatnonzero(row.present[n]).tolist())
    if made.participants != present or tuple(made.uploads) != present:
        yield np.inf, f"{engine}, {where}: clients {made.participants} took part, not {present}"
        return
    before = largest_of(row.before[n])
    for client, vector in made.uploads.items():
        apart = relative(vector, row.uploads[client, n], before)
        yield (
            apart,
            f"{engine}, client {client}, {where}: its upload is {apart:.3g} of its size away",
        )
    after = np.full_like(row.after[n], np.nan) if made.after is None else made.after
    apart = relative(after, row.after[n], before)
    yield apart, f"{engine}, {where}: the server's model is {apart:.3g} of its size away"


def largest_of(values: np.ndarray) -> float:
    """Returns the largest finite value, regardless of its sign."""
    return float(np.abs(values[np.isfinite(values)], dtype=np.float64).max(initial=0.0))


def relative(found: np.ndarray, expected: np.ndarray, least: float) -> float:
    """Returns the largest difference over the largest value, which is `least` at least; infinite where only one is finite.

    Example:
        >>> relative(np.array([2.0, 1.5]), np.array([2.0, 1.0]), 5.0)
        0.1
    """
    if found.shape != expected.shape or not np.array_equal(
        np.isfinite(found), np.isfinite(expected)
    ):
        return float("inf")
    both = np.isfinite(found)
    apart = largest_of(found[both].astype(np.float64) - expected[both])
    return apart / (max(largest_of(expected), least) or 1.0)


def as_table(setup: Setup, round: int, made: Sequence[EngineRound]) -> ManyRound:
    """Returns one round of several trainings as a table with one of them a row, as `Replay` reads it."""
    clients, size = setup.protocol.clients, made[0].broadcast.shape[-1]
    kind = upload_type(setup.protocol.noise)
    uploads = np.zeros((clients, len(made), size), dtype=kind)
    present = np.zeros((len(made), clients), dtype=bool)
    broadcast = np.stack([one.broadcast for one in made], axis=-2)
    before = broadcast if made[0].broadcast.ndim == 1 else broadcast[0]
    means: dict[int, np.ndarray] = {}
    helpers: dict[int, dict[str, np.ndarray]] = {}
    for n, one in enumerate(made):
        for client, vector in one.uploads.items():
            uploads[client, n], present[n, client] = vector, True
            if client in one.means:
                shape = (len(made), *one.means[client].shape)
                means.setdefault(client, np.zeros(shape, np.float32))[n] = one.means[client]
            if HELPER in one.kept.get(client, {}):
                own = helpers.setdefault(client, {HELPER: before.copy()})
                own[HELPER][n] = one.kept[client][HELPER]
    return ManyRound(
        round=round,
        before=before,
        broadcast=broadcast,
        kept={client: helpers.get(client, {}) for client in range(clients)},
        present=present,
        uploads=uploads,
        means=means,
        after=np.stack(
            [before[n] if one.after is None else one.after for n, one in enumerate(made)]
        ),
    )


def checked_engines(game: Game, engines: Sequence[str], workers: int | None) -> EngineCheck:
    """Repeats a sample of a game's trainings by engines and says whether they do what the game plays.

    Args:
        game: what is played.
        engines: "torch", "native", or both: where one of them cannot play it, the others are compared.
        workers: processes that share the work; by default one per core.
    """
    trial = EngineTrial(game, engines)
    trial.prepare()
    if not trial.able:
        reason = "; ".join(trial.refusals.values())
        return EngineCheck(
            name=" and ".join(engines), trainings=0, rounds=0, largest=0.0, reason=reason
        )
    results = sorted(
        play_all(trial, trial.samples(), workers),
        key=lambda one: (one.sample.engine, one.sample.workers, one.sample.trainings.start),
    )
    broken = sorted((one for one in results if one.place), key=lambda one: one.round)
    return EngineCheck(
        name=" and ".join(trial.able),
        trainings=sum(
            len(one.sample.trainings)
            for one in results
            if one.sample.engine == trial.able[0] and one.sample.workers == 1
        ),
        rounds=min(trial.rounds(name) for name in trial.able),
        largest=max(one.largest for one in results),
        place=broken[0].place if broken else "",
        residuals=engine_noise(game, results, trial.able),
    )


def engine_noise(
    game: Game, results: Sequence[Compared], engines: Sequence[str]
) -> ResidualReport | None:
    """Returns the noise tests of one engine's uploads: of the first that fails them, or else of the first that shows its noise."""
    reports = []
    for name in engines:
        mine = [one for one in results if one.sample.engine == name]
        noise = [one.noise for one in mine if one.noise is not None]
        strays = [one.strays for one in mine if one.strays is not None]
        if strays:
            whole = np.concatenate(noise) if len(noise) == len(strays) else None
            reports.append(
                noise_report(game.pair.zero.protocol, game.noises, whole, np.max(strays, axis=0))
            )
    made = [report for report in reports if report is not None]
    return next((report for report in made if report.failed), made[0] if made else None)
