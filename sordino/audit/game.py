"""The distinguishing game: trainings on either data set, scored by what a view shows.

Trainings are played in chunks, which are shared out among processes.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from typing import Protocol as Interface

import numpy as np
import torch

from sordino.audit.adversaries.likelihood_ratio import Adversary
from sordino.audit.adversaries.step_ratio import LotAdversary, StepAdversary
from sordino.audit.noise_report import shows_noise
from sordino.audit.observation import count_colluders, find_given_observation
from sordino.audit.repeated_work import TableWork
from sordino.audit.replay import Replay
from sordino.audit.round_table import RoundTable, observe_trainings
from sordino.audit.worst_cases.neighbours import Pair, remove_noise
from sordino.audit.worst_cases.noisy_step_pair import StepPair
from sordino.audit.worst_cases.worst_pair import make_worst_pair
from sordino.federation.processors import single_threaded, worker_count
from sordino.privacy.bounds.question import Observation
from sordino.protocol import Noise, Protocol, View
from sordino.randomness import LANES, Key

# Trainings that run side by side; it divides LANES, so that chunks draw from whole blocks.
CHUNK = 2048
# Trainings without noise whose average tells where the last model ends.
REHEARSED = 256
# The most noise values that are kept for the residual tests.
RESIDUALS = 500_000


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Describes trainings that are played together.

    Attributes:
        half: 0 for the trainings that choose the test, 1 for those that judge it.
        side: 0 for the data set, 1 for its neighbour.
        start: The place of the first among the trainings of this half and side.
        trainings: The numbers of the trainings, by which their draws are addressed.
    """

    half: int
    side: int
    start: int
    trainings: range

    @property
    def name(self) -> str:
        """A name for the file that keeps the chunk's scores."""
        return f"{('choosing', 'judging')[self.half]}-{self.side}-{self.start:08d}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkScores:
    """Holds the scores of a chunk.

    Attributes:
        chunk: The trainings.
        scores: One per training.
        residuals: The noise found in the first chunks (see `replay`); None for all others.
        strays: How far released values are from those that follow from noisy ones
            (`Replay.strays`); None for all other chunks.
    """

    chunk: Chunk
    scores: np.ndarray
    residuals: np.ndarray | None = None
    strays: np.ndarray | None = None


