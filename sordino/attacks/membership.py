"""Finds the records that a model was trained on (udp-fl, Table 6), by four published attacks.

All of them see the global model after some round, all records that may have been trained on, and
the public protocol, and train one set of shadow federations (`shadows`). How each judges the
answers is a module: `shokri`, `lira`, `rmia`, `canary_queries`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sordino.attacks.attack import Case, CaseResult, Measure, Tick
from sordino.attacks.canary_queries import QueryOptimiser, score_by_queries
from sordino.attacks.lira import score_offline, score_online
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.rmia import score_pairwise
from sordino.attacks.shadows import Shadows, collect_evidence, refuse_few_shadows, train_shadows
from sordino.attacks.shokri import score_by_classifier
from sordino.attacks.truth import TruthMembers
from sordino.protocol import UserError, View

# With four shadows, every record is inside two of them and outside two.
LEAST_SHADOWS = 4
# Carlini et al. 2022 ask for few false positives: an attack that is right on average may name no
# member with certainty.
FALSE_POSITIVE_RATES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
# An attacker that looks at no model, and knows how many members each label has.
LABELS_ALONE = "label distribution alone"
# The share of the work that is done once shadows are trained, and once all answers are read.
SHARE_TRAINED = 0.8
SHARE_READ = 0.85


@dataclass(frozen=True, kw_only=True)
class MembershipAttack:
    """Finds members from a model.

    Attributes:
        rounds: The number of models that are attacked, each with shadows trained for it; the last
            one always, earlier ones where uploads were kept.
        shadows: The number of models that the attacker trains for each.
        asked: The number of records in question: of each label as many members as others, so that
            a label says nothing about membership.
        population: The number of the attacker's records on which no model was trained.
        queries: How canary queries are made.
    """

    rounds: int
    shadows: int
    asked: int
    population: int
    queries: QueryOptimiser = field(default_factory=QueryOptimiser)
    name: str = "membership"
    view: View = View.FINAL
    paper: str = "udp-fl, Table 6"
    headline: str = "AUC"

    def cases(self, referee: Referee) -> list[Case[ObservedMembership, TruthMembers]]:
        """Returns some models, each with the same records in question.

        Args:
            referee: Knows the run.

        Raises:
            UserError: Too few shadows or records.
        """
        refuse_few_shadows(self.shadows, LEAST_SHADOWS)
        candidates, members = referee.mix_candidates()
        labels = candidates.labels.numpy()
        # Balanced within each label: guessing has accuracy 1/2, and so has knowing the labels.
        asked = choose_matched(members, labels, self.asked)
        if len(asked) == 0:
            raise UserError(
                f"no class has both members and other records in {referee.run.folder}: the class "
                "of a record says whether it is a member. Attack a run with another partition."
            )
        federation = referee.public_federation(referee.population_records(self.population))
        shares = find_label_shares(members, labels)
        truth = TruthMembers(members=members[asked], label_shares=shares[asked])
        count = 1
        # Where clients have budgets, their noise depends on the number of rounds, and shadows of an
        # earlier round would have another.
        if self.rounds > 1 and not referee.protocol.client:
            count = self.rounds + 1
        cases = []
        for round_index, weights in referee.global_models(count):
            # Before the first round there is nothing to infer.
            if round_index == 0:
                continue
            observe = partial(
                ObservedMembership,
                federation=federation,
                round=round_index,
                model=weights,
                candidates=candidates,
                asked=asked,
                held=int(members.sum()),
                workshop=referee.run.folder / "attacks" / "shadows",
            )
            case = Case(
                key=f"{round_index:06d}", round=round_index, observe=observe, reveal=lambda: truth
            )
            cases.append(case)
        return cases

    def attempt(self, seen: ObservedMembership, tick: Tick) -> dict[str, np.ndarray]:
        """Returns each method's scores of the records in question; higher speaks for a member.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        shadows = train_shadows(seen, self.shadows, lambda share: tick(SHARE_TRAINED * share))
        asked = ObservedRecords(
            inputs=seen.candidates.inputs[seen.asked], labels=seen.candidates.labels[seen.asked]
        )
        shadows_of_asked = shadows.select_records(seen.asked)
        known = collect_evidence(seen, shadows_of_asked, asked)
        others = seen.federation.auxiliary
        # No shadow was trained on the population.
        outside = np.zeros((len(shadows), len(others)), dtype=bool)
        shadows_of_others = Shadows(models=shadows.models, inside=outside)
        population = collect_evidence(seen, shadows_of_others, others)
        tick(SHARE_READ)
        by_queries = score_by_queries(
            seen,
            shadows_of_asked,
            known,
            asked.inputs,
            self.queries,
            lambda share: tick(SHARE_READ + (1 - SHARE_READ) * share),
        )
        return {
            "Shokri": score_by_classifier(known),
            "LiRA": score_online(known),
            "LiRA offline": score_offline(known),
            "RMIA": score_pairwise(known, population),
            "Canary": by_queries,
        }

    def score(self, guess: dict[str, np.ndarray], truth: TruthMembers) -> CaseResult:
        """Returns how well each method detects members against guessing, and its whole curve.

        Args:
            guess: Each method's scores.
            truth: Which records are members.
        """
        curves = {}
        measures = []
        for method, scores in {**guess, LABELS_ALONE: truth.label_shares}.items():
            curves[method] = detection_curve(truth.members, scores)
            for metric, (value, baseline) in measure_detection(*curves[method]).items():
                measure = Measure(
                    metric=metric,
                    method=method,
                    value=value,
                    baseline=baseline,
                    better="higher",
                    samples=len(truth.members),
                )
                measures.append(measure)
        return CaseResult(measures=tuple(measures), curves=curves)


