"""The formulas of prifedsync (federated f-DP), as printed, and the values that hold.

The verdicts are in `prifedsync_claims`; `parameters.PARAMETERS` says what the parameters mean. What
the sampled clients learn about client j is measured by the total variation of what they receive,
which is delta at epsilon 0: the one number that stays simple when nothing but the sampling hides an
upload. No promise rests on these formulas; `sordino.privacy.amplification.subsampling` has the
bounds that promises use.
"""

from __future__ import annotations

import math

from sordino.papers.convergent_lemmas import lemma_3
from sordino.papers.parameters import drawn_share
from sordino.protocol.errors import UserError

# Beyond this product of rounds and clients, or this square of clients, a check takes too long.
MOST_STATES = 1_000_000


def theorem_2_limit(*, batch: int, records: int, steps: int, rounds: int, sigma: float) -> float:
    """Returns the mu of Theorem 2's central limit.

    The theorem states sqrt(2) B/n sqrt(KR) sqrt(e^(1/s^2) Phi(1.5/s) + 3 Phi(-0.5/s) - 2), which
    reproduces Tables 1 to 3 (docs/theory.md#c1).

    Example:
        >>> round(theorem_2_limit(batch=16, records=600, steps=38, rounds=93, sigma=1.0), 2)
        2.71
    """
    from scipy.special import ndtr

    # The central limit of Dong, Roth and Su 2022, Cor. 5.4, as the paper prints it.
    upper = math.exp(sigma**-2) * float(ndtr(1.5 / sigma))
    lower = 3 * float(ndtr(-0.5 / sigma))
    spread = upper + lower - 2
    return math.sqrt(2) * batch / records * math.sqrt(steps * rounds) * math.sqrt(spread)


def theorem_2_limit_epsilon(
    *, batch: int, records: int, steps: int, rounds: int, sigma: float, delta: float
) -> float:
    """Returns the epsilon of Theorem 2's central limit.

    Example:
        >>> epsilon = theorem_2_limit_epsilon(
        ...     batch=16, records=600, steps=38, rounds=93, sigma=1.0, delta=1e-5
        ... )
        >>> round(epsilon, 3)
        14.639
    """
    from sordino.privacy.curves import gaussian

    mu = theorem_2_limit(batch=batch, records=records, steps=steps, rounds=rounds, sigma=sigma)
    return gaussian.epsilon(mu, delta)


def lemma_3_7(*, shift: float, sigma: float) -> float:
    """Returns the mu of Lemma 3.7: client i's helper model is as private as client j's upload.

    Here the upload is a shift under Gaussian noise.

    Example:
        >>> lemma_3_7(shift=1.0, sigma=2.0)
        0.5
    """
    return shift / sigma


def helper_model(*, shift: float, sigma: float, clients: int, mixing: float) -> float:
    """Returns the exact mu of what client i receives in one round.

    The new model is (1 - eta) w_global + eta/m times the sum of the noisy uploads (prifedsync,
    Eq. (A.1)). Client i subtracts its own, and the noise of all the others hides j's upload.

    Example:
        >>> round(helper_model(shift=1.0, sigma=2.0, clients=5, mixing=0.5), 8)
        0.25
    """
    weight = mixing / clients
    # Client i knows no noise but its own.
    unknown_noises = max(1, clients - 1)
    return weight * shift / (weight * sigma * math.sqrt(unknown_noises))


def lemma_3_8(*, mu: float, probability: float) -> float:
    """Returns the total variation of Lemma 3.8 for f = G_mu and one round.

    That of max(f, 1 - alpha - p^2) is the smaller of f's and p^2.

    Example:
        >>> round(lemma_3_8(mu=1.0, probability=0.5), 8)
        0.25
    """
    return min(total_variation(mu=mu), probability**2)


def sampled_pair(*, mu: float, probability: float) -> float:
    """Returns the exact total variation of one round with sampled clients.

    Clients i and j are both sampled with probability p^2, so it is p^2 times f's
    (docs/theory.md#c3).

    Example:
        >>> round(sampled_pair(mu=1.0, probability=0.5), 8)
        0.09573123
    """
    return probability**2 * total_variation(mu=mu)


def lemma_b_1(*, mu: float, probability: float) -> float:
    """Returns the total variation that Lemma B.1 allows two mixtures which share one part.

    The other parts have the probability p_E and the trade-off function f = G_mu, and the lemma's
    max(f, 1 - alpha - p_E) has the smaller of the two total variations.

    Example:
        >>> lemma_b_1(mu=1.0, probability=0.25)
        0.25
    """
    return min(total_variation(mu=mu), probability)


def lemma_d_1(*, batch: int, records: int, sigma: float, epsilon: float) -> float:
    """Returns the delta of C_{B/n}(G_{1/sigma}), which Lemma D.1 gives a step of noisy SGD.

    Raises:
        UserError: The batch is larger than the data.

    Example:
        >>> round(lemma_d_1(batch=16, records=600, sigma=1.0, epsilon=0.01), 6)
        0.00767
    """
    drawn = drawn_share(batch, records)
    # What is left for the Gaussian at (1 - B/n) Id + B/n f (Balle, Barthe and Gaboardi 2018).
    left = math.log1p(math.expm1(epsilon) / drawn)
    return drawn * lemma_3(mu=1 / sigma, epsilon=left)


