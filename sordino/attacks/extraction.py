"""A substitute for a model, trained on its answers alone (knowledge extraction; convergent-dp, Table 16).

The attacker asks the model about records of its own and trains a network of the same structure, from a start of its own, to answer alike.
Answers may have noise on them, so that they are less worth stealing: its size is in standard deviations of the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.game import Case, Measure, Scored, Tick
from sordino.attacks.observed import ObservedAnswers, ObservedFederation
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthModel
from sordino.federation.models.flat import FlatModel
from sordino.protocol import View

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """A model that answers as the attacked one, and how much noise was on what it learnt from."""

    module: nn.Module
    noise: float


@dataclass(frozen=True, kw_only=True)
class ExtractionAttack:
    """A substitute from answers.

    Attributes:
        rounds: how many models are attacked, from the initial to the last.
        queries: how many records the attacker asks about.
        scoring: on how many test records the substitute is scored.
        noises: sizes of the noise on the answers.
        iterations: of the substitute's training.
        rate: its learning rate.
    """

    rounds: int
    queries: int
    scoring: int
    noises: tuple[float, ...]
    iterations: int
    rate: float
    name: str = "extraction"
    view: View = View.ROUNDS
    paper: str = "convergent-dp, Table 16"
    headline: str = "agreement"

    def cases(self, referee: Referee) -> list[Case[ObservedAnswers, TruthModel]]:
        """Some models, each with several sizes of noise on its answers."""
        federation = referee.federation(self.queries)
        return [
            Case(
                key=f"{t:06d}-{noise:g}",
                round=t,
                observe=partial(stolen, referee, federation, t, weights, noise),
                reveal=partial(referee.scoring, weights, self.scoring),
            )
            for t, weights in referee.models(self.rounds)
            if t > 0
            for noise in self.noises
        ]

    def attempt(self, seen: ObservedAnswers, tick: Tick) -> Substitute:
        """Train a network on the answers: cross-entropy to the probabilities that they say."""
        inputs, wanted = seen.federation.auxiliary.inputs, seen.answers.softmax(dim=1)
        module = restarted(seen.federation.module)
        optimizer = torch.optim.Adam(module.parameters(), lr=self.rate)
        generator = torch.Generator().manual_seed(0)
        for iteration in range(self.iterations):
            rows = torch.randint(0, len(inputs), (BATCH,), generator=generator)
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs[rows]), wanted[rows]).backward()
            optimizer.step()
            tick((iteration + 1) / self.iterations)
        return Substitute(module=module.eval(), noise=seen.noise)

    def score(self, guess: Substitute, truth: TruthModel) -> Scored:
        """Accuracy and agreement, beside who always names one class, and the accuracy of the attacked model itself."""
        with torch.no_grad():
            mine = guess.module(truth.inputs).argmax(dim=1)
        theirs = truth.answers.argmax(dim=1)
        method = "substitute" if guess.noise == 0 else f"substitute, logits + {guess.noise:g} std"
        found = [("accuracy", method, mine, truth.labels), ("agreement", method, mine, theirs)]
        if guess.noise == 0:
            found.append(("accuracy", "attacked model", theirs, truth.labels))
        return Scored(
            measures=tuple(
                Measure(
                    metric=metric, method=who, value=float((said == right).double().mean()), baseline=commonest(right), better="higher",
                    samples=len(right),
                )
                for metric, who, said, right in found
            )
        )  # fmt: skip


def stolen(
    referee: Referee, federation: ObservedFederation, round: int, weights: np.ndarray, noise: float
) -> ObservedAnswers:
    """What a model answers about the attacker's own records, with noise of this size on it."""
    _, answers = referee.reader(weights).read(federation.auxiliary.inputs)
    drawn = torch.randn(answers.shape, generator=torch.Generator().manual_seed(round))
    return ObservedAnswers(
        federation=federation,
        round=round,
        answers=answers + noise * answers.std() * drawn,
        noise=noise,
    )


def restarted(module: nn.Module) -> nn.Module:
    """A copy of a module whose layers begin anew, always alike."""
    copy = FlatModel(module).module().train()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        for layer in copy.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    return copy.requires_grad_()


def commonest(labels: Tensor) -> float:
    """The share of the label that there is most often."""
    return float(labels.bincount().max() / len(labels))


SETTINGS = {
    "quick": ExtractionAttack(
        rounds=3, queries=1500, scoring=1000, noises=(0.0, 100.0), iterations=400, rate=1e-3
    ),
    "paper": ExtractionAttack(
        rounds=6,
        queries=20000,
        scoring=5000,
        noises=(0.0, 1.0, 10.0, 100.0),
        iterations=10000,
        rate=1e-3,
    ),
}
