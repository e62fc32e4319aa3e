"""Clients' assignments as jobs of the kernel, and the kernel's results as uploads.

The kernel adds noise in steps by itself, normal noise to uploads in float32, and noise of integers
to updates on a grid. Other noise on uploads, and noise on uploads in float64, is added here to the
kernel's exact model, by the code and from the keystream that the torch engine uses. So is the clip
of a whole update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sordino.federation.assignment import derive_mask_key, minibatches
from sordino.federation.processors import single_threaded
from sordino.federation.rules.clipped_steps import clip_update, join_pulls
from sordino.federation.rules.local_training import Assignment, LocalResult, LocalSteps, Pull
from sordino.federation.rules.optimizers import VECTORS
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload, finish_upload, noisy_count, send_integers
from sordino.mechanisms import mechanism_of
from sordino.models.clipping import MOST_EXAMPLES, check_example_count
from sordino.models.dropout import has_dropout
from sordino.native.discrete_draws import draw_natively
from sordino.native.kernel import PackedRule, key_address, row_addresses
from sordino.native.layout import JOB
from sordino.native.step_rules import (
    Output,
    StepRequest,
    choose_output,
    derive_keys,
    derive_step_key,
    make_step_rule,
    plan_draws,
)
from sordino.privacy.amplification.personal_state import carries_noiseless_state
from sordino.protocol import Noise
from sordino.protocol.release import Release
from sordino.randomness import LANES

# Vectors of float32 that a client's job holds in addition to its result where clients keep
# something: start, centre and two moments, of which the first two may be float64.
PERSONAL_VECTORS = 6


class Jobs:
    """Makes the jobs of a federation.

    It holds everything that is the same in every round: records, keys, and which noise the kernel
    adds.

    Args:
        setup: The federation.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        # Jobs point to these arrays and keys, so they live as long as this object.
        self._parts = [np.ascontiguousarray(part, dtype=np.int64) for part in setup.parts]
        self._keys = derive_keys(setup)
        self._table = np.zeros(len(self._parts), JOB)
        self._table["records"] = [part.ctypes.data for part in self._parts]
        self._table["population"] = [len(part) for part in self._parts]
        self._table["client"] = np.arange(len(self._parts))
        self._table["lane"] = setup.training % LANES
        for name, key in zip(("batch_key", "upload_key"), self._keys, strict=True):
            self._table[name] = key_address(key)
        # Asked for once: a protocol makes it again every time.
        self._release = setup.protocol.release
        self._drops = has_dropout(setup.module)
        self._step_keys: dict[Noise, bytes] = {}
        if self._release.in_steps:
            self._step_keys = {noise: derive_step_key(setup, noise) for noise in set(setup.noises)}
            addresses = [key_address(self._step_keys[noise]) for noise in setup.noises]
            self._table["step_key"] = addresses
        self._table["weight"] = 1.0
        if self._release.secure_sum is not None:
            self._table["weight"] = setup.sum_weights
        self._output = choose_output(setup)
        # The deviation of the noise that the kernel adds to every client's upload.
        self._upload_noises = np.zeros(len(self._parts))
        if self._output is Output.UPLOAD:
            self._upload_noises[:] = [mechanism_of(noise).size for noise in setup.noises]

    @property
    def floats(self) -> int:
        """Numbers of four bytes that a client's job holds for every parameter, at most."""
        floats = 1 if self._output is Output.UPLOAD else 2
        if self._setup.protocol.keeps_models or self._release.in_steps:
            floats += PERSONAL_VECTORS
        return floats

    def make_call(self, tasks: Sequence[Assignment]) -> Call:
        """Returns the jobs of some clients in one round.

        Args:
            tasks: The work of each of these clients.
        """
        clients = [task.client for task in tasks]
        call = Call(self._setup, self._release, self._table[clients], tasks, output=self._output)
        call.give_rules(self._upload_noises[clients].tolist())
        if self._drops:
            call.give_mask_keys()
        return call


