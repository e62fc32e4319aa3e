"""Integrates divergences and moments numerically.

These evaluations of the definitions share nothing with the formulas that they check.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# The trapezoidal rule is exponentially accurate for a Gaussian that vanishes at both ends.
_NODES = 20_001
# How far a grid reaches, in standard deviations.
_REACH = 12.0


def gaussian_divergence(*, order: float, sensitivity: float, sigma: float) -> float:
    """Returns the Rényi divergence of N(sensitivity, sigma^2) from N(0, sigma^2), integrated.

    The definition is log E_Q (P/Q)^order / (order - 1).

    Args:
        order: The order of the Rényi divergence, alpha.
        sensitivity: How far one record moves a release, Delta.
        sigma: The standard deviation of the noise.

    Example:
        >>> round(gaussian_divergence(order=2.0, sensitivity=2.0, sigma=1.0), 10)
        4.0
    """
    from scipy.special import logsumexp

    shift = sensitivity / sigma
    # P^order Q^(1 - order) peaks here.
    centre = order * shift
    x, step = _make_grid(centre - _REACH, centre + _REACH)
    logs = -x * x / 2 + order * (shift * x - shift * shift / 2)
    log_moment = float(logsumexp(logs)) + math.log(step) - math.log(2 * math.pi) / 2
    return log_moment / (order - 1)


def gaussian_delta(*, mu: float, epsilon: float) -> float:
    """Returns the hockey-stick divergence of N(mu, 1) from N(0, 1), integrated.

    The definition is E_P (1 - e^epsilon Q/P) where that is positive.

    Args:
        mu: The parameter of Gaussian differential privacy.
        epsilon: The epsilon of differential privacy.

    Example:
        >>> round(gaussian_delta(mu=1.0, epsilon=1.0), 10)
        0.1269367375
    """
    import numpy as np
    from scipy.integrate import quad

    # Q/P = e^(mu^2/2 - mu x) equals e^-epsilon at this x; beyond it the integrand is smooth.
    threshold = epsilon / mu + mu / 2
    peak = max(threshold, mu)

    def excess(x: float) -> float:
        """Returns the integrand: the density, less e^epsilon times the other one.

        Args:
            x: Where it is evaluated.
        """
        gain = -float(np.expm1(mu * (threshold - x)))
        return gain * math.exp(-((x - mu) ** 2) / 2)

    total = 0.0
    for low, high in itertools.pairwise([threshold, peak, peak + 1, peak + _REACH]):
        if high > low:
            total += float(quad(excess, low, high, epsabs=0, epsrel=1e-11)[0])
    return total / math.sqrt(2 * math.pi)


def composed_mu(*, first: float, second: float) -> float:
    """Returns the mu of two Gaussian releases seen together.

    It follows from the overlap 2 Phi(-mu/2) of the two joint laws. Given the first output x, the
    second is tested at the threshold that x leaves: E_Q min(L1 L2, 1), L1 = e^(mu1 x - mu1^2/2).

    Args:
        first: The Gaussian parameter of the first release.
        second: The Gaussian parameter of the second release.

    Example:
        >>> round(composed_mu(first=3.0, second=4.0), 10)
        5.0
    """
    import numpy as np
    from scipy.special import log_ndtr, logsumexp, ndtri

    x, step = _make_grid(-_REACH, first + _REACH)
    threshold = (first * first / 2 - first * x) / second
    alternative = log_ndtr(threshold - second / 2) - (x - first) ** 2 / 2
    null = log_ndtr(-threshold - second / 2) - x * x / 2
    log_sum = float(logsumexp(np.concatenate([alternative, null])))
    log_overlap = log_sum + math.log(step) - math.log(2 * math.pi) / 2
    return -2 * float(ndtri(math.exp(log_overlap) / 2))


def rounded_delta(*, mu: float, epsilon: float) -> float:
    """Returns the delta of N(mu, 1) against N(0, 1) when only the rounded number is seen.

    It is summed over the whole numbers: E (P - e^epsilon Q) where that is positive.

    Args:
        mu: The parameter of Gaussian differential privacy.
        epsilon: The epsilon of differential privacy.

    Example:
        >>> round(rounded_delta(mu=1.0, epsilon=0.5), 6)
        0.198391
    """
    import numpy as np
    from scipy.special import ndtr

    reach = math.ceil(mu + 40)
    edges = np.arange(-reach, reach + 1) + 0.5
    # Upper tails: differences of values near 1 would lose the digits of small probabilities.
    alternative = -np.diff(ndtr(mu - edges))
    null = -np.diff(ndtr(-edges))
    excess = alternative - math.exp(epsilon) * null
    return float(np.maximum(excess, 0).sum())


def adaptive_delta(*, first: float, second: float, epsilon: float) -> float:
    """Returns the delta of two Gaussian releases, the second of which looks at the first.

    Where the first output points to the neighbour, the second has the parameter `second`, and
    half of it elsewhere. Given the first output, the second leaves a hockey-stick divergence at
    the remainder of epsilon.

    Args:
        first: The Gaussian parameter of the first release.
        second: The largest Gaussian parameter of the second release.
        epsilon: The epsilon of differential privacy.

    Example:
        >>> round(adaptive_delta(first=0.6, second=0.8, epsilon=1.0), 6)
        0.115736
    """
    import numpy as np
    from scipy.special import log_ndtr

    x, step = _make_grid(-_REACH, first + _REACH)
    loss = first * x - first * first / 2
    parameter = np.where(loss > 0, second, second / 2)
    left = epsilon - loss
    # Both terms in logarithms: e^left is as large as the first output is surprising.
    alternative = np.exp(loss + log_ndtr(-left / parameter + parameter / 2) - x * x / 2)
    null = np.exp(epsilon + log_ndtr(-left / parameter - parameter / 2) - x * x / 2)
    return float((alternative - null).sum()) * step / math.sqrt(2 * math.pi)


def adaptive_divergence(*, order: float, first: float, second: float) -> float:
    """Returns the Rényi divergence of two Gaussian releases, of which the second sees the first.

    Where the first output points to the neighbour, the second has the parameter `second`, and
    half of it elsewhere. Given the first output, the moment of the second is known.

    Args:
        order: The order of the Rényi divergence, alpha.
        first: The Gaussian parameter of the first release.
        second: The largest Gaussian parameter of the second release.

    Example:
        >>> round(adaptive_divergence(order=2.0, first=0.6, second=0.8), 6)
        0.927184
    """
    import numpy as np
    from scipy.special import logsumexp

    centre = order * first
    x, step = _make_grid(centre - _REACH, centre + _REACH)
    loss = first * x - first * first / 2
    parameter = np.where(loss > 0, second, second / 2)
    logs = -x * x / 2 + order * loss + order * (order - 1) / 2 * parameter**2
    log_moment = float(logsumexp(logs)) + math.log(step) - math.log(2 * math.pi) / 2
    return log_moment / (order - 1)


def mixed_variation(*, mu: float, probability: float) -> float:
    """Returns the total variation of two mixtures that share one of their parts.

    With a probability they are N(-mu/2, 1) and N(mu/2, 1), and otherwise N(0, 1), both of them.
    Half the distance of the two densities is integrated.

    Args:
        mu: The Gaussian parameter of the parts that differ.
        probability: The probability of these parts.

    Example:
        >>> round(mixed_variation(mu=1.0, probability=0.5), 6)
        0.191462
    """
    import numpy as np

    x, step = _make_grid(-_REACH - mu, _REACH + mu)
    shared = (1 - probability) * np.exp(-x * x / 2)
    one = probability * np.exp(-((x + mu / 2) ** 2) / 2) + shared
    other = probability * np.exp(-((x - mu / 2) ** 2) / 2) + shared
    return float(np.abs(one - other).sum()) * step / 2 / math.sqrt(2 * math.pi)


def drawn_delta(*, batch: int, records: int, sigma: float, epsilon: float) -> float:
    """Returns the delta of one step of noisy SGD on a linear loss, integrated.

    A batch holds B of the client's n records. One record is exchanged for its negative, so that its
    clipped gradient C becomes -C; the gradients of the others are 0. The noise has the deviation
    2 C sigma.

    Args:
        batch: B, the records of a step.
        records: n, the records of the client.
        sigma: The noise's standard deviation, in units of 2 C.
        epsilon: The epsilon of differential privacy.

    Example:
        >>> round(drawn_delta(batch=16, records=600, sigma=1.0, epsilon=0.01), 6)
        0.006069
    """
    import numpy as np

    drawn = batch / records
    shift = 1 / (2 * sigma)
    x, step = _make_grid(-_REACH - shift, _REACH + shift)
    left_out = (1 - drawn) * np.exp(-x * x / 2)
    one = drawn * np.exp(-((x - shift) ** 2) / 2) + left_out
    other = drawn * np.exp(-((x + shift) ** 2) / 2) + left_out
    excess = np.maximum(one - math.exp(epsilon) * other, 0)
    return float(excess.sum()) * step / math.sqrt(2 * math.pi)


def gaussian_amplitude(*, sigma: float) -> float:
    """Returns E|X| of N(0, sigma^2), integrated.

    Args:
        sigma: The standard deviation of the noise.

    Example:
        >>> round(gaussian_amplitude(sigma=1.0), 10)
        0.7978845608
    """
    from scipy.integrate import quad

    half = float(quad(lambda x: x * math.exp(-x * x / 2), 0, math.inf)[0])
    return sigma * 2 * half / math.sqrt(2 * math.pi)


def bezier_control(
    *,
    start: float,
    optimum: float,
    rate: float,
    curvature: float,
) -> float:
    """Returns the control point of the curve from v to w with the least mean loss along it.

    The curve is a quadratic Bezier curve (udp-fl, Eq. (2) and (6)), the loss is
    curvature/2 (w - optimum)^2, and v = w - rate curvature (w - optimum) is one gradient step.

    Args:
        start: The model before the step, w.
        optimum: The minimum of the loss.
        rate: The learning rate, mu in convergent-dp.
        curvature: The second derivative of the loss.

    Example:
        >>> round(bezier_control(start=1.0, optimum=0.0, rate=0.1, curvature=1.0), 10)
        -1.425
    """
    import numpy as np

    # The mean loss is quadratic in the control point, so Gauss-Legendre integrates its
    # coefficients exactly.
    nodes, node_weights = np.polynomial.legendre.leggauss(4)
    r = (nodes + 1) / 2
    weights = node_weights / 2
    stepped = start - rate * curvature * (start - optimum)
    fixed = (1 - r) ** 2 * stepped + r**2 * start
    free = 2 * (r - r**2)
    return float(np.dot(weights, free * (optimum - fixed)) / np.dot(weights, free * free))


def _make_grid(low: float, high: float) -> tuple[np.ndarray, float]:
    """Returns evenly spaced points, and their distance."""
    import numpy as np

    return np.linspace(low, high, _NODES), (high - low) / (_NODES - 1)
