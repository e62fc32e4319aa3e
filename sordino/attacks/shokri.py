"""Shadow training, the first membership attack (Shokri et al. 2017).

The paper is "Membership inference attacks against machine learning models", section V. The attacker
knows which records every shadow model was trained on. With that as the label, the shadows' answers
train one classifier for each class of the records, which then judges the attacked model's answers.
The attack does not know how hard a single record is.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sordino.attacks.lira import logit_confidences
from sordino.attacks.reading import train_classifier
from sordino.attacks.shadows import MembershipEvidence

HIDDEN_WIDTH = 32
TRAINING_PASSES = 40
# The most answers that train the classifier of one class.
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
    """Returns the probabilities of membership by a classifier with one hidden layer.

    Args:
        answers: Features of the shadows' answers, one a row.
        inside: Whether each shadow was trained on the record.
        asked: Features of the attacked model's answers.

    Returns:
        One probability for each row of `asked`.
    """
    classifier = train_classifier(answers, inside, width=HIDDEN_WIDTH, passes=TRAINING_PASSES)
    return np.asarray(classifier.predict_proba(asked)[:, 1])
