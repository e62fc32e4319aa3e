"""The distinguishing game with a real model on real data: a canary in one client's records, trained one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sordino.audit.adversary import Adversary
from sordino.audit.canary import make_canary
from sordino.audit.game import RESIDUALS, Chunk, Played, Scorer, chunks_of, unit_vector
from sordino.audit.observation import Given, given_to
from sordino.audit.one_by_one import in_turn, rounds_seen
from sordino.audit.real_steps import CanarySteps
from sordino.audit.replay import Replay, shows_noise
from sordino.audit.worst_case import Pair, most_exposed, removes, without_noise
from sordino.engines.native.kernel import Kernel
from sordino.engines.native.translate import Refused
from sordino.engines.native_engine import NativeEngine, kernel_for
from sordino.federation.client import ClientWork
from sordino.federation.local import upload_type
from sordino.federation.many import ManyRound
from sordino.federation.many_clients import Worked
from sordino.federation.noisy_sgd import Substitute
from sordino.federation.personal import Kept
from sordino.federation.randomness import Key
from sordino.federation.setup import DataSource, ModelSource, Setup, prepare
from sordino.protocol import Noise, NoisySgd, Protocol, View

TOGETHER = 8  # trainings of a chunk


@dataclass(frozen=True, kw_only=True)
class CanaryGame:
    """Trainings with and without a canary. Everything follows from these values, so a game can be taken up again.

    Attributes:
        protocol: what is trained, on its own data and model.
        view: what the adversary sees.
        unit: "record": the canary replaces one record of the attacked client; "client": all of them.
        trainings: on each side, by which the test is judged; as many again choose it.
        seed: of all draws.
        rounds: how many rounds are run.
        canary: its kind, or the path of a file.
        caps: how often clients with budgets of their own may take part.
        data: in place of the protocol's, if they were handed over in Python.
        model: likewise.
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
        setup = replace(
            prepare(self.protocol, data=self.data, model=self.model),
            key=key,
            noise_key=key,
            draw_key=key,
        )
        attacked = most_exposed(setup.protocol, setup.sizes.tolist(), self.caps, self.unit)
        rows = torch.from_numpy(
            setup.parts[attacked] if self.unit == "client" else setup.parts[attacked][:1]
        )
        x, y = setup.train.x.clone(), setup.train.y.clone()
        x[rows], y[rows] = make_canary(
            self.canary, setup, int(rows[0]), np.random.default_rng(self.seed)
        )
        spread = (
            f"all records of client {attacked}"
            if self.unit == "client"
            else f"a record of client {attacked}"
        )
        model = (
            self.protocol.model.name
            if self.protocol.model is not None
            else type(setup.module).__name__
        )
        absent = removes(setup.protocol, self.unit)
        how = (
            f"absent, or a canary ({self.canary}) in the place"
            if absent
            else f"replaced by a canary ({self.canary})"
        )
        return Pair(
            zero=without_records(setup, rows) if absent else setup,
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
        """The native kernel, where it can do the local work. The steps of noisy-sgd are looked at one by one, which torch alone allows."""
        try:
            return None if isinstance(self.protocol.local, NoisySgd) else kernel_for(self.pair.zero)
        except Refused:
            return None

    @cached_property
    def direction(self) -> np.ndarray | None:
        """From the last model without the canary to the one with it, both without noise."""
        if given_to(self.protocol, self.view) != Given.LAST:
            return None
        ends = []
        for setup in (self.pair.zero, self.pair.one):
            for seen in rounds_of_one(without_noise(setup), 0, self.rounds, self.caps, self.kernel):
                last = seen.after[0].astype(np.float64)
            ends.append(last)
        return unit_vector(ends[1] - ends[0])

    def chunks(self) -> list[Chunk]:
        """All trainings, a few at a time."""
        return chunks_of(self.trainings, TOGETHER)

    def prepare(self) -> None:
        """Load data and model, make the canary, translate the model."""
        _ = self.pair, self.kernel, self.direction

    def rows(self, side: int, trainings: range, rounds: int) -> Iterator[ManyRound]:
        """The first rounds of some trainings on one of the data sets, trained one by one."""
        each = [
            rounds_of_one(self.pair.side(side), training, rounds, self.caps, self.kernel)
            for training in trainings
        ]
        for seen in zip(*each, strict=True):
            yield beside_each_other(seen)

    def play(self, chunk: Chunk) -> Played:
        """Run the trainings of a chunk and score them."""
        setup, scores, noise, strays, fine = self.pair.side(chunk.side), [], [], [], True
        both = Silent(self.pair.zero, self.kernel), Silent(self.pair.one, self.kernel)
        looked_at = chunk.half == 0 and chunk.start == 0
        for training in chunk.trainings:
            adversary = self._adversary(setup, both, training)
            replay, left = Replay(setup, both[chunk.side], training, 1), []
            for seen in rounds_of_one(setup, training, self.rounds, self.caps, self.kernel):
                adversary.see(seen)
                if looked_at:
                    fine = fine and shows_noise(seen, setup, 1)
                    left.append(replay.see(seen)[..., self._coordinates(seen.after.size)])
            scores.append(adversary.scores[0])
            if looked_at:
                noise.append(np.concatenate(left, axis=1))
                strays.append(np.stack(replay.strays))
        return Played(
            chunk=chunk,
            scores=np.array(scores),
            residuals=np.concatenate(noise) if looked_at and fine else None,
            strays=np.max(strays, axis=0) if looked_at else None,
        )

    def _adversary(self, setup: Setup, both: tuple[Silent, Silent], training: int) -> Scorer:
        if isinstance(self.protocol.local, NoisySgd):
            return CanarySteps(self.pair, replace(setup, training=training), both[0], self.unit)
        return Adversary(
            setup,
            self.pair.attacked,
            both,
            self.view,
            range(training, training + 1),
            self.direction,
        )

    def _coordinates(self, parameters: int) -> slice:
        """The coordinates whose noise is looked at: all of a small model, every so many-th of a large one."""
        steps = self.protocol.local.steps if isinstance(self.protocol.local, NoisySgd) else 1
        uploads = 2 * min(TOGETHER, self.trainings) * self.rounds * steps * self.protocol.clients
        return slice(None, None, max(1, uploads * parameters // RESIDUALS))


def beside_each_other(rounds: Sequence[ManyRound]) -> ManyRound:
    """Returns one round of several trainings as one table; what clients keep is left out."""
    return ManyRound(
        round=rounds[0].round,
        before=np.concatenate([seen.before for seen in rounds]),
        broadcast=np.concatenate([seen.broadcast for seen in rounds], axis=-2),
        present=np.concatenate([seen.present for seen in rounds]),
        uploads=np.concatenate([seen.uploads for seen in rounds], axis=1),
        after=np.concatenate([seen.after for seen in rounds]),
    )


def without_records(setup: Setup, rows: Tensor) -> Setup:
    """The federation as if some records were not there, though their places are drawn: what is not finite counts as zero."""
    x = setup.train.x.float()
    x[rows] = torch.nan
    return replace(setup, train=replace(setup.train, x=x))


class Silent:
    """Local work without noise, one training at a time. It holds a model that every call overwrites."""

    def __init__(self, setup: Setup, kernel: Kernel | None = None) -> None:
        self._setup, self._kernel = without_noise(setup), kernel
        self._works: dict[int, ClientWork | NativeEngine] = {}
        self.like = np.arange(setup.protocol.clients)

    def trained(
        self, *, client: int, round: int, weights: np.ndarray, first: int, kept: Kept
    ) -> Tensor:
        """The client's model after its steps, as a table of one row."""
        return self.work(client=client, round=round, weights=weights, first=first, kept=kept).models

    def work(
        self,
        *,
        client: int,
        round: int,
        weights: np.ndarray,
        first: int,
        kept: Kept,
        sums: Substitute | None = None,
    ) -> Worked:
        """What `ManyClients.work` does, for a table of one row."""
        work, sent, own = (
            self._work(first),
            weights[..., 0, :],
            {name: array[0] for name, array in kept.items()},
        )
        if isinstance(
            work, NativeEngine
        ):  # where sums are given in place of the gradients there is no kernel
            made = work.upload(client=client, round=round, weights=sent, kept=own)
        else:
            made = work.upload(client=client, round=round, weights=sent, kept=own, sums=sums)
        return Worked(
            models=torch.from_numpy(made.vector[None]),
            kept={name: array[None] for name, array in (made.kept or {}).items()},
        )

    def _work(self, training: int) -> ClientWork | NativeEngine:
        if training not in self._works:
            setup = replace(self._setup, training=training)
            self._works = {
                training: ClientWork(setup)
                if self._kernel is None
                else NativeEngine(setup, workers=1, kernel=self._kernel)
            }
        return self._works[training]


def rounds_of_one(
    setup: Setup, training: int, rounds: int, caps: Mapping[int, int], kernel: Kernel | None = None
) -> Iterator[ManyRound]:
    """One training as a table of one row, with the clients that `train` runs: those of a round together where there is a kernel."""
    setup = replace(setup, training=training)
    clients, means = setup.protocol.clients, list[np.ndarray]()
    torch_work = (
        ClientWork(setup, on_step=lambda noisy: means.append(noisy.cpu().numpy().copy()))
        if kernel is None
        else None
    )
    uploads = (
        in_turn(torch_work.upload)
        if torch_work is not None
        else NativeEngine(setup, workers=1, kernel=kernel).uploads
    )
    for seen in rounds_seen(setup, uploads, rounds, caps):
        table = np.zeros((clients, 1, seen.before.size), dtype=upload_type(setup.protocol.noise))
        for client, vector in seen.uploads.items():
            table[client, 0] = vector
        each = len(means) // max(
            1, len(seen.uploads)
        )  # steps of a client; clients work one after another
        steps = (
            {
                client: np.stack(means[n * each : (n + 1) * each])[None]
                for n, client in enumerate(seen.uploads)
            }
            if each > 0
            else {}
        )
        yield ManyRound(
            round=seen.round,
            before=seen.before[None],
            broadcast=seen.broadcast[..., None, :],
            kept={
                client: {name: array[None] for name, array in kept.items()}
                for client, kept in seen.kept.items()
            },
            present=np.isin(np.arange(clients), list(seen.uploads))[None],
            uploads=table,
            means=steps,
            after=seen.after[None],
        )
        means.clear()
