"""The theorems of convergent-dp (Noisy-FedAvg, Noisy-FedProx), as printed.

They give Gaussian parameters of the last model. Several are false: `convergent_claims` has the
verdict on each with its reason, and `parameters.PARAMETERS` says what the parameters mean. No
promise rests on these formulas; `sordino.privacy.amplification.last_iterate` has the bounds that
promises use.
"""

from __future__ import annotations

import math

from sordino.papers.convergent_lemmas import check_proximal, lemma_9, lemma_10, saturating_factor


def theorem_1(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    clients: int,
    sigma: float,
    interpolation: float,
) -> float:
    """Returns the mu of Theorem 1, Eq. (10), for linear losses, whose norms are constants.

    The theorem states sqrt(m)/sigma sqrt(sum lambda^2 |phi(w_t) - phi'(w~_t)|^2). For linear losses
    |phi(w) - phi'(w~)| = d + gamma, and d becomes (1 - lambda)(d + gamma). Here lambda is
    `interpolation` in all rounds but the last, where it is 1.

    Example:
        >>> mu = theorem_1(
        ...     rounds=2, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0, interpolation=1.0
        ... )
        >>> round(mu, 8)
        0.2
    """
    shift = 2 * rate * clip * steps / clients
    distance = 0.0
    energy = 0.0
    for _ in range(rounds - 1):
        gap = distance + shift
        energy += (interpolation * gap) ** 2
        distance = (1 - interpolation) * gap
    # In the last round lambda is 1: the interpolated path has to end at the neighbour's model.
    energy += (distance + shift) ** 2
    return math.sqrt(clients * energy) / sigma


def theorem_2(
    *,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    proximal: float,
    distance: float,
) -> float:
    """Returns the distance of Theorem 2, Eq. (11), with Table 2's entries: rho |w - w~| + gamma.

    It is FedAvg's at a constant rate, and FedProx's where `proximal` is above 0.

    Example:
        >>> after = theorem_2(
        ...     steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, proximal=0.0, distance=0.1
        ... )
        >>> round(after, 8)
        0.181051
    """
    # Table 2's one row for FedProx depends on neither the steps nor the rate.
    if proximal > 0:
        rho = lemma_10(smoothness=smoothness, proximal=proximal)
        return rho * distance + lemma_9(clip=clip, clients=clients, proximal=proximal)
    return (1 + rate * smoothness) ** steps * distance + 2 * rate * clip * steps / clients


def theorem_3a(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the mu of Theorem 3(a), Eq. (15), for a constant rate.

    Example:
        >>> mu = theorem_3a(
        ...     rounds=2, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0
        ... )
        >>> round(mu, 8)
        0.19474525
    """
    one_round = 2 * rate * clip * steps / (math.sqrt(clients) * sigma)
    # The factor rho of a round in logarithms: (1 + mu L)^K overflows for many local steps.
    return one_round * saturating_factor(math.log1p(rate * smoothness) * steps, rounds)


def theorem_3b(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    sigma: float,
    c: float,
) -> float:
    """Returns the mu of Theorem 3(b), Eq. (16), for a cyclic rate.

    Example:
        >>> mu = theorem_3b(
        ...     rounds=10, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0, c=1.2
        ... )
        >>> round(mu, 8)
        1.65314662
    """
    # The learning rate is missing here as in Eq. (16).
    one_round = 2 * c * clip * math.log(steps + 1) / (math.sqrt(clients) * sigma)
    return one_round * saturating_factor(c * rate * smoothness * math.log(steps + 1), rounds)


def theorem_3c(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """Returns the mu of Theorem 3(c), Eq. (17), for a stage-wise rate.

    It is plain composition, with 2 - 1/T in place of 1 + 1/4 + ... + 1/T^2 (docs/theory.md#a4).

    Example:
        >>> round(theorem_3c(rounds=2, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0), 8)
        0.17320508
    """
    one_round = 2 * rate * clip * steps / (math.sqrt(clients) * sigma)
    return one_round * math.sqrt(2 - 1 / rounds)


def theorem_3d(*, rounds: int, z: float, clip: float, clients: int, sigma: float) -> float:
    """Returns the mu of Theorem 3(d), Eq. (18), for a continuously decaying rate.

    Example:
        >>> round(theorem_3d(rounds=10, z=2.3, clip=1.0, clients=50, sigma=1.0), 8)
        0.89670508
    """
    return 2 * z * clip / (math.sqrt(clients) * sigma) * math.sqrt(2 - 1 / rounds)


def theorem_3d_least_z(*, steps: int, rate: float) -> float:
    """Returns the least z for which Theorem 3(d) is true: mu H_K, H_K the harmonic number.

    One round attains it. It is enough for every number of rounds: the learning rates of round t sum
    to at most mu H_K/(t + 1), since tK + j >= (t + 1) j for every step j of at most K, and
    1 + 1/4 + ... + 1/T^2 <= 2 - 1/T (docs/theory.md#a5).

    Example:
        >>> round(theorem_3d_least_z(steps=5, rate=1.0), 4)
        2.2833
    """
    return rate * math.fsum(1 / k for k in range(1, steps + 1))


def theorem_4(
    *, rounds: int, clip: float, smoothness: float, proximal: float, clients: int, sigma: float
) -> float:
    """Returns the mu of Theorem 4, Eq. (19), for FedProx.

    Raises:
        UserError: The proximal term is not above the smoothness.

    Example:
        >>> mu = theorem_4(
        ...     rounds=2, clip=1.0, smoothness=0.5, proximal=1.0, clients=50, sigma=1.0
        ... )
        >>> round(mu, 8)
        0.37947332
    """
    check_proximal(smoothness, proximal)
    one_round = 2 * clip / (math.sqrt(clients) * proximal * sigma)
    return one_round * saturating_factor(math.log(proximal / (proximal - smoothness)), rounds)
