"""Integrates divergences and moments numerically.

These evaluations of the definitions share nothing with the formulas that they check.
`parameters.PARAMETERS` says what the parameters mean.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from sordino.papers.parameters import drawn_share
from sordino.protocol.errors import UserError

if TYPE_CHECKING:
    import numpy as np

# The trapezoidal rule is exponentially accurate for a Gaussian that vanishes at both ends.
_NODES = 20_001
# How far a grid reaches, in standard deviations, and how far apart its points may be.
_REACH = 12.0
_WIDEST = 0.05


def gaussian_divergence(*, order: float, sensitivity: float, sigma: float) -> float:
    """Returns the Rényi divergence of N(sensitivity, sigma^2) from N(0, sigma^2), integrated.

    The definition is log E_Q (P/Q)^order / (order - 1).

    Example:
        >>> round(gaussian_divergence(order=2.0, sensitivity=2.0, sigma=1.0), 10)
        4.0
    """
    shift = sensitivity / sigma
    # P^order Q^(1 - order) peaks here.
    centre = order * shift
    x, step = _make_grid(centre - _REACH, centre + _REACH)
    logs = -x * x / 2 + order * (shift * x - shift * shift / 2)
    return _log_integral(logs, step) / (order - 1)


def gaussian_delta(*, mu: float, epsilon: float) -> float:
    """Returns the hockey-stick divergence of N(mu, 1) from N(0, 1), integrated.

    The definition is E_P (1 - e^epsilon Q/P) where that is positive.

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

    It follows from the overlap 2 Phi(-mu/2) of the two joint laws. Given the output x of one, the
    other is tested at the threshold that x leaves: E_Q min(L1 L2, 1), L1 = e^(mu1 x - mu1^2/2).

    Example:
        >>> round(composed_mu(first=3.0, second=4.0), 10)
        5.0
    """
    import numpy as np
    from scipy.special import log_ndtr, ndtri

    # The integral is over the smaller one's output: given the larger one's, the test of the other
    # would jump between two points of the grid.
    small, large = sorted((first, second))
    x, step = _make_grid(-_REACH, small + _REACH)
    threshold = (small * small / 2 - small * x) / large
    alternative = log_ndtr(threshold - large / 2) - (x - small) ** 2 / 2
    null = log_ndtr(-threshold - large / 2) - x * x / 2
    log_overlap = _log_integral(np.concatenate([alternative, null]), step)
    return -2 * float(ndtri(math.exp(log_overlap) / 2))


def rounded_delta(*, mu: float, epsilon: float) -> float:
    """Returns the delta of N(mu, 1) against N(0, 1) when only the rounded number is seen.

    It is summed over the whole numbers: E (P - e^epsilon Q) where that is positive.

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
    return _integral(alternative - null, step)


def adaptive_divergence(*, order: float, first: float, second: float) -> float:
    """Returns the Rényi divergence of two Gaussian releases, of which the second sees the first.

    Where the first output points to the neighbour, the second has the parameter `second`, and
    half of it elsewhere. Given the first output, the moment of the second is known.

    Example:
        >>> round(adaptive_divergence(order=2.0, first=0.6, second=0.8), 6)
        0.927184
    """
    import numpy as np

    centre = order * first
    x, step = _make_grid(centre - _REACH, centre + _REACH)
    loss = first * x - first * first / 2
    parameter = np.where(loss > 0, second, second / 2)
    logs = -x * x / 2 + order * loss + order * (order - 1) / 2 * parameter**2
    return _log_integral(logs, step) / (order - 1)


def mixed_variation(*, mu: float, probability: float) -> float:
    """Returns the total variation of two mixtures that share one of their parts.

    With the given probability they are N(-mu/2, 1) and N(mu/2, 1), and otherwise both are N(0, 1).
    Half the distance of the two densities is integrated.

    Example:
        >>> round(mixed_variation(mu=1.0, probability=0.5), 6)
        0.191462
    """
    import numpy as np

    x, step = _make_grid(-_REACH - mu, _REACH + mu)
    shared = (1 - probability) * np.exp(-x * x / 2)
    one = probability * np.exp(-((x + mu / 2) ** 2) / 2) + shared
    other = probability * np.exp(-((x - mu / 2) ** 2) / 2) + shared
    return _integral(np.abs(one - other), step) / 2


def drawn_delta(*, batch: int, records: int, sigma: float, epsilon: float) -> float:
    """Returns the delta of one step of noisy SGD on a linear loss, integrated.

    A batch holds B of the client's n records. One record is exchanged for its negative, so that its
    clipped gradient C becomes -C; the gradients of the others are 0. The noise has the standard
    deviation 2 C sigma.

    Raises:
        UserError: The batch is larger than the data, or the noise too small for the integral.

    Example:
        >>> round(drawn_delta(batch=16, records=600, sigma=1.0, epsilon=0.01), 6)
        0.006069
    """
    import numpy as np

    drawn = drawn_share(batch, records)
    shift = 1 / (2 * sigma)
    x, step = _make_grid(-_REACH - shift, _REACH + shift)
    left_out = (1 - drawn) * np.exp(-x * x / 2)
    one = drawn * np.exp(-((x - shift) ** 2) / 2) + left_out
    other = drawn * np.exp(-((x + shift) ** 2) / 2) + left_out
    return _integral(np.maximum(one - math.exp(epsilon) * other, 0), step)


def gaussian_amplitude(*, sigma: float) -> float:
    """Returns E|X| of N(0, sigma^2), integrated.

    Example:
        >>> round(gaussian_amplitude(sigma=1.0), 10)
        0.7978845608
    """
    from scipy.integrate import quad

    half = float(quad(lambda x: x * math.exp(-x * x / 2), 0, math.inf)[0])
    return sigma * 2 * half / math.sqrt(2 * math.pi)


def bezier_control(*, start: float, optimum: float, rate: float, curvature: float) -> float:
    """Returns the control point of the curve from v to w with the least mean loss along it.

    The curve is a quadratic Bezier curve (udp-fl, Eq. (2) and (6)) that begins one gradient step
    v = w - rate curvature (w - optimum) after w, on the loss curvature/2 (w - optimum)^2.

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
    """Returns evenly spaced points and their distance.

    Raises:
        UserError: The points would be too far apart to integrate a Gaussian of deviation 1.
    """
    import numpy as np

    step = (high - low) / (_NODES - 1)
    if not 0 < step <= _WIDEST:
        raise UserError(
            f"from {low:g} to {high:g} standard deviations is too wide to be integrated; "
            "choose less extreme parameters."
        )
    return np.linspace(low, high, _NODES), step


def _integral(values: np.ndarray, step: float) -> float:
    """Returns the integral of values on a grid, over the constant of a Gaussian density."""
    return float(values.sum()) * step / math.sqrt(2 * math.pi)


def _log_integral(logs: np.ndarray, step: float) -> float:
    """Returns the logarithm of the same integral, from the logarithms of the values."""
    from scipy.special import logsumexp

    return float(logsumexp(logs)) + math.log(step) - math.log(2 * math.pi) / 2
