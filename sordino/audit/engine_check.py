"""Checks whether the engine that trains does what the game plays.

The game plays thousands of trainings side by side (`engines/table_engine.py`), which no other
engine does. Its finding is one about the engine only if the engine makes the same of the same
draws. So a sample of the trainings is repeated one by one, by the rounds of `train` and the engine
itself, worker processes and compiled kernel included: uploads and models must be those of the
game's rows, to rounding. The rest of the engine's uploads without their means is held against the
law of the noise, as that of the game's is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from sordino.audit.effort import count_round_draws
from sordino.audit.engine_differences import Compared, EngineSample, compare_sample
from sordino.audit.game import Game, WorstCaseGame, play_all
from sordino.audit.noise.residual_tests import ResidualReport
from sordino.audit.noise_report import report_noise, shows_noise
from sordino.audit.repeated_work import TableWork
from sordino.audit.replay import Replay
from sordino.audit.round_table import RoundTable, observe_singles, select_row, select_rows
from sordino.audit.worst_cases.synthetic_losses import convert_for_kernel, make_synthetic_kernel
from sordino.engines.compiled import Kernel, KernelRefusal, NativeEngine, kernel_for
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.round import RoundRecord, play_training
from sordino.federation.setup import Setup
from sordino.federation.state import first_state
from sordino.federation.store.in_memory import MemoryLedger, MemoryStore
from sordino.federation.training import ScoringEngine, Training, TrainingLimits, TrainingOptions
from sordino.federation.training_stores import EveryRecord

# Trainings on each data set.
SAMPLE = 16
# Of which are compared in their first rounds: the others in their last ones.
EARLY = 8
# Local steps that a sample may take, at least and at most, and for how many numbers that the game
# draws it may take one more. They bound its rounds, so that it costs less than half of the game.
FEWEST_STEPS = {"torch": 1_200, "native": 6_000}
MOST_STEPS = {"torch": 4_000, "native": 60_000}
DRAWS_PER_STEP = {"torch": 60_000, "native": 11_000}
# Rounds of clients that the game's rows are played for before a sample of late rounds begins.
LEAD = 30_000
# Of the engine that repeats one training in worker processes or threads, for two rounds.
WORKERS = 2
FEWEST_ROUNDS = 2
# Samples of the same trainings.
Task = tuple[EngineSample, ...]


@dataclass(frozen=True, kw_only=True)
class EngineCheck:
    """What came of the comparison.

    Attributes:
        name: The engine, or both of them where either could train.
        trainings: How many went through each engine.
        rounds: How many rounds of each.
        largest: The largest difference of an upload or a model from the game's, relative to the
            largest value in it.
        place: Which engine, client and round differ first; empty where none does.
        reason: Why nothing was compared; empty where something was.
        residuals: What the noise on the engine's uploads was found to be, where it can be seen.
        kept: What the noise on the uploads that the audited run kept was found to be.
        kept_reason: Why those uploads were not replayed; empty where they were, or none were kept.
    """

    name: str
    trainings: int
    rounds: int
    largest: float
    place: str = ""
    reason: str = ""
    residuals: ResidualReport | None = field(default=None, repr=False)
    kept: ResidualReport | None = field(default=None, repr=False)
    kept_reason: str = ""

    @classmethod
    def not_compared(cls, name: str, reason: str) -> EngineCheck:
        """Returns a check in which nothing was compared.

        Args:
            name: The engine.
            reason: Why not.
        """
        return cls(name=name, trainings=0, rounds=0, largest=0.0, reason=reason)

    @classmethod
    def without_game(cls, name: str) -> EngineCheck:
        """Returns the check of an audit that scores what the engine itself sent.

        Args:
            name: The engine.
        """
        return cls.not_compared(name, "the scores are of what this engine itself sent")

    @property
    def verdict(self) -> str:
        """The outcome in a word: "equal", "differs" or "not compared"."""
        if self.place or self.failed:
            return "differs"
        return "not compared" if self.reason else "equal"

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the noise tests that failed."""
        names = []
        for report in (self.residuals, self.kept):
            if report is not None:
                names += [test.name for test in report.failed]
        return tuple(names)

    def __str__(self) -> str:
        said = self._describe()
        if self.kept is not None:
            said += f" The uploads that the run kept, replayed: {self.kept}"
        if self.kept_reason:
            said += f" The uploads that the run kept were not replayed: {self.kept_reason}."
        return said

    def _describe(self) -> str:
        if self.reason:
            return f"{self.name}: not compared with the game: {self.reason}."
        if self.place:
            return f"{self.place}: the engine does not do what the game plays."
        said = (
            f"{self.name}: {self.trainings} trainings of {self.rounds} rounds, repeated, are the "
            f"game's, to {self.largest:.1g} of the largest value"
        )
        if self.residuals is None:
            return said + "."
        return said + f"; the noise on its uploads: {self.residuals}"

    def as_document(self) -> dict[str, Any]:
        """Returns the comparison as JSON says it."""
        return {
            "name": self.name,
            "trainings_compared": self.trainings,
            "rounds_compared": self.rounds,
            "largest_difference": self.largest,
            "verdict": self.verdict,
            "found": str(self),
            "noise_tests_failed": list(self.failed),
            "kept_uploads": None if self.kept is None else str(self.kept),
            "kept_uploads_reason": self.kept_reason,
        }


