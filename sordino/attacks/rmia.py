"""RMIA: how many records of the population a model favours less than the record in question (Zarifzadeh et al. 2024, "Low-cost
high-power membership inference attacks").

With P(x | model) the probability of x's right class and P(x) its mean over models in general, x is likelier a member than z if
P(x | model) / P(x) exceeds P(z | model) / P(z). The score of x is the share of population records z for which it does.
P(x) is the mean of two means: over shadows trained on x and over the others. Nobody trained on z; how confident models become of what they
are trained on is learnt from the records in question (their offline approximation: in = a out + 1 - a).
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sordino.attacks.shadows import Evidence

LEAST = 1e-30


def pairwise(known: Evidence, population: Evidence) -> np.ndarray:
    """The share of the population, on which nobody trained, that each record in question dominates."""
    trained, untrained = by_membership(known)
    asked = right_probabilities(known.target, known.labels) / np.maximum(
        (trained + untrained) / 2, LEAST
    )
    outside = right_probabilities(population.shadows, population.labels).mean(axis=0)
    general = (outside + if_trained(outside, slope(trained, untrained))) / 2
    others = right_probabilities(population.target, population.labels) / np.maximum(general, LEAST)
    return ranked(asked, others)


def ranked(asked: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The share of the others that each value reaches; among those that reach as many, the larger value is ahead.

    Example:
        >>> ranked(np.array([0.0, 2.0, 4.0]), np.array([1.0, 3.0])).round(2).tolist()
        [0.0, 0.56, 0.93]
    """
    return (np.searchsorted(np.sort(others), asked, side="right") + asked / (1 + asked)) / (
        len(others) + 1
    )


def right_probabilities(answers: Tensor, labels: Tensor) -> np.ndarray:
    """The probability of the right class for logits (..., n, classes)."""
    right = labels.expand(answers.shape[:-1]).unsqueeze(-1)
    return answers.double().softmax(dim=-1).gather(-1, right).squeeze(-1).numpy()


def by_membership(known: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The mean probability of each record over shadows trained on it, and over the others; with none of one kind, over all."""
    probabilities = right_probabilities(known.shadows, known.labels)
    means = []
    for side in (known.inside, ~known.inside):
        total, count = np.where(side, probabilities, 0.0).sum(axis=0), side.sum(axis=0)
        means.append(np.where(count > 0, total / np.maximum(count, 1), probabilities.mean(axis=0)))
    return means[0], means[1]


def slope(trained: np.ndarray, untrained: np.ndarray) -> float:
    """The a of that approximation that fits best, from 0 (models know by heart what they are trained on) to 1 (training changes nothing).

    Example:
        >>> slope(np.array([0.5, 1.0]), np.array([0.0, 1.0]))
        0.5
    """
    doubt, before = 1 - trained, 1 - untrained
    total = float(before @ before)
    return float(np.clip(doubt @ before / total, 0.0, 1.0)) if total > 0 else 1.0


def if_trained(outside: np.ndarray, a: float) -> np.ndarray:
    """The mean probability that models would have had, had they been trained on the record."""
    return a * outside + 1 - a
