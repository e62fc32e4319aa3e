"""Published privacy formulas of udp-fl (noises, shuffling) as printed, and results recalled from the literature it rests on.

See `udp_fl_claims` for the verdicts. None of this is used for a promise: see `sordino.privacy.staircase`, `renyi` and `shuffling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def table_3_gaussian(*, order: float, sensitivity: float, sigma: float) -> float:
    """Table 3, first row: alpha Delta/(2 sigma^2), in which the square of Delta is missing. Verdict B4: UNSOUND for Delta > 1.

    Example:
        >>> table_3_gaussian(order=2.0, sensitivity=2.0, sigma=1.0)
        2.0
    """
    return order * sensitivity / (2 * sigma**2)


def theorem_2(*, order: float, step: float, nu: float) -> float:
    """Theorems 1 and 2, Table 3: the staircase's "gamma", with the printed 1 - e^-1, (1 - nu) and sgn of Eq. (12).

    Verdict B1: not a Rényi divergence; it is close to the moment I whose log/(order - 1) would be one.

    Example:
        >>> round(theorem_2(order=2.0, step=1.0, nu=0.7), 8)
        1.81809371
    """
    sign = 0.0 if nu < 0.5 else 1.0  # as Eq. (12) defines it
    grown, shrunk = math.exp((order - 1) * step), math.exp(-order * step)
    middle = (grown + shrunk) * (1 - nu) + abs(2 * nu - 1) * math.exp(-sign * step)
    return (
        grown / 2
        + shrunk / 2
        + middle * (1 - math.exp(-1)) / (2 * (nu + math.exp(-step) * (1 - nu)))
    )


def staircase_divergence(*, order: float, step: float, nu: float, dimension: int = 1) -> float:
    """Exact divergence of staircase noise on every coordinate, for a shift whose l2 norm is one width (THEORY B1, B2).

    Example:
        >>> round(staircase_divergence(order=1.1, step=5.0, nu=0.5), 8)
        4.95760337
    """
    from sordino.privacy.staircase import Staircase

    return Staircase(step=step, width=1.0, nu=nu).divergence_l2(order, 1.0, dimension)


@lru_cache(maxsize=64)
def algorithm_3_step(*, epsilon: float, rounds: int) -> float:
    """Algorithm 3, with the divergence of one coordinate that is right (THEORY B1): the staircase's largest step for an epsilon at 1e-5.

    Example:
        >>> round(algorithm_3_step(epsilon=1.0, rounds=1), 3)
        1.0
    """
    from sordino.privacy.roots import bracket
    from sordino.privacy.staircase import Staircase

    def missing(step: float) -> float:
        return epsilon - Staircase.usual(step=step, width=1.0).curve_l2(
            clip=1.0, dimension=1
        ).repeat(rounds).epsilon(1e-5)

    return bracket(missing, 1e-9, max(1.0, 2 * epsilon))[0]


def harmonized_epsilon(*, epsilon: float, rounds: int, dimension: int) -> float:
    """Epsilon at 1e-5 that such noise really has, at least, when it falls on every coordinate of a vector with that l2 norm (THEORY B2).

    Example:
        >>> round(harmonized_epsilon(epsilon=1.0, rounds=1, dimension=1000), 1)
        42.6
    """
    from sordino.privacy.staircase import Staircase

    noise = Staircase.usual(step=algorithm_3_step(epsilon=epsilon, rounds=rounds), width=1.0)
    return noise.epsilon_at_least(1e-5, clip=1.0, dimension=dimension, rounds=rounds)


def theorem_6(*, order: float, sensitivity: float, sigma: float) -> float:
    """Theorem 6: the least epsilon with sigma^2 >= alpha Delta^2/(2 epsilon), for which the Gaussian is (alpha, epsilon)-RDP.

    Example:
        >>> theorem_6(order=2.0, sensitivity=2.0, sigma=1.0)
        4.0
    """
    return order * sensitivity**2 / (2 * sigma**2)


def theorem_7_scale(*, order: float, gamma: float) -> float:
    """Theorem 7 at Delta = 1: the least scale, (alpha - 1)/log(((2 alpha - 1) e^(gamma (alpha - 1)) + alpha - 1)/alpha).

    Solving the divergence for the scale gives -(alpha - 1) where the paper prints + alpha - 1: this scale is too small.

    Example:
        >>> round(theorem_7_scale(order=2.0, gamma=1.0), 8)
        0.65740336
    """
    return (order - 1) / math.log(
        ((2 * order - 1) * math.exp(gamma * (order - 1)) + order - 1) / order
    )


def laplace_divergence(*, order: float, gamma: float) -> float:
    """Exact divergence of Laplace noise of Theorem 7's scale.

    Example:
        >>> round(laplace_divergence(order=2.0, gamma=1.0), 8)
        1.1208707
    """
    from sordino.privacy import laplace

    return laplace.divergence(order, 1.0, theorem_7_scale(order=order, gamma=gamma))


def lemma_2(*, order: int, gamma: float, clients: int) -> float:
    """Lemma 2, upper bound after shuffling. Verdict B7: UNSOUND; tends to 0 as the order grows, and gamma is not a pure eps0.

    Example:
        >>> round(lemma_2(order=64, gamma=2.0, clients=1000), 8)
        0.0920574
    """
    return math.log1p(order * (order - 1) / 2 * 4 * math.expm1(gamma) ** 2 / clients) / (order - 1)


def lemma_3(*, order: int, gamma: float, clients: int) -> float:
    """Lemma 3, lower bound after shuffling. Verdict B8: fine as a lower bound for pure eps0; irrelevant for promises.

    Example:
        >>> round(lemma_3(order=2, gamma=1.0, clients=100), 8)
        0.01080305
    """
    return math.log1p(
        order * (order - 1) / 2 * math.expm1(gamma) ** 2 / (clients * math.exp(gamma))
    ) / (order - 1)


def shuffled_randomized_response(*, order: float, local: float, clients: int) -> float:
    """Exact divergence of the shuffled counts of binary randomised response when one of n equal bits is flipped (THEORY B7).

    Example:
        >>> round(shuffled_randomized_response(order=2, local=1.0, clients=100), 8)
        0.01080305
    """
    import numpy as np
    from scipy.special import gammaln, logsumexp

    lie = 1 / (1 + math.exp(local))
    ones = np.arange(clients)
    log_others = (
        gammaln(clients)
        - gammaln(ones + 1)
        - gammaln(clients - ones)
        + ones * math.log(lie)
        + (clients - 1 - ones) * math.log1p(-lie)
    )
    stays, moves = np.append(log_others, -np.inf), np.append(-np.inf, log_others)
    with_zero = np.logaddexp(stays + math.log1p(-lie), moves + math.log(lie))
    with_one = np.logaddexp(stays + math.log(lie), moves + math.log1p(-lie))
    return float(logsumexp(order * with_one + (1 - order) * with_zero)) / (order - 1)


def girgis(*, order: int, local: float, clients: int) -> float:
    """Girgis, Data, Diggavi, Suresh and Kairouz (CCS 2021), general upper bound; [recalled] in THEORY B7, for comparison only.

    Example:
        >>> round(girgis(order=2, local=1.0, clients=100), 8)
        0.12667887
    """
    import numpy as np
    from scipy.special import gammaln, logsumexp

    blanket = math.floor((clients - 1) / (2 * math.exp(local))) + 1
    terms = np.arange(3, order + 1)
    log_ratio = 2 * math.log(math.expm1(2 * local)) - 2 * local - math.log(2 * blanket)
    logs = [
        0.0,
        math.log(order * (order - 1) / 2)
        + 2 * math.log(math.expm1(local))
        - local
        - math.log(blanket),
        *(
            _log_choose(order, terms) + np.log(terms) + gammaln(terms / 2) + terms / 2 * log_ratio
        ).tolist(),
        local * order - (clients - 1) / (8 * math.exp(local)),
    ]
    return float(logsumexp(logs)) / (order - 1)


def clones_closed_form(*, delta: float, local: float, clients: int) -> float:
    """Feldman, McMillan and Talwar 2021, Thm 3.1, closed form; [recalled] in THEORY. `sordino.privacy.shuffling` sums exactly.

    Example:
        >>> round(clones_closed_form(delta=1e-6, local=1.0, clients=1000), 8)
        0.56620149
    """
    if local > math.log(clients / (16 * math.log(2 / delta))):
        return local
    spread = (
        8 * math.sqrt(math.exp(local) * math.log(4 / delta) / clients)
        + 8 * math.exp(local) / clients
    )
    return math.log1p(math.tanh(local / 2) * spread)


def zhu_wang(order: int, rate: float, divergence: Callable[[int], float]) -> float:
    """Zhu and Wang 2019, Poisson subsampling of any mechanism, factor 3 from the third term on; [recalled] in THEORY B6.

    Example:
        >>> round(zhu_wang(8, 0.2, lambda order: order / 2), 8)
        2.32184482
    """
    import numpy as np
    from scipy.special import logsumexp

    terms = np.arange(2, order + 1)
    logs = _log_choose(order, terms) + (order - terms) * math.log1p(-rate) + terms * math.log(rate)
    logs = (
        logs
        + np.array([(term - 1) * divergence(int(term)) for term in terms])
        + np.where(terms > 2, math.log(3), 0.0)
    )
    first = (order - 1) * math.log1p(-rate) + math.log1p((order - 1) * rate)
    return float(logsumexp(np.append(logs, first))) / (order - 1)


def wang_balle_kasiviswanathan(
    order: int, rate: float, divergence: Callable[[int], float], *, largest_loss: float = math.inf
) -> float:
    """Wang, Balle and Kasiviswanathan 2019, Thm 9, sampling without replacement, replace-one; [recalled] in THEORY B6.

    Example:
        >>> round(wang_balle_kasiviswanathan(2, 0.01, lambda order: order / 2), 10)
        0.0005435086
    """
    import numpy as np
    from scipy.special import logsumexp

    worst = math.expm1(largest_loss) if largest_loss < 700 else math.inf
    second = divergence(2)
    log_terms = [
        0.0,
        2 * math.log(rate)
        + math.log(order * (order - 1) / 2)
        + math.log(min(4 * math.expm1(second), math.exp(second) * min(2.0, worst**2))),
    ]
    for term in range(3, order + 1):
        capped = math.log(2) if worst > 2 else min(math.log(2), term * math.log(worst))
        log_terms.append(
            term * math.log(rate)
            + float(_log_choose(order, np.array(term)))
            + (term - 1) * divergence(term)
            + capped
        )
    return float(logsumexp(log_terms)) / (order - 1)


def _log_choose(whole: int, part: np.ndarray) -> np.ndarray:
    from scipy.special import gammaln

    return gammaln(whole + 1) - gammaln(part + 1) - gammaln(whole - part + 1)
