"""How far smooth losses move uploads and models apart, in closed recursions that the prices are held against."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.privacy import sensitivity
from sordino.privacy.curves import checks


def smooth_upload(
    rates: Iterable[float], clip: float, *, smoothness: float, batch: int, proximal: float = 0.0
) -> float:
    """Sensitivity of one upload under per-example clipping, where the clipped minibatch gradient is vouched to be L-Lipschitz.

    D <- min((|1 - eta alpha| + eta L) D + 2 eta V/B, |1 - eta alpha| D + 2 eta V), D_0 = 0 (docs/theory.md#a8): the replaced record is
    one of B in the mean, but from the second step on the other B - 1 gradients differ too, by at most L D.

    Example:
        >>> round(smooth_upload([0.1], 1.0, smoothness=1.0, batch=32), 6)
        0.00625
        >>> smooth_upload([0.1] * 50, 1.0, smoothness=1.0, batch=32) < sensitivity.bound_upload([0.1] * 50, 1.0)
        True
    """
    rates = checks.read_vector("rates", rates)
    checks.require_finite(clip=clip, smoothness=smoothness, proximal=proximal)
    checks.require_whole(at_least=1, batch=batch)
    distance = 0.0
    for rate in rates.tolist():
        pull = abs(1 - rate * proximal)
        distance = min(
            (pull + rate * smoothness) * distance + 2 * rate * clip / batch,
            pull * distance + 2 * rate * clip,
        )
    return min(distance, sensitivity.bound_upload(rates, clip, proximal=proximal))


def fedavg_expansion(rates: Iterable[float], smoothness: float) -> float:
    """By how much K local steps on an L-smooth loss can stretch the distance of two models: prod (1 + eta_k L).

    Example:
        >>> round(fedavg_expansion([0.1] * 5, 1.0), 12)
        1.61051
    """
    rates = checks.read_vector("rates", rates)
    checks.require_finite(smoothness=smoothness)
    return float(np.prod(1 + rates * smoothness))


def fedprox_expansion(rates: Iterable[float], smoothness: float, proximal: float) -> float:
    """The same with a proximal pull: e <- (|1 - eta alpha| + eta L) e + eta alpha, e_0 = 1 (docs/theory.md#a3, any eta).

    Example:
        >>> round(fedprox_expansion([5.0] * 3, 0.9, 1.0), 12)
        1022.875
    """
    rates = checks.read_vector("rates", rates)
    checks.require_finite(smoothness=smoothness, proximal=proximal)
    return pull_apart(rates, np.abs(1 - rates * proximal) + rates * smoothness, proximal)


def fedprox_contraction(
    rates: Iterable[float], *, strong: float, smoothness: float, proximal: float
) -> float:
    """FedProx on losses that are convex, lambda-strongly, and M-smooth: e <- c e + eta alpha (docs/theory.md#a9).

    c = max(|1 - eta (alpha + lambda)|, |1 - eta (alpha + M)|) is the Lipschitz constant of one step of gradient descent.

    Example:
        >>> round(fedprox_contraction([0.1] * 5, strong=0.1, smoothness=1.0, proximal=1.0), 10)
        0.9598550859
    """
    rates = checks.read_vector("rates", rates)
    checks.require_finite(strong=strong, smoothness=smoothness, proximal=proximal)
    one_step = np.maximum(
        np.abs(1 - rates * (proximal + strong)), np.abs(1 - rates * (proximal + smoothness))
    )
    return pull_apart(rates, one_step, proximal)


def pull_apart(rates: np.ndarray, factors: np.ndarray, proximal: float) -> float:
    """e_K of e <- factor_k e + eta_k alpha, e_0 = 1: both the start and the point that pulls differ by 1."""
    distance = 1.0
    for rate, factor in zip(rates.tolist(), factors.tolist(), strict=True):
        distance = factor * distance + rate * proximal
    return distance
