"""The privacy formulas of udp-fl (noise, shuffling), as printed, and the values that hold.

The verdicts are in `udp_fl_claims`; `parameters.PARAMETERS` says what the parameters mean. No
promise rests on these formulas; `sordino.mechanisms.staircase_density`,
`sordino.privacy.curves.renyi` and `sordino.privacy.amplification.shuffling` have the bounds that
promises use.
"""

from __future__ import annotations

import math
from functools import lru_cache

from sordino.protocol.errors import UserError

# The delta at which the paper reads epsilons.
DELTA = 1e-5


def table_3_gaussian(*, order: float, sensitivity: float, sigma: float) -> float:
    """Returns the divergence of Table 3, first row: alpha Delta/(2 sigma^2).

    Example:
        >>> table_3_gaussian(order=2.0, sensitivity=2.0, sigma=1.0)
        2.0
    """
    return order * sensitivity / (2 * sigma**2)


def theorem_2(*, order: float, step: float, nu: float) -> float:
    """Returns the "gamma" of Theorems 1 and 2 and Table 3 for the staircase, as printed.

    It is close to the moment whose logarithm over order - 1 is the divergence (docs/theory.md#b1).

    Example:
        >>> round(theorem_2(order=2.0, step=1.0, nu=0.7), 8)
        1.81809371
    """
    # As Eq. (12) defines it.
    sign = 0.0 if nu < 0.5 else 1.0
    grown = math.exp((order - 1) * step)
    shrunk = math.exp(-order * step)
    upper = (grown + shrunk) * (1 - nu)
    lower = abs(2 * nu - 1) * math.exp(-sign * step)
    middle = upper + lower
    height = 2 * (nu + math.exp(-step) * (1 - nu))
    return grown / 2 + shrunk / 2 + middle * (1 - math.exp(-1)) / height


def appendix_a_4(*, order: float, gamma: float) -> float:
    """Returns the step of the proof in A.4: lambda = log(gamma - 1)/(alpha - 1), at nu = 1/2.

    The paper bounds the printed "gamma" by e^((alpha - 1) lambda) + 1 and solves for lambda.

    Raises:
        UserError: Gamma is so small that the step would not be above 0.

    Example:
        >>> round(appendix_a_4(order=2.0, gamma=3.0), 8)
        0.69314718
    """
    if gamma <= 2:
        raise UserError(
            f"gamma = {gamma:g}: lambda = log(gamma - 1)/(alpha - 1) is above 0 only for gamma "
            "above 2. Take a larger gamma."
        )
    return math.log(gamma - 1) / (order - 1)


def appendix_a_4_divergence(*, order: float, gamma: float) -> float:
    """Returns the exact divergence of one coordinate under the staircase of A.4.

    Example:
        >>> round(appendix_a_4_divergence(order=2.0, gamma=3.0), 6) < 3.0
        True
    """
    step = appendix_a_4(order=order, gamma=gamma)
    return staircase_divergence(order=order, step=step, nu=0.5)


