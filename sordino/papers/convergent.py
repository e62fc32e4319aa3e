"""Published bounds of convergent-dp (Noisy-FedAvg, Noisy-FedProx), as printed.

The theorems give Gaussian parameters of the last model; `convergent_lemmas` leads to them. `rate`
is the paper's mu, a learning rate. The verdicts are in `convergent_claims`. No promise rests on
these formulas: see `sordino.privacy.amplification.last_iterate` for the bounds that promises use.
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
    """Returns the mu of Theorem 1, Eq. (10), for linear losses, whose norms are all constants.

    The theorem states sqrt(m)/sigma sqrt(sum lambda^2 |phi(w_t) - phi'(w~_t)|^2). For linear losses
    |phi(w) - phi'(w~)| = d + gamma, and d becomes (1 - lambda)(d + gamma). Here lambda is
    `interpolation` in all rounds but the last, where it is 1.

    Args:
        rounds: T, the number of rounds.
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.
        clip: V, the largest norm of a gradient.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.
        interpolation: Lambda, the weight of a round's shift that is paid for in that round.

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

    Args:
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.
        clip: V, the largest norm of a gradient.
        smoothness: L, the Lipschitz constant of the gradients.
        clients: m, the number of clients.
        proximal: Alpha, the strength of the proximal term.
        distance: The distance of the two models.

    Example:
        >>> rho_distance_plus_gamma = theorem_2(
        ...     steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, proximal=0.0, distance=0.1
        ... )
        >>> round(rho_distance_plus_gamma, 8)
        0.181051
    """
    # The paper has one row for FedProx and drops the number of steps and the rate there, as
    # printed.
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

    Verdict (docs/theory.md#a2): unsound for two rounds or more. `counterexamples.constant_fedavg`
    exceeds it.

    Args:
        rounds: T, the number of rounds.
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.
        clip: V, the largest norm of a gradient.
        smoothness: L, the Lipschitz constant of the gradients.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.

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

    The printed shift lacks the rate. Verdict (docs/theory.md#a2): unsound.
    `counterexamples.cyclic_fedavg` exceeds it.

    Args:
        rounds: T, the number of rounds.
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.
        clip: V, the largest norm of a gradient.
        smoothness: L, the Lipschitz constant of the gradients.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.
        c: The constant in H_K <= c ln(K + 1), which the paper leaves open.

    Example:
        >>> mu = theorem_3b(
        ...     rounds=10, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0, c=1.2
        ... )
        >>> round(mu, 8)
        1.65314662
    """
    # The learning rate is missing in Eq. (16); it is left out here, since this is the printed
    # formula.
    one_round = 2 * c * clip * math.log(steps + 1) / (math.sqrt(clients) * sigma)
    return one_round * saturating_factor(c * rate * smoothness * math.log(steps + 1), rounds)


def theorem_3c(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the mu of Theorem 3(c), Eq. (17), for a stage-wise rate.

    Verdict (docs/theory.md#a4): sound. It is plain composition, with 2 - 1/T in place of 1 + 1/4 +
    ... + 1/T^2.

    Args:
        rounds: T, the number of rounds.
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.
        clip: V, the largest norm of a gradient.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.

    Example:
        >>> round(theorem_3c(rounds=2, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0), 8)
        0.17320508
    """
    one_round = 2 * rate * clip * steps / (math.sqrt(clients) * sigma)
    return one_round * math.sqrt(2 - 1 / rounds)


def theorem_3d(
    *,
    rounds: int,
    z: float,
    clip: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the mu of Theorem 3(d), Eq. (18), for a continuously decaying rate.

    Verdict (docs/theory.md#a5): sound only with z of at least `theorem_3d_least_z`, which grows
    with the steps.

    Args:
        rounds: T, the number of rounds.
        z: The constant that the paper leaves open.
        clip: V, the largest norm of a gradient.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.

    Example:
        >>> round(theorem_3d(rounds=10, z=2.3, clip=1.0, clients=50, sigma=1.0), 8)
        0.89670508
    """
    return 2 * z * clip / (math.sqrt(clients) * sigma) * math.sqrt(2 - 1 / rounds)


def theorem_3d_least_z(*, steps: int, rate: float) -> float:
    """Returns the least z for which Theorem 3(d) is true: mu H_K, H_K the harmonic number.

    See docs/theory.md#a5.

    One round attains it. It is enough for every number of rounds: the learning rates of round t sum
    to at most mu H_K/(t + 1), since tK + j >= (t + 1) j for every step j of at most K, and
    1 + 1/4 + ... + 1/T^2 <= 2 - 1/T.

    Args:
        steps: K, the local steps of a round.
        rate: The learning rate, mu in convergent-dp.

    Example:
        >>> round(theorem_3d_least_z(steps=5, rate=1.0), 4)
        2.2833
    """
    return rate * math.fsum(1 / k for k in range(1, steps + 1))


def theorem_4(
    *,
    rounds: int,
    clip: float,
    smoothness: float,
    proximal: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the mu of Theorem 4, Eq. (19), for FedProx.

    Verdict (docs/theory.md#a3): unsound. `counterexamples.constant_fedprox` exceeds it, and a
    learning rate of at most 1/alpha is needed too.

    Args:
        rounds: T, the number of rounds.
        clip: V, the largest norm of a gradient.
        smoothness: L, the Lipschitz constant of the gradients.
        proximal: Alpha, the strength of the proximal term.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.

    Raises:
        UserError: Alpha is not above the smoothness.

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
