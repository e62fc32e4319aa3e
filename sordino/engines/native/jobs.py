"""Clients' assignments as jobs of the kernel, and what the kernel made of them as uploads.

The kernel adds normal noise by itself, in steps or to uploads in float32. Noise of every other kind, and noise on uploads in float64, is
added here to the kernel's exact model, by the code and from the keystream that the torch engine uses. So is the clip of a whole update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from sordino.engines.native.kernel import JOB, Optimiser, PackedRule, StepRule, address_of
from sordino.engines.torch_engine import single_threaded
from sordino.federation.assignment import Assignment, Upload, finished, minibatches
from sordino.federation.local import NORMS, LocalSteps, Pull, clipped_update, joint_pull
from sordino.federation.optimizers import BETAS, MOMENTUM, TINY, VECTORS
from sordino.federation.randomness import LANES, Purpose
from sordino.federation.setup import Setup
from sordino.privacy.carried import carries
from sordino.privacy.sizes import size_of
from sordino.protocol import Bezier, FedAvg, FedProx, Gaussian, NoisySgd, Protocol


def step_rule(
    protocol: Protocol, round: int, *, pull: float = 0.0, upload_noise: float = 0.0
) -> StepRule:
    """The steps of a round as the kernel takes them, with the strength of the pull and the noise on the upload, if the kernel adds it."""
    rule = protocol.local
    if not isinstance(rule, (FedAvg, NoisySgd)):
        raise TypeError(f"the kernel does not have the rule {rule.tag}")
    rates, norm = rule.schedule.rates(round=round, steps=rule.steps), NORMS[rule.clip_norm]
    if isinstance(rule, FedAvg):
        clip = rule.clip if rule.clip_target == "step" else math.inf
        return StepRule(
            rates=rates,
            batch=rule.batch,
            clip=clip,
            norm=norm,
            proximal=pull,
            upload_noise=upload_noise,
        )
    return StepRule(
        rates=rates,
        batch=rule.batch,
        clip=rule.clip,
        per_example=True,
        norm=norm,
        divisor=float(rule.batch),
        proximal=pull,
        weight_decay=rule.weight_decay,
        optimiser=Optimiser[rule.optimizer.upper()],
        momentum=MOMENTUM if rule.optimizer == "momentum" else BETAS[0],
        second_momentum=BETAS[1],
        epsilon=TINY.get(rule.optimizer, 0.0),
        step_noise=size_of(protocol.noise) * rule.noise_unit / rule.batch,
    )


class Jobs:
    """Makes the jobs of a federation. It holds what is the same in every round: records, keys, and who adds the noise."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._parts = [np.ascontiguousarray(part, dtype=np.int64) for part in setup.parts]
        self._keys = keys_of(setup)
        self._table = np.zeros(len(self._parts), JOB)
        self._table["records"] = [part.ctypes.data for part in self._parts]
        self._table["population"] = [len(part) for part in self._parts]
        self._table["client"] = np.arange(len(self._parts))
        self._table["lane"] = setup.training % LANES
        for name, key in zip(("batch_key", "step_key", "upload_key"), self._keys, strict=True):
            self._table[name] = address_of(key)
        self._exact = not kernel_finishes(setup)
        self._sizes = None if self._exact else [size_of(noise) for noise in setup.noises]

    @property
    def floats(self) -> int:
        """Numbers of four bytes that a client's job holds for every parameter, at most: its result, and starts, pulls and moments."""
        personal = self._setup.protocol.keeps_models or isinstance(
            self._setup.protocol.local, NoisySgd
        )
        return 1 + int(self._exact) + (6 if personal else 0)

    def call(self, tasks: Sequence[Assignment]) -> Call:
        """The jobs of some clients in one round."""
        call = Call(
            self._setup, self._table[[task.client for task in tasks]], tasks, exact=self._exact
        )
        call.give_rules(
            [0.0 if self._sizes is None else self._sizes[task.client] for task in tasks]
        )
        return call


def keys_of(setup: Setup) -> tuple[bytes, bytes, bytes]:
    """Returns the keys of a training's draws: of batches, and of the noise in steps and on uploads.

    The key depends on how much a draw reads: a client's batches of a round are one row of words, and normals come in pairs.
    """
    rule = setup.protocol.local
    if not isinstance(rule, (FedAvg, NoisySgd)):
        raise TypeError(f"the kernel does not have the rule {rule.tag}")
    normals = setup.initial_weights().size
    noise = 8 * (normals + normals % 2)
    draws = setup.draw_key.stream(Purpose.MINIBATCH, training=setup.training)
    steps = setup.noise_key.stream(Purpose.STEP_NOISE, training=setup.training)
    uploads = setup.noise_key.stream(Purpose.UPLOAD_NOISE, training=setup.training)
    return draws.key_of(8 * rule.steps * rule.batch), steps.key_of(noise), uploads.key_of(noise)


def kernel_finishes(setup: Setup) -> bool:
    """Whether a model leaves the kernel as it leaves the client: with normal noise, and nothing clipped, moved or kept before it."""
    rule = setup.protocol.local
    if isinstance(rule, NoisySgd):
        return True
    plain = (
        not setup.protocol.keeps_models
        and isinstance(rule, FedAvg)
        and not isinstance(rule, Bezier)
        and rule.clip_target == "step"
    )
    return plain and all(
        type(noise) is Gaussian and noise.where == "client" for noise in set(setup.noises)
    )


