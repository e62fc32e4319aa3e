"""Where local training really contracts: clipped generalised linear models (THEORY A9).

For a loss h(<w, x>; y) with h convex and h'' <= curvature, clipping each example's gradient to `clip` gives the gradient of
another convex, smooth loss. With |x| <= feature_norm and weight decay outside the clip, a step of gradient descent is c-Lipschitz.
Conditions that code must enforce: scalar output, per-example clip, the feature norm including the bias coordinate, weight decay
on every coordinate, rates that do not depend on data. `rates` may have any leading axes; the steps of a round are the last one.
"""

from __future__ import annotations

import numpy as np

from sordino.privacy import checks
from sordino.privacy.sensitivity import later_products

LOGISTIC_CURVATURE = 0.25  # largest second derivative of log(1 + e^-z)


def step_factors(
    rates: np.ndarray, *, decay: float, curvature: float, feature_norm: float
) -> np.ndarray:
    """c = max(|1 - eta lambda|, |1 - eta (lambda + beta X^2)|) of every step; below 1 it contracts, above it is still a bound.

    Example:
        >>> step_factors(np.array([0.5, 10.0]), decay=0.1, curvature=LOGISTIC_CURVATURE, feature_norm=1.0).tolist()
        [0.95, 2.5]
    """
    checks.finite(decay=decay, curvature=curvature, feature_norm=feature_norm)
    return np.maximum(
        np.abs(1 - rates * decay), np.abs(1 - rates * (decay + curvature * feature_norm**2))
    )


def moves(rates: np.ndarray, factors: np.ndarray, clip: float) -> np.ndarray:
    """What is left at the end of a round of a difference of 2 eta_k V made in step k: 2V eta_k prod_{j>k} c_j.

    Example:
        >>> moves(np.array([1.0, 1.0]), np.array([0.5, 0.5]), 1.0).tolist()
        [1.0, 2.0]
    """
    checks.finite(clip=clip)
    return 2 * clip * rates * later_products(factors)


def full_batch(left: np.ndarray, records: int) -> np.ndarray:
    """How far one replaced record among `records` moves a round of full-batch steps.

    Example:
        >>> float(full_batch(np.array([1.0, 2.0]), records=10))
        0.3
    """
    checks.whole(at_least=1, records=records)
    return np.asarray(left.sum(axis=-1) / records)


def cyclic_batches(left: np.ndarray, batches: int, batch: int) -> np.ndarray:
    """The same when fixed batches take turns: the record counts in its turn only, and the worst turn is taken.

    Example:
        >>> float(cyclic_batches(np.array([1.0, 2.0, 3.0, 4.0]), batches=2, batch=10))
        0.6
    """
    checks.whole(at_least=1, batches=batches, batch=batch)
    turns = left.reshape(*left.shape[:-1], -1, batches).sum(axis=-2)
    return np.asarray(turns.max(axis=-1) / batch)
