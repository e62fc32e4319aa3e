"""How far one upload can move when one record of its client is replaced: exact sums of the learning rates (THEORY A8, A11).

A round's `rates` are the learning rates of its K local steps. Everything holds for every loss function: each step's clipped
gradient has norm at most `clip`, so two steps from the same point differ by at most 2 clip rate. What additionally needs a
smooth loss says so and takes the smoothness, which the user must vouch for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.privacy import checks


def upload(rates: Iterable[float], clip: float, *, proximal: float = 0.0) -> float:
    """Replace-one sensitivity of one upload: 2V sum_k eta_k prod_{j>k} |1 - eta_j alpha| (THEORY A8; A3 for eta > 1/alpha).

    FedAvg is `proximal` = 0, where the products are 1. The same number holds when the whole data set of the client is replaced,
    and when each example's gradient is clipped instead of the minibatch's.

    Example:
        >>> round(upload([0.1] * 5, 1.0), 12), round(upload([5.0] * 3, 1.0, proximal=1.0), 12)
        (1.0, 210.0)
    """
    return float(first_used(rates, clip, proximal=proximal)[0])


def first_used(rates: Iterable[float], clip: float, *, proximal: float = 0.0) -> np.ndarray:
    """Sensitivity of one upload whose differing record is first used at step k, for k = 0, ..., K-1 (THEORY A11).

    Until then the two local trainings agree, so entry k is 2V sum_{j>=k} eta_j prod_{i>j} |1 - eta_i alpha|. Rates may be an array
    with one round a row; the steps are its last axis.

    Example:
        >>> first_used([0.1] * 5, 1.0).round(12).tolist()
        [1.0, 0.8, 0.6, 0.4, 0.2]
    """
    rates = np.asarray(rates if isinstance(rates, np.ndarray) else list(rates), dtype=float)
    checks.vector("rates", rates.ravel())
    checks.finite(clip=clip, proximal=proximal)
    return (
        2
        * clip
        * np.cumsum((rates * later_products(np.abs(1 - rates * proximal)))[..., ::-1], axis=-1)[
            ..., ::-1
        ]
    )


def later_products(factors: np.ndarray) -> np.ndarray:
    """prod_{j>k} factor_j for each step k: what the later steps leave of a difference that step k made.

    Example:
        >>> later_products(np.array([0.5, 2.0, 3.0])).tolist()
        [6.0, 3.0, 1.0]
    """
    reversed_ = np.cumprod(factors[..., ::-1], axis=-1)[..., :-1]
    return np.concatenate([np.ones((*factors.shape[:-1], 1)), reversed_], axis=-1)[..., ::-1]


# The rule bezier multiplies an update by (1 - r)(1 + 1.2 r) (udp-fl Eq. 6, see `sordino.federation.connectivity`), for an r that is drawn
# independently of all data. It is 1 at r = 0, largest at r = 1/12 and never below 0, so given any r, and hence on average, two
# updates are at most this many times further apart than their steps.
BEZIER_REACH = 121 / 120


def smooth_upload(
    rates: Iterable[float], clip: float, *, smoothness: float, batch: int, proximal: float = 0.0
) -> float:
    """Sensitivity of one upload under per-example clipping, where the clipped minibatch gradient is vouched to be L-Lipschitz.

    D <- min((|1 - eta alpha| + eta L) D + 2 eta V/B, |1 - eta alpha| D + 2 eta V), D_0 = 0 (THEORY A8): the replaced record is
    one of B in the mean, but from the second step on the other B - 1 gradients differ too, by at most L D.

    Example:
        >>> round(smooth_upload([0.1], 1.0, smoothness=1.0, batch=32), 6)
        0.00625
        >>> smooth_upload([0.1] * 50, 1.0, smoothness=1.0, batch=32) < upload([0.1] * 50, 1.0)
        True
    """
    rates = checks.vector("rates", rates)
    checks.finite(clip=clip, smoothness=smoothness, proximal=proximal)
    checks.whole(at_least=1, batch=batch)
    distance = 0.0
    for rate in rates.tolist():
        pull = abs(1 - rate * proximal)
        distance = min(
            (pull + rate * smoothness) * distance + 2 * rate * clip / batch,
            pull * distance + 2 * rate * clip,
        )
    return min(distance, upload(rates, clip, proximal=proximal))


def fedavg_expansion(rates: Iterable[float], smoothness: float) -> float:
    """By how much K local steps on an L-smooth loss can stretch the distance of two models: prod (1 + eta_k L).

    Example:
        >>> round(fedavg_expansion([0.1] * 5, 1.0), 12)
        1.61051
    """
    rates = checks.vector("rates", rates)
    checks.finite(smoothness=smoothness)
    return float(np.prod(1 + rates * smoothness))


def fedprox_expansion(rates: Iterable[float], smoothness: float, proximal: float) -> float:
    """The same with a proximal pull: e <- (|1 - eta alpha| + eta L) e + eta alpha, e_0 = 1 (THEORY A3, any eta).

    Example:
        >>> round(fedprox_expansion([5.0] * 3, 0.9, 1.0), 12)
        1022.875
    """
    rates = checks.vector("rates", rates)
    checks.finite(smoothness=smoothness, proximal=proximal)
    return _pulled(rates, np.abs(1 - rates * proximal) + rates * smoothness, proximal)


def fedprox_contraction(
    rates: Iterable[float], *, strong: float, smoothness: float, proximal: float
) -> float:
    """FedProx on losses that are convex, lambda-strongly, and M-smooth: e <- c e + eta alpha (THEORY A9).

    c = max(|1 - eta (alpha + lambda)|, |1 - eta (alpha + M)|) is the Lipschitz constant of one step of gradient descent.

    Example:
        >>> round(fedprox_contraction([0.1] * 5, strong=0.1, smoothness=1.0, proximal=1.0), 10)
        0.9598550859
    """
    rates = checks.vector("rates", rates)
    checks.finite(strong=strong, smoothness=smoothness, proximal=proximal)
    one_step = np.maximum(
        np.abs(1 - rates * (proximal + strong)), np.abs(1 - rates * (proximal + smoothness))
    )
    return _pulled(rates, one_step, proximal)


def _pulled(rates: np.ndarray, factors: np.ndarray, proximal: float) -> float:
    """e_K of e <- factor_k e + eta_k alpha, e_0 = 1: both the start and the point that pulls differ by 1."""
    distance = 1.0
    for rate, factor in zip(rates.tolist(), factors.tolist(), strict=True):
        distance = factor * distance + rate * proximal
    return distance
