"""The remarks, side equations and tables of convergent-dp, as printed.

The verdicts are in `convergent_remark_claims`; `parameters.PARAMETERS` says what the parameters
mean.
"""

from __future__ import annotations

import math

from sordino.papers import certified, convergent_lemmas
from sordino.papers.parameters import participating_share
from sordino.protocol.errors import UserError


def lemma_2(*, first: float, second: float, epsilon: float) -> float:
    """Returns the delta of Lemma 2 for two Gaussian releases: that of their product.

    Example:
        >>> round(lemma_2(first=0.6, second=0.8, epsilon=1.0), 10)
        0.1269367375
    """
    return convergent_lemmas.lemma_3(mu=math.hypot(first, second), epsilon=epsilon)


def remark_2_1(*, rho: float, gamma: float) -> float:
    """Returns the H to which Remark 2.1 has privacy converge: the limit of G.3's value.

    Raises:
        UserError: Rho is not above 1.

    Example:
        >>> round(remark_2_1(rho=1.1, gamma=0.2), 10)
        0.84
    """
    if rho <= 1:
        raise UserError(f"rho = {rho!r}: Remark 2.1 is about a rho above 1.")
    return gamma * gamma * (rho + 1) / (rho - 1)


def remark_3_1(
    *, steps: int, rate: float, clip: float, smoothness: float, clients: int, sigma: float
) -> float:
    """Returns the mu to which Remark 3.1 has privacy converge: the limit of Theorem 3(a).

    Example:
        >>> limit = remark_3_1(
        ...     steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0
        ... )
        >>> round(limit, 8)
        0.2924363
    """
    one_round = 2 * rate * clip * steps / (math.sqrt(clients) * sigma)
    log_rho = math.log1p(rate * smoothness) * steps
    return one_round / math.sqrt(math.tanh(log_rho / 2))


def remark_3_2_delta(
    *, mu: float, epsilon: float, clients: int, participants: int, rounds: int
) -> float:
    """Returns the delta of Remark 3.2 at a fixed epsilon: n/m times that of full participation.

    Here mu is that of a round in which the client takes part. At epsilon = 0 delta is the advantage
    of the best test.

    Example:
        >>> delta = remark_3_2_delta(
        ...     mu=1.0, epsilon=1.0, clients=10, participants=1, rounds=1
        ... )
        >>> round(delta, 10)
        0.0126936738
    """
    share = participating_share(clients, participants)
    return share * convergent_lemmas.lemma_3(mu=mu * math.sqrt(rounds), epsilon=epsilon)


def remark_4_1(*, clip: float, proximal: float, clients: int, sigma: float) -> float:
    """Returns the mu of a round of FedProx by Remark 4.1: 2V/(sqrt(m) alpha sigma), whatever K.

    Example:
        >>> remark_4_1(clip=1.0, proximal=2.0, clients=100, sigma=1.0)
        0.1
    """
    return 2 * clip / (math.sqrt(clients) * proximal * sigma)


def equation_28(*, steps: int, rate: float, smoothness: float, c: float) -> float:
    """Returns the upper bound of Eq. (28) on eta(K, t): ((1 + K)^(c mu L) - 1)/(c L).

    Example:
        >>> round(equation_28(steps=5, rate=0.1, smoothness=1.0, c=1.5), 6)
        0.205564
    """
    return math.expm1(c * rate * smoothness * math.log(steps + 1)) / (c * smoothness)


def equation_29(
    *, steps: int, rate: float, smoothness: float, round_number: int, z: float
) -> float:
    """Returns the upper bound of Eq. (29) on eta(K, t).

    The equation states (((tK + K + 1)/(tK + 1))^(z mu L) - 1)/(z L).

    Example:
        >>> printed = equation_29(steps=5, rate=0.1, smoothness=1.0, round_number=1, z=1.1)
        >>> f"{printed:.6f}"
        '0.062680'
    """
    growth = math.log((round_number * steps + steps + 1) / (round_number * steps + 1))
    return math.expm1(z * rate * smoothness * growth) / (z * smoothness)


def table_3(*, rounds: int, clip: float, clients: int, epsilon: float, delta: float) -> float:
    """Returns the sigma of Table 3's last row, which has neither the learning rate nor K in it.

    The row states V sqrt(Phi^-1(delta)^2 + 4 epsilon)/(epsilon sqrt(m)) sqrt(2 - 1/T).

    Example:
        >>> round(table_3(rounds=100, clip=1.0, clients=50, epsilon=1.0, delta=1e-5), 6)
        0.939752
    """
    from scipy.special import ndtri

    quantile = float(ndtri(delta))
    size = math.sqrt(quantile * quantile + 4 * epsilon) / (epsilon * math.sqrt(clients))
    return clip * size * math.sqrt(2 - 1 / rounds)


def appendix_f_factor(*, rho: float, gamma: float, rounds: int, diameter: float) -> float:
    """Returns the factor H_0/H_* after a tenth of the rounds.

    Appendix F states that it is a constant, and that it shrinks as the rounds grow.

    Example:
        >>> appendix_f_factor(rho=1.0, gamma=0.2, rounds=1000, diameter=2.0)
        2.5
    """
    return certified.relaxation_factor(
        rho=rho, gamma=gamma, rounds=max(1, rounds // 10), diameter=diameter
    )


def appendix_f_work(*, rounds: int) -> float:
    """Returns the work that Appendix F implies by calling the problem NP-hard: exponential in T.

    Example:
        >>> appendix_f_work(rounds=10)
        1024.0
    """
    return 2.0**rounds