def record_training(
    setup: Setup,
    engine: ScoringEngine,
    rounds: int,
    caps: Mapping[int, int],
    begun: Sequence[RoundTable] = (),
    row: int = 0,
) -> list[RoundRecord]:
    """Trains as `train` does, with nothing written, and returns what happened in every round.

    Args:
        setup: The federation, with the number of the training.
        engine: Trains its clients.
        rounds: How many rounds are played.
        caps: How often a client with a budget may take part.
        begun: The rounds that have been played, and the one that is next, in a table.
        row: The training's in that table.
    """
    ledger = MemoryLedger()
    state = first_state(setup)
    for table in begun[:-1]:
        ledger.charge(round=table.round, clients=np.flatnonzero(table.present[row]).tolist())
    if len(begun) > 1 and begun[-1].state is not None:
        state = select_row(begun[-1].state, row)
    records: list[RoundRecord] = []
    training = Training(
        setup,
        MemoryStore(),
        ledger,
        state,
        limits=TrainingLimits(rounds=state.round + rounds, caps=caps),
        options=TrainingOptions(archive=EveryRecord(records.append)),
    )
    training.run(engine)
    return records


class EngineTrial:
    """Repeats samples of a game's trainings by engines.

    It holds the game, and the kernel and its records once they are made.
    """

    def __init__(self, game: Game, engines: Sequence[str]) -> None:
        self._game = game
        self._engines = engines
        self._kernel: Kernel | None = None
        self._loaded = False
        self.refusals: dict[str, str] = {}

    def prepare(self) -> None:
        """Makes the pair, and the kernel where the native engine is among those that are asked."""
        self._game.prepare()
        if "torch" in self._engines and not self._loaded:
            # Torch loads parts of itself in the first step, which would take as long in every
            # process that is forked before it.
            setup = self._game.pair.zero
            with TorchEngine(setup, workers=1) as engine:
                next(play_training(setup, engine, 1))
            self._loaded = True
        if "native" not in self._engines or self._kernel is not None:
            return
        try:
            worst = isinstance(self._game, WorstCaseGame)
            self._kernel = (make_synthetic_kernel if worst else kernel_for)(self._game.pair.zero)
            for side in (0, 1):
                self._kernel_setup(side)
        except KernelRefusal as refusal:
            self.refusals["native"] = str(refusal)

    def _kernel_setup(self, side: int) -> Setup:
        setup = self._game.pair.side(side)
        return convert_for_kernel(setup) if isinstance(self._game, WorstCaseGame) else setup

    @property
    def able(self) -> tuple[str, ...]:
        """The engines that can repeat the game."""
        return tuple(name for name in self._engines if name not in self.refusals)

    def rounds(self, engine: str) -> int:
        """Returns how many rounds of every training an engine repeats.

        Args:
            engine: The name of the engine.

        Returns:
            As many as the sample may cost.
        """
        protocol = self._game.pair.zero.protocol
        each = 2 * SAMPLE * protocol.clients * protocol.local.steps
        affordable = MOST_STEPS[engine]
        if isinstance(self._game, WorstCaseGame):
            draws = count_round_draws(protocol) * self._game.rounds * self._count_trainings()
            worth = max(FEWEST_STEPS[engine], draws // DRAWS_PER_STEP[engine])
            affordable = min(affordable, worth)
        # The engine that would train is named first; another one that could has half its steps.
        if engine != self.able[0]:
            affordable //= 2
        return min(self._game.rounds, max(1, affordable // each))

    def _count_trainings(self) -> int:
        """Returns how many trainings the game plays, on both data sets."""
        return sum(len(chunk.trainings) for chunk in self._game.chunks())

    def _late_start(self, rounds: int) -> int:
        """Returns where samples of late rounds begin: they end with the game, if affordable."""
        if not isinstance(self._game, WorstCaseGame):
            return 0
        affordable = LEAD // self._game.pair.zero.protocol.clients
        return min(self._game.rounds - rounds, affordable)

    def tasks(self) -> list[Task]:
        """Returns the trainings that are repeated, the first once more with several workers.

        Samples of the same trainings are together: the game's rows are played once for all of them.
        """
        tasks: list[Task] = []
        for chunk in self._game.chunks():
            if chunk.half > 0 or chunk.start >= SAMPLE:
                continue
            taken = chunk.trainings[: SAMPLE - chunk.start]
            samples = []
            for engine in self.able:
                samples += self._sample_chunk(engine, chunk.side, taken)
                if not tasks:
                    # The first of all tasks is the longest, so that no process waits for it.
                    samples.append(self._with_workers(engine, chunk.side, taken))
            tasks.append(tuple(samples))
        return tasks

    def _sample_chunk(self, engine: str, side: int, taken: range) -> list[EngineSample]:
        rounds = self.rounds(engine)
        late = self._late_start(rounds)
        early = taken[:EARLY] if late > 0 else taken
        samples = []
        for start, trainings in ((0, early), (late, taken[len(early) :])):
            if len(trainings) > 0:
                samples.append(
                    EngineSample(
                        engine=engine,
                        side=side,
                        trainings=trainings,
                        start=start,
                        rounds=rounds,
                    )
                )
        return samples

    def _with_workers(self, engine: str, side: int, taken: range) -> EngineSample:
        return EngineSample(
            engine=engine,
            side=side,
            trainings=taken[:1],
            start=0,
            rounds=min(self._game.rounds, max(FEWEST_ROUNDS, self.rounds(engine))),
            workers=WORKERS,
        )

    def play(self, task: Task, /) -> list[Compared]:
        """Repeats the trainings of samples and compares them with the game's rows."""
        first = min(sample.trainings.start for sample in task)
        trainings = range(first, max(sample.trainings.stop for sample in task))
        end = max(sample.start + sample.rounds for sample in task)
        played = list(self._game.rows(task[0].side, trainings, end))
        return [self._compare(sample, played, sample.trainings.start - first) for sample in task]

    def _compare(self, sample: EngineSample, played: Sequence[RoundTable], first: int) -> Compared:
        """Compares a sample with rows of the game, from the row `first` on."""
        begun = played[: sample.start + 1]
        rows = played[sample.start : sample.start + sample.rounds]
        made = [
            self._repeated(sample, training, begun, row)
            for row, training in enumerate(sample.trainings, first)
        ]
        found = compare_sample(self._game.pair.side(sample.side), sample, rows, made, first)
        if not isinstance(self._game, WorstCaseGame) or sample.workers > 1:
            return found
        return self._with_noise(found, rows, made, first)

    def _repeated(
        self,
        sample: EngineSample,
        training: int,
        begun: Sequence[RoundTable],
        row: int,
    ) -> list[RoundRecord]:
        caps = self._game.pair.caps
        if sample.engine == "native":
            setup = replace(self._kernel_setup(sample.side), training=training)
            native = NativeEngine(setup, workers=sample.workers, kernel=self._kernel)
            return record_training(setup, native, sample.rounds, caps, begun, row)
        setup = replace(self._game.pair.side(sample.side), training=training)
        with TorchEngine(setup, workers=sample.workers, record_steps=True) as engine:
            return record_training(setup, engine, sample.rounds, caps, begun, row)

    def _with_noise(
        self,
        found: Compared,
        rows: Sequence[RoundTable],
        made: Sequence[list[RoundRecord]],
        first: int,
    ) -> Compared:
        """Adds the remainder of the engine's uploads without their means."""
        setup = self._game.pair.side(found.sample.side)
        count = len(made)
        # The kernel does not show its noisy steps.
        hidden = setup.release.in_steps and found.sample.engine == "native"
        if hidden or any(len(one) < len(rows) for one in made):
            return found
        start = rows[0].state
        if start is not None:
            start = select_rows(start, slice(first, first + count))
        replay = Replay(setup, TableWork(setup), found.sample.trainings.start, count, start)
        noise = []
        fine = True
        for t in range(len(rows)):
            seen = observe_singles(setup, [one[t] for one in made])
            noise.append(replay.see(seen))
            fine = fine and shows_noise(seen, setup, count)
        left = np.concatenate(noise, axis=1) if fine else None
        return replace(found, noise=left, strays=np.stack(replay.strays))


def check_engines(game: Game, engines: Sequence[str], workers: int | None) -> EngineCheck:
    """Repeats a sample of a game's trainings by engines, and compares.

    Args:
        game: The game whose trainings are repeated.
        engines: "torch", "native", or both: where one of them cannot play it, the others are
            compared.
        workers: Processes that share the work; by default one per core.

    Returns:
        Whether the engines do what the game plays.
    """
    trial = EngineTrial(game, engines)
    trial.prepare()
    if not trial.able:
        reason = "; ".join(trial.refusals.values())
        return EngineCheck.not_compared(" and ".join(engines), reason)
    results = sorted(
        chain.from_iterable(play_all(trial, trial.tasks(), workers)),
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
    """Returns the noise tests of one engine's uploads.

    Args:
        game: The game whose trainings are repeated.
        results: What came of all samples.
        engines: The engines that could repeat the game.

    Returns:
        The tests of the first engine that fails them, or else of the first that shows its noise.
    """
    reports = []
    for name in engines:
        mine = [one for one in results if one.sample.engine == name]
        noise = [one.noise for one in mine if one.noise is not None]
        strays = [one.strays for one in mine if one.strays is not None]
        if strays:
            whole = np.concatenate(noise) if len(noise) == len(strays) else None
            reports.append(
                report_noise(game.pair.zero.protocol, game.noises, whole, np.max(strays, axis=0))
            )
    made = [report for report in reports if report is not None]
    return next((report for report in made if report.failed), made[0] if made else None)
