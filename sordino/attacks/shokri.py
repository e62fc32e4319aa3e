"""Shadow training, the first membership attack (Shokri et al. 2017).

The paper is "Membership inference attacks against machine learning models", section V. The attacker
knows which records every shadow model was trained on. With that as the label, the shadows' answers
train one classifier for each class of the records, which then judges the attacked model's answers.
The attack does not know how hard a single record is.
"""

from __future__ import annotations

import warnings

import numpy as np
from torch import Tensor

from sordino.attacks.lira import logit_confidences
from sordino.attacks.shadows import MembershipEvidence

HIDDEN_WIDTH = 32
TRAINING_PASSES = 40
# How many answers train the classifier of one class at most.
MOST_ANSWERS = 3000


def score_by_classifier(known: MembershipEvidence) -> np.ndarray:
    """Returns the probability that each record is a member, by the classifier of its class.

    Args:
        known: Answers about the records in question.

    Returns:
        One probability for each record; 1/2 where the shadows of a class are all of one kind.
    """
    labels = known.labels.numpy()
    # Where shadows say nothing about a class, the attacker does not know.
    scores = np.full(len(labels), 0.5)
    target = extract_features(known.target, known.labels)
    shadows = extract_features(known.shadows, known.labels)
    for label in np.unique(labels):
        # How confident a model is of a class depends on the class, hence one classifier for each
        # (V-A).
        rows = labels == label
        answers = shadows[:, rows].reshape(-1, shadows.shape[-1])
        inside = known.inside[:, rows].reshape(-1)
        chosen = np.random.default_rng(0).permutation(len(inside))[:MOST_ANSWERS]
        # A classifier needs examples of both kinds.
        if len(np.unique(inside[chosen])) == 2:
            scores[rows] = predict_membership(answers[chosen], inside[chosen], target[rows])
    return scores


def extract_features(answers: Tensor, labels: Tensor) -> np.ndarray:
    """Returns the inputs of a classifier: sorted log-probabilities, and the class's confidence.

    Args:
        answers: Logits of shape (..., records, classes).
        labels: The classes of the records.

    Returns:
        An array of shape (..., records, classes + 1).
    """
    log_probabilities = answers.double().log_softmax(dim=-1)
    # Sorted, since the classifier learns from how peaked an answer is, and not from which class it
    # names.
    ordered = log_probabilities.sort(dim=-1, descending=True).values.numpy()
    return np.concatenate([ordered, logit_confidences(answers, labels)[..., None]], axis=-1)


def predict_membership(answers: np.ndarray, inside: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Trains a classifier with one hidden layer, and returns what it says.

    Args:
        answers: Features of the shadows' answers, one a row.
        inside: Whether each shadow was trained on the record.
        asked: Features of the attacked model's answers.

    Returns:
        The probability of membership for each row of `asked`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPClassifier((HIDDEN_WIDTH,), max_iter=TRAINING_PASSES, random_state=0)
    classifier = make_pipeline(StandardScaler(), network)
    with warnings.catch_warnings():
        # The number of passes is fixed: whether they were enough does not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(answers, inside)
    return np.asarray(classifier.predict_proba(asked)[:, 1])
