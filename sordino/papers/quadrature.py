"""Divergences and moments by numerical integration: an evaluation of the definitions that shares nothing with the formulas it checks."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_NODES = 20_001  # the trapezoidal rule is exponentially accurate for a Gaussian that vanishes at both ends
_REACH = 12.0  # standard deviations


def gaussian_divergence(*, order: float, sensitivity: float, sigma: float) -> float:
    """Rényi divergence of N(sensitivity, sigma^2) from N(0, sigma^2), integrated: log E_Q (P/Q)^order / (order - 1).

    Example:
        >>> round(gaussian_divergence(order=2.0, sensitivity=2.0, sigma=1.0), 10)
        4.0
    """
    from scipy.special import logsumexp

    shift = sensitivity / sigma
    centre = order * shift  # where P^order Q^(1 - order) peaks
    x, step = _grid(centre - _REACH, centre + _REACH)
    logs = -x * x / 2 + order * (shift * x - shift * shift / 2)
    return (float(logsumexp(logs)) + math.log(step) - math.log(2 * math.pi) / 2) / (order - 1)


def gaussian_delta(*, mu: float, epsilon: float) -> float:
    """Hockey-stick divergence of N(mu, 1) from N(0, 1), integrated: E_P (1 - e^epsilon Q/P) where that is positive.

    Example:
        >>> round(gaussian_delta(mu=1.0, epsilon=1.0), 10)
        0.1269367375
    """
    import numpy as np
    from scipy.integrate import quad

    # Q/P = e^(mu^2/2 - mu x) equals e^-epsilon at this x; beyond it the integrand is smooth.
    threshold = epsilon / mu + mu / 2
    peak = max(threshold, mu)
    pieces = [threshold, peak, peak + 1, peak + _REACH]

    def excess(x: float) -> float:
        return -float(np.expm1(mu * (threshold - x))) * math.exp(-((x - mu) ** 2) / 2)

    total = sum(
        float(quad(excess, low, high, epsabs=0, epsrel=1e-11)[0])
        for low, high in itertools.pairwise(pieces)
        if high > low
    )
    return total / math.sqrt(2 * math.pi)


def composed_mu(*, first: float, second: float) -> float:
    """The mu of two Gaussian releases seen together, from the overlap 2 Phi(-mu/2) of the two joint laws.

    Given the first output x the second is tested at the threshold that x leaves: E_Q min(L1 L2, 1) with L1 = e^(mu1 x - mu1^2/2).

    Example:
        >>> round(composed_mu(first=3.0, second=4.0), 10)
        5.0
    """
    import numpy as np
    from scipy.special import log_ndtr, logsumexp, ndtri

    x, step = _grid(-_REACH, first + _REACH)
    threshold = (first * first / 2 - first * x) / second
    alternative = log_ndtr(threshold - second / 2) - (x - first) ** 2 / 2
    null = log_ndtr(-threshold - second / 2) - x * x / 2
    log_overlap = (
        float(logsumexp(np.concatenate([alternative, null])))
        + math.log(step)
        - math.log(2 * math.pi) / 2
    )
    return -2 * float(ndtri(math.exp(log_overlap) / 2))


def gaussian_amplitude(*, sigma: float) -> float:
    """E|X| of N(0, sigma^2), integrated.

    Example:
        >>> round(gaussian_amplitude(sigma=1.0), 10)
        0.7978845608
    """
    from scipy.integrate import quad

    return (
        sigma
        * 2
        * float(quad(lambda x: x * math.exp(-x * x / 2), 0, math.inf)[0])
        / math.sqrt(2 * math.pi)
    )


def bezier_control(*, start: float, optimum: float, rate: float, curvature: float) -> float:
    """The control point of the quadratic Bezier curve from v to w that minimises the mean loss along it (udp-fl, Eq. (2) and (6)).

    The loss is curvature/2 (w - optimum)^2 and v = w - rate curvature (w - optimum) one gradient step. The mean loss is quadratic in the
    control point; Gauss-Legendre integrates its coefficients exactly.

    Example:
        >>> round(bezier_control(start=1.0, optimum=0.0, rate=0.1, curvature=1.0), 10)
        -1.425
    """
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(4)
    r, weights = (nodes + 1) / 2, weights / 2
    stepped = start - rate * curvature * (start - optimum)
    fixed, free = (1 - r) ** 2 * stepped + r**2 * start, 2 * (r - r**2)
    return float(np.dot(weights, free * (optimum - fixed)) / np.dot(weights, free * free))


def _grid(low: float, high: float) -> tuple[np.ndarray, float]:
    import numpy as np

    return np.linspace(low, high, _NODES), (high - low) / (_NODES - 1)
