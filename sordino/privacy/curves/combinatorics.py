"""Logarithms of binomial coefficients and probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlog1py, xlogy


def log_choose(whole: ArrayLike, part: ArrayLike) -> np.ndarray:
    """Returns the logarithm of whole over part, element by element; -inf outside 0 to `whole`.

    Args:
        whole: The numbers of things to choose from.
        part: The numbers of things that are chosen.

    Returns:
        Logarithms, in the broadcast shape of both.

    Example:
        >>> np.exp(log_choose(4, np.array([-1, 0, 2, 4, 5]))).round(9).tolist()
        [0.0, 1.0, 6.0, 1.0, 0.0]
    """
    n = np.asarray(whole, dtype=float)
    k = np.asarray(part, dtype=float)
    inside = (k >= 0) & (k <= n)
    chosen = np.where(inside, k, 0.0)
    left = n - chosen
    logs = gammaln(n + 1) - gammaln(chosen + 1) - gammaln(left + 1)
    return np.where(inside, logs, -np.inf)


def log_binomial(trials: int, rate: float) -> np.ndarray:
    """Returns the logarithms of the probabilities of 0, ..., `trials` successes.

    Args:
        trials: The number of independent trials.
        rate: The probability that a trial succeeds.

    Returns:
        A logarithm for every number of successes.

    Example:
        >>> np.exp(log_binomial(2, 0.5)).round(9).tolist()
        [0.25, 0.5, 0.25]
    """
    counts = np.arange(trials + 1)
    # These logarithms of powers are 0 for a power of 0, at a rate of 0 or 1 too.
    successes = xlogy(counts, rate)
    failures = xlog1py(trials - counts, -rate)
    logs: np.ndarray = log_choose(trials, counts) + successes + failures
    return logs
