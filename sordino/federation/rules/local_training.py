"""What a client is asked to do in a round, and the result, in terms all local rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
from torch import Tensor

from sordino.federation.setup import Setup
from sordino.models.per_example import ClippedSum
from sordino.models.task_losses import Loss
from sordino.protocol import LocalRule
from sordino.protocol.registry import Registry
from sordino.randomness import Stream

# What a client keeps from round to round: its personal model, the moments of its optimizer.
ClientState = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """Counts what happened in a client's steps, for the metrics.

    The counts come from private data and are covered by no guarantee.

    Attributes:
        clipped: Gradients that were longer than the clip.
        clips: Gradients that the clip looked at: one a step, or one an example.
        nonfinite: Gradients that were not finite and counted as zero.
    """

    clipped: int
    clips: int
    nonfinite: int


UNCOUNTED = LocalSteps(clipped=0, clips=0, nonfinite=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pull:
    """A model that every step is pulled to: a leader's (udp-fl 3.3), or a helper (PriFedSync 2).

    Attributes:
        model: Where steps are pulled to.
        strength: How much of the way a step of rate 1 goes.
    """

    model: Tensor
    strength: float


class ClippedSums(Interface):
    """Adds up clipped gradients at a model's present weights."""

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        /,
        *,
        clip: Any,
        norm: str = "l2",
    ) -> ClippedSum:
        """Returns the sum over a batch, possibly empty.

        Args:
            inputs: The records' features.
            targets: Their labels.
            clip: The largest norm of an example's gradient; in a table it may be a column.
            norm: Which norm that is.
        """


# Takes the place of a client's own clipped sums, and is made of them: for repeating a training.
Substitute = Callable[[ClippedSums], ClippedSums]


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """A client's work in a round. Arrays are vectors, or tables with one training a row.

    Attributes:
        client: Which client works.
        round_index: Number of the round, from 0.
        start: The weights that its steps begin with.
        pull: The model that steps are pulled to, if there is one.
        correction: The vector added to every gradient (SCAFFOLD).
        kept: What the client has kept from earlier rounds.
        sums: With noisy-sgd, what takes the place of the client's own sums and of their noise.
        clip: The present clip, where it follows; in a table, one a row as a column.
    """

    client: int
    round_index: int
    start: np.ndarray
    pull: Pull | None = None
    correction: np.ndarray | None = None
    clip: np.ndarray | None = None
    kept: ClientState = field(default_factory=dict)
    sums: Substitute | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalResult:
    """What a client's steps led to, before anything is sent.

    Attributes:
        model: The weights after the last step, in float64 where noise is still to be added.
        steps: What happened in the steps.
        kept: Moments of an optimizer, for the client's next round.
        means: With noisy-sgd the noisy mean of every step, where they are recorded:
            (steps, parameters), or (trainings, steps, parameters).
        within: Where the clip follows, half of what was within it less half of the others:
            examples, or the update; in a table, one a row as a column.
    """

    model: Tensor
    steps: LocalSteps
    within: np.ndarray | None = None
    kept: ClientState = field(default_factory=dict)
    means: np.ndarray | None = None


class Trainable(Interface):
    """A model as a vector, or many models as rows of a table, whose loss can be differentiated."""

    weights: Tensor
    gradients: Tensor

    def load(self, vector: Tensor) -> None:
        """Takes over these weights.

        Args:
            vector: All parameters as one vector.
        """

    def loss_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> float:
        """Leaves the gradient of the loss of one batch in `gradients`.

        Args:
            inputs: The records' features.
            targets: Their labels.
            loss: Turns outputs and targets into a mean loss.
        """


class Worker(Interface):
    """Who runs a client's steps: in one training, or side by side in a table of many."""

    setup: Setup
    loss: Loss
    record_steps: bool

    @property
    def model(self) -> Trainable:
        """The model that steps change."""

    @property
    def clipped_sums(self) -> ClippedSums:
        """Sums of clipped gradients of the model's examples."""

    def as_tensor(self, vector: np.ndarray) -> Tensor:
        """Returns an array as a tensor where the model is.

        Args:
            vector: One vector, or a table with one a row.
        """

    def draw_batches(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the inputs and targets of every step, as the loss of a batch needs them.

        Args:
            task: The round's work.
        """

    def draw_examples(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the inputs and targets of every step, as `clipped_sums` needs them.

        Args:
            task: The round's work.
        """

    def bounded_records(self, task: Assignment, norm: float) -> tuple[Tensor, Tensor]:
        """Returns all records of the client, scaled into a ball of this radius, and their labels.

        Args:
            task: The round's work.
            norm: The largest norm.
        """

    def step_noise(self, task: Assignment, step: int) -> Stream:
        """Returns the keystream of the noise of one step.

        Args:
            task: The round's work.
            step: The number of the step.
        """


# How the steps of each rule are run: (rule, worker, assignment) to what came of them.
LOCAL_RULES: Registry[Callable[[Any, Worker, Assignment], LocalResult]] = Registry(
    "way to train a client", "local rule", LocalRule
)


def train_client(worker: Worker, task: Assignment) -> LocalResult:
    """Runs a client's steps by the rule of its protocol.

    Args:
        worker: Runs them.
        task: What the client is asked to do.

    Returns:
        The model after the steps, without noise on the upload.

    Raises:
        UnknownKind: No training is registered for clients of this rule.
    """
    rule = worker.setup.protocol.local
    return LOCAL_RULES.of(rule)(rule, worker, task)


def rates_of(worker: Worker, task: Assignment) -> tuple[float, ...]:
    """Returns the learning rate of every step of an assignment.

    Args:
        worker: Computes for the client.
        task: The round's work.
    """
    rule = worker.setup.protocol.local
    return rule.schedule.rates(round=task.round_index, steps=rule.steps)


def read_present_clip(worker: Worker, task: Assignment) -> float | torch.Tensor:
    """Returns the clip of an assignment: a number, or a column where a table's clips follow.

    Args:
        worker: Computes for the client.
        task: The round's work.
    """
    if task.clip is None:
        return float(worker.setup.release.clip)
    return clip_of_rows(task.clip)


def clip_of_rows(clip: np.ndarray) -> float | torch.Tensor:
    """Returns the clip of one training as a number, those of a table as a column.

    Args:
        clip: As it was broadcast.
    """
    if clip.ndim == 1:
        return float(clip[0])
    return torch.from_numpy(clip.astype(np.float64))


def copy_step(means: list[np.ndarray], noisy: torch.Tensor) -> None:
    """Keeps a copy of a noisy mean, which the optimizer may overwrite.

    Args:
        means: What was copied so far.
        noisy: The noisy mean of a step.
    """
    means.append(noisy.cpu().numpy().copy())