class Call:
    """Some clients' work in one call of the kernel. It holds all memory that the kernel reads and writes."""

    def __init__(
        self, setup: Setup, table: np.ndarray, tasks: Sequence[Assignment], *, exact: bool
    ) -> None:
        self.table, self._setup, self._tasks, self._exact = table, setup, tasks, exact
        self._held: list[object] = []
        shape = len(tasks), tasks[0].start.size
        self._models = np.empty(shape, np.float64 if exact else np.float32)
        table["exact" if exact else "result"] = rows_of(self._models)
        table["round"] = tasks[0].round
        self._carries = carries(setup.protocol)
        self._point("start", [task.start for task in tasks])
        if self._carries:
            self._point("exact_start", [task.start for task in tasks], np.float64)
        self._point("correction", [task.correction for task in tasks])
        rule = setup.protocol.local
        self._moments = (
            {name: np.empty(shape, np.float32) for name in VECTORS[rule.optimizer]}
            if isinstance(rule, NoisySgd)
            else {}
        )
        self._give_moments()
        if isinstance(rule, NoisySgd) and rule.sampling == "poisson":
            drawn = [
                minibatches(setup, rule, client=task.client, round=task.round) for task in tasks
            ]
            self._point("rows", [np.concatenate(batches) for batches in drawn], np.int64)
            self._point(
                "counts",
                [np.array([len(batch) for batch in batches]) for batches in drawn],
                np.int64,
            )

    def give_rules(self, upload_noises: Sequence[float]) -> None:
        """Say how every client steps; clients that step alike share a rule."""
        pulls = [self._pull(task) for task in self._tasks]
        centres = [None if pull is None else pull.model.numpy() for pull in pulls]
        if self._carries:
            self._point("exact_centre", centres, np.float64)
        else:
            self._point("centre", centres)
        rule = self._setup.protocol.local
        near = rule.proximal if isinstance(rule, FedProx) else 0.0
        ways = [
            (near if pull is None else pull.strength, noise)
            for pull, noise in zip(pulls, upload_noises, strict=True)
        ]
        t = self._tasks[0].round
        packed = {
            way: PackedRule(step_rule(self._setup.protocol, t, pull=way[0], upload_noise=way[1]))
            for way in set(ways)
        }
        self._held.append(packed)
        self.table["rule"] = [packed[way].address for way in ways]

    def _pull(self, task: Assignment) -> Pull | None:
        """What pulls a client elsewhere than to its start."""
        rule = self._setup.protocol.local
        if task.pull is None or not isinstance(rule, FedAvg):
            return task.pull
        return joint_pull(rule, torch.from_numpy(task.start).double(), task.pull)

    def _give_moments(self) -> None:
        """Hand over what clients have kept of their optimizers; the kernel writes over it."""
        for name, rows in self._moments.items():
            self.table[name] = rows_of(rows)
            for row, task in zip(rows, self._tasks, strict=True):
                row[:] = task.kept.get(name, 0.0)
        if self._moments:
            self.table["taken"] = [
                int(task.kept["steps"][0]) if "steps" in task.kept else 0 for task in self._tasks
            ]

    def _point(
        self, name: str, arrays: Sequence[np.ndarray | None], kind: type = np.float32
    ) -> None:
        """Write down where arrays are, and hold them; none is address 0."""
        whole: list[np.ndarray | None] = [
            None if array is None else np.ascontiguousarray(array, dtype=kind) for array in arrays
        ]
        self._held.append(whole)
        self.table[name] = [
            0 if array is None else array.__array_interface__["data"][0] for array in whole
        ]

    def uploads(self) -> Iterator[Upload]:
        """What the clients send, once the kernel has run."""
        happened = self.table[["clipped", "clips", "nonfinite"]].tolist()
        for row, (task, (clipped, clips, nonfinite)) in enumerate(
            zip(self._tasks, happened, strict=True)
        ):
            steps = LocalSteps(clipped=clipped, clips=clips, nonfinite=nonfinite)
            if self._exact:
                yield self._finished(task, torch.from_numpy(self._models[row]), steps)
            elif isinstance(self._setup.protocol.local, NoisySgd):
                yield self._noisy(row, task, steps)
            else:
                yield Upload(client=task.client, vector=self._models[row], steps=steps)

    def _finished(self, task: Assignment, trained: torch.Tensor, steps: LocalSteps) -> Upload:
        rule = self._setup.protocol.local
        if isinstance(rule, FedAvg) and rule.clip_target == "update":
            with single_threaded():
                steps, trained = clipped_update(
                    rule, torch.from_numpy(task.start).double(), trained, steps.nonfinite
                )
        return finished(self._setup, task, steps, trained)

    def _noisy(self, row: int, task: Assignment, steps: LocalSteps) -> Upload:
        """A model whose noise is in its steps. What is kept is copied, so that it does not hold the memory of all others."""
        vector = self._models[row].copy()
        own = {"model": vector} if self._setup.protocol.keeps_models else {}
        moments = {name: rows[row].copy() for name, rows in self._moments.items()}
        count = (
            {"steps": self.table["taken"][row : row + 1] + self._setup.protocol.local.steps}
            if moments
            else {}
        )
        return Upload(
            client=task.client, vector=vector, steps=steps, kept={**own, **moments, **count}
        )


def rows_of(table: np.ndarray) -> np.ndarray:
    """Where the rows of a table are."""
    return table.ctypes.data + np.arange(len(table), dtype=np.uintp) * np.uintp(table.strides[0])
