"""RMIA, a membership attack by pairwise likelihood ratios (Zarifzadeh et al. 2024).

The paper is "Low-cost high-power membership inference attacks". Let P(x | model) be the probability
of x's class under the attacked model, and P(x) its mean over models in general. Then x is likelier
a member than z if P(x | model) / P(x) exceeds P(z | model) / P(z). The score of x is the share of
population records z for which it does.

P(x) is the mean of two means: over shadows trained on x, and over the others. No model was trained
on z. How confident models become of records that they are trained on is learnt from the records in
question: the paper's offline approximation, in = a out + 1 - a.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sordino.attacks.shadows import MembershipEvidence

# Keeps ratios finite.
SMALLEST_PROBABILITY = 1e-30


def score_pairwise(known: MembershipEvidence, population: MembershipEvidence) -> np.ndarray:
    """Returns the share of the population that each record in question dominates.

    Args:
        known: Answers about the records in question.
        population: Answers about records on which no model was trained.

    Returns:
        One score for each record; higher speaks for a member.
    """
    trained, untrained = average_by_membership(known)
    general = (trained + untrained) / 2
    asked = true_class_probabilities(known.target, known.labels)
    asked_ratios = asked / np.maximum(general, SMALLEST_PROBABILITY)

    # The population is outside every shadow, so its mean over models trained on it is estimated.
    outside = true_class_probabilities(population.shadows, population.labels).mean(axis=0)
    inside = estimate_inside_mean(outside, fit_slope(trained, untrained))
    other_general = (outside + inside) / 2
    others = true_class_probabilities(population.target, population.labels)
    other_ratios = others / np.maximum(other_general, SMALLEST_PROBABILITY)
    return rank_among(asked_ratios, other_ratios)


def rank_among(asked: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the share of the others that each value reaches, ties broken by the value itself.

    Args:
        asked: The values that are ranked.
        others: The values that they are ranked among.

    Returns:
        One share for each value of `asked`.

    Example:
        >>> rank_among(np.array([0.0, 2.0, 4.0]), np.array([1.0, 3.0])).round(2).tolist()
        [0.0, 0.56, 0.93]
    """
    # Sorting once makes the comparison with the population cheap: all pairs would be millions.
    reached = np.searchsorted(np.sort(others), asked, side="right")
    # A number below 1 that grows with the value puts the larger of two equal ranks ahead.
    tie_breaker = asked / (1 + asked)
    ranks: np.ndarray = (reached + tie_breaker) / (len(others) + 1)
    return ranks


def true_class_probabilities(answers: Tensor, labels: Tensor) -> np.ndarray:
    """Returns the probability of each record's class.

    Args:
        answers: Logits of shape (..., records, classes).
        labels: The classes of the records.

    Returns:
        Probabilities of shape (..., records).
    """
    classes = labels.expand(answers.shape[:-1]).unsqueeze(-1)
    probabilities = answers.double().softmax(dim=-1)
    return probabilities.gather(-1, classes).squeeze(-1).numpy()


def average_by_membership(known: MembershipEvidence) -> tuple[np.ndarray, np.ndarray]:
    """Returns each record's mean probability over shadows trained on it, and over the others.

    Args:
        known: Answers about the records in question.

    Returns:
        The two means. A record that lacks shadows of one kind has the mean over all shadows.
    """
    probabilities = true_class_probabilities(known.shadows, known.labels)
    overall = probabilities.mean(axis=0)
    means = []
    for chosen in (known.inside, ~known.inside):
        total = np.where(chosen, probabilities, 0.0).sum(axis=0)
        count = chosen.sum(axis=0)
        # A record that no shadow was trained on, or all were, has no mean of that kind; its overall
        # mean is the best substitute.
        means.append(np.where(count > 0, total / np.maximum(count, 1), overall))
    return means[0], means[1]


def fit_slope(trained: np.ndarray, untrained: np.ndarray) -> float:
    """Returns the slope a of the approximation in = a out + 1 - a that fits best.

    Args:
        trained: Mean probabilities over models trained on each record.
        untrained: Mean probabilities over the other models.

    Returns:
        From 0 (models learn their records by heart) to 1 (training changes nothing).

    Example:
        >>> fit_slope(np.array([0.5, 1.0]), np.array([0.0, 1.0]))
        0.5
    """
    # Both sides are written as 1 - probability, through which the fitted line has no constant.
    doubt_after = 1 - trained
    doubt_before = 1 - untrained
    total = float(doubt_before @ doubt_before)
    # Models that are sure of everything before training say nothing about the slope.
    if total == 0:
        return 1.0
    return float(np.clip(doubt_after @ doubt_before / total, 0.0, 1.0))


def estimate_inside_mean(outside: np.ndarray, slope: float) -> np.ndarray:
    """Returns the mean probability that models would have had if trained on the records.

    Args:
        outside: Mean probabilities over models that were not.
        slope: What `fit_slope` returned.
    """
    return slope * outside + 1 - slope
