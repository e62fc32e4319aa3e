"""One worker's hands: it trains any client of the federation for one round, or scores the global model on some test records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sordino.federation.linear import train_clipped_glm
from sordino.federation.local import LocalSteps, Pull, noisy_upload, train_locally
from sordino.federation.models.bounded import bounded_features
from sordino.federation.models.flat import FlatModel
from sordino.federation.models.losses import evaluate_batch, module_loss
from sordino.federation.models.per_example import ExampleGradients
from sordino.federation.noisy_sgd import train_noisily
from sordino.federation.optimizers import Optimizer
from sordino.federation.personal import Beginning, Kept, beginning, keeps_state
from sordino.federation.randomness import Key, Purpose, Stream
from sordino.federation.setup import Setup
from sordino.privacy.harmonizer import pull_of
from sordino.privacy.sizes import size_of
from sordino.protocol import ClippedGlm, FedAvg, NoisySgd, Scaffold, UserError

TEST_CHUNK = 500  # test records scored at once; fixed, so that sums are the same for any number of workers


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client sends to the server in a round, and what the simulation notes about how it came about."""

    client: int
    vector: np.ndarray
    steps: LocalSteps
    kept: Kept | None = None  # what the client keeps for its next round; it is not sent


@dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over some test records."""

    loss: float
    correct: int
    count: int


class ClientWork:
    """Runs local work for one client after another. It holds a model that every call overwrites; no state passes between calls.

    What clients keep from round to round is handed in and handed back.
    """

    def __init__(self, setup: Setup, device: str = "cpu") -> None:
        self._setup = setup
        self._device = torch.device(device)
        self._model = FlatModel(setup.module, device=device)
        self._train, self._test = setup.train.to(self._device), setup.test.to(self._device)
        self._loss = module_loss(setup.module, setup.train.y)
        self._gradients = ExampleGradients(self._model, self._loss)
        self._initial = setup.initial_weights()

    def upload(self, *, client: int, round: int, weights: np.ndarray, kept: Kept | None = None) -> Upload:
        """Train a client from the global model, or from what it has kept, and add its noise.

        What travels with the global model stands in further rows of `weights` (see `companions`): the model that clients are pulled to,
        or every client's correction.
        """
        protocol, rule = self._setup.protocol, self._setup.protocol.local
        if kept is None and keeps_state(protocol):
            raise UserError("clients of this protocol keep something from round to round, and here nobody keeps it: only `train` does.")
        begin = beginning(protocol, weights if weights.ndim == 1 else weights[0], self._initial, kept or {})
        start = self._tensor(begin.start)
        rates = rule.schedule.rates(round=round, steps=rule.steps)
        if isinstance(rule, ClippedGlm):
            steps, trained = self._train_linear(client, start, rule, rates)
        else:
            self._seed_layers(self._stream(self._setup.key, Purpose.LOCAL_MODEL, client, round).seed())
            if isinstance(rule, NoisySgd):
                return self._noisy_steps(client, round, rule, rates, begin, kept or {})
            pull, correction = self._pull(client, weights, begin), self._correction(client, weights)
            batches = self._batches(client, round, rule)
            steps, trained = train_locally(self._model, start, rule, rates, batches, self._loss, pull, correction)
        stream = self._stream(self._setup.noise_key, Purpose.UPLOAD_NOISE, client, round)
        own = {"model": trained.cpu().numpy().astype(np.float32)} if protocol.keeps_models else None
        return Upload(client=client, vector=noisy_upload(trained, self._setup.noises[client], stream), steps=steps, kept=own)

    def _pull(self, client: int, weights: np.ndarray, begin: Beginning) -> Pull | None:
        """What pulls a client's steps: its helper, or the Harmonizer's penalty."""
        if begin.helper is not None:
            return Pull(model=self._tensor(begin.helper), strength=begin.strength)
        own = [budget for budget in self._setup.protocol.client if budget.id == client]
        if weights.ndim == 1 or not own or not self._setup.protocol.penalty:
            return None
        strength = pull_of(self._setup.protocol, own[0])
        return Pull(model=self._tensor(weights[1]), strength=strength) if strength > 0 else None

    def _correction(self, client: int, weights: np.ndarray) -> torch.Tensor | None:
        """SCAFFOLD's correction of a client's steps."""
        if not isinstance(self._setup.protocol.local, Scaffold):
            return None
        if weights.ndim == 1:
            raise UserError('local.rule = "scaffold": control variates are kept by `train` alone.')
        return self._tensor(received_by(client, weights)[1])

    def _noisy_steps(self, client: int, round: int, rule: NoisySgd, rates: tuple[float, ...], begin: Beginning, kept: Kept) -> Upload:
        """The rule noisy-sgd: the noise is in the steps, so the model is sent as it is, and is the client's own."""
        optimizer = Optimizer(rule.optimizer, self._model.weights, dict(kept))
        steps = train_noisily(
            self._model,
            self._gradients,
            self._tensor(begin.start),
            rule,
            rates,
            self._batches(client, round, rule),
            multiplier=size_of(self._setup.protocol.noise),
            noise=lambda step: self._stream(self._setup.noise_key, Purpose.STEP_NOISE, client, round, step),
            optimizer=optimizer,
            pull=None if begin.helper is None else Pull(model=self._tensor(begin.helper), strength=begin.strength),
        )
        vector = self._model.weights.cpu().numpy().copy()
        own = {"model": vector} if self._setup.protocol.keeps_models else {}
        return Upload(client=client, vector=vector, steps=steps, kept={**own, **optimizer.state()})

    def _tensor(self, vector: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(vector).to(self._device)

    def _stream(self, key: Key, purpose: Purpose, client: int, round: int, step: int = 0) -> Stream:
        return key.stream(purpose, training=self._setup.training, client=client, round=round, step=step)

    def _seed_layers(self, seed: int) -> None:
        # Layers that draw for themselves (dropout) use torch's own generator. `torch.manual_seed` would do, but takes a third of
        # a millisecond to note where it was called from, which is longer than a step of a small model.
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            torch.manual_seed(seed)

    def _train_linear(
        self, client: int, start: torch.Tensor, rule: ClippedGlm, rates: tuple[float, ...]
    ) -> tuple[LocalSteps, torch.Tensor]:
        rows = torch.from_numpy(self._setup.parts[client]).to(self._device)
        features = bounded_features(self._train.inputs(rows), rule.feature_norm)
        weights = start.double()
        return train_clipped_glm(weights, features, self._train.y.index_select(0, rows), rule, rates), weights

    def _batches(self, client: int, round: int, rule: FedAvg | NoisySgd) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        part = self._setup.parts[client]
        stream = self._stream(self._setup.draw_key, Purpose.MINIBATCH, client, round)
        if isinstance(rule, NoisySgd) and rule.sampling == "poisson":
            draws = [np.flatnonzero(row) for row in stream.coins(rule.steps, len(part), rule.batch / len(part))]
        else:
            draws = list(stream.subsets(rule.steps, rule.batch, len(part)))
        for rows in (torch.from_numpy(part[draw]).to(self._device) for draw in draws):
            yield self._train.inputs(rows), self._train.y.index_select(0, rows)

    def score(self, *, weights: np.ndarray, rows: slice) -> Score:
        """Score the global model on a slice of the test records."""
        self._model.load(torch.from_numpy(weights).to(self._device))
        loss, correct, count = evaluate_batch(self._model.predict(self._test.inputs(rows)), self._test.y[rows])
        return Score(loss=loss, correct=correct or 0, count=count)


def received_by(client: int, broadcast: np.ndarray) -> np.ndarray:
    """What one client needs of a broadcast: the global model, and in a second row what is for it, where anything is.

    A table of more than two rows has one for every client. What a client has received it may be asked to receive again.

    Example:
        >>> received_by(1, np.array([[0.0], [1.0], [2.0]])).ravel().tolist()
        [0.0, 2.0]
    """
    return broadcast[[0, 1 + client]] if broadcast.ndim == 2 and len(broadcast) > 2 else broadcast


def score_chunks(records: int) -> list[slice]:
    """The test records in chunks of fixed size."""
    return [slice(start, min(start + TEST_CHUNK, records)) for start in range(0, records, TEST_CHUNK)]


def joined(scores: list[Score]) -> Score:
    """The score over all chunks, summed in their order."""
    return Score(loss=sum(s.loss for s in scores), correct=sum(s.correct for s in scores), count=sum(s.count for s in scores))
