"""LiRA: how much likelier a model's confidence is if the record was trained on (Carlini et al. 2022, "Membership inference attacks from
first principles", algorithm 1).

A confidence p is looked at as log(p / (1 - p)), which is nearly normal over trainings. Online, its law is fitted to shadows that were
trained on the record and to shadows that were not, and the score is the log of the ratio of the two densities. Offline, only shadows
that were not are known, and the score is how surprisingly high the confidence is for them. Means are the record's own. With few shadows
one variance for all records is steadier than one for each (their section VI).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from sordino.attacks.shadows import Evidence

OWN_VARIANCE = 64  # shadows from which on every record has a variance of its own
LEAST_DEVIATION = 1e-6  # of confidences that never change, as those of models without noise that know a record by heart


def online(known: Evidence) -> np.ndarray:
    """The log of the likelihood ratio of each record: above 0 speaks for a member.

    Example:
        >>> known = Evidence(labels=torch.tensor([0]), target=torch.tensor([[2.0, 0.0]]), inside=np.array([[True], [False]] * 2),
        ...     shadows=torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]], [[3.0, 0.0]], [[1.0, 0.0]]]))
        >>> online(known).round(2).tolist()
        [2.0]
    """
    own = logit_confidences(known.target, known.labels)
    shadows = logit_confidences(known.shadows, known.labels)
    return np.asarray(
        norm.logpdf(own, *fitted(shadows, known.inside))
        - norm.logpdf(own, *fitted(shadows, ~known.inside))
    )


def offline(known: Evidence) -> np.ndarray:
    """Minus the log of the probability that a model that was not trained on the record is at least so confident."""
    law = fitted(logit_confidences(known.shadows, known.labels), ~known.inside)
    return np.asarray(-norm.logsf(logit_confidences(known.target, known.labels), *law))


def logit_confidences(answers: Tensor, labels: Tensor) -> np.ndarray:
    """log(p / (1 - p)) of the right class for logits (..., n, classes), without loss of digits where p is nearly 1.

    Example:
        >>> logit_confidences(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 0])).tolist()
        [0.0, 100.0]
    """
    return margins(answers.double(), labels).numpy()


def margins(answers: Tensor, labels: Tensor) -> Tensor:
    """The logit of the right class less that of all others together: log(p / (1 - p)), through which gradients pass."""
    right = labels.expand(answers.shape[:-1]).unsqueeze(-1)
    return answers.gather(-1, right).squeeze(-1) - answers.scatter(-1, right, -torch.inf).logsumexp(
        dim=-1
    )


def fitted(values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per record over the chosen shadows; a record without any has the mean of all."""
    counts = chosen.sum(axis=0)
    overall = values[chosen].mean()
    means = np.where(
        counts > 0, np.where(chosen, values, 0.0).sum(axis=0) / np.maximum(counts, 1), overall
    )
    squares = np.where(chosen, (values - means) ** 2, 0.0).sum(axis=0)
    if len(values) >= OWN_VARIANCE:
        variances = squares / np.maximum(counts - 1, 1)
    else:
        variances = np.full_like(
            means, squares.sum() / max(1, (counts[counts > 0] - 1).sum())
        )  # each mean costs a degree of freedom
    return means, np.maximum(np.sqrt(variances), LEAST_DEVIATION)
