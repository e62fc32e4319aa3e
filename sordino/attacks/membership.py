"""Which records a model was trained on (udp-fl, Table 6): four published attackers over one set of shadow models.

All of them see the global model after some round, all records that may have been trained on, and the public protocol, and train
shadow federations (shadows.py). What they make of the answers is a module each: shokri.py, lira.py, rmia.py, canary.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sordino.attacks import canary, lira, rmia, shokri
from sordino.attacks.game import Case, Measure, Scored, Tick
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.shadows import Shadows, evidence_on, refuse_few, trained_shadows
from sordino.attacks.truth import TruthMembers
from sordino.protocol import View

LEAST_SHADOWS = 4  # two of either kind for every record
FALSE_POSITIVES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
TRAINING, READING = (
    0.8,
    0.85,
)  # shares of the time at which shadows are trained, and all answers read


@dataclass(frozen=True, kw_only=True)
class MembershipAttack:
    """Members from a model.

    Attributes:
        rounds: how many models are attacked, each from shadows of its own; the last always, earlier ones where uploads were kept.
        shadows: how many models the attacker trains for each.
        asked: about how many records it is asked, half of them members.
        population: how many records it has that nobody trained on.
        queries: how canary makes its queries.
    """

    rounds: int
    shadows: int
    asked: int
    population: int
    queries: canary.Optimiser = field(default_factory=canary.Optimiser)
    name: str = "membership"
    view: View = View.FINAL
    paper: str = "udp-fl, Table 6"
    headline: str = "AUC"

    def cases(self, referee: Referee) -> list[Case[ObservedMembership, TruthMembers]]:
        """Some models, each with the same records in question."""
        refuse_few(self.shadows, LEAST_SHADOWS)
        candidates, members = referee.candidates()
        asked = balanced(members, self.asked)
        federation = referee.federation(referee.population(self.population))
        truth = TruthMembers(members=members[asked])
        models = (
            referee.models(self.rounds + 1)
            if self.rounds > 1 and not referee.protocol.client
            else referee.models(1)
        )
        return [
            Case(
                key=f"{t:06d}",
                round=t,
                observe=partial(
                    ObservedMembership,
                    federation=federation,
                    round=t,
                    model=weights,
                    candidates=candidates,
                    asked=asked,
                    held=int(members.sum()),
                    workshop=referee.run.folder / "attacks" / "shadows",
                ),
                reveal=lambda: truth,
            )
            for t, weights in models
            if t > 0
        ]

    def attempt(self, seen: ObservedMembership, tick: Tick) -> dict[str, np.ndarray]:
        """For every method a score of each record in question; higher speaks for a member."""
        shadows = trained_shadows(seen, self.shadows, lambda share: tick(TRAINING * share))
        asked = ObservedRecords(
            inputs=seen.candidates.inputs[seen.asked], labels=seen.candidates.labels[seen.asked]
        )
        about, others = shadows.about(seen.asked), seen.federation.auxiliary
        known = evidence_on(seen, about, asked)
        population = evidence_on(
            seen,
            Shadows(
                models=shadows.models, inside=np.zeros((len(shadows), len(others)), dtype=bool)
            ),
            others,
        )
        tick(READING)
        return {
            "Shokri": shokri.classified(known),
            "LiRA": lira.online(known),
            "LiRA offline": lira.offline(known),
            "RMIA": rmia.pairwise(known, population),
            "Canary": canary.by_queries(
                seen,
                about,
                known,
                asked.inputs,
                self.queries,
                lambda share: tick(READING + (1 - READING) * share),
            ),
        }

    def score(self, guess: dict[str, np.ndarray], truth: TruthMembers) -> Scored:
        """AUC, accuracy at the best threshold, and true positives at few false ones, beside who guesses; and the whole curve."""
        curves = {
            method: detection_curve(truth.members, scores) for method, scores in guess.items()
        }
        measures = [
            Measure(
                metric=metric,
                method=method,
                value=value,
                baseline=trivial,
                better="higher",
                samples=len(truth.members),
            )
            for method, curve in curves.items()
            for metric, (value, trivial) in measured(*curve).items()
        ]
        return Scored(measures=tuple(measures), curves=curves)


def detection_curve(members: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """False and true positive rates at every threshold, (2, thresholds).

    Example:
        >>> detection_curve(np.array([True, False, True]), np.array([3.0, 2.0, 1.0])).tolist()
        [[0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0]]
    """
    from sklearn.metrics import roc_curve

    return np.stack(roc_curve(members, scores, drop_intermediate=False)[:2])


def measured(false: np.ndarray, true: np.ndarray) -> dict[str, tuple[float, float]]:
    """What is said of a curve of true against false positive rates, each beside what guessing gets.

    Example:
        >>> measured(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.5, 1.0]))["AUC"]
        (0.75, 0.5)
    """
    from sklearn.metrics import auc

    found = {
        "AUC": (float(auc(false, true)), 0.5),
        "accuracy": (float(np.max(1 + true - false)) / 2, 0.5),
    }
    rates = {
        metric: (float(true[false <= rate].max()), rate) for metric, rate in FALSE_POSITIVES.items()
    }
    return {**found, **rates}


def balanced(members: np.ndarray, count: int) -> np.ndarray:
    """At most so many rows, in order, as many members as others.

    Example:
        >>> balanced(np.array([True, True, False, True]), 3).tolist()
        [0, 2]
    """
    sides = [np.flatnonzero(members == side) for side in (True, False)]
    each = min(count // 2, *(len(side) for side in sides))
    return np.sort(np.concatenate([side[:each] for side in sides]))


SETTINGS = {
    "quick": MembershipAttack(rounds=2, shadows=16, asked=2000, population=1000),
    # Carlini et al. and Wen et al. train 64 shadows and more.
    "paper": MembershipAttack(
        rounds=3,
        shadows=64,
        asked=10000,
        population=5000,
        queries=canary.Optimiser(iterations=60, models=16),
    ),
}
