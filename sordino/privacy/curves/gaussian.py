"""Gaussian differential privacy: from mu to every other notion of privacy, and back.

A release is mu-GDP when telling the two neighbouring data sets apart is no easier than telling
N(0, 1) from N(mu, 1) (Dong, Roth and Su, "Gaussian Differential Privacy", JRSS-B 2022). Everything
here is a conversion of that one number. Epsilon and delta are rounded up, mu for a target and beta
are rounded down.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr, ndtri

from sordino.privacy.curves import checks
from sordino.privacy.curves.roots import bracket_root, double_until

_ULP = 2.0**-52
# Below it the difference of two Mills ratios loses digits, and an integral takes its place.
_SMALL_SHIFT = 0.02
# From here on 1 - x m(x), which is never more than 1 / (1 + x^2), is that to seven digits.
_FAR = 1e4
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


def delta(mu: float, epsilon: float) -> float:
    """Returns the smallest delta of a mu-GDP release at `epsilon`, rounded up.

    Dong, Roth and Su 2022, Cor. 2.13; Balle and Wang 2018, Thm 8.

    Args:
        mu: The Gaussian parameter; may be infinite.
        epsilon: The epsilon, of at least 0.

    Returns:
        Delta, from 0 to 1.

    Example:
        >>> round(delta(1.0, 1.0), 10)
        0.1269367375
    """
    checks.require_nonnegative(mu=mu, epsilon=epsilon)
    return float(np.exp(log_deltas(mu, epsilon)))


def log_deltas(mu: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    """Returns the logarithm of `delta`, element by element, at any mu from 0 to infinity.

    With a = epsilon/mu - mu/2 and b = a + mu, e^epsilon phi(b) = phi(a), so that
    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) (m(a) - m(b)) with Mills' ratio m, which is a
    scaled error function: nothing overflows and no digits are lost.

    Args:
        mu: Gaussian parameters.
        epsilon: The epsilons; both arguments are broadcast.

    Returns:
        Logarithms of at most 0, rounded up.

    Example:
        >>> log_deltas([1.0, 0.0, np.inf], 1.0).round(6).tolist()
        [-2.064066, -inf, 0.0]
    """
    mu, epsilon = np.broadcast_arrays(
        np.asarray(mu, dtype=float),
        np.asarray(epsilon, dtype=float),
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = epsilon / mu
        low = ratio - mu / 2
        high = ratio + mu / 2
        log_density = -low * low / 2 - math.log(2 * math.pi) / 2
        # To the right of 0 both tails are small, and their common factor is taken out.
        mills_high = _mills_ratio(high)
        drop = _mills_ratio(np.maximum(low, 0)) - mills_high
        right = log_density + np.log(drop)
        # To the left Phi(-a) is at least a half, and the difference loses nothing.
        left = np.log(ndtr(-low) - np.exp(log_density) * mills_high)
        logs = np.where(low > 0, right, left)
        small = mu < _SMALL_SHIFT
        if small.any():
            smooth = log_density + np.log(_mills_drop(low, mu))
            logs = np.where(small, smooth, logs)
        # What rounding of a, of a^2/2, of the difference and of the logarithm can cost, added so
        # that it errs upwards.
        size = 1 + np.abs(low)
        lost = 1 + np.abs(logs) + size * high
        lost = lost + np.where(small, 0, size / mu)
        slack = 4 * _ULP * lost
        logs = logs + np.fmin(slack, 1.0)
        logs = np.minimum(logs, 0.0)
    no_delta = (mu == 0) | np.isposinf(ratio)
    logs = np.where(no_delta, -np.inf, logs)
    return np.where(np.isposinf(mu), 0.0, logs)


def _mills_ratio(x: np.ndarray) -> np.ndarray:
    """Returns Mills' ratio (1 - Phi(x)) / phi(x) for x >= 0."""
    scaled = erfcx(x / math.sqrt(2))
    ratio: np.ndarray = math.sqrt(math.pi / 2) * scaled
    return ratio


