"""The native engine: small networks in a compiled kernel, one thread per client, with the same draws as the torch engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType

import numpy as np
import torch

from sordino.engines.native.jobs import Jobs
from sordino.engines.native.kernel import Kernel, Records, StepRule
from sordino.engines.native.library import ABSENT, chosen
from sordino.engines.native.program import Loss
from sordino.engines.native.translate import Refused, translate
from sordino.engines.torch_engine import single_threaded, worker_count
from sordino.federation.assignment import Upload, assigned
from sordino.federation.client import Score, joined, score_chunks
from sordino.federation.local import NORMS
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import evaluate_batch, loss_for
from sordino.federation.models.per_example import ExampleGradients
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup, Tensors
from sordino.protocol import ClippedGlm, NoisySgd

LARGEST = 5_000_000  # parameters; beyond, a client's model no longer fits a cache and torch's matrix products are as fast
IN_FLIGHT = 2**26  # bytes of uploads that are made before the first is handed on
AT_ONCE = 256  # clients that are trained by one call of the kernel, so that an interruption does not wait long
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

    def __init__(self, setup: Setup, *, workers: int | None = None, kernel: Kernel | None = None) -> None:
        self.workers = worker_count(workers, "cpu")
        self._setup = setup
        self._kernel = kernel if kernel is not None else kernel_for(setup)
        self._train, self._test = as_records(setup.train), as_records(setup.test)
        self._kernel.check(self._train)
        self._initial, self._jobs = setup.initial_weights(), Jobs(setup)

    def __enter__(self) -> NativeEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left running between calls, so there is nothing to end."""

    def uploads(
        self, *, round: int, weights: np.ndarray, participants: np.ndarray, kept: Mapping[int, Kept] | None = None
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants; `kept` is what clients have kept, where they keep anything."""
        sent = np.ascontiguousarray(weights, dtype=np.float32)
        most = max(self.workers, min(AT_ONCE, IN_FLIGHT // (self._initial.nbytes * self._jobs.floats)))
        for first in range(0, len(participants), most):
            chosen = [int(client) for client in participants[first : first + most]]
            own = {client: None if kept is None else kept[client] for client in chosen}
            tasks = [assigned(self._setup, self._initial, client=c, round=round, weights=sent, kept=own[c]) for c in chosen]
            call = self._jobs.call(tasks)
            self._kernel.train(self._train, call.table, threads=self.workers)
            yield from call.uploads()

    def score(self, weights: np.ndarray) -> Score:
        """Score a model on the test records."""
        outputs = torch.from_numpy(self._kernel.outputs(self._test, weights, np.arange(self._test.count), threads=self.workers))
        parts = [evaluate_batch(outputs[rows], self._setup.test.y[rows]) for rows in score_chunks(self._test.count)]
        return joined([Score(loss=part.loss_sum, correct=part.correct or 0, count=part.records) for part in parts])


def kernel_for(setup: Setup) -> Kernel:
    """The kernel for what a setup trains, after it has shown on a few records that it computes the gradients of torch.

    Raises:
        Refused: the kernel cannot run it; with the reason.
    """
    simd = chosen()
    if simd is None:
        raise Refused(ABSENT)
    rule = setup.protocol.local
    if isinstance(rule, ClippedGlm):
        raise Refused(f"the rule {rule.tag} is matrix products in float64, which torch does as fast")
    if callable(getattr(setup.module, "loss", None)):
        raise Refused(f"{type(setup.module).__name__} brings a loss of its own")
    program = translate(setup.module, setup.input_shape)
    if program.parameters > LARGEST:
        raise Refused(f"the model has {program.parameters:,} parameters; beyond {LARGEST:,} torch is as fast")
    loss = Loss.SQUARED_ERROR if setup.train.y.is_floating_point() else Loss.CROSS_ENTROPY
    # Of batches whose size varies, one vector of examples at a time leaves the fewest places empty.
    varies = isinstance(rule, NoisySgd) and rule.sampling == "poisson"
    kernel = Kernel(program, loss, batch=1 if varies else rule.batch, simd=simd)
    refuse_disagreement(kernel, setup, rule.batch)
    return kernel


def refuse_disagreement(kernel: Kernel, setup: Setup, batch: int) -> None:
    """Compare gradients with torch's before anything is trained: a translation that misses something must not run.

    The records are invented; nothing private decides which engine runs.
    """
    count, weights, rule = min(batch, 8), setup.initial_weights(), setup.protocol.local
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *setup.input_shape), dtype=np.float32)
    labels = generator.integers(0, setup.outputs, count)
    y = labels if setup.classification else generator.standard_normal((count, setup.outputs), dtype=np.float32)
    plain = StepRule(rates=())
    steps = replace(plain, clip=BINDING, norm=NORMS[rule.clip_norm], per_example=True) if isinstance(rule, NoisySgd) else plain
    found, _ = kernel.gradient(Records(x, y), steps, weights, np.arange(count))
    with single_threaded():
        wanted = torch_gradient(setup, torch.from_numpy(x), torch.from_numpy(y))
    if not np.linalg.norm(found - wanted) <= AGREEMENT * np.linalg.norm(wanted) + 1e-7:
        raise Refused("its gradients differ from those of torch")


def torch_gradient(setup: Setup, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """The gradient of a batch at the start; where examples are clipped, the mean of theirs, all of them clipped."""
    model, loss, rule = FlatModel(setup.module), loss_for(targets), setup.protocol.local
    if isinstance(rule, NoisySgd):
        total = ExampleGradients(model, loss).clipped_sum(inputs, targets, clip=BINDING, norm=rule.clip_norm).total
        return (total / len(targets)).numpy()
    model.loss_gradient(inputs, targets, loss)
    return model.gradients.numpy()


def as_records(tensors: Tensors) -> Records:
    """Records of a setup, in the memory where they are."""
    return Records(tensors.x.numpy(), tensors.y.numpy(), scale=tensors.scale.numpy(), shift=tensors.shift.numpy())
