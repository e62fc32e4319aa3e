"""One worker's hands: it trains any client of the federation for one round, or scores the global model on some test records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sordino.federation.assignment import (
    Assignment,
    Upload,
    assigned,
    finished,
    minibatches,
    stream_of,
)
from sordino.federation.linear import train_clipped_glm
from sordino.federation.local import LocalSteps, train_locally
from sordino.federation.models.bounded import bounded_features
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import evaluate_batch, module_loss
from sordino.federation.models.per_example import ExampleGradients
from sordino.federation.noisy_sgd import Substitute, train_noisily
from sordino.federation.optimizers import Optimizer
from sordino.federation.personal import Kept
from sordino.federation.randomness import Purpose
from sordino.federation.setup import Setup
from sordino.privacy.sizes import size_of
from sordino.protocol import ClippedGlm, FedAvg, NoisySgd

TEST_CHUNK = (
    500  # test records scored at once; fixed, so that sums are the same for any number of workers
)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over some test records."""

    loss: float
    correct: int
    count: int


class ClientWork:
    """Runs local work for one client after another. It holds a model that every call overwrites; no state passes between calls.

    What clients keep from round to round is handed in and handed back. `on_step` is called with every noisy mean of noisy-sgd.
    """

    def __init__(
        self,
        setup: Setup,
        device: str = "cpu",
        on_step: Callable[[torch.Tensor], None] = lambda noisy: None,
    ) -> None:
        self._setup, self._on_step = setup, on_step
        self._device = torch.device(device)
        self._model = FlatModel(setup.module, device=device)
        self._train, self._test = setup.train.to(self._device), setup.test.to(self._device)
        self._loss = module_loss(setup.module, setup.train.y)
        self._gradients = ExampleGradients(self._model, self._loss)
        self._initial = setup.initial_weights()

    def upload(
        self,
        *,
        client: int,
        round: int,
        weights: np.ndarray,
        kept: Kept | None = None,
        sums: Substitute | None = None,
    ) -> Upload:
        """Train a client from the global model, or from what it has kept, and add its noise.

        With noisy-sgd `sums` may take the place of the client's own noisy sums.
        """
        rule = self._setup.protocol.local
        task = assigned(
            self._setup, self._initial, client=client, round=round, weights=weights, kept=kept
        )
        rates = rule.schedule.rates(round=round, steps=rule.steps)
        if isinstance(rule, ClippedGlm):
            return finished(self._setup, task, *self._train_linear(task, rule, rates))
        # Masks of dropout say what a step left alone: under `secure` they come from the secret key.
        self._seed_layers(
            stream_of(
                self._setup, self._setup.draw_key, Purpose.LOCAL_MODEL, client=client, round=round
            ).seed()
        )
        if isinstance(rule, NoisySgd):
            return self._noisy_steps(task, rule, rates, sums)
        start, batches = self._tensor(task.start), self._batches(client, round, rule)
        correction = None if task.correction is None else self._tensor(task.correction)
        steps, trained = train_locally(
            self._model, start, rule, rates, batches, self._loss, task.pull, correction
        )
        return finished(self._setup, task, steps, trained)

    def _noisy_steps(
        self, task: Assignment, rule: NoisySgd, rates: tuple[float, ...], sums: Substitute | None
    ) -> Upload:
        """The rule noisy-sgd: the noise is in the steps, so the model is sent as it is, and is the client's own."""
        setup, where = self._setup, {"client": task.client, "round": task.round}
        optimizer = Optimizer(rule.optimizer, self._model.weights, dict(task.kept))
        steps = train_noisily(
            self._model,
            self._gradients if sums is None else sums(self._gradients),
            self._tensor(task.start),
            rule,
            rates,
            self._batches(task.client, task.round, rule),
            multiplier=size_of(setup.protocol.noise) if sums is None else 0.0,
            noise=lambda step: stream_of(
                setup, setup.noise_key, Purpose.STEP_NOISE, **where, step=step
            ),
            optimizer=optimizer,
            pull=task.pull,
            on_step=self._on_step,
        )
        vector = self._model.weights.cpu().numpy().copy()
        own = {"model": vector} if setup.protocol.keeps_models else {}
        return Upload(
            client=task.client, vector=vector, steps=steps, kept={**own, **optimizer.state()}
        )

    def _tensor(self, vector: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(vector).to(self._device)

    def _seed_layers(self, seed: int) -> None:
        # Layers that draw for themselves (dropout) use torch's own generator. `torch.manual_seed` would do, but takes a third of
        # a millisecond to note where it was called from, which is longer than a step of a small model.
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            torch.manual_seed(seed)

    def _train_linear(
        self, task: Assignment, rule: ClippedGlm, rates: tuple[float, ...]
    ) -> tuple[LocalSteps, torch.Tensor]:
        rows = torch.from_numpy(self._setup.parts[task.client]).to(self._device)
        features = bounded_features(self._train.inputs(rows), rule.feature_norm)
        weights = self._tensor(task.start).double()
        return train_clipped_glm(
            weights, features, self._train.y.index_select(0, rows), rule, rates
        ), weights

    def _batches(
        self, client: int, round: int, rule: FedAvg | NoisySgd
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for drawn in minibatches(self._setup, rule, client=client, round=round):
            rows = torch.from_numpy(drawn).to(self._device)
            yield self._train.inputs(rows), self._train.y.index_select(0, rows)

    def score(self, *, weights: np.ndarray, rows: slice) -> Score:
        """Score the global model on a slice of the test records."""
        self._model.load(torch.from_numpy(weights).to(self._device))
        loss, correct, count = evaluate_batch(
            self._model.predict(self._test.inputs(rows)), self._test.y[rows]
        )
        return Score(loss=loss, correct=correct or 0, count=count)


def score_chunks(records: int) -> list[slice]:
    """The test records in chunks of fixed size."""
    return [
        slice(start, min(start + TEST_CHUNK, records)) for start in range(0, records, TEST_CHUNK)
    ]


def joined(scores: list[Score]) -> Score:
    """The score over all chunks, summed in their order."""
    return Score(
        loss=sum(s.loss for s in scores),
        correct=sum(s.correct for s in scores),
        count=sum(s.count for s in scores),
    )
