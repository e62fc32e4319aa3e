"""The native engine: small networks in a compiled kernel, one thread per client, with the same draws as the torch engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import TracebackType

import numpy as np
import torch

from sordino.engines.native.jobs import Call, Jobs
from sordino.engines.native.kernel import JOB, Kernel, Records, StepRule
from sordino.engines.native.library import ABSENT, chosen
from sordino.engines.native.program import Loss
from sordino.engines.native.translate import Refused, translate
from sordino.engines.torch_engine import single_threaded, worker_count
from sordino.federation.assignment import Upload, assigned
from sordino.federation.client import Score, joined, score_chunks
from sordino.federation.local import NORMS
from sordino.federation.loop import Task
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import evaluate_batch, loss_for
from sordino.federation.models.per_example import ExampleGradients
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup, Tensors
from sordino.protocol import ClippedGlm, NoisySgd

LARGEST = 5_000_000  # parameters; beyond, a client's model no longer fits a cache and torch's matrix products are as fast
IN_FLIGHT = 2**26  # bytes of uploads that are made before the first is handed on
AT_ONCE = 256  # clients that are trained by one call of the kernel, so that an interruption does not wait long
WORTH_THREADS = (
    2**24
)  # products of records and parameters below which a score takes less time than starting threads
AGREEMENT = 1e-3  # relative difference of gradients that a translation is allowed at the start: rounding, but no mistake
BINDING = 1e-3  # a clip that every example's gradient exceeds, so that their norms are compared too


class NativeEngine:
    """Executes the local work of rounds in the compiled kernel.

    The draws are those of the torch engine, and weights agree with it to float32 rounding. The result does not depend on the number
    of threads, bit for bit; it does depend on the instruction set, in the last digits.

    Example:
        >>> with NativeEngine(setup, workers=2) as engine:  # doctest: +SKIP
        ...     uploads = list(engine.uploads(round=0, weights=weights, participants=np.arange(20)))
    """

    name = "native"

    def __init__(
        self, setup: Setup, *, workers: int | None = None, kernel: Kernel | None = None
    ) -> None:
        self.workers = worker_count(workers, "cpu")
        self._setup = setup
        self.kernel = kernel if kernel is not None else kernel_for(setup)
        self.records = as_records(setup.train)
        self.kernel.check(self.records)
        self._initial, self._jobs = setup.initial_weights(), Jobs(setup)

    def __enter__(self) -> NativeEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left running between calls, so there is nothing to end."""

    def uploads(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants; `kept` is what clients have kept, where they keep anything."""
        return pooled_uploads(
            [(self, Task(round=round, weights=weights, participants=participants, kept=kept))],
            threads=self.workers,
        )

    def upload(
        self, *, client: int, round: int, weights: np.ndarray, kept: Kept | None = None
    ) -> Upload:
        """One client's upload, as `ClientWork.upload` makes it."""
        own = None if kept is None else {client: kept}
        return next(
            self.uploads(round=round, weights=weights, participants=np.array([client]), kept=own)
        )

    def call(self, task: Task, some: slice) -> Call:
        """The jobs of some of the participants of a round."""
        sent = np.ascontiguousarray(task.weights, dtype=np.float32)
        given = [
            (int(client), None if task.kept is None else task.kept[int(client)])
            for client in task.participants[some]
        ]
        return self._jobs.call(
            [
                assigned(
                    self._setup, self._initial, client=c, round=task.round, weights=sent, kept=own
                )
                for c, own in given
            ]
        )

    def at_once(self, threads: int) -> int:
        """Clients that one call of the kernel trains at most, so that what they hold is bounded."""
        return max(threads, min(AT_ONCE, IN_FLIGHT // (self._initial.nbytes * self._jobs.floats)))

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    @cached_property
    def _test(self) -> Records:
        """The test records, which are asked for only where there are some."""
        return as_records(self._setup.test)

    def score(self, weights: np.ndarray) -> Score:
        """Score a model on the test records."""
        test = self._test
        threads = self.workers if test.count * len(weights) > WORTH_THREADS else 1
        outputs = torch.from_numpy(
            self.kernel.outputs(test, weights, np.arange(test.count), threads=threads)
        )
        parts = [
            evaluate_batch(outputs[rows], self._setup.test.y[rows])
            for rows in score_chunks(test.count)
        ]
        return joined(
            [
                Score(loss=part.loss_sum, correct=part.correct or 0, count=part.records)
                for part in parts
            ]
        )


def pooled_uploads(work: Sequence[tuple[NativeEngine, Task]], *, threads: int) -> Iterator[Upload]:
    """The uploads of a round of each of several trainings, in the order of the trainings and of their participants.

    All trainings must have the same kernel. Their clients share the threads, so that small federations fill them, and are trained
    in pieces, so that the memory of the uploads is bounded.
    """
    kernel = work[0][0].kernel
    for piece in pieces(
        [len(task.participants) for _, task in work],
        min(engine.at_once(threads) for engine, _ in work),
    ):
        calls = [work[which][0].call(work[which][1], some) for which, some in piece]
        jobs = one_table(calls)
        records = [
            work[which][0].records for which, some in piece for _ in range(some.start, some.stop)
        ]
        kernel.train(records, jobs, threads=threads)
        for call in calls:
            yield from call.uploads()


def one_table(calls: Sequence[Call]) -> np.ndarray:
    """The jobs of several calls in one table, of which each call then has its part."""
    ends = np.cumsum([len(call.table) for call in calls]).tolist()
    jobs = np.empty(ends[-1], JOB)
    for call, end in zip(calls, ends, strict=True):
        part = jobs[end - len(call.table) : end]
        part[:] = call.table
        call.table = part
    return jobs


def pieces(counts: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Share out what several have, in order, to as few pieces of at most `most` as there can be, near equal in size.

    A piece says who is in it, and which of theirs.

    Example:
        >>> list(pieces([3, 4], 5))
        [[(0, slice(0, 3, None))], [(1, slice(0, 4, None))]]
    """
    total, starts = sum(counts), np.cumsum([0, *counts]).tolist()
    number = -(-total // most)
    for piece in range(number):
        low, high = total * piece // number, total * (piece + 1) // number
        spans = [
            (which, max(low, start) - start, min(high, start + counts[which]) - start)
            for which, start in enumerate(starts[:-1])
        ]
        yield [(which, slice(first, last)) for which, first, last in spans if first < last]


def kernel_for(setup: Setup) -> Kernel:
    """The kernel for what a setup trains, after it has shown on a few records that it computes the gradients of torch.

    Raises:
        Refused: the kernel cannot run it; with the reason.
    """
    simd = chosen()
    if simd is None:
        raise Refused(ABSENT)
    refuse_protocol(setup)
    rule = setup.protocol.local
    if callable(getattr(setup.module, "loss", None)):
        raise Refused(f"{type(setup.module).__name__} brings a loss of its own")
    program = translate(setup.module, setup.input_shape)
    if program.parameters > LARGEST:
        raise Refused(
            f"the model has {program.parameters:,} parameters; beyond {LARGEST:,} torch is as fast"
        )
    loss = Loss.SQUARED_ERROR if setup.train.y.is_floating_point() else Loss.CROSS_ENTROPY
    # Of batches whose size varies, one vector of examples at a time leaves the fewest places empty.
    varies = isinstance(rule, NoisySgd) and rule.sampling == "poisson"
    batch = rule.batch or 1
    kernel = Kernel(program, loss, batch=1 if varies else batch, simd=simd)
    refuse_disagreement(kernel, setup, batch)
    return kernel


def refuse_protocol(setup: Setup) -> None:
    """Refuse what the kernel does not do, whatever the model is."""
    if isinstance(setup.protocol.local, ClippedGlm):
        raise Refused(
            f"the rule {setup.protocol.local.tag} is matrix products in float64, which torch does as fast"
        )


def refuse_disagreement(kernel: Kernel, setup: Setup, batch: int) -> None:
    """Compare gradients with torch's before anything is trained: a translation that misses something must not run.

    The records are invented; nothing private decides which engine runs.
    """
    count, weights, rule = min(batch, 8), setup.initial_weights(), setup.protocol.local
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *setup.input_shape), dtype=np.float32)
    labels = generator.integers(0, setup.outputs, count)
    y = (
        labels
        if setup.classification
        else generator.standard_normal((count, setup.outputs), dtype=np.float32)
    )
    plain = StepRule(rates=())
    steps = (
        replace(plain, clip=BINDING, norm=NORMS[rule.clip_norm], per_example=True)
        if isinstance(rule, NoisySgd)
        else plain
    )
    found, _ = kernel.gradient(Records(x, y), steps, weights, np.arange(count))
    with single_threaded():
        wanted = torch_gradient(setup, torch.from_numpy(x), torch.from_numpy(y))
    if not np.linalg.norm(found - wanted) <= AGREEMENT * np.linalg.norm(wanted) + 1e-7:
        raise Refused("its gradients differ from those of torch")


def torch_gradient(setup: Setup, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """The gradient of a batch at the start; where examples are clipped, the mean of theirs, all of them clipped."""
    model, loss, rule = FlatModel(setup.module), loss_for(targets), setup.protocol.local
    if isinstance(rule, NoisySgd):
        total = (
            ExampleGradients(model, loss)
            .clipped_sum(inputs, targets, clip=BINDING, norm=rule.clip_norm)
            .total
        )
        return (total / len(targets)).float().numpy()
    model.loss_gradient(inputs, targets, loss)
    return model.gradients.numpy()


def as_records(tensors: Tensors) -> Records:
    """Records of a setup, in the memory where they are."""
    return Records(
        tensors.x.numpy(),
        tensors.y.numpy(),
        scale=tensors.scale.numpy(),
        shift=tensors.shift.numpy(),
    )