def _mills_drop(low: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Returns m(low) - m(low + width) as the integral of -m' = 1 - x m(x), positive and smooth."""
    # Gauss-Legendre with four nodes, exact to rounding over so short an interval.
    middle = low + width / 2
    total = np.zeros_like(middle)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        x = middle + width / 2 * node
        # Beyond, rounding might leave less than nothing of the difference, which is below this.
        slope = np.where(x > _FAR, 1 / (1 + x * x), 1 - x * _mills_ratio(np.maximum(x, -1)))
        total += weight * slope
    drop: np.ndarray = total * width / 2
    return drop


def epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon at `delta` of a mu-GDP release, rounded up.

    Args:
        mu: The Gaussian parameter; may be infinite.
        delta: The delta of the guarantee, above 0 and below 1.

    Returns:
        Epsilon; infinity where mu is.

    Example:
        >>> round(epsilon(1.0, 1e-5), 9)
        4.377178096
    """
    checks.require_nonnegative(mu=mu)
    checks.require_delta(delta)
    target = math.log(delta)
    # delta_mu(eps) <= Phi(-a) <= exp(-a^2/2) for a = eps/mu - mu/2 >= 0: this is always enough.
    enough = mu * (math.sqrt(-2 * target) + mu / 2)
    if mu == 0 or log_deltas(mu, 0.0) <= target:
        return 0.0
    if math.isinf(enough):
        return math.inf

    def find_excess(eps: float) -> float:
        """Returns by how much the logarithm of delta passes the target.

        Args:
            eps: An epsilon.
        """
        return float(log_deltas(mu, eps)) - target

    top = double_until(lambda eps: find_excess(eps) <= 0, enough * (1 + 1e-12))
    _, found = bracket_root(find_excess, 0.0, top)
    return found


def mu_from(epsilon: float, delta: float) -> float:
    """Returns the largest mu whose (epsilon, delta) is no worse than the target, rounded down.

    Args:
        epsilon: Epsilon of the target; may be infinite.
        delta: Delta of the target, above 0 and below 1.

    Returns:
        The Gaussian parameter; infinity where epsilon is.

    Example:
        >>> round(mu_from(1.0, 1e-5), 9)
        0.268051123
    """
    checks.require_nonnegative(epsilon=epsilon)
    checks.require_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    target = math.log(delta)
    top = double_until(lambda mu: bool(log_deltas(mu, epsilon) > target), 1.0)
    bottom = top / 2
    while log_deltas(bottom, epsilon) > target:
        bottom /= 2

    def find_slack(mu: float) -> float:
        """Returns how far the logarithm of delta stays below the target.

        Args:
            mu: The mu of a Gaussian curve.
        """
        # An ulp more, since the end that is kept must be above 0 where it meets the target.
        return target - float(log_deltas(mu, epsilon)) + math.ulp(target)

    found, _ = bracket_root(find_slack, bottom, top)
    return found


def beta(mu: float, alpha: float) -> float:
    """Returns the trade-off function G_mu at a false positive rate, rounded down.

    G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), Dong, Roth and Su 2022, Eq. (6).

    Args:
        mu: The Gaussian parameter; may be infinite.
        alpha: The false positive rate of the test.

    Returns:
        The least false negative rate.

    Example:
        >>> round(beta(1.0, 0.05), 6)
        0.740489
    """
    checks.require_nonnegative(mu=mu)
    checks.require_probability(alpha=alpha)
    if alpha == 1 or math.isinf(mu):
        return 0.0
    if mu == 0 or alpha == 0:
        return 1.0 - alpha
    quantile = -float(ndtri(alpha))
    # What rounding of the quantile, of the difference and of Phi can add, taken off.
    rounding = 4 * _ULP * (1 + abs(quantile) + mu)
    power = float(ndtr(quantile - mu - rounding))
    return power * (1 - 4 * _ULP)


def rdp(mu: float, order: float) -> float:
    """Returns the Rényi divergence of an order: order mu^2 / 2 (Mironov 2017, Prop. 7).

    Args:
        mu: The Gaussian parameter; may be infinite.
        order: The order of the divergence, of at least 1; may be infinite.

    Returns:
        The divergence, the same in both directions.

    Example:
        >>> rdp(0.5, 4)
        0.5
    """
    checks.require_nonnegative(mu=mu)
    checks.require_order(order)
    # Not 0 times an infinite order.
    if mu == 0:
        return 0.0
    return order * mu * mu / 2
