"""The distinguishing game: trainings on either data set, scored by what a view shows, in chunks that several processes share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from sordino.audit.adversary import Adversary, residuals
from sordino.audit.worst_case import Pair, worst_pair
from sordino.federation.many import ManyClients, rounds_of_many
from sordino.federation.randomness import LANES, Key
from sordino.protocol import Protocol, View

CHUNK = 2048  # trainings that run side by side; divides LANES
RESIDUALS = 500_000  # noise values that are kept for the residual test


@dataclass(frozen=True, kw_only=True)
class Game:
    """What is played: which protocol, seen by whom, how often. Everything else follows from it, so a game can be taken up again.

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
        return worst_pair(self.protocol, self.view, self.unit, key=key, rounds=self.rounds, sizes=self.sizes)

    def chunks(self) -> list[Chunk]:
        """All trainings of the game. Halves and sides have far-apart numbers, so no draw is ever shared."""
        found = []
        for half in (0, 1):
            for side in (0, 1):
                base = ((half * 2 + side) << 32) * LANES
                for start in range(0, self.trainings, CHUNK):
                    stop = min(start + CHUNK, self.trainings)
                    found.append(Chunk(half=half, side=side, start=start, trainings=range(base + start, base + stop)))
        return found


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Trainings that run side by side: of which half and side, their place among them, and their numbers."""

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
    """The scores of a chunk; the first chunk of all also keeps what noise it saw: (trainings, rounds, clients, parameters)."""

    chunk: Chunk
    scores: np.ndarray
    residuals: np.ndarray | None = None


def play(game: Game, chunk: Chunk) -> Played:
    """Run the trainings of a chunk and score them."""
    pair, setup = game.pair, game.pair.side(chunk.side)
    adversary = Adversary(pair, game.view, chunk.trainings)
    keep = kept_trainings(game, setup.initial_weights().size) if chunk.half == 0 and chunk.start == 0 else 0
    clients, noise = ManyClients(setup), []
    for seen in rounds_of_many(setup, chunk.trainings, rounds=game.rounds, caps=game.caps):
        adversary.see(seen)
        if keep > 0:
            noise.append(residuals(clients, seen, keep, chunk.trainings.start))
    return Played(chunk=chunk, scores=adversary.scores, residuals=np.stack(noise, axis=1) if keep > 0 else None)


def kept_trainings(game: Game, parameters: int) -> int:
    """Of how many trainings the noise is kept."""
    return max(2, min(game.trainings, CHUNK, RESIDUALS // (game.rounds * game.protocol.clients * parameters)))


def play_all(game: Game, chunks: Sequence[Chunk], workers: int | None = None) -> Iterator[Played]:
    """Play chunks in worker processes, in the order in which they end; few are under way at a time."""
    count = workers if workers is not None else len(os.sched_getaffinity(0))
    _ = game.pair  # made before the processes are, so that each has it
    if count == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield play(game, chunk)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(count, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        left, running = list(reversed(chunks)), set[Future[Played]]()
        try:
            while left or running:
                while left and len(running) < count + 1:
                    running.add(pool.submit(play, game, left.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