class Game(Interface):
    """Something that can be played chunk by chunk, in any order and in any process."""

    @property
    def description(self) -> str:
        """The two data sets, in words."""

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The noise of every client that is trained."""

    @property
    def together(self) -> int:
        """The most trainings in a chunk."""

    def chunks(self) -> list[Chunk]:
        """Returns all trainings, in chunks."""

    @property
    def pair(self) -> Pair:
        """The two data sets."""

    @property
    def rounds(self) -> int:
        """The number of rounds of a training."""

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[RoundTable]:
        """Yields the first rounds of some trainings on one of the data sets.

        Args:
            side: 0 for the data set, 1 for its neighbour.
            trainings: The numbers of the trainings.
            rounds: How many rounds are played.
        """

    def prepare(self) -> None:
        """Makes whatever all chunks share, before processes are started."""

    def play(self, chunk: Chunk) -> ChunkScores:
        """Runs the trainings of a chunk and scores them.

        Args:
            chunk: The trainings.
        """


def make_chunks(trainings: int, size: int, first: int = 0) -> list[Chunk]:
    """Returns the trainings of both halves and both sides, in chunks.

    Args:
        trainings: The number of trainings on each side of each half.
        size: The most trainings in a chunk.
        first: The place of the first training that is wanted, on each side of each half.
    """
    found = []
    for half in (0, 1):
        for side in (0, 1):
            # Numbers of halves and sides lie far apart, and far from 0, the number of an ordinary
            # training, so that no draw is ever shared.
            base = ((1 + half * 2 + side) << 32) * LANES
            for start in range(first, trainings, size):
                stop = min(start + size, trainings)
                numbers = range(base + start, base + stop)
                found.append(Chunk(half=half, side=side, start=start, trainings=numbers))
    return found


@dataclass(frozen=True, kw_only=True)
class WorstCaseGame:
    """Plays trainings on the worst case of a protocol.

    A game is fully described by these values, so an interrupted one can be continued.

    Attributes:
        protocol: The protocol that is trained.
        view: The adversary's view.
        unit: What differs between the two data sets.
        trainings: Trainings on each side, by which the test is judged; as many again choose it.
        seed: The seed of all draws.
        rounds: The number of rounds of a training.
        sizes: The number of records of every client; None if unknown.
        caps: The most rounds in which each client with a personal budget may take part.
    """

    protocol: Protocol
    view: View
    unit: str
    trainings: int
    seed: int
    rounds: int
    sizes: tuple[int, ...] | None = None
    caps: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def pair(self) -> Pair:
        """The two neighbouring data sets."""
        return make_worst_pair(
            self.protocol,
            self.view,
            self.unit,
            key=Key.from_seed(self.seed),
            rounds=self.rounds,
            sizes=self.sizes,
            caps=self.caps,
        )

    @property
    def description(self) -> str:
        """The two data sets, in words."""
        return self.pair.description

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The noise of every client that is trained."""
        return self.pair.zero.noises

    @property
    def together(self) -> int:
        """The most trainings that run side by side."""
        return CHUNK

    def chunks(self) -> list[Chunk]:
        """Returns all trainings, many side by side."""
        return make_chunks(self.trainings, self.together)

    @cached_property
    def direction(self) -> np.ndarray | None:
        """The direction along which the last model is read; None where the view shows more.

        It leads from the last model on the data set to the one on its neighbour, both trained
        without noise.
        """
        if find_given_observation(self.protocol, self.view) != Observation.LAST:
            return None
        ends = []
        for setup in (self.pair.zero, self.pair.one):
            silent = remove_noise(setup)
            rounds = observe_trainings(silent, range(REHEARSED), self.rounds, self.pair.caps)
            # A deque of one keeps only the last round in memory.
            last = deque(rounds, maxlen=1)
            ends.append(last[0].after.astype(np.float64).mean(axis=0))
        moved = ends[1] - ends[0]
        if not np.any(moved):
            # Without noise one client moves some servers' models not at all, such as a median's.
            moved = self._measure_first_upload()
        return unit_vector(moved)

    def _measure_first_upload(self) -> np.ndarray:
        """Returns how the attacked client's first upload differs between the two data sets."""
        initial = self.pair.zero.initial_weights()
        start = np.broadcast_to(initial, (REHEARSED, initial.size)).copy()
        both = (TableWork(setup) for setup in (self.pair.zero, self.pair.one))
        low, high = (
            clients.work(client=self.pair.attacked, round_index=0, weights=start, first=0).models
            for clients in both
        )
        return np.asarray((high - low).numpy().mean(axis=0))

    def prepare(self) -> None:
        """Makes the pair and the direction."""
        # Both are cached: made before the fork, they are in the memory of every worker.
        _ = self.pair
        _ = self.direction

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[RoundTable]:
        """Yields the first rounds of some trainings on one of the data sets, side by side.

        Args:
            side: 0 for the data set, 1 for its neighbour.
            trainings: The numbers of the trainings.
            rounds: How many rounds are played.
        """
        return observe_trainings(self.pair.side(side), trainings, rounds, self.pair.caps)

    def play(self, chunk: Chunk) -> ChunkScores:
        """Runs the trainings of a chunk and scores them.

        Args:
            chunk: The trainings.
        """
        setup = self.pair.side(chunk.side)
        adversary = self._adversary(chunk)
        # Noise is tested in the half that chooses the test; the other half does nothing but judge.
        keep = 0
        if chunk.half == 0 and chunk.start == 0:
            keep = min(len(chunk.trainings), self._count_kept(setup.initial_weights().size))
        replay = Replay(setup, TableWork(setup), chunk.trainings.start, keep)
        noise = []
        fine = True
        for seen in observe_trainings(setup, chunk.trainings, self.rounds, self.pair.caps):
            adversary.see(seen)
            if keep > 0:
                noise.append(replay.see(seen))
                fine = fine and shows_noise(seen, setup, keep)
        return ChunkScores(
            chunk=chunk,
            scores=adversary.scores,
            residuals=np.concatenate(noise, axis=1) if keep > 0 and fine else None,
            strays=np.stack(replay.strays) if keep > 0 else None,
        )

    def _adversary(self, chunk: Chunk) -> Scorer:
        if isinstance(self.pair, StepPair):
            colluders = count_colluders(self.protocol, self.view)
            if self.protocol.release.lot is not None:
                return LotAdversary(self.pair, chunk.trainings, colluders)
            return StepAdversary(self.pair, chunk.trainings, colluders)
        other = self.pair.one
        if self.pair.turned is not None:
            other = self.pair.turned
        both = (TableWork(self.pair.zero), TableWork(other))
        # A view that is given all uploads is scored as the server's, which is given them too.
        view = self.view
        if find_given_observation(self.protocol, self.view) == Observation.UPLOADS:
            view = View.SERVER
        return Adversary(
            self.pair.side(chunk.side),
            self.pair.attacked,
            both,
            view,
            chunk.trainings,
            self.direction,
            unseen=self.pair.turned is not None,
        )

    def _count_kept(self, parameters: int) -> int:
        """Returns the number of trainings whose noise is kept."""
        draws = self.protocol.release.noise_draws
        values = self.rounds * draws * self.pair.zero.protocol.clients * parameters
        return max(2, min(self.trainings, CHUNK, RESIDUALS // values))


class Scorer(Interface):
    """An adversary that sees rounds and scores trainings.

    Attributes:
        scores: One score per training, from the rounds seen so far.
    """

    scores: np.ndarray

    def see(self, seen: RoundTable) -> None:
        """Takes in one round.

        Args:
            seen: The round.
        """


def unit_vector(vector: np.ndarray) -> np.ndarray:
    """Returns the direction of a vector; zero has none and stays zero.

    Args:
        vector: Any vector.
    """
    length = float(np.linalg.norm(vector))
    if length == 0:
        return vector
    return vector / length


Task = TypeVar("Task", contravariant=True)
Outcome = TypeVar("Outcome", covariant=True)


class Player(Interface[Task, Outcome]):
    """Something whose tasks can be done in any order and in any process."""

    def prepare(self) -> None:
        """Makes whatever all tasks share, before processes are started."""

    def play(self, task: Task, /) -> Outcome:
        """Does one task."""


def play_all(
    game: Player[Task, Outcome], tasks: Sequence[Task], workers: int | None = None
) -> Generator[Outcome, None, None]:
    """Plays tasks in worker processes and yields outcomes in the order in which they end.

    Args:
        game: The game, or anything else that does tasks.
        tasks: The tasks, in the order in which they begin.
        workers: How many processes play; None for one per core.

    Yields:
        The outcome of a task.
    """
    count = worker_count(workers, "cpu")
    with single_threaded():
        game.prepare()
    if count == 1 or len(tasks) == 1:
        for task in tasks:
            with single_threaded():
                played = game.play(task)
            yield played
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_start_worker, initargs=(game,)
    ) as pool:
        left = list(reversed(tasks))
        running = set[Future[Outcome]]()
        try:
            while left or running:
                # One task more than there are processes: none has to wait, and little work is lost
                # after Ctrl-C.
                while left and len(running) < count + 1:
                    running.add(pool.submit(_play_in_worker, left.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


# The game of a worker process, which inherits it by fork, so that data are never copied.
_worker_game: list[Player[Any, Any]] = []


def _start_worker(game: Player[Any, Any]) -> None:
    torch.set_num_threads(1)
    # Ctrl-C goes to all processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _worker_game.append(game)


def _play_in_worker(task: Any) -> Any:
    return _worker_game[-1].play(task)
