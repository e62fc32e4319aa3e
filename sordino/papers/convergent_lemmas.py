"""The lemmas of convergent-dp and what rests on them, as printed.

The verdicts are in `convergent_claims`; `parameters.PARAMETERS` says what the parameters mean.
"""

from __future__ import annotations

import math

from sordino.papers.parameters import participating_share
from sordino.protocol.errors import UserError


def lemma_3(*, mu: float, epsilon: float) -> float:
    """Returns the delta of Lemma 3, Eq. (20), for a mu-GDP release.

    The lemma states delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

    Example:
        >>> round(lemma_3(mu=1.0, epsilon=1.0), 10)
        0.1269367375
    """
    from scipy.special import ndtr

    alternative = ndtr(-epsilon / mu + mu / 2)
    null = ndtr(-epsilon / mu - mu / 2)
    return float(alternative - math.exp(epsilon) * null)


def lemma_4(*, mu: float, order: float) -> float:
    """Returns the Rényi divergence of Lemma 4 for a mu-GDP release: mu^2 order / 2.

    Example:
        >>> lemma_4(mu=0.5, order=4)
        0.5
    """
    return mu * mu * order / 2


def lemma_5(*, first: float, second: float) -> float:
    """Returns the mu of Lemma 5 for two releases together: sqrt(mu_1^2 + mu_2^2).

    Example:
        >>> lemma_5(first=3.0, second=4.0)
        5.0
    """
    return math.sqrt(first * first + second * second)


def lemma_6(*, shift: float, touched: float, clients: int, sigma: float) -> float:
    """Returns the mu of Lemma 6, Eq. (23), for one round and lambda = 1.

    The lemma states sqrt(m)/sigma |phi(w) - phi'(w~)|, and the norm may be random. Here it is
    `shift` with the probability `touched`, and 0 otherwise. The root of its mean square is taken,
    as the sum of squares in Eq. (10) suggests; where `touched` is 1 there is nothing to interpret.

    Example:
        >>> lemma_6(shift=2.0, touched=1.0, clients=1, sigma=1.0)
        2.0
        >>> round(lemma_6(shift=2.0, touched=0.01, clients=1, sigma=1.0), 9)
        0.2
    """
    return math.sqrt(clients) / sigma * math.sqrt(touched) * shift


def lemma_7(*, steps: int, rate: float, clip: float, clients: int) -> float:
    """Returns the distance of Lemma 7, Eq. (25), at a constant rate: 2V/m sum eta_k.

    Example:
        >>> lemma_7(steps=5, rate=0.5, clip=1.0, clients=50)
        0.1
    """
    return 2 * clip / clients * rate * steps


def lemma_8(*, steps: int, rate: float, smoothness: float) -> float:
    """Returns the factor of Lemma 8, Eq. (26), at a constant rate.

    The lemma states 1 + L (eta_0 + sum_k eta_k prod_{j<k} (1 + eta_j L)).

    Example:
        >>> round(lemma_8(steps=5, rate=0.1, smoothness=1.0), 10)
        1.61051
    """
    # The sum as printed, and not the product that it equals: the check compares the two.
    product = 1.0
    total = 0.0
    for _ in range(steps):
        total += rate * product
        product *= 1 + rate * smoothness
    return 1 + total * smoothness


def lemma_9(*, clip: float, clients: int, proximal: float) -> float:
    """Returns the distance of Lemma 9, Eq. (32): 2V/(m alpha), with no condition on the rate.

    Example:
        >>> lemma_9(clip=1.0, clients=50, proximal=2.0)
        0.02
    """
    return 2 * clip / (clients * proximal)


def lemma_10(*, smoothness: float, proximal: float) -> float:
    """Returns the factor of Lemma 10, Eq. (33): alpha/(alpha - L).

    Raises:
        UserError: The proximal term is not above the smoothness.

    Example:
        >>> round(lemma_10(smoothness=0.9, proximal=1.0), 9)
        10.0
    """
    check_proximal(smoothness, proximal)
    return proximal / (proximal - smoothness)


def table_2(*, steps: int, clip: float, clients: int, c: float) -> float:
    """Returns gamma of Table 2, second row (rate mu/(k + 1)): 2cV/m ln(K + 1), without the rate.

    Example:
        >>> round(table_2(steps=5, clip=1.0, clients=50, c=1.5), 8)
        0.10750557
    """
    return 2 * c * clip / clients * math.log(steps + 1)


def remark_3_2(*, mu: float, clients: int, participants: int, delta: float) -> float:
    """Returns the epsilon of Remark 3.2 for a round in which n of m clients take part.

    The remark states that such a round is more private by the factor m/n. If that is said of mu,
    the round has mu n/m; `convergent_remarks.remark_3_2_delta` has it of delta.

    Raises:
        UserError: More clients take part than there are.

    Example:
        >>> round(remark_3_2(mu=1.0, clients=100, participants=1, delta=1e-5), 4)
        0.0272
    """
    from sordino.privacy.curves import gaussian

    share = participating_share(clients, participants)
    # A sampled round is not Gaussian with mu n/m (docs/theory.md#a10), but the remark has it so.
    return gaussian.epsilon(mu * share, delta)


def appendix_f(*, rho: float, gamma: float, rounds: int) -> float:
    """Returns H_0, the relaxation at t_0 = 0 of Appendices F and G.3, for constant rho and gamma.

    Example:
        >>> round(appendix_f(rho=1.1, gamma=0.2, rounds=50), 8)
        0.82580971
    """
    return gamma * gamma * saturating_factor(math.log(rho), rounds) ** 2


def saturating_factor(log_rho: float, rounds: int) -> float:
    """Returns sqrt((rho + 1)/(rho - 1) (rho^T - 1)/(rho^T + 1)), which stays bounded in T.

    It is the factor of Eq. (15), (16) and (19).

    Args:
        log_rho: The logarithm of rho.
        rounds: T, the number of rounds.
    """
    # The limit of the quotient as rho tends to 1.
    if log_rho == 0:
        return math.sqrt(rounds)
    # The hyperbolic tangents are the same quotient, and rho^T does not overflow in them.
    return math.sqrt(math.tanh(rounds * log_rho / 2) / math.tanh(log_rho / 2))


def check_proximal(smoothness: float, proximal: float) -> None:
    """Refuses a proximal term that Theorem 4 and Lemma 10 exclude.

    Args:
        smoothness: L, the Lipschitz constant of the gradients.
        proximal: Alpha, the strength of the proximal term.

    Raises:
        UserError: The proximal term is not above the smoothness.
    """
    if proximal <= smoothness:
        raise UserError(
            f"proximal = {proximal!r}: Theorem 4 and Lemma 10 need it above the smoothness, "
            f"which is {smoothness!r}."
        )
