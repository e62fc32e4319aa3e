"""LiRA, a membership attack by the likelihood ratio of a model's confidence (Carlini et al. 2022).

The paper is "Membership inference attacks from first principles", algorithm 1. A confidence p is
read as log(p / (1 - p)), which is nearly normal over trainings. Online, its law is fitted to
shadows that were trained on the record and to shadows that were not, and the score is the log of
the ratio of the two densities. Offline, only shadows that were not trained on the record are known,
and the score is how surprisingly high the confidence is for them. Means are fitted to each record.
With few shadows, one variance for all records is steadier than one for each (section VI of the
paper).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from sordino.attacks.shadows import MembershipEvidence

# From this number of shadows on, each record has a variance of its own.
SHADOWS_FOR_RECORD_VARIANCE = 64
# The least deviation of a confidence: models without noise that know a record by heart have the
# same one every time.
SMALLEST_DEVIATION = 1e-6


def score_online(known: MembershipEvidence) -> np.ndarray:
    """Returns the log of each record's likelihood ratio.

    Args:
        known: Answers about the records in question.

    Returns:
        One score for each record; above 0 speaks for a member.

    Example:
        >>> known = MembershipEvidence(
        ...     labels=torch.tensor([0]),
        ...     target=torch.tensor([[2.0, 0.0]]),
        ...     inside=np.array([[True], [False]] * 2),
        ...     shadows=torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]], [[3.0, 0.0]], [[1.0, 0.0]]]),
        ... )
        >>> score_online(known).round(2).tolist()
        [2.0]
    """
    observed = logit_confidences(known.target, known.labels)
    shadows = logit_confidences(known.shadows, known.labels)
    as_member = norm.logpdf(observed, *fit_normals(shadows, known.inside))
    as_other = norm.logpdf(observed, *fit_normals(shadows, ~known.inside))
    return np.asarray(as_member - as_other)


def score_offline(known: MembershipEvidence) -> np.ndarray:
    """Returns how surprising the confidence in each record is for a model not trained on it.

    Args:
        known: Answers about the records in question.

    Returns:
        Minus the log of the probability of a confidence at least as high; higher speaks for a
        member.
    """
    shadows = logit_confidences(known.shadows, known.labels)
    observed = logit_confidences(known.target, known.labels)
    return np.asarray(-norm.logsf(observed, *fit_normals(shadows, ~known.inside)))


def logit_confidences(answers: Tensor, labels: Tensor) -> np.ndarray:
    """Returns log(p / (1 - p)) of each record's class, precise also where p is nearly 1.

    Args:
        answers: Logits of shape (..., records, classes).
        labels: The classes of the records.

    Returns:
        An array of shape (..., records).

    Example:
        >>> answers = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
        >>> logit_confidences(answers, torch.tensor([0, 0])).tolist()
        [0.0, 100.0]
    """
    return class_margins(answers.double(), labels).numpy()


def class_margins(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the logit of each record's class less that of all other classes together.

    This is log(p / (1 - p)), in a form through which gradients pass.

    Args:
        answers: Logits of shape (..., records, classes).
        labels: The classes of the records.

    Returns:
        A tensor of shape (..., records).
    """
    classes = labels.expand(answers.shape[:-1]).unsqueeze(-1)
    true_logits = answers.gather(-1, classes).squeeze(-1)
    other_logits = answers.scatter(-1, classes, -torch.inf).logsumexp(dim=-1)
    return true_logits - other_logits


def fit_normals(values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and standard deviation of each record's values over some shadows.

    Args:
        values: One row for each shadow, one column for each record.
        chosen: Which shadows count for each record, in the same shape.

    Returns:
        Means and standard deviations. A record without any chosen shadow has the mean of all.
    """
    counts = chosen.sum(axis=0)
    overall = values[chosen].mean()
    totals = np.where(chosen, values, 0.0).sum(axis=0)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), overall)
    squares = np.where(chosen, (values - means) ** 2, 0.0).sum(axis=0)
    if len(values) >= SHADOWS_FOR_RECORD_VARIANCE:
        variances = squares / np.maximum(counts - 1, 1)
    else:
        # Each mean costs a degree of freedom.
        freedom = max(1, (counts[counts > 0] - 1).sum())
        variances = np.full_like(means, squares.sum() / freedom)
    return means, np.maximum(np.sqrt(variances), SMALLEST_DEVIATION)
