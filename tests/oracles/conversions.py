"""Other ways from one notion of privacy to another, that the package's conversions are held against."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp, ndtri

from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.combinatorics import log_binomial
from sordino.privacy.curves.renyi import log_deltas_by_order

_ULP = 2.0**-52


def to_epsilon_classic(order: float, rdp: float, delta: float) -> float:
    """The older, looser conversion rdp + log(1/delta)/(a - 1) (Mironov 2017, Prop. 3): sound, kept for comparison.

    Example:
        >>> round(to_epsilon_classic(10.0, 0.5, 1e-5), 10)
        1.7792139406
    """
    checks.require_order(order)
    checks.require_nonnegative(rdp=rdp)
    checks.require_delta(delta)
    return rdp - math.log(delta) / (order - 1)


def to_delta(order: float, rdp: float, epsilon: float) -> float:
    """Delta from one divergence: e^((a - 1)(rdp - epsilon)) (1 - 1/a)^(a - 1) / a, at most 1 (docs/theory.md#b5).

    Example:
        >>> round(to_delta(2.0, 0.1, 3.0), 12)
        0.013755805014
    """
    checks.require_order(order)
    checks.require_nonnegative(rdp=rdp)
    checks.require_nonnegative(epsilon=epsilon)
    return min(
        1.0,
        math.exp(
            min(0.0, float(log_deltas_by_order(np.array([order]), np.array([rdp]), epsilon)[0]))
        ),
    )


def binomial_delta(epsilon: float, *, rate: float, mu: float, rounds: int) -> float:
    """Delta when each of `rounds` rounds happens with probability `rate` and is then mu-GDP: E delta_{mu sqrt(N)}, N ~ Bin(rounds, rate).

    The closed form of docs/theory.md#a10, for equal rounds with a fixed number of participants.

    Example:
        >>> round(binomial_delta(0.5, rate=0.01, mu=1.0, rounds=1), 12)
        0.002384217081
    """
    checks.require_nonnegative(epsilon=epsilon, mu=mu)
    checks.require_probability(rate=rate)
    checks.require_whole(at_least=1, rounds=rounds)
    counts = np.arange(rounds + 1)
    log_masses = log_binomial(rounds, rate)
    rounding = 1e-12 + 4 * 2.0**-52 * math.lgamma(
        rounds + 1
    )  # the binomial's logarithms are differences of numbers of that size
    return min(
        1.0,
        float(np.exp(logsumexp(log_masses + gaussian.log_deltas(mu * np.sqrt(counts), epsilon))))
        * (1 + rounding),
    )


def mu_from_rates(alpha: float, beta: float) -> float:
    """The largest mu whose trade-off function still passes above the point (alpha, beta), rounded down.

    Example:
        >>> round(mu_from_rates(0.05, 0.740489), 5)
        1.0
    """
    checks.require_probability(alpha=alpha, beta=beta)
    if alpha + beta >= 1:
        return 0.0
    if alpha == 0 or beta == 0:
        return math.inf
    high, low = -float(ndtri(alpha)), float(ndtri(beta))
    return max(0.0, high - low - 4 * _ULP * (abs(high) + abs(low)))