class Call:
    """Some clients' work in one call of the kernel. It holds all memory that the kernel uses.

    Args:
        setup: The federation.
        release: What leaves its clients.
        table: A job for each of the clients.
        tasks: The work of each of them.
        output: What the kernel gives.
    """

    def __init__(
        self,
        setup: Setup,
        release: Release,
        table: np.ndarray,
        tasks: Sequence[Assignment],
        *,
        output: Output,
    ) -> None:
        self.table = table
        self._setup = setup
        self._release = release
        # Its fields are those of the rules that the kernel has.
        self._rule: Any = setup.protocol.local
        self._tasks = tasks
        self._output = output
        # What the table points to.
        self._held: list[object] = []
        self._moments: dict[str, np.ndarray] = {}
        self._carries = carries_noiseless_state(setup.protocol)
        # The kernel writes where one of the fields says.
        field, kind = output.value
        self._given = np.empty((len(tasks), tasks[0].start.size), kind)
        table[field] = row_addresses(self._given)
        table["round"] = tasks[0].round_index
        starts = [task.start for task in tasks]
        self._point_to("start", starts)
        # What no noise has touched must not be rounded on its way through rounds.
        if self._carries:
            self._point_to("exact_start", starts, np.float64)
        # A rule corrects the steps of all clients or of none.
        if tasks[0].correction is not None:
            self._point_to("correction", [task.correction for task in tasks])
        if release.in_steps:
            self._give_moments()
        if release.varying_batches:
            self._give_batches()

    def give_rules(self, upload_noises: Sequence[float]) -> None:
        """Gives every client the steps to make; clients with the same steps share a rule.

        Args:
            upload_noises: The deviation of the noise on every client's upload.
        """
        centres: list[np.ndarray | None] = []
        rules: dict[tuple[object, ...], PackedRule] = {}
        addresses = []
        plain_strength = self._find_plain_strength()
        noises = self._setup.noises
        for task, upload_noise in zip(self._tasks, upload_noises, strict=True):
            # Without a pull to another model, the kernel pulls to the start.
            strength = plain_strength
            centre = None
            if task.pull is not None:
                pull = self._join_pulls(task, task.pull)
                strength = pull.strength
                centre = pull.model.numpy()
            centres.append(centre)
            clip = None if task.clip is None else float(task.clip[0])
            noise = noises[task.client]
            # Equal noises are one object, and take long to hash.
            steps = (strength, upload_noise, clip, id(noise))
            if steps not in rules:
                request = StepRequest(
                    protocol=self._setup.protocol,
                    round_index=task.round_index,
                    pull=strength,
                    upload_noise=upload_noise,
                    noise=noise,
                    clip=clip,
                    grid_noise=plan_draws(self._setup),
                )
                rules[steps] = PackedRule(make_step_rule(request))
            addresses.append(rules[steps].address)
        if any(centre is not None for centre in centres):
            if self._carries:
                self._point_to("exact_centre", centres, np.float64)
            else:
                self._point_to("centre", centres)
        self._held.append(rules)
        self.table["rule"] = addresses

    def give_mask_keys(self) -> None:
        """Gives every client the key of what its dropouts drop."""
        keys = []
        for task in self._tasks:
            key = derive_mask_key(self._setup, client=task.client, round_index=task.round_index)
            keys.append(key)
        self._held.append(keys)
        self.table["mask_key"] = [key_address(key) for key in keys]

    def _join_pulls(self, task: Assignment, pull: Pull) -> Pull:
        """Returns all that pulls a client's steps, its rule's pull to the start included."""
        if self._release.in_steps:
            return pull
        return join_pulls(self._rule, torch.from_numpy(task.start).double(), pull)

    def _find_plain_strength(self) -> float:
        """Returns how strongly a rule pulls to the start by itself."""
        if self._release.in_steps:
            return 0.0
        return join_pulls(self._rule, torch.empty(0), None).strength

    def _give_batches(self) -> None:
        """Lists the records of batches of random size, which the kernel does not draw."""
        rows = []
        counts = []
        for task in self._tasks:
            batches = minibatches(self._setup, client=task.client, round_index=task.round_index)
            sizes = [len(batch) for batch in batches]
            check_example_count(max(sizes), MOST_EXAMPLES)
            rows.append(np.concatenate(batches))
            counts.append(np.array(sizes))
        self._point_to("rows", rows, np.int64)
        self._point_to("counts", counts, np.int64)

    def _give_moments(self) -> None:
        """Hands over what clients have kept of their optimizers; the kernel writes over it."""
        # A client that has kept nothing begins with moments of zero.
        for name in VECTORS[self._rule.optimizer]:
            rows: np.ndarray = np.empty(self._given.shape, np.float32)
            for row, task in zip(rows, self._tasks, strict=True):
                row[:] = task.kept.get(name, 0.0)
            self._moments[name] = rows
            self.table[name] = row_addresses(rows)
        if self._moments:
            taken = [task.kept.get("steps", [0])[0] for task in self._tasks]
            self.table["taken"] = [int(steps) for steps in taken]

    def _point_to(
        self, name: str, arrays: Sequence[np.ndarray | None], kind: type = np.float32
    ) -> None:
        """Writes down where arrays are, and holds them; the address of None is 0."""
        # Most clients of a round share their arrays: each is looked at once.
        addresses = {id(None): 0}
        for array in arrays:
            if array is None or id(array) in addresses:
                continue
            contiguous: np.ndarray = np.ascontiguousarray(array, dtype=kind)
            self._held.append(contiguous)
            addresses[id(array)] = contiguous.__array_interface__["data"][0]
        self.table[name] = [addresses[id(array)] for array in arrays]

    def read_uploads(self) -> Iterator[Upload]:
        """Yields what the clients send, once the kernel has run."""
        in_steps = self._release.in_steps
        counts = self.table[["clipped", "clips", "nonfinite"]].tolist()
        for row, task in enumerate(self._tasks):
            clipped, clips, nonfinite = counts[row]
            steps = LocalSteps(clipped=clipped, clips=clips, nonfinite=nonfinite)
            if self._output is Output.MODEL:
                yield self._finish_upload(task, torch.from_numpy(self._given[row]), steps)
            elif in_steps:
                yield self._keep_state(row, task, steps)
            else:
                count = None if task.clip is None else self._count_within(task, steps)
                vector = self._given[row]
                if self._output is Output.INTEGERS:
                    vector = send_integers(self._setup, task.start, vector)
                yield Upload(client=task.client, vector=vector, steps=steps, count=count)

    def _count_within(self, task: Assignment, steps: LocalSteps) -> np.ndarray | None:
        """Returns the noisy count of examples within a clip that follows the gradients."""
        return noisy_count(
            self._setup,
            task,
            find_within(task, steps),
            training=self._setup.training,
            client=task.client,
        )

    def _finish_upload(self, task: Assignment, trained: torch.Tensor, steps: LocalSteps) -> Upload:
        """Clips and adds noise as the torch engine does, where the kernel has done neither."""
        if self._release.clips_update:
            start = torch.from_numpy(task.start).double()
            # Norms must not depend on how many threads torch has.
            with single_threaded():
                result = clip_update(self._rule, start, trained, steps.nonfinite, task.clip)
        else:
            result = LocalResult(model=trained, steps=steps, within=find_within(task, steps))
        return finish_upload(
            self._setup,
            task,
            result,
            training=self._setup.training,
            client=task.client,
            draw=draw_natively,
        )

    def _keep_state(self, row: int, task: Assignment, steps: LocalSteps) -> Upload:
        """Returns a model whose noise is in its steps, and what its client keeps.

        All of it is copied, so that it does not hold the memory of all other clients.
        """
        vector = self._given[row].copy()
        kept = {}
        if self._setup.protocol.keeps_models:
            kept["model"] = vector
        for name, rows in self._moments.items():
            kept[name] = rows[row].copy()
        if self._moments:
            # Adam corrects its moments by the number of steps that they have seen.
            kept["steps"] = self.table["taken"][row : row + 1] + self._rule.steps
        return Upload(
            client=task.client,
            vector=vector,
            steps=steps,
            kept=kept,
        )


def find_within(task: Assignment, steps: LocalSteps) -> np.ndarray | None:
    """Returns half the examples within the clip less half of the others, None where it stays.

    Args:
        task: The work of a client.
        steps: What happened in its step.
    """
    if task.clip is None:
        return None
    return np.array([steps.clips / 2 - steps.clipped - steps.nonfinite])
