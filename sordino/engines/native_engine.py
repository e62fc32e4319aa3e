"""The native engine: small networks in a compiled kernel, one thread per client, with the same draws as the torch engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType

import numpy as np
import torch

from sordino.engines.native.kernel import JOB, Kernel, PackedRule, Records, StepRule, address_of
from sordino.engines.native.library import ABSENT, chosen
from sordino.engines.native.program import Loss
from sordino.engines.native.translate import Refused, translate
from sordino.engines.torch_engine import single_threaded, worker_count
from sordino.federation.client import Score, Upload, joined, score_chunks
from sordino.federation.local import LocalSteps
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import evaluate_batch, loss_for
from sordino.federation.personal import Kept
from sordino.federation.randomness import Purpose
from sordino.federation.setup import Setup, Tensors
from sordino.privacy.harmonizer import harmonized
from sordino.privacy.sizes import size_of
from sordino.protocol import FedAvg, FedProx, Gaussian

LARGEST = 5_000_000  # parameters; beyond, a client's model no longer fits a cache and torch's matrix products are as fast
IN_FLIGHT = 2**26  # bytes of uploads that are made before the first is handed on
AT_ONCE = 256  # clients that are trained by one call of the kernel, so that an interruption does not wait long
AGREEMENT = 1e-3  # relative difference of gradients that a translation is allowed at the start: rounding, but no mistake


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
        self._parts = [np.ascontiguousarray(part, dtype=np.int64) for part in setup.parts]
        draws = setup.draw_key.stream(Purpose.MINIBATCH, training=setup.training)
        noise = setup.noise_key.stream(Purpose.UPLOAD_NOISE, training=setup.training)
        self._keys = draws.subkey, noise.subkey
        self._jobs = np.zeros(len(self._parts), JOB)
        self._jobs["records"] = [part.ctypes.data for part in self._parts]
        self._jobs["population"] = [len(part) for part in self._parts]
        self._jobs["client"], self._jobs["lane"] = np.arange(len(self._parts)), noise.lane
        self._jobs["batch_key"], self._jobs["upload_key"] = (address_of(key) for key in self._keys)

    def __enter__(self) -> NativeEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is left running between calls, so there is nothing to end."""

    def uploads(
        self, *, round: int, weights: np.ndarray, participants: np.ndarray, kept: Mapping[int, Kept] | None = None
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants, who keep nothing."""
        rule, start = PackedRule(step_rule(self._setup, round)), np.ascontiguousarray(weights, dtype=np.float32)
        each = start.nbytes
        most = max(self.workers, min(AT_ONCE, IN_FLIGHT // each))
        for first in range(0, len(participants), most):
            jobs = self._jobs[participants[first : first + most]]
            results = np.empty((len(jobs), start.size), np.float32)
            jobs["rule"], jobs["start"], jobs["round"] = rule.address, start.ctypes.data, round
            jobs["result"] = results.ctypes.data + np.arange(len(jobs), dtype=np.uintp) * np.uintp(each)
            self._kernel.train(self._train, jobs, threads=self.workers)
            happened = jobs[["client", "clipped", "clips", "nonfinite"]].tolist()
            for vector, (client, clipped, clips, nonfinite) in zip(results, happened, strict=True):
                yield Upload(client=client, vector=vector, steps=LocalSteps(clipped=clipped, clips=clips, nonfinite=nonfinite))

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

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
    rule, noise = setup.protocol.local, setup.protocol.noise
    if type(rule) not in (FedAvg, FedProx) or not isinstance(rule, FedAvg):
        raise Refused(f"the rule {rule.tag} is not one that the native kernel has")
    if setup.protocol.keeps_models:
        raise Refused("clients keep models of their own, which the native kernel does not know")
    if type(noise) is not Gaussian:
        raise Refused(f"noise of the kind {type(noise).__name__} is not one that the native kernel has")
    if rule.clip_norm != "l2" or rule.clip_target != "step":
        raise Refused("the native kernel clips the l2 norm of every step, and nothing else")
    if noise.where != "client" or harmonized(setup.protocol):
        raise Refused("the native kernel adds the same noise to every client's upload, and knows no other")
    if callable(getattr(setup.module, "loss", None)):
        raise Refused(f"{type(setup.module).__name__} brings a loss of its own")
    program = translate(setup.module, setup.input_shape)
    if program.parameters > LARGEST:
        raise Refused(f"the model has {program.parameters:,} parameters; beyond {LARGEST:,} torch is as fast")
    loss = Loss.SQUARED_ERROR if setup.train.y.is_floating_point() else Loss.CROSS_ENTROPY
    kernel = Kernel(program, loss, batch=rule.batch, simd=simd)
    refuse_disagreement(kernel, setup, rule.batch)
    return kernel


def refuse_disagreement(kernel: Kernel, setup: Setup, batch: int) -> None:
    """Compare a gradient with torch's before anything is trained: a translation that misses something must not run.

    The records are invented; nothing private decides which engine runs.
    """
    count, weights = min(batch, 8), setup.initial_weights()
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *setup.input_shape), dtype=np.float32)
    labels = generator.integers(0, setup.outputs, count)
    y = labels if setup.classification else generator.standard_normal((count, setup.outputs), dtype=np.float32)
    found, _ = kernel.gradient(Records(x, y), StepRule(rates=()), weights, np.arange(count))
    with single_threaded():
        model, targets = FlatModel(setup.module), torch.from_numpy(y)
        model.loss_gradient(torch.from_numpy(x), targets, loss_for(targets))
    wanted = model.gradients.numpy()
    if not np.linalg.norm(found - wanted) <= AGREEMENT * np.linalg.norm(wanted) + 1e-7:
        raise Refused("its gradients differ from those of torch")


def step_rule(setup: Setup, round: int) -> StepRule:
    """The steps of a round as the kernel takes them."""
    rule = setup.protocol.local
    if not isinstance(rule, FedAvg):
        raise Refused(f"the rule {rule.tag} is not one that the native kernel has")
    return StepRule(
        rates=rule.schedule.rates(round=round, steps=rule.steps),
        batch=rule.batch,
        clip=rule.clip,
        proximal=rule.proximal if isinstance(rule, FedProx) else 0.0,
        upload_noise=size_of(setup.protocol.noise),
    )


def as_records(tensors: Tensors) -> Records:
    """Records of a setup, in the memory where they are."""
    return Records(tensors.x.numpy(), tensors.y.numpy(), scale=tensors.scale.numpy(), shift=tensors.shift.numpy())