def detection_curve(members: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Returns false and true positive rates at every threshold, of shape (2, thresholds).

    Args:
        members: Which records are members.
        scores: Higher speaks for a member.

    Example:
        >>> detection_curve(np.array([True, False, True]), np.array([3.0, 2.0, 1.0])).tolist()
        [[0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0]]
    """
    from sklearn.metrics import roc_curve

    return np.stack(roc_curve(members, scores, drop_intermediate=False)[:2])


def measure_detection(
    false_rates: np.ndarray, true_rates: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Returns AUC, best accuracy, and true positive rates at few false positives.

    Args:
        false_rates: False positive rates at every threshold.
        true_rates: True positive rates at the same thresholds.

    Returns:
        For each metric its value, and what guessing reaches.

    Example:
        >>> measure_detection(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.5, 1.0]))["AUC"]
        (0.75, 0.5)
    """
    from sklearn.metrics import auc

    measures = {
        "AUC": (float(auc(false_rates, true_rates)), 0.5),
        "accuracy": (float(np.max(1 + true_rates - false_rates)) / 2, 0.5),
    }
    for metric, rate in FALSE_POSITIVE_RATES.items():
        measures[metric] = (float(true_rates[false_rates <= rate].max()), rate)
    return measures


def choose_matched(members: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Returns rows in ascending order, with as many members of each label as others.

    Where not all fit, labels keep nearly equal numbers as far as they have records.

    Args:
        members: Which records are members.
        labels: The class of every record.
        count: How many rows at most.

    Example:
        >>> members = np.array([True, True, False, True, False])
        >>> choose_matched(members, np.array([0, 1, 1, 0, 1]), 4).tolist()
        [1, 2]
    """
    pairs = []
    for label in np.unique(labels):
        inside = np.flatnonzero(members & (labels == label))
        outside = np.flatnonzero(~members & (labels == label))
        # A label's first pairs come before any other's second ones.
        pairs += list(enumerate(zip(inside, outside, strict=False)))
    pairs.sort(key=lambda pair: pair[0])
    chosen = [row for _, pair in pairs[: count // 2] for row in pair]
    return np.sort(np.array(chosen, dtype=np.int64))


def find_label_shares(members: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns for each record the share of members among all records of its label.

    Args:
        members: Which records are members.
        labels: The class of every record.

    Example:
        >>> find_label_shares(np.array([True, False, True]), np.array([0, 0, 1])).tolist()
        [0.5, 0.5, 1.0]
    """
    shares = np.zeros(len(labels))
    for label in np.unique(labels):
        shares[labels == label] = members[labels == label].mean()
    return shares


SETTINGS = {
    "quick": MembershipAttack(rounds=2, shadows=16, asked=2000, population=1000),
    # Carlini et al. and Wen et al. train 64 shadows and more.
    "paper": MembershipAttack(
        rounds=3,
        shadows=64,
        asked=10000,
        population=5000,
        queries=QueryOptimiser(iterations=60, models=16),
    ),
}
