"""The distinguishing game with a real model on real data, trained one by one.

The two data sets differ by a canary among one client's records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sordino.audit.adversaries.canary_steps import CanarySteps
from sordino.audit.adversaries.likelihood_ratio import Adversary
from sordino.audit.canaries.canary_records import make_canary
from sordino.audit.game import RESIDUALS, Chunk, ChunkScores, Scorer, make_chunks, unit_vector
from sordino.audit.noise_report import shows_noise
from sordino.audit.observation import find_given_observation
from sordino.audit.repeated_work import SingleWork
from sordino.audit.replay import Replay
from sordino.audit.round_table import RoundTable, observe_singles, observe_training
from sordino.audit.worst_cases.neighbours import (
    Pair,
    find_most_exposed,
    remove_noise,
    removes_unit,
)
from sordino.engines.compiled import Kernel, KernelRefusal, NativeEngine, kernel_for
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.round import Engine, play_training
from sordino.federation.setup import Setup, prepare
from sordino.privacy.bounds.question import Observation
from sordino.protocol import Noise, Protocol, View
from sordino.randomness import Key

# The most trainings in a chunk.
TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class CanaryGame:
    """Plays trainings with and without a canary.

    A game is fully described by these values, so an interrupted one can be continued.

    Attributes:
        protocol: The protocol that is trained, on its data and model.
        view: The adversary's view.
        unit: "record": the canary replaces one record of the attacked client; "client": all of
            them.
        trainings: Trainings on each side, by which the test is judged; as many again choose it.
        seed: The seed of all draws.
        rounds: The number of rounds of a training.
        canary: The kind of canary, or the path of a file.
        caps: The most rounds in which each client with a personal budget may take part.
        data: Data in place of the protocol's; None for those.
        model: A model in place of the protocol's; None for that.
    """

    protocol: Protocol
    view: View
    unit: str
    trainings: int
    seed: int
    rounds: int
    canary: str
    caps: Mapping[int, int] = field(default_factory=dict)
    data: DataSource | None = None
    model: ModelSource | None = None

    @cached_property
    def pair(self) -> Pair:
        """The federation with its own records, and with the canary."""
        key = Key.from_seed(self.seed)
        # From the seed of the game: an audit must neither repeat the noise of the run nor depend on
        # a key that the run keeps secret.
        setup = replace(
            prepare(self.protocol, data=self.data, model=self.model),
            key=key,
            noise_key=key,
            draw_key=key,
        )
        attacked = find_most_exposed(setup.protocol, setup.sizes.tolist(), self.caps, self.unit)
        replaced = setup.parts[attacked][:1]
        spread = f"a record of client {attacked}"
        if self.unit == "client":
            replaced = setup.parts[attacked]
            spread = f"all records of client {attacked}"
        rows = torch.from_numpy(replaced)
        x = setup.train.x.clone()
        y = setup.train.y.clone()
        x[rows], y[rows] = make_canary(
            self.canary, setup, int(rows[0]), np.random.default_rng(self.seed)
        )
        model = type(setup.module).__name__
        if self.protocol.model is not None:
            model = self.protocol.model.name
        # Of neighbours by adding or removing, one lacks the unit in which they differ.
        zero = setup
        how = f"replaced by a canary ({self.canary})"
        if removes_unit(setup.protocol, self.unit):
            zero = remove_records(setup, rows)
            how = f"absent, or a canary ({self.canary}) in the place"
        return Pair(
            zero=zero,
            one=replace(setup, train=replace(setup.train, x=x, y=y)),
            attacked=attacked,
            description=f"{model} with {spread} {how}",
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

    @cached_property
    def kernel(self) -> Kernel | None:
        """The native kernel; None if it cannot do the local work."""
        # The adversary of noisy-sgd sees every step, which only torch records.
        if self.protocol.release.in_steps:
            return None
        try:
            return kernel_for(self.pair.zero)
        except KernelRefusal:
            return None

    @cached_property
    def direction(self) -> np.ndarray | None:
        """The direction along which the last model is read; None where the view shows more.

        It leads from the last model without the canary to the one with it, both trained without
        noise.
        """
        if find_given_observation(self.protocol, self.view) != Observation.LAST:
            return None
        ends = []
        for setup in (self.pair.zero, self.pair.one):
            for seen in observe_one(remove_noise(setup), 0, self.rounds, self.caps, self.kernel):
                last = seen.after[0].astype(np.float64)
            ends.append(last)
        return unit_vector(ends[1] - ends[0])

    @property
    def together(self) -> int:
        """The most trainings in a chunk."""
        return TOGETHER

    def chunks(self) -> list[Chunk]:
        """Returns all trainings, a few at a time."""
        return make_chunks(self.trainings, self.together)

    def prepare(self) -> None:
        """Loads data and model, makes the canary and builds the kernel."""
        # All are cached: made before the fork, they are in the memory of every worker.
        _ = self.pair
        _ = self.kernel
        _ = self.direction

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[RoundTable]:
        """Yields the first rounds of some trainings on one of the data sets, trained one by one.

        Args:
            side: 0 for the data set, 1 for its neighbour.
            trainings: The numbers of the trainings.
            rounds: How many rounds are played.
        """
        setup = self.pair.side(side)
        with ExitStack() as engines:
            each = []
            for training in trainings:
                numbered = replace(setup, training=training)
                engine = engines.enter_context(open_engine(numbered, self.kernel))
                each.append(play_training(numbered, engine, rounds, caps=self.caps))
            for records in zip(*each, strict=True):
                yield observe_singles(setup, records)

    def play(self, chunk: Chunk) -> ChunkScores:
        """Runs the trainings of a chunk and scores them.

        Args:
            chunk: The trainings.
        """
        setup = self.pair.side(chunk.side)
        scores = []
        noise = []
        strays = []
        fine = True
        both = (SingleWork(self.pair.zero, self.kernel), SingleWork(self.pair.one, self.kernel))
        # Noise is tested in the half that chooses the test; the other half does nothing but judge.
        tests_noise = chunk.half == 0 and chunk.start == 0
        for training in chunk.trainings:
            adversary = self._adversary(setup, both, training)
            replay = Replay(setup, both[chunk.side], training, 1)
            left = []
            for seen in observe_one(setup, training, self.rounds, self.caps, self.kernel):
                adversary.see(seen)
                if tests_noise:
                    fine = fine and shows_noise(seen, setup, 1)
                    left.append(replay.see(seen)[..., self._choose_coordinates(seen.after.size)])
            scores.append(adversary.scores[0])
            if tests_noise:
                noise.append(np.concatenate(left, axis=1))
                strays.append(np.stack(replay.strays))
        return ChunkScores(
            chunk=chunk,
            scores=np.array(scores),
            residuals=np.concatenate(noise) if tests_noise and fine else None,
            strays=np.max(strays, axis=0) if tests_noise else None,
        )

    def _adversary(
        self, setup: Setup, both: tuple[SingleWork, SingleWork], training: int
    ) -> Scorer:
        if self.protocol.release.in_steps:
            return CanarySteps(self.pair, replace(setup, training=training), both[0], self.unit)
        return Adversary(
            setup,
            self.pair.attacked,
            both,
            self.view,
            range(training, training + 1),
            self.direction,
        )

    def _choose_coordinates(self, parameters: int) -> slice:
        """Returns the coordinates whose noise is tested: all of a small model, else every n-th."""
        draws = self.protocol.release.noise_draws
        uploads = 2 * min(TOGETHER, self.trainings) * self.rounds * draws * self.protocol.clients
        return slice(None, None, max(1, uploads * parameters // RESIDUALS))


def remove_records(setup: Setup, rows: Tensor) -> Setup:
    """Returns the federation with some records emptied: they are drawn, and add nothing to a sum.

    Args:
        setup: The federation.
        rows: The row numbers of the records.
    """
    x = setup.train.x.float()
    # Rules count a gradient that is not finite as zero, so a record of NaN adds nothing.
    x[rows] = torch.nan
    return replace(setup, train=replace(setup.train, x=x))


@contextmanager
def open_engine(
    setup: Setup, kernel: Kernel | None, *, record_steps: bool = True
) -> Iterator[Engine]:
    """Opens the engine of one training, in this process: the kernel if there is one, else torch.

    Args:
        setup: The federation, with the number of the training.
        kernel: The compiled kernel; None for torch.
        record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.
    """
    if kernel is not None:
        yield NativeEngine(setup, workers=1, kernel=kernel)
        return
    with TorchEngine(setup, workers=1, record_steps=record_steps) as engine:
        yield engine


def observe_one(
    setup: Setup,
    training: int,
    rounds: int,
    caps: Mapping[int, int],
    kernel: Kernel | None = None,
) -> Iterator[RoundTable]:
    """Plays one training by the engine that trains it, as a table of one row.

    Args:
        setup: The federation.
        training: The number of the training.
        rounds: How many rounds are played.
        caps: The most rounds in which each client with a personal budget may take part.
        kernel: The compiled kernel; None for torch.

    Yields:
        Every round.
    """
    numbered = replace(setup, training=training)
    with open_engine(numbered, kernel) as engine:
        yield from observe_training(numbered, engine, rounds, caps)
