"""The distinguishing game: trainings on either data set, scored by what a view shows, in chunks that several processes share."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from typing import Protocol as Interface

import numpy as np
import torch

from sordino.audit.adversary import Adversary
from sordino.audit.noisy_steps import StepAdversary, StepPair, noisy_pair
from sordino.audit.observation import Given, colluders_of, given_to
from sordino.audit.replay import Replay, shows_noise
from sordino.audit.worst_case import Pair, held_sizes, without_noise, worst_pair
from sordino.engines.torch_engine import single_threaded
from sordino.federation.many import ManyRound, rounds_of_many
from sordino.federation.many_clients import ManyClients
from sordino.federation.randomness import LANES, Key
from sordino.protocol import Noise, NoisySgd, Protocol, View

CHUNK = 2048  # trainings that run side by side; divides LANES
REHEARSED = 256  # silent trainings that say where the last model ends
RESIDUALS = 500_000  # noise values that are kept for the residual test


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Trainings that are played together: of which half and side, their place among them, and their numbers."""

    half: int
    side: int
    start: int
    trainings: range

    @property
    def name(self) -> str:
        """For a file."""
        return f"{('choosing', 'judging')[self.half]}-{self.side}-{self.start:08d}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """The scores of a chunk; the first chunks also keep what noise they saw, and what strayed from it (see `replay`)."""

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

    def chunks(self) -> list[Chunk]:
        """All its trainings."""

    @property
    def pair(self) -> Pair:
        """The two data sets."""

    @property
    def rounds(self) -> int:
        """How many rounds are run."""

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[ManyRound]:
        """The first rounds of some trainings on one of the data sets, as the game plays them."""

    def prepare(self) -> None:
        """Make what all chunks share, before processes are started."""

    def play(self, chunk: Chunk) -> Played:
        """Run the trainings of a chunk and score them."""


def chunks_of(trainings: int, size: int) -> list[Chunk]:
    """Both halves and both sides in chunks.

    Their numbers lie far apart, and far from 0, which is the number of a training that is no audit: no draw is ever shared.
    """
    found = []
    for half in (0, 1):
        for side in (0, 1):
            base = ((1 + half * 2 + side) << 32) * LANES
            for start in range(0, trainings, size):
                stop = min(start + size, trainings)
                found.append(
                    Chunk(
                        half=half,
                        side=side,
                        start=start,
                        trainings=range(base + start, base + stop),
                    )
                )
    return found


@dataclass(frozen=True, kw_only=True)
class WorstCaseGame:
    """Trainings on the worst case of a protocol. Everything follows from these values, so a game can be taken up again.

    Attributes:
        protocol: what is trained.
        view: what the adversary sees.
        unit: what differs between the two data sets.
        trainings: on each side, by which the test is judged; as many again choose it.
        seed: of all draws.
        rounds: how many rounds are run.
        sizes: records of every client, where they are known.
        caps: how often clients with budgets of their own may take part.
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
        key = Key.from_seed(self.seed)
        if isinstance(self.protocol.local, NoisySgd):
            return noisy_pair(
                self.protocol,
                self.unit,
                held_sizes(self.protocol, self.sizes),
                key,
                self.caps,
                joined=given_to(self.protocol, self.view) == Given.MODELS,
            )
        return worst_pair(
            self.protocol,
            self.view,
            self.unit,
            key=key,
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

    def chunks(self) -> list[Chunk]:
        """All trainings, many side by side."""
        return chunks_of(self.trainings, CHUNK)

    @cached_property
    def direction(self) -> np.ndarray | None:
        """Along which the last model is read: from where it ends on the data set to where it ends on the neighbour, without noise."""
        if given_to(self.protocol, self.view) != Given.LAST:
            return None
        ends = []
        for setup in (self.pair.zero, self.pair.one):
            last = deque(
                rounds_of_many(
                    without_noise(setup), range(REHEARSED), rounds=self.rounds, caps=self.pair.caps
                ),
                maxlen=1,
            )
            ends.append(last[0].after.astype(np.float64).mean(axis=0))
        moved = ends[1] - ends[0]
        return unit_vector(moved if np.any(moved != 0) else self._pull())

    def _pull(self) -> np.ndarray:
        """How the attacked client's first upload differs: for servers that, without noise, would not be moved by one client at all."""
        start = np.broadcast_to(
            self.pair.zero.initial_weights(), (REHEARSED, self.pair.zero.initial_weights().size)
        ).copy()
        both = (ManyClients(setup) for setup in (self.pair.zero, self.pair.one))
        low, high = (
            clients.trained(client=self.pair.attacked, round=0, weights=start, first=0).numpy()
            for clients in both
        )
        return np.asarray((high - low).mean(axis=0))

    def prepare(self) -> None:
        """Make the pair."""
        _ = self.pair, self.direction

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[ManyRound]:
        """The first rounds of some trainings on one of the data sets, side by side."""
        return rounds_of_many(self.pair.side(side), trainings, rounds=rounds, caps=self.pair.caps)

    def play(self, chunk: Chunk) -> Played:
        """Run the trainings of a chunk and score them."""
        setup, adversary = self.pair.side(chunk.side), self._adversary(chunk)
        looked_at = chunk.half == 0 and chunk.start == 0
        keep = (
            min(len(chunk.trainings), self._kept(setup.initial_weights().size)) if looked_at else 0
        )
        replay, noise, fine = (
            Replay(setup, ManyClients(setup), chunk.trainings.start, keep),
            [],
            True,
        )
        for seen in rounds_of_many(setup, chunk.trainings, rounds=self.rounds, caps=self.pair.caps):
            adversary.see(seen)
            if keep > 0:
                noise.append(replay.see(seen))
                fine = fine and shows_noise(seen, setup, keep)
        return Played(
            chunk=chunk,
            scores=adversary.scores,
            residuals=np.concatenate(noise, axis=1) if keep > 0 and fine else None,
            strays=np.stack(replay.strays) if keep > 0 else None,
        )

    def _adversary(self, chunk: Chunk) -> Scorer:
        if isinstance(self.pair, StepPair):
            return StepAdversary(self.pair, chunk.trainings, colluders_of(self.protocol, self.view))
        other = self.pair.turned if self.pair.turned is not None else self.pair.one
        both = ManyClients(self.pair.zero), ManyClients(other)
        view = View.SERVER if given_to(self.protocol, self.view) == Given.UPLOADS else self.view
        return Adversary(
            self.pair.side(chunk.side),
            self.pair.attacked,
            both,
            view,
            chunk.trainings,
            self.direction,
            unseen=self.pair.turned is not None,
        )

    def _kept(self, parameters: int) -> int:
        """Of how many trainings the noise is kept."""
        steps = self.protocol.local.steps if isinstance(self.protocol.local, NoisySgd) else 1
        values = self.rounds * steps * self.pair.zero.protocol.clients * parameters
        return max(2, min(self.trainings, CHUNK, RESIDUALS // values))


class Scorer(Interface):
    """An adversary that sees rounds and holds scores."""

    scores: np.ndarray

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""


def unit_vector(vector: np.ndarray) -> np.ndarray:
    """The direction of a vector; zero has none and stays zero."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


Task = TypeVar("Task", contravariant=True)
Outcome = TypeVar("Outcome", covariant=True)


class Player(Interface[Task, Outcome]):
    """Something whose tasks can be done in any order and in any process."""

    def prepare(self) -> None:
        """Make what all tasks share, before processes are started."""

    def play(self, task: Task, /) -> Outcome:
        """Do one task."""


def play_all(
    game: Player[Task, Outcome], tasks: Sequence[Task], workers: int | None = None
) -> Iterator[Outcome]:
    """Play tasks in worker processes, in the order in which they end; few are under way at a time."""
    count = workers if workers is not None else len(os.sched_getaffinity(0))
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
        count, mp_context=context, initializer=_enter, initargs=(game,)
    ) as pool:
        left, running = list(reversed(tasks)), set[Future[Outcome]]()
        try:
            while left or running:
                while left and len(running) < count + 1:
                    running.add(pool.submit(_play_here, left.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_here: list[
    Player[Any, Any]
] = []  # in a worker process: the game, which it was forked with, so that data are never copied


def _enter(game: Player[Any, Any]) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _here.append(game)


def _play_here(task: Any) -> Any:
    return _here[-1].play(task)
