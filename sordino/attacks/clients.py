"""Which of the uploads of a round are those of certain clients (convergent-dp, Table 11).

The attacker intercepts all uploads of a round and does not know who sent which. The paper names its attacker's tool, gradient matching, and
not what it knows; here there are two. One knows records of the clients in question; one knows only what share of each class they hold, and
has records of its own of each class. The update that such records would make is computed from the global model, and uploads are assigned to
clients so that they explain it best. Over rounds nothing adds up, since uploads of two rounds have no common name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from sordino.attacks.game import Case, Measure, Scored, Tick
from sordino.attacks.observed import ObservedRecords, ObservedRound
from sordino.attacks.referee import Referee, spread
from sordino.attacks.truth import TruthSenders
from sordino.federation.models.flat import FlatModel
from sordino.protocol import UserError, View

SMALLEST = 1e-12
RIDGE = 0.1  # directions have length 1


@dataclass(frozen=True, kw_only=True)
class ClientAttack:
    """Senders of uploads.

    Attributes:
        rounds: how many of the kept rounds are attacked, from first to last.
        targets: how many clients are in question in each.
        records: how many of each client's records the attacker knows at most.
        own: how many records of its own it has.
    """

    rounds: int
    targets: int
    records: int
    own: int
    name: str = "clients"
    view: View = View.SERVER
    paper: str = "convergent-dp, Table 11"
    headline: str = "success rate"

    def cases(self, referee: Referee) -> list[Case[ObservedRound, TruthSenders]]:
        """Some kept rounds in which at least two clients took part."""
        referee.gradient_rule()  # refuses what sends no gradients, before any work
        federation = referee.federation(self.own)
        rounds = [t for t in spread(referee.kept, self.rounds) if len(referee.round(t).uploads) > 1]
        if not rounds:
            raise UserError(
                f"in no kept round of {referee.run.folder} two clients took part: there is nobody to be taken for another."
            )
        return [
            Case(
                key=f"{t:06d}",
                round=t,
                observe=partial(referee.intercepted, federation, t, self.targets, self.records),
                reveal=partial(referee.senders, t, self.targets),
            )
            for t in rounds
        ]

    def attempt(self, seen: ObservedRound, tick: Tick) -> dict[str, np.ndarray]:
        """For each attacker the place of the upload that it takes for each client's."""
        updates = np.nan_to_num(
            seen.uploads.astype(np.float64) - seen.model.astype(np.float64), posinf=0.0, neginf=0.0
        )
        own, classes = seen.federation.auxiliary, len(seen.federation.classes)
        by_records, by_classes = [], []
        for number, target in enumerate(seen.targets):
            by_records.append(
                expected_update(seen, target, torch.full((len(target),), 1 / len(target)))
            )
            by_classes.append(
                expected_update(seen, own, as_shared(own.labels, target.labels, classes))
            )
            tick((number + 1) / len(seen.targets))
        return {
            "knows their records": matched(updates, np.stack(by_records)),
            "knows their shares of classes": matched(updates, np.stack(by_classes)),
        }

    def score(self, guess: dict[str, np.ndarray], truth: TruthSenders) -> Scored:
        """The share of the clients whose upload was named, beside who guesses."""
        return Scored(
            measures=tuple(
                Measure(
                    metric="success rate", method=method, value=float((places == truth.places).mean()), baseline=1 / truth.uploads,
                    better="higher", samples=len(places),
                )
                for method, places in guess.items()
            )
        )  # fmt: skip


def matched(updates: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """For each expected update the place of the one that it is assigned to, no two the same.

    Each expected direction is written as a sum of all directions that were seen (ridge regression): what many clients have in common then
    speaks for none of them. Clients are assigned so that the coefficients add up to most.

    Example:
        >>> matched(np.eye(3), np.eye(3)[[2, 0]]).tolist()
        [2, 0]
    """
    seen = unit(updates)
    coefficients = np.linalg.solve(
        seen @ seen.T + RIDGE * np.eye(len(seen)), seen @ unit(expected).T
    ).T
    return np.asarray(linear_sum_assignment(coefficients, maximize=True)[1])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors at length 1; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


def expected_update(seen: ObservedRound, records: ObservedRecords, weights: Tensor) -> np.ndarray:
    """How a client would move the global model if all of its records, weighed so, were in each of its steps."""
    flat, clip = FlatModel(seen.federation.module), seen.federation.protocol.local.clip
    start = torch.from_numpy(seen.model.astype(np.float32))
    flat.load(start)

    def loss(answers: Tensor, labels: Tensor) -> Tensor:
        return weights @ functional.cross_entropy(answers, labels, reduction="none")

    for rate in seen.federation.rates(seen.round):
        flat.loss_gradient(records.inputs, records.labels, loss)
        flat.weights.sub_(
            flat.gradients.nan_to_num(0.0),
            alpha=rate * min(1.0, clip / max(float(flat.gradients.norm()), SMALLEST)),
        )
    return np.nan_to_num((flat.weights - start).double().numpy(), posinf=0.0, neginf=0.0)


def as_shared(labels: Tensor, theirs: Tensor, classes: int) -> Tensor:
    """Weights of records with these labels so that each class weighs what it does among others.

    Example:
        >>> as_shared(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1, 1]), 2).tolist()
        [0.125, 0.125, 0.75]
    """
    share, count = (side.bincount(minlength=classes).float() for side in (theirs, labels))
    return (share / len(theirs) / count.clamp(min=1))[labels]


SETTINGS = {
    "quick": ClientAttack(rounds=5, targets=10, records=500, own=200),
    "paper": ClientAttack(rounds=20, targets=10, records=10000, own=10000),
}
