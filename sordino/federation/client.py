"""The torch worker: it trains any client of one training, or scores a model on test records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.federation.assignment import (
    derive_mask_key,
    draw_mask_words,
    make_assignment,
    minibatches,
)
from sordino.federation.rules.local_training import (
    Assignment,
    ClientState,
    Substitute,
    train_client,
)
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload, finish_upload
from sordino.models.bounded import bounded_features
from sordino.models.dropout import DropoutMasks, place_dropouts
from sordino.models.flat import FlatModel
from sordino.models.per_example import ExampleGradients
from sordino.models.task_losses import evaluate_batch, module_loss
from sordino.randomness import Purpose, Stream

# Test records scored at once; fixed, so that sums are the same for any number of workers.
TEST_CHUNK = 500


@dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over some test records.

    Attributes:
        loss: Loss of all records together.
        correct: How many were classified rightly.
        count: How many records there are.
    """

    loss: float
    correct: int
    count: int


class ClientWork:
    """Runs local work for one client after another, in one training.

    It holds a model that every call overwrites; no state passes between calls. What clients keep
    from round to round is passed in and returned.
    """

    def __init__(self, setup: Setup, device: str = "cpu", *, record_steps: bool = False) -> None:
        """Loads the records and the model onto a device.

        Args:
            setup: The federation.
            device: Where the model and the records are.
            record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.
        """
        self.setup = setup
        self.record_steps = record_steps
        self.model = FlatModel(setup.module, device=device)
        self.loss = module_loss(setup.module, setup.train.y)
        self.clipped_sums = ExampleGradients(self.model, self.loss)
        self._device = torch.device(device)
        self._train = setup.train.to(self._device)
        self._test = setup.test.to(self._device)
        self._initial = setup.initial_weights()

    def upload(
        self,
        *,
        client: int,
        round_index: int,
        weights: np.ndarray,
        kept: ClientState | None = None,
        sums: Substitute | None = None,
    ) -> Upload:
        """Trains a client from the global model, or from what it has kept, and adds its noise.

        Args:
            client: The client that is trained.
            round_index: Number of the round, from 0.
            weights: What the server sends.
            kept: What the client has kept.
            sums: With noisy-sgd, what takes the place of the client's own noisy sums.

        Returns:
            What the client sends and keeps.
        """
        task = make_assignment(
            self.setup,
            self._initial,
            client=client,
            round_index=round_index,
            weights=weights,
            kept=kept,
            sums=sums,
        )
        self._seed_layers(task)
        result = train_client(self, task)
        if self.model.masks is not None:
            self.model.masks.rows = None
        return finish_upload(self.setup, task, result, training=self.setup.training, client=client)

    def as_tensor(self, vector: np.ndarray) -> Tensor:
        """Returns an array as a tensor on the worker's device.

        Args:
            vector: One vector, or a table with one a row.
        """
        return torch.from_numpy(vector).to(self._device)

    def draw_batches(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the inputs and targets of every step.

        Args:
            task: The round's work.
        """
        drawn = minibatches(self.setup, client=task.client, round_index=task.round_index)
        for step, batch in enumerate(drawn):
            rows = torch.from_numpy(batch).to(self._device)
            inputs = self._train.inputs(rows)
            if self.model.masks is not None and len(batch) > 0:
                self._draw_masks(self.model.masks, task, step, inputs)
            yield inputs, self._train.y.index_select(0, rows)

    def draw_examples(self, task: Assignment) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the inputs and targets of every step: examples come as they are.

        Args:
            task: The round's work.
        """
        return self.draw_batches(task)

    def bounded_records(self, task: Assignment, norm: float) -> tuple[Tensor, Tensor]:
        """Returns all records of a client, scaled into a ball, and their labels.

        Args:
            task: The round's work.
            norm: The largest norm.
        """
        rows = torch.from_numpy(self.setup.parts[task.client]).to(self._device)
        features = bounded_features(self._train.inputs(rows), norm)
        return features, self._train.y.index_select(0, rows)

    def step_noise(self, task: Assignment, step: int) -> Stream:
        """Returns the keystream of the noise of one step.

        Args:
            task: The round's work.
            step: The number of the step.
        """
        return self.setup.noise_key.stream(
            Purpose.STEP_NOISE,
            training=self.setup.training,
            client=task.client,
            round_index=task.round_index,
            step=step,
        )

    def _draw_masks(self, masks: DropoutMasks, task: Assignment, step: int, inputs: Tensor) -> None:
        """Gives the dropouts the words of a step."""
        if masks.length is None:
            masks.length = place_dropouts(self.model.net, inputs[:1])
        key = derive_mask_key(self.setup, client=task.client, round_index=task.round_index)
        masks.give_words(
            draw_mask_words(key, step, examples=len(inputs), length=masks.length), self._device
        )

    def _seed_layers(self, task: Assignment) -> None:
        # Other layers that draw for themselves use torch's own generator. Their draws say what
        # a step left alone: under `secure` they come from the secret key. `torch.manual_seed` takes
        # a third of a millisecond to note where it was called from, longer than a small step.
        seed = self.setup.draw_key.stream(
            Purpose.LOCAL_MODEL,
            training=self.setup.training,
            client=task.client,
            round_index=task.round_index,
        ).draw_seed()
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            torch.manual_seed(seed)

    def score(self, *, weights: np.ndarray, rows: slice) -> Score:
        """Scores the global model on a slice of the test records.

        Args:
            weights: The model.
            rows: Which of the records.
        """
        self.model.load(self.as_tensor(weights))
        predictions = self.model.predict(self._test.inputs(rows))
        loss, correct, count = evaluate_batch(predictions, self._test.y[rows])
        return Score(loss=loss, correct=correct or 0, count=count)


def score_chunks(records: int) -> list[slice]:
    """Returns the test records in chunks of fixed size.

    Args:
        records: How many records there are.
    """
    return [
        slice(start, min(start + TEST_CHUNK, records)) for start in range(0, records, TEST_CHUNK)
    ]


def join_scores(scores: list[Score]) -> Score:
    """Returns the score over all chunks, summed in their order.

    Args:
        scores: The scores of all chunks.
    """
    return Score(
        loss=sum(score.loss for score in scores),
        correct=sum(score.correct for score in scores),
        count=sum(score.count for score in scores),
    )
