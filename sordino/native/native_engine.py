"""The native engine: small networks in a compiled kernel, one thread per client.

Its draws are those of the torch engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType

import numpy as np
import torch

from sordino.federation.assignment import draw_mask_words, make_assignment
from sordino.federation.client import Score, join_scores, score_chunks
from sordino.federation.processors import single_threaded, worker_count
from sordino.federation.record_tensors import Tensors
from sordino.federation.round import RoundTask
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload
from sordino.models.clipping import NORM_ORDERS
from sordino.models.dropout import place_dropouts
from sordino.models.flat import FlatModel
from sordino.models.per_example import ExampleGradients
from sordino.models.task_losses import evaluate_batch, loss_for
from sordino.native.jobs import Call, Jobs
from sordino.native.kernel import Kernel, KernelRecords, StepRule
from sordino.native.layout import JOB
from sordino.native.library import ABSENT, choose_instruction_set
from sordino.native.network_builder import KernelRefusal
from sordino.native.program import Loss
from sordino.native.step_rules import RULE_REFUSALS, refuse_step_noise
from sordino.native.translate import translate

# Parameters. Beyond, a client's model no longer fits a cache, and torch's products are as fast.
LARGEST = 5_000_000

# Bytes of uploads that are made before the first is passed on: calls of fewer cost more than they
# save. Memory of more is asked of the system again for every call by the C library, and written
# with zeros before it is used.
IN_FLIGHT = 2**25

# Clients that one call of the kernel trains, so that an interruption does not wait long.
AT_ONCE = 256

# Products of records and parameters below which starting threads takes longer than a score.
WORTH_THREADS = 2**24

# How far the gradients of a translation may be from torch's: rounding, but no mistake.
AGREEMENT = 1e-3

# A clip that every example's gradient exceeds, so that their norms are compared too.
BINDING = 1e-3

# Records on which they are compared.
COMPARED_RECORDS = 8

# The key of what dropouts drop in the comparison.
COMPARED_MASKS = bytes(32)


class NativeEngine:
    """Executes the local work of rounds in the compiled kernel.

    The draws are those of the torch engine, and weights agree with it to float32 rounding. The
    result does not depend on the number of threads, bit for bit; it does depend on the instruction
    set, in the last digits.

    Args:
        setup: The federation.
        workers: How many threads train; None: as many as there are cores.
        kernel: The kernel for the setup, where it is known already.

    Example:
        >>> with NativeEngine(setup, workers=2) as engine:  # doctest: +SKIP
        ...     uploads = list(engine.train(task))
    """

    name = "native"

    def __init__(
        self, setup: Setup, *, workers: int | None = None, kernel: Kernel | None = None
    ) -> None:
        self.workers = worker_count(workers, "cpu")
        self._setup = setup
        if kernel is None:
            kernel = kernel_for(setup)
        self.kernel = kernel
        self.records = as_records(setup.train)
        self.kernel.check_records(self.records)
        self._initial = setup.initial_weights()
        self._jobs = Jobs(setup)

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
        """Does nothing: nothing is left running between calls."""

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Returns the uploads of a round, in the order of the participants.

        Args:
            task: The round.
        """
        return pooled_uploads([(self, task)], threads=self.workers)

    def upload(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        kept: ClientState | None = None,
    ) -> Upload:
        """Returns one client's upload, as `ClientWork.upload` makes it.

        Args:
            client: Number of the client, from 0.
            round_index: Number of the round, from 0.
            weights: What the server sends.
            kept: What the client has kept, where clients keep anything.
        """
        task = RoundTask(
            round_index=round_index,
            broadcast=weights,
            participants=np.array([client]),
            kept=None if kept is None else {client: kept},
        )
        return next(self.train(task))

    def make_call(self, task: RoundTask, chosen: slice) -> Call:
        """Returns the jobs of some of the participants of a round.

        Args:
            task: The round.
            chosen: Which of its participants.
        """
        sent = np.ascontiguousarray(task.broadcast, dtype=np.float32)
        assignments = []
        for client in task.participants[chosen].tolist():
            assignments.append(
                make_assignment(
                    self._setup,
                    self._initial,
                    client=client,
                    round_index=task.round_index,
                    weights=sent,
                    kept=task.kept_of(client),
                )
            )
        return self._jobs.make_call(assignments)

    def count_at_once(self, threads: int) -> int:
        """Returns how many clients one call of the kernel trains, so that memory is bounded.

        Args:
            threads: How many clients are trained at a time.
        """
        bytes_per_client = self._initial.nbytes * self._jobs.floats
        # At least a client for each thread, even where memory is short.
        return max(threads, min(AT_ONCE, IN_FLIGHT // bytes_per_client))

    @property
    def absent(self) -> Mapping[int, str]:
        """Clients that did not answer: none, as they are simulated."""
        return {}

    @cached_property
    def _test(self) -> KernelRecords:
        """The test records, which are asked for only where there are some."""
        return as_records(self._setup.test)

    def score(self, weights: np.ndarray) -> Score:
        """Returns the score of a model on the test records.

        Args:
            weights: The model.
        """
        test = self._test
        threads = 1
        if test.count * len(weights) > WORTH_THREADS:
            threads = self.workers
        rows = np.arange(test.count)
        outputs = torch.from_numpy(
            self.kernel.compute_outputs(test, weights, rows, threads=threads)
        )
        scores = []
        for chunk in score_chunks(test.count):
            part = evaluate_batch(outputs[chunk], self._setup.test.y[chunk])
            scores.append(Score(loss=part.loss_sum, correct=part.correct or 0, count=part.records))
        return join_scores(scores)


def pooled_uploads(
    work: Sequence[tuple[NativeEngine, RoundTask]], *, threads: int
) -> Iterator[Upload]:
    """Yields the uploads of a round of each of several trainings.

    Their clients share the threads, so that small federations fill them, and are trained in
    pieces, so that the memory of the uploads is bounded.

    Args:
        work: The trainings, which have one kernel, and the round of each.
        threads: How many clients are trained at a time.

    Yields:
        Uploads in the order of the trainings and of their participants.
    """
    kernel = work[0][0].kernel
    counts = [len(task.participants) for _, task in work]
    most = min(engine.count_at_once(threads) for engine, _ in work)
    for piece in split_evenly(counts, most):
        calls = []
        records = []
        for which, chosen in piece:
            engine, task = work[which]
            calls.append(engine.make_call(task, chosen))
            records += [engine.records] * (chosen.stop - chosen.start)
        # One call for all, so that no thread waits for the last client of a training.
        jobs = join_tables(calls)
        kernel.train(records, jobs, threads=threads)
        for call in calls:
            yield from call.read_uploads()


def join_tables(calls: Sequence[Call]) -> np.ndarray:
    """Returns the jobs of several calls in one table, of which each call then has its part.

    Args:
        calls: The calls, whose tables are replaced.
    """
    jobs = np.concatenate([call.table for call in calls], dtype=JOB)
    start = 0
    for call in calls:
        end = start + len(call.table)
        call.table = jobs[start:end]
        start = end
    return jobs


def split_evenly(counts: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Yields pieces of what several have, in order.

    There are as few pieces of at most `most` as there can be, near equal in size.

    Args:
        counts: How much each of them has.
        most: The largest size of a piece.

    Yields:
        For a piece, which of them are in it, and with which part.

    Example:
        >>> list(split_evenly([3, 4], 5))
        [[(0, slice(0, 3, None))], [(1, slice(0, 4, None))]]
    """
    total = sum(counts)
    starts = np.cumsum([0, *counts]).tolist()
    number = -(-total // most)
    for piece in range(number):
        low = total * piece // number
        high = total * (piece + 1) // number
        shares = []
        for which, count in enumerate(counts):
            first = max(low - starts[which], 0)
            last = min(high - starts[which], count)
            if first < last:
                shares.append((which, slice(first, last)))
        yield shares


def kernel_for(setup: Setup) -> Kernel:
    """Returns the kernel for what a setup trains.

    It has shown on a few records that it computes the gradients of torch.

    Args:
        setup: The federation.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.
    """
    simd = choose_instruction_set()
    if simd is None:
        raise KernelRefusal(ABSENT)
    refuse_protocol(setup)
    if callable(getattr(setup.module, "loss", None)):
        raise KernelRefusal(f"{type(setup.module).__name__} brings its own loss")
    program = translate(setup.module, setup.input_shape)
    if program.parameters > LARGEST:
        raise KernelRefusal(
            f"the model has {program.parameters:,} parameters; beyond {LARGEST:,} torch is as fast"
        )
    loss = Loss.CROSS_ENTROPY
    if setup.train.y.is_floating_point():
        loss = Loss.SQUARED_ERROR
    batch = setup.protocol.local.batch or 1
    at_once = batch
    if setup.protocol.release.varying_batches:
        # One vector of examples at a time leaves the fewest places empty.
        at_once = 1
    kernel = Kernel(program, loss, batch=at_once, simd=simd)
    refuse_disagreement(kernel, setup, batch)
    return kernel


def refuse_protocol(setup: Setup) -> None:
    """Refuses what the kernel does not do, whatever the model is.

    Args:
        setup: The federation.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.
    """
    rule = setup.protocol.local
    reason = RULE_REFUSALS.of(rule)
    if reason is not None:
        raise KernelRefusal(f"the rule {rule.tag} {reason}")
    refuse_step_noise(setup)


def refuse_disagreement(kernel: Kernel, setup: Setup, batch: int) -> None:
    """Compares gradients with torch's: a translation that misses something must not run.

    The records are invented: nothing private decides which engine runs.

    Args:
        kernel: The compiled program of the model.
        setup: The federation.
        batch: Records of a batch.

    Raises:
        KernelRefusal: The gradients differ.
    """
    count = min(batch, COMPARED_RECORDS)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *setup.input_shape), dtype=np.float32)
    y: np.ndarray = generator.integers(0, setup.outputs, count)
    if not setup.classification:
        y = generator.standard_normal((count, setup.outputs), dtype=np.float32)
    # Without rates there are no steps: only the gradient is asked for.
    steps = StepRule(rates=())
    release = setup.protocol.release
    if release.in_steps:
        order = NORM_ORDERS[release.clip_norm]
        steps = StepRule(
            rates=(),
            clip=BINDING,
            norm=order,
            per_example=True,
        )
    weights = setup.initial_weights()
    records = KernelRecords(x, y)
    found, _ = kernel.compute_gradient(
        records, steps, weights, np.arange(count), mask_key=COMPARED_MASKS
    )
    # The comparison must not depend on how many threads torch has.
    with single_threaded():
        wanted = compute_torch_gradient(setup, torch.from_numpy(x), torch.from_numpy(y))
    # Asked this way around, NaN disagrees. The constant lets two gradients of zero agree.
    if not np.linalg.norm(found - wanted) <= AGREEMENT * np.linalg.norm(wanted) + 1e-7:
        raise KernelRefusal("its gradients differ from those of torch")


def compute_torch_gradient(setup: Setup, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """Returns torch's gradient of a batch at the start.

    Args:
        setup: The federation.
        inputs: The records.
        targets: Their classes or quantities.

    Returns:
        The gradient; where examples are clipped, the mean of theirs, all of them clipped.
    """
    model = FlatModel(setup.module)
    if model.masks is not None:
        length = place_dropouts(model.net, inputs[:1])
        words = draw_mask_words(COMPARED_MASKS, 0, examples=len(inputs), length=length)
        model.masks.give_words(words, model.device)
    loss = loss_for(targets)
    release = setup.protocol.release
    if not release.in_steps:
        model.loss_gradient(inputs, targets, loss)
        return model.gradients.numpy()
    gradients = ExampleGradients(model, loss)
    found = gradients.clipped_sum(inputs, targets, clip=BINDING, norm=release.clip_norm)
    return (found.total / len(targets)).float().numpy()


def as_records(tensors: Tensors) -> KernelRecords:
    """Returns records of a setup, in the memory where they are.

    Args:
        tensors: The records.
    """
    return KernelRecords(
        tensors.x.numpy(),
        tensors.y.numpy(),
        scale=tensors.scale.numpy(),
        shift=tensors.shift.numpy(),
    )
