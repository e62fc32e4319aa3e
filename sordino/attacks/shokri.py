"""Shadow training: a classifier of answers into those about members and those about others (Shokri et al. 2017, "Membership inference
attacks against machine learning models", section V).

The attacker knows of every shadow model what it was trained on. Answers of shadows, with that as the label, train one classifier for
each class of the records; the attacked model's answers are then put to it. Nothing is known of how hard a single record is.
"""

from __future__ import annotations

import warnings

import numpy as np
from torch import Tensor

from sordino.attacks.lira import logit_confidences
from sordino.attacks.shadows import Evidence

WIDTH = 32
PASSES = 40
MOST = 3000  # answers that train the classifier of one class


def classified(known: Evidence) -> np.ndarray:
    """The probability that each record is a member, as the classifier of its class says."""
    labels, found = known.labels.numpy(), np.full(len(known.labels), 0.5)
    target = features(known.target, known.labels)
    shadows = features(known.shadows, known.labels)
    for label in np.unique(labels):
        rows = labels == label
        answers, inside = (
            shadows[:, rows].reshape(-1, shadows.shape[-1]),
            known.inside[:, rows].reshape(-1),
        )
        chosen = np.random.default_rng(0).permutation(len(inside))[:MOST]
        if len(np.unique(inside[chosen])) == 2:
            found[rows] = member_probability(answers[chosen], inside[chosen], target[rows])
    return found


def features(answers: Tensor, labels: Tensor) -> np.ndarray:
    """What a classifier sees of answers: the log-probabilities in falling order, and how confident the right class was."""
    ordered = answers.double().log_softmax(dim=-1).sort(dim=-1, descending=True).values.numpy()
    return np.concatenate([ordered, logit_confidences(answers, labels)[..., None]], axis=-1)


def member_probability(answers: np.ndarray, inside: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Train a classifier with one hidden layer, and ask it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(
        StandardScaler(), MLPClassifier((WIDTH,), max_iter=PASSES, random_state=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(answers, inside)
    return np.asarray(classifier.predict_proba(asked)[:, 1])
