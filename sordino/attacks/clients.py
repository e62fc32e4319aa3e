"""Finds the uploads of certain clients among all uploads of a round (convergent-dp, Table 11).

The attacker intercepts all uploads of a round and does not know who sent which. The paper names its
attacker's tool, gradient matching, but not its knowledge; here there are two attackers. One knows
records of the clients in question. The other knows only what share of each class they hold, and has
records of each class. The update that such records would make is computed from the global model,
and uploads are assigned to clients so that they explain it best. Rounds do not add up, since
uploads of two rounds have no common name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from sordino.attacks.attack import Case, CaseResult, Measure, Tick
from sordino.attacks.attacked_run import spread_rounds
from sordino.attacks.observed import ObservedRecords, ObservedRound
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthSenders
from sordino.models.flat import FlatModel
from sordino.protocol import UserError, View

# Keeps quotients finite.
SMALLEST = 1e-12
# The weight of the ridge regression, in which directions have length 1.
RIDGE = 0.1


@dataclass(frozen=True, kw_only=True)
class ClientAttack:
    """Finds the senders of uploads.

    Attributes:
        rounds: The number of kept rounds that are attacked, from first to last.
        targets: The number of clients in question in each round.
        records: The most records of each client that the attacker knows.
        own: The number of records of the attacker.
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
        """Returns some kept rounds in which at least two clients took part.

        Args:
            referee: Knows the run.

        Raises:
            UserError: Uploads hold no gradients, or no round has two of them.
        """
        # Refuses what sends no gradients, before any work.
        referee.gradient_rule()
        federation = referee.public_federation(self.own)
        cases = []
        for round_index in spread_rounds(referee.kept, self.rounds):
            if len(referee.read_round(round_index).uploads) < 2:
                continue
            case = Case(
                key=f"{round_index:06d}",
                round=round_index,
                observe=partial(
                    referee.observe_round, federation, round_index, self.targets, self.records
                ),
                reveal=partial(referee.reveal_senders, round_index, self.targets),
            )
            cases.append(case)
        if not cases:
            raise UserError(
                f"no kept round of {referee.run.folder} has uploads of two clients, so there is "
                "nobody to be taken for another. Attack a run in which more clients take part."
            )
        return cases

    def attempt(self, seen: ObservedRound, tick: Tick) -> dict[str, np.ndarray]:
        """Returns the place of the upload that each attacker assigns to each client.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        # Doubles: an update is the small difference of two large vectors.
        updates = seen.uploads.astype(np.float64) - seen.model.astype(np.float64)
        updates = np.nan_to_num(updates, posinf=0.0, neginf=0.0)
        own = seen.federation.auxiliary
        classes = len(seen.federation.classes)
        by_records = []
        by_classes = []
        for number, target in enumerate(seen.targets):
            equal_weights = torch.full((len(target),), 1 / len(target))
            by_records.append(simulate_update(seen, target, equal_weights))
            class_weights = weigh_by_class(own.labels, target.labels, classes)
            by_classes.append(simulate_update(seen, own, class_weights))
            tick((number + 1) / len(seen.targets))
        return {
            "knows their records": match_updates(updates, np.stack(by_records)),
            "knows their shares of classes": match_updates(updates, np.stack(by_classes)),
        }

    def score(self, guess: dict[str, np.ndarray], truth: TruthSenders) -> CaseResult:
        """Returns the share of the clients whose upload was found, compared with guessing.

        Args:
            guess: What `attempt` returned.
            truth: Who sent which upload.
        """
        measures = []
        for method, places in guess.items():
            measure = Measure(
                metric="success rate",
                method=method,
                value=float((places == truth.places).mean()),
                baseline=1 / truth.uploads,
                better="higher",
                samples=len(places),
            )
            measures.append(measure)
        return CaseResult(measures=tuple(measures))


def match_updates(updates: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns the place of the update that each expected one is assigned to, all different.

    Each expected direction is written as a sum of all observed directions (ridge regression), so
    that what many clients have in common speaks for none of them. Clients are assigned so that the
    sum of their coefficients is largest.

    Args:
        updates: The observed updates, one a row.
        expected: The expected updates, one a row.

    Example:
        >>> match_updates(np.eye(3), np.eye(3)[[2, 0]]).tolist()
        [2, 0]
    """
    directions = normalise_rows(updates)
    gram = directions @ directions.T + RIDGE * np.eye(len(directions))
    coefficients = np.linalg.solve(gram, directions @ normalise_rows(expected).T).T
    return np.asarray(linear_sum_assignment(coefficients, maximize=True)[1])


def normalise_rows(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1; zero stays zero.

    Args:
        vectors: One a row.
    """
    directions: np.ndarray = vectors / np.maximum(
        np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST
    )
    return directions


def simulate_update(seen: ObservedRound, records: ObservedRecords, weights: Tensor) -> np.ndarray:
    """Returns the update of a client whose every step uses all its records.

    Args:
        seen: What the attacker is given.
        records: The client's records.
        weights: Weights of the records in the loss.
    """
    flat = FlatModel(seen.federation.module)
    clip = seen.federation.protocol.release.clip
    start = torch.from_numpy(seen.model.astype(np.float32))
    flat.load(start)

    # Classes are weighed as at the client, since the attacker's records may hold them in other
    # shares.
    def weighted_loss(answers: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum of the records' losses, each times its weight.

        Args:
            answers: The model's logits of the records.
            labels: Their labels.
        """
        return weights @ functional.cross_entropy(answers, labels, reduction="none")

    for rate in seen.federation.learning_rates(seen.round):
        flat.loss_gradient(records.inputs, records.labels, weighted_loss)
        kept = min(1.0, clip / max(float(flat.gradients.norm()), SMALLEST))
        flat.weights.sub_(flat.gradients.nan_to_num(0.0), alpha=rate * kept)
    moved: np.ndarray = np.nan_to_num(
        (flat.weights - start).double().numpy(), posinf=0.0, neginf=0.0
    )
    return moved


def weigh_by_class(labels: Tensor, client_labels: Tensor, classes: int) -> Tensor:
    """Returns weights of records such that each class weighs as much as at a client.

    Args:
        labels: The labels of the records.
        client_labels: The labels of the client's records.
        classes: How many classes there are.

    Example:
        >>> weigh_by_class(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1, 1]), 2).tolist()
        [0.125, 0.125, 0.75]
    """
    counts = labels.bincount(minlength=classes).float()
    client_counts = client_labels.bincount(minlength=classes).float()
    return (client_counts / len(client_labels) / counts.clamp(min=1))[labels]


SETTINGS = {
    "quick": ClientAttack(rounds=5, targets=10, records=500, own=200),
    "paper": ClientAttack(rounds=20, targets=10, records=10000, own=10000),
}