def staircase_divergence(*, order: float, step: float, nu: float, dimension: int = 1) -> float:
    """Returns the exact divergence of staircase noise on every coordinate (docs/theory.md#b1, #b2).

    It is that of the worst shift whose l2 norm is one width.

    Example:
        >>> round(staircase_divergence(order=1.1, step=5.0, nu=0.5), 8)
        4.95760337
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity

    return StaircaseDensity(step=step, width=1.0, nu=nu).divergence_l2(order, 1.0, dimension)


@lru_cache(maxsize=64)
def algorithm_3_step(*, epsilon: float, rounds: int) -> float:
    """Returns the step of Algorithm 3: the staircase's largest for an epsilon at delta 1e-5.

    It uses the true divergence of one coordinate (docs/theory.md#b1), so that only the claim about
    many coordinates is left to check.

    Example:
        >>> round(algorithm_3_step(epsilon=1.0, rounds=1), 3)
        1.0
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity
    from sordino.privacy.curves.renyi import RenyiCurve
    from sordino.privacy.curves.roots import bracket_root

    def slack(step: float) -> float:
        """Returns how far the epsilon of a step stays below the target.

        Args:
            step: The staircase's step, lambda.
        """
        density = StaircaseDensity.usual(step=step, width=1.0)
        one_round = RenyiCurve.from_divergence(lambda order: density.divergence(order, 1.0))
        return epsilon - one_round.repeat(rounds).epsilon(DELTA)

    return bracket_root(slack, 1e-9, max(1.0, 2 * epsilon))[0]


def harmonized_epsilon(*, epsilon: float, rounds: int, dimension: int) -> float:
    """Returns a lower bound on the true epsilon of Algorithm 3's noise, at delta 1e-5.

    The noise falls on every coordinate of a vector whose l2 norm is bounded (docs/theory.md#b2).

    Example:
        >>> round(harmonized_epsilon(epsilon=1.0, rounds=1, dimension=1000), 1)
        42.6
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity

    noise = StaircaseDensity.usual(step=algorithm_3_step(epsilon=epsilon, rounds=rounds), width=1.0)
    return noise.epsilon_at_least(DELTA, clip=1.0, dimension=dimension, rounds=rounds)


def composition(*, order: float, first: float, second: float) -> float:
    """Returns the Rényi divergence of two Gaussian releases together: the sum of theirs.

    Example:
        >>> composition(order=2.0, first=0.6, second=0.8)
        1.0
    """
    return order * (first * first + second * second) / 2


def gaussian_epsilon(*, mu: float, delta: float) -> float:
    """Returns the exact epsilon of a Gaussian release.

    Example:
        >>> round(gaussian_epsilon(mu=1.0, delta=1e-5), 4)
        4.3772
    """
    from sordino.privacy.curves import gaussian

    return gaussian.epsilon(mu, delta)


def conversion(*, order: float, mu: float, delta: float) -> float:
    """Returns the epsilon of a Gaussian release whose Rényi divergence is converted as printed.

    It is epsilon_alpha + log(1/delta)/(alpha - 1), with epsilon_alpha = alpha mu^2/2.

    Example:
        >>> round(conversion(order=6.0, mu=1.0, delta=1e-5), 4)
        5.3026
    """
    return order * mu * mu / 2 + math.log(1 / delta) / (order - 1)


def theorem_6(*, order: float, sensitivity: float, sigma: float) -> float:
    """Returns the least epsilon of Theorem 6: that of sigma^2 = alpha Delta^2/(2 epsilon).

    Example:
        >>> theorem_6(order=2.0, sensitivity=2.0, sigma=1.0)
        4.0
    """
    return order * sensitivity**2 / (2 * sigma**2)


def theorem_7_scale(*, order: float, gamma: float) -> float:
    """Returns the least Laplace scale of Theorem 7 at Delta = 1.

    The theorem states (alpha - 1)/log(((2 alpha - 1) e^(gamma (alpha - 1)) + alpha - 1)/alpha).

    Example:
        >>> round(theorem_7_scale(order=2.0, gamma=1.0), 8)
        0.65740336
    """
    moment = (2 * order - 1) * math.exp(gamma * (order - 1))
    return (order - 1) / math.log((moment + order - 1) / order)


def theorem_7_divergence(*, order: float, gamma: float) -> float:
    """Returns the exact divergence of Laplace noise of Theorem 7's scale.

    Example:
        >>> round(theorem_7_divergence(order=2.0, gamma=1.0), 8)
        1.1208707
    """
    from sordino.mechanisms.laplace_noise import laplace_divergence

    return laplace_divergence(order, 1.0, theorem_7_scale(order=order, gamma=gamma))


def lemma_2(*, order: int, gamma: float, clients: int) -> float:
    """Returns the upper bound of Lemma 2 on the divergence after shuffling.

    Here and in Lemma 3, gamma is the divergence of each client's randomiser.

    Example:
        >>> round(lemma_2(order=64, gamma=2.0, clients=1000), 8)
        0.0920574
    """
    pairs = order * (order - 1) / 2
    growth = pairs * 4 * math.expm1(gamma) ** 2 / clients
    return math.log1p(growth) / (order - 1)


def lemma_3(*, order: int, gamma: float, clients: int) -> float:
    """Returns the lower bound of Lemma 3 on the divergence after shuffling.

    Example:
        >>> round(lemma_3(order=2, gamma=1.0, clients=100), 8)
        0.01080305
    """
    pairs = order * (order - 1) / 2
    growth = pairs * math.expm1(gamma) ** 2 / (clients * math.exp(gamma))
    return math.log1p(growth) / (order - 1)


def shuffled_randomized_response(*, order: float, local: float, clients: int) -> float:
    """Returns the exact divergence of the shuffled counts of binary randomised response.

    All clients have the same bit, and that of one is flipped; `local` is the pure epsilon of each
    client's randomiser (docs/theory.md#b7).

    Example:
        >>> round(shuffled_randomized_response(order=2, local=1.0, clients=100), 8)
        0.01080305
    """
    import numpy as np
    from scipy.special import gammaln, logsumexp

    log_lie = -math.log1p(math.exp(local))
    log_truth = math.log1p(-math.exp(log_lie))
    # How many of the n - 1 other clients report a one: a binomial law.
    ones = np.arange(clients)
    log_choose = gammaln(clients) - gammaln(ones + 1) - gammaln(clients - ones)
    log_others = log_choose + ones * log_lie + (clients - 1 - ones) * log_truth
    # The client in question adds a zero, which keeps the count, or a one, which moves it by one.
    zero_added = np.append(log_others, -np.inf)
    one_added = np.append(-np.inf, log_others)
    bit_is_zero = np.logaddexp(zero_added + log_truth, one_added + log_lie)
    bit_is_one = np.logaddexp(zero_added + log_lie, one_added + log_truth)
    return float(logsumexp(order * bit_is_one + (1 - order) * bit_is_zero)) / (order - 1)