def total_variation(*, mu: float) -> float:
    """Returns the total variation of N(0, 1) and N(mu, 1): 2 Phi(mu/2) - 1.

    Example:
        >>> round(total_variation(mu=4.0), 8)
        0.95449974
    """
    # The error function keeps its digits for small mu, where 2 Phi(mu/2) - 1 would cancel.
    return math.erf(mu / math.sqrt(8))


def theorem_1_total_variation(*, probability: float, rounds: int) -> float:
    """Returns the total variation that Theorem 1 allows when no noise hides an upload.

    It is 1 - (1 - p^2)^R.

    Example:
        >>> theorem_1_total_variation(probability=0.5, rounds=2)
        0.4375
    """
    # Against one client, (m - 1) R copies are R copies.
    return theorem_1_strong_total_variation(probability=probability, rounds=rounds, clients=2)


def theorem_1_strong_total_variation(*, probability: float, rounds: int, clients: int) -> float:
    """Returns the total variation of Theorem 1's strong notion, (m - 1) R copies.

    It is 1 - (1 - p^2)^((m - 1) R).

    Example:
        >>> theorem_1_strong_total_variation(probability=0.5, rounds=2, clients=2)
        0.4375
    """
    # With p = 1 no round hides anything, and log1p has no value there.
    if probability >= 1:
        return 1.0
    return -math.expm1((clients - 1) * rounds * math.log1p(-probability * probability))


def reach_probability(*, probability: float, rounds: int) -> float:
    """Returns the probability that some upload of client j reaches client i.

    Without noise this is the exact total variation (docs/theory.md#c4). It is the sum over r of
    p (1 - p)^(r - 1) (1 - (1 - p)^(R - r + 1)), where j first takes part in round r, and i in that
    round or later.

    Example:
        >>> reach_probability(probability=0.5, rounds=2)
        0.5
    """
    return coalition_reach_probability(probability=probability, rounds=rounds, clients=2)


def weak_reach_probability(
    *, probability: float, rounds: int, clients: int, mixing: float
) -> float:
    """Returns the probability that what client j knows reaches client i, of m clients.

    Without noise this is the exact total variation (docs/theory.md#c4). With `mixing` below 1 the
    global model keeps every upload. At 1 it is the mean of the last round's uploads alone: a client
    that is sampled with one that knows something of j's records knows it afterwards.

    Raises:
        UserError: There are fewer than two clients, or too many rounds or clients for a check.

    Example:
        >>> weak_reach_probability(probability=0.5, rounds=2, clients=2, mixing=0.5)
        0.5
        >>> weak_reach_probability(probability=0.5, rounds=2, clients=2, mixing=1.0)
        0.4375
        >>> weak_reach_probability(probability=0.5, rounds=2, clients=3, mixing=1.0)
        0.453125
    """
    if clients < 2:
        raise UserError(
            f"clients = {clients!r}: expected at least 2, the one attacked and another."
        )
    if mixing < 1:
        return reach_probability(probability=probability, rounds=rounds)
    return 1 - math.fsum(unreached_shares(probability=probability, rounds=rounds, clients=clients))


def unreached_shares(*, probability: float, rounds: int, clients: int) -> list[float]:
    """Returns how likely client i knows nothing while some third clients do, at eta = 1.

    Clients i and j are two of the m clients; all others are third clients.

    Returns:
        A probability for each number of third clients that know something of client j.

    Raises:
        UserError: There are too many rounds or clients for a check.
    """
    import numpy as np
    from scipy.stats import binom

    thirds = clients - 2
    if clients * max(rounds, clients) > MOST_STATES:
        raise UserError(
            f"rounds = {rounds}, clients = {clients}: where mixing is 1, expected at most "
            f"{MOST_STATES:,} for their product and for the square of the clients."
        )
    # In each round the third clients that take part are a binomial number of those left.
    spreads = [
        binom.pmf(np.arange(thirds - knowing + 1), thirds - knowing, probability)
        for knowing in range(thirds + 1)
    ]
    shares = np.zeros(thirds + 1)
    shares[0] = 1.0
    for _ in range(rounds):
        after = np.zeros(thirds + 1)
        for knowing, share in enumerate(shares):
            # No client that knows takes part, neither j nor a third client: nothing spreads.
            quiet = (1 - probability) ** (knowing + 1)
            after[knowing] += share * quiet
            # Otherwise all that take part know it afterwards, and i must not be among them.
            after[knowing:] += share * (1 - quiet) * (1 - probability) * spreads[knowing]
        shares = after
    return [float(share) for share in shares]


def product_total_variation(*, mu: float, clients: int) -> float:
    """Returns the total variation of the others' models, as if they were independent.

    Definition 3.6 takes this product for all other clients together. Here each model is mu-GDP.

    Example:
        >>> round(product_total_variation(mu=1.0, clients=5), 6)
        0.682689
    """
    return total_variation(mu=math.sqrt(clients - 1) * mu)


def coalition_reach_probability(*, probability: float, rounds: int, clients: int) -> float:
    """Returns the probability that some upload of client j reaches any other client.

    Without noise this is the exact total variation (docs/theory.md#c6).

    Example:
        >>> round(coalition_reach_probability(probability=0.05, rounds=5, clients=10), 6)
        0.159761
    """
    others = clients - 1
    terms = []
    for first in range(1, rounds + 1):
        # Client j's upload stays in the global model from its first round on, so only that round
        # counts.
        begins = probability * (1 - probability) ** (first - 1)
        is_seen = 1 - (1 - probability) ** (others * (rounds - first + 1))
        terms.append(begins * is_seen)
    return math.fsum(terms)
