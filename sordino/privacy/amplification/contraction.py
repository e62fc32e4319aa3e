"""Local training that contracts: generalised linear models (docs/theory.md#a9, #a31).

For a loss h(<w, x>; y) with h convex and h'' <= curvature, clipping each example's gradient to
`clip` gives the gradient of another convex, smooth loss. With |x| <= feature_norm and weight decay
outside the clip, a step of gradient descent is c-Lipschitz. Conditions that code must enforce: one
output, or a clip for each, or none; per-example clip, the feature norm including the bias
coordinate, weight decay on every coordinate, rates that do not depend on data. `rates` may have any
leading axes; the steps of a round are the last one.
"""

from __future__ import annotations

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.sensitivity import later_products

# Largest second derivative of log(1 + e^-z).
LOGISTIC_CURVATURE = 0.25
# Largest eigenvalue of diag(p) - p p^T over all probabilities p (docs/theory.md#a31).
SOFTMAX_CURVATURE = 0.5
# By the loss of the rule clipped-glm.
CURVATURES = {
    "logistic": LOGISTIC_CURVATURE,
    "one-against-rest": LOGISTIC_CURVATURE,
    "softmax": SOFTMAX_CURVATURE,
}


def step_factors(
    rates: np.ndarray,
    *,
    decay: float,
    curvature: float,
    feature_norm: float,
) -> np.ndarray:
    """Returns c = max(|1 - eta lambda|, |1 - eta (lambda + beta X^2)|) of every step.

    Below 1 the step contracts; above, it is still a bound.

    Args:
        rates: The learning rates eta.
        decay: The weight decay lambda.
        curvature: The largest second derivative beta of h.
        feature_norm: The largest norm X of the features.

    Returns:
        A Lipschitz constant for every rate.

    Example:
        >>> rates = np.array([0.5, 10.0])
        >>> step_factors(rates, decay=0.1, curvature=LOGISTIC_CURVATURE, feature_norm=1.0).tolist()
        [0.95, 2.5]
    """
    checks.require_finite(decay=decay, curvature=curvature, feature_norm=feature_norm)
    flat = np.abs(1 - rates * decay)
    # The Hessian of the clipped loss lies between 0 and beta X^2.
    steepest = decay + curvature * feature_norm**2
    steep = np.abs(1 - rates * steepest)
    return np.maximum(flat, steep)


def find_moves(
    rates: np.ndarray,
    factors: np.ndarray,
    clip: float,
) -> np.ndarray:
    """Returns the remainder at the end of a round of a difference made in each of its steps.

    Of the 2 eta_k V of step k, 2V eta_k prod_{j>k} c_j is left.

    Args:
        rates: The learning rates eta.
        factors: The Lipschitz constants c of the steps.
        clip: V, the largest norm of an example's gradient.

    Returns:
        The largest distance that is left of each step's difference.

    Example:
        >>> find_moves(np.array([1.0, 1.0]), np.array([0.5, 0.5]), 1.0).tolist()
        [1.0, 2.0]
    """
    checks.require_finite(clip=clip)
    contracted = later_products(factors)
    moves: np.ndarray = 2 * clip * rates * contracted
    return moves


def move_full_batch(left: np.ndarray, records: int) -> np.ndarray:
    """Returns how far one replaced record moves a round of full-batch steps.

    Args:
        left: The remainder of each step's difference, as `find_moves` gives it.
        records: The number of records of the client.

    Returns:
        The largest distance of two uploads, for every round.

    Example:
        >>> float(move_full_batch(np.array([1.0, 2.0]), records=10))
        0.3
    """
    checks.require_whole(at_least=1, records=records)
    # The record has a share of 1/n in the gradient of every step.
    total = left.sum(axis=-1)
    return np.asarray(total / records)


def move_cyclic_batches(left: np.ndarray, batches: int, batch: int) -> np.ndarray:
    """Returns how far one replaced record moves a round in which fixed batches take turns.

    The record counts in its turn only, and the worst turn is taken.

    Args:
        left: The remainder of each step's difference, as `find_moves` gives it.
        batches: The number of batches.
        batch: The number of records in each.

    Returns:
        The largest distance of two uploads, for every round.

    Example:
        >>> float(move_cyclic_batches(np.array([1.0, 2.0, 3.0, 4.0]), batches=2, batch=10))
        0.6
    """
    checks.require_whole(at_least=1, batches=batches, batch=batch)
    # A cycle a row, a batch a column.
    cycles = left.reshape(*left.shape[:-1], -1, batches)
    turns = cycles.sum(axis=-2)
    worst = turns.max(axis=-1)
    return np.asarray(worst / batch)
