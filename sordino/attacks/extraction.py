"""Trains a substitute for a model only on its answers (knowledge extraction).

The paper's table is convergent-dp, Table 16. The attacker asks the model about its own records, and
trains a network of the same structure, from another start, to give the same answers. Noise on the
answers makes them less worth stealing; its size is in standard deviations of the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.attack import Case, CaseResult, Measure, Tick
from sordino.attacks.observed import ObservedAnswers, ObservedFederation
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthModel
from sordino.models.flat import FlatModel
from sordino.protocol import View

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Substitute:
    """A model that answers as the attacked one does.

    Attributes:
        module: The model.
        noise: The size of the noise on the answers that it learnt from.
    """

    module: nn.Module
    noise: float


@dataclass(frozen=True, kw_only=True)
class ExtractionAttack:
    """Trains a substitute from answers.

    Attributes:
        rounds: The number of models that are attacked, up to the last.
        queries: The number of records that the attacker asks about.
        scoring: The number of test records on which the substitute is scored.
        noises: The sizes of the noise on the answers.
        iterations: The training steps of the substitute.
        rate: The learning rate of the substitute.
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
        """Returns some models, each with several sizes of noise on its answers.

        Args:
            referee: Knows the run.
        """
        federation = referee.public_federation(self.queries)
        cases = []
        for round_index, weights in referee.global_models(self.rounds):
            # The initial model is public, so there is nothing to steal.
            if round_index == 0:
                continue
            for noise in self.noises:
                case = Case(
                    key=f"{round_index:06d}-{noise:g}",
                    round=round_index,
                    observe=partial(query_model, referee, federation, round_index, weights, noise),
                    reveal=partial(referee.reveal_answers, weights, self.scoring),
                )
                cases.append(case)
        return cases

    def attempt(self, seen: ObservedAnswers, tick: Tick) -> Substitute:
        """Trains a network by cross-entropy to the probabilities of the answers.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        inputs = seen.federation.auxiliary.inputs
        probabilities = seen.answers.softmax(dim=1)
        # Another start than the federation's: from the same start, a substitute would resemble the
        # model without any answer.
        module = copy_untrained(seen.federation.module)
        optimizer = torch.optim.Adam(module.parameters(), lr=self.rate)
        # The draw of batches has its own generator, so that nothing else that uses torch shifts it.
        generator = torch.Generator().manual_seed(0)
        for iteration in range(self.iterations):
            rows = torch.randint(0, len(inputs), (BATCH_SIZE,), generator=generator)
            optimizer.zero_grad()
            functional.cross_entropy(module(inputs[rows]), probabilities[rows]).backward()
            optimizer.step()
            tick((iteration + 1) / self.iterations)
        return Substitute(module=module.eval(), noise=seen.noise)

    def score(self, guess: Substitute, truth: TruthModel) -> CaseResult:
        """Returns accuracy and agreement of the substitute, and the attacked model's accuracy.

        The baseline is an attacker who always names the commonest class.

        Args:
            guess: The substitute.
            truth: What the attacked model answers.
        """
        with torch.no_grad():
            guessed = guess.module(truth.inputs).argmax(dim=1)
        attacked = truth.answers.argmax(dim=1)
        # The attacked model's accuracy does not depend on the noise on its answers, so it is
        # measured once, where there is none.
        if guess.noise == 0:
            measures = [
                _measure_share("accuracy", "substitute", guessed, truth.labels),
                _measure_share("agreement", "substitute", guessed, attacked),
                _measure_share("accuracy", "attacked model", attacked, truth.labels),
            ]
        else:
            method = f"substitute, logits + {guess.noise:g} std"
            measures = [
                _measure_share("accuracy", method, guessed, truth.labels),
                _measure_share("agreement", method, guessed, attacked),
            ]
        return CaseResult(measures=tuple(measures))


def _measure_share(metric: str, method: str, guessed: Tensor, right: Tensor) -> Measure:
    """Returns the share of right classes, and that of the commonest class."""
    return Measure(
        metric=metric,
        method=method,
        value=float((guessed == right).double().mean()),
        # An attacker that asks nothing can always answer with the commonest class.
        baseline=commonest_share(right),
        better="higher",
        samples=len(right),
    )


def query_model(
    referee: Referee,
    federation: ObservedFederation,
    round_index: int,
    weights: np.ndarray,
    noise: float,
) -> ObservedAnswers:
    """Returns a model's answers about the attacker's own records, with noise on them.

    Args:
        referee: Knows the run.
        federation: Public knowledge, and the records.
        round_index: The number of rounds that the model was trained for.
        weights: The parameters of the model.
        noise: The size of the noise, in standard deviations of the answers.
    """
    _, answers = referee.open_model(weights).read(federation.auxiliary.inputs)
    # The noise belongs to the answers of a round: every attempt sees the same, however often it
    # asks.
    generator = torch.Generator().manual_seed(round_index)
    normals = torch.randn(answers.shape, generator=generator)
    return ObservedAnswers(
        federation=federation,
        round=round_index,
        # Logits have no fixed scale, so noise is measured in their own standard deviation, as in
        # Table 16.
        answers=answers + noise * answers.std() * normals,
        noise=noise,
    )


def copy_untrained(module: nn.Module) -> nn.Module:
    """Returns a copy of a module whose layers are initialised again, the same in every call.

    Args:
        module: The structure.
    """
    copy = FlatModel(module).module().train()
    # Initialising layers draws from torch's global generator, whose state belongs to the caller.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        for layer in copy.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return copy.requires_grad_()


def commonest_share(labels: Tensor) -> float:
    """Returns the share of the commonest label.

    Args:
        labels: The labels.
    """
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
