"""Gaussian differential privacy: mu, (epsilon, delta), the trade-off function and Rényi divergences, one from another.

A release is mu-GDP when telling the two neighbouring data sets apart is no easier than telling N(0, 1) from N(mu, 1)
(Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022). Everything here is a conversion of that one number.
Epsilon and delta are rounded up, mu for a target and beta are rounded down.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr, ndtri

from sordino.privacy import checks
from sordino.privacy.roots import bracket, grown

_ULP = 2.0**-52
_SMALL_SHIFT = 0.02  # below it the difference of two Mills ratios loses digits, and an integral takes its place
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def delta(mu: float, epsilon: float) -> float:
    """The smallest delta of a mu-GDP release at `epsilon`, rounded up (Dong, Roth and Su 2022, Cor. 2.13; Balle and Wang 2018, Thm 8).

    Example:
        >>> round(delta(1.0, 1.0), 10)
        0.1269367375
    """
    checks.not_negative(mu=mu, epsilon=epsilon)
    return float(np.exp(log_deltas(mu, epsilon)))


def log_deltas(mu: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    """The logarithm of `delta`, element by element, no overflow and no lost digits at any mu from 0 to infinity.

    With a = epsilon/mu - mu/2 and b = a + mu, e^epsilon phi(b) = phi(a), so that
    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) (m(a) - m(b)) with Mills' ratio m, which is a scaled error function.

    Example:
        >>> log_deltas([1.0, 0.0, np.inf], 1.0).round(6).tolist()
        [-2.064066, -inf, 0.0]
    """
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(epsilon, dtype=float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = epsilon / mu
        low, high = ratio - mu / 2, ratio + mu / 2
        log_density = -low * low / 2 - math.log(2 * math.pi) / 2
        right = log_density + np.log(_mills(np.maximum(low, 0)) - _mills(high))
        left = np.log(ndtr(-low) - np.exp(log_density) * _mills(high))
        logs = np.where(low > 0, right, left)
        small = mu < _SMALL_SHIFT
        if small.any():
            logs = np.where(small, log_density + np.log(_mills_drop(low, mu)), logs)
        # What rounding of a, of a^2/2, of the difference and of the logarithm can cost, added so that it errs upwards.
        slack = (
            4
            * _ULP
            * (
                1
                + np.abs(logs)
                + (1 + np.abs(low)) * high
                + np.where(small, 0, (1 + np.abs(low)) / mu)
            )
        )
        logs = np.minimum(logs + np.fmin(slack, 1.0), 0.0)
    logs = np.where((mu == 0) | np.isposinf(ratio), -np.inf, logs)
    return np.where(np.isposinf(mu), 0.0, logs)


def _mills(x: np.ndarray) -> np.ndarray:
    """Mills' ratio (1 - Phi(x)) / phi(x) for x >= 0."""
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def _mills_drop(low: np.ndarray, width: np.ndarray) -> np.ndarray:
    """m(low) - m(low + width) as the integral of -m' = 1 - x m(x), whose integrand is positive and smooth."""
    middle = low + width / 2
    total = np.zeros_like(middle)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        x = middle + width / 2 * node
        total += weight * (1 - x * _mills(np.maximum(x, -1)))
    return total * width / 2


def epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at `delta` of a mu-GDP release, rounded up; infinite without noise.

    Example:
        >>> round(epsilon(1.0, 1e-5), 9)
        4.377178096
    """
    checks.not_negative(mu=mu)
    checks.proper_delta(delta)
    target = math.log(delta)
    # delta_mu(eps) <= Phi(-a) <= exp(-a^2/2) for a = eps/mu - mu/2 >= 0: this much is always enough.
    enough = mu * (math.sqrt(-2 * target) + mu / 2)
    if mu == 0 or log_deltas(mu, 0.0) <= target:
        return 0.0
    if math.isinf(enough):
        return math.inf
    top = grown(lambda eps: bool(log_deltas(mu, eps) <= target), enough * (1 + 1e-12))
    return bracket(lambda eps: float(log_deltas(mu, eps)) - target, 0.0, top)[1]


def mu_from(epsilon: float, delta: float) -> float:
    """The largest mu whose (epsilon, delta) is no worse than the target: what a calibration may spend, rounded down.

    Example:
        >>> round(mu_from(1.0, 1e-5), 9)
        0.268051123
    """
    checks.not_negative(epsilon=epsilon)
    checks.proper_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    target = math.log(delta)
    top = grown(lambda mu: bool(log_deltas(mu, epsilon) > target), 1.0)
    bottom = top / 2
    while log_deltas(bottom, epsilon) > target:
        bottom /= 2
    return bracket(
        lambda mu: target - float(log_deltas(mu, epsilon)) + math.ulp(target), bottom, top
    )[0]


def beta(mu: float, alpha: float) -> float:
    """The trade-off function G_mu: least false negative rate at false positive rate `alpha`, rounded down.

    G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), Dong, Roth and Su 2022, Eq. (6).

    Example:
        >>> round(beta(1.0, 0.05), 6)
        0.740489
    """
    checks.not_negative(mu=mu)
    checks.probability(alpha=alpha)
    if alpha == 1 or math.isinf(mu):
        return 0.0
    if mu == 0 or alpha == 0:
        return 1.0 - alpha
    quantile = -float(ndtri(alpha))
    rounding = 4 * _ULP * (1 + abs(quantile) + mu)
    return float(ndtr(quantile - mu - rounding)) * (1 - 4 * _ULP)


def rdp(mu: float, order: float) -> float:
    """Rényi divergence of order `order`: order mu^2 / 2 (Mironov 2017, Prop. 7).

    Example:
        >>> rdp(0.5, 4)
        0.5
    """
    checks.not_negative(mu=mu)
    checks.order(order)
    return order * mu * mu / 2 if mu > 0 else 0.0


def mu_from_rates(alpha: float, beta: float) -> float:
    """The largest mu whose trade-off function still passes above the point (alpha, beta), rounded down.

    Example:
        >>> round(mu_from_rates(0.05, 0.740489), 5)
        1.0
    """
    checks.probability(alpha=alpha, beta=beta)
    if alpha + beta >= 1:
        return 0.0
    if alpha == 0 or beta == 0:
        return math.inf
    high, low = -float(ndtri(alpha)), float(ndtri(beta))
    return max(0.0, high - low - 4 * _ULP * (abs(high) + abs(low)))
