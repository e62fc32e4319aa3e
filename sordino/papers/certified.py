"""Values that hold in place of a published bound, exact or certified by `sordino.privacy`.

`parameters.PARAMETERS` says what each parameter means.
"""

from __future__ import annotations

import math

from sordino.papers.parameters import drawn_share, participating_share
from sordino.papers.quadrature import gaussian_delta
from sordino.protocol.errors import UserError

# Beyond this number of steps a check would take too long.
MOST_STEPS = 10_000_000


def stage_wise(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the largest mu of the last model at the rates mu/(t + 1), over all L-smooth losses.

    Some L-smooth loss attains it (docs/theory.md#a7).

    Example:
        >>> mu = stage_wise(
        ...     rounds=2, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0
        ... )
        >>> round(mu, 8)
        0.15493168
    """
    from sordino.privacy.amplification.last_iterate import last_iterate

    rates = [rate / (t + 1) for t in range(rounds)]
    factors = [(1 + step_rate * smoothness) ** steps for step_rate in rates]
    # An exchanged record turns one clipped gradient by 2V, in one client of m.
    shifts = [2 * clip * step_rate * steps / clients for step_rate in rates]
    # The noise on the mean has the variance sigma^2/m.
    return math.sqrt(clients * last_iterate(factors, shifts)) / sigma


def continuous(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the same at the rates mu/(tK + k + 1), which fall with every step.

    Raises:
        UserError: The rounds have too many steps for a check.

    Example:
        >>> mu = continuous(
        ...     rounds=1, steps=50, rate=1.0, clip=1.0, smoothness=1.0, clients=1, sigma=1.0
        ... )
        >>> round(mu, 8)
        8.99841068
    """
    import numpy as np

    from sordino.privacy.amplification.last_iterate import last_iterate

    if rounds * steps > MOST_STEPS:
        raise UserError(
            f"rounds = {rounds}, steps = {steps}: expected at most {MOST_STEPS:,} steps together."
        )
    rates = rate / np.arange(1, rounds * steps + 1).reshape(rounds, steps)
    # The product in logarithms: with ten million steps the plain one would lose its digits.
    factors = np.exp(np.log1p(rates * smoothness).sum(axis=1))
    shifts = 2 * clip / clients * rates.sum(axis=1)
    return math.sqrt(clients * last_iterate(factors, shifts)) / sigma


def sampled_round(*, mu: float, clients: int, participants: int, delta: float) -> float:
    """Returns the exact epsilon of one round in which a hidden n of m clients take part.

    For adding or removing a record, the pair ((1 - q) N(0, 1) + q N(mu, 1), N(0, 1)) has
    delta(epsilon) = q delta_mu(epsilon'), where e^epsilon' = 1 + (e^epsilon - 1)/q
    (docs/theory.md#a10).

    Example:
        >>> round(sampled_round(mu=1.0, clients=100, participants=1, delta=1e-5), 4)
        0.1995
    """
    from sordino.privacy.curves import gaussian

    share = participating_share(clients, participants)
    # A delta above the probability of being sampled covers every event.
    if delta >= share:
        return 0.0
    return math.log1p(share * math.expm1(gaussian.epsilon(mu, delta / share)))


def best_start(*, rho: float, gamma: float, rounds: int, diameter: float) -> float:
    """Returns H_*, the smallest H over all t_0, for models no further apart than the diameter.

    It is exact (docs/theory.md#a7).

    Example:
        >>> round(best_start(rho=1.1, gamma=0.2, rounds=1000, diameter=2.0), 8)
        2.52078969
    """
    from sordino.privacy.amplification.bounded_domain import last_iterate_bounded

    return last_iterate_bounded([rho] * rounds, [gamma] * rounds, diameter)[0]


def visible_rounds_delta(
    *, mu: float, epsilon: float, clients: int, participants: int, rounds: int
) -> float:
    """Returns the exact delta of rounds whose participants are seen (docs/theory.md#a10).

    A client that takes part in N of the rounds, each with the parameter mu, has mu sqrt(N).

    Example:
        >>> delta = visible_rounds_delta(
        ...     mu=1.0, epsilon=1.0, clients=10, participants=1, rounds=1
        ... )
        >>> round(delta, 10)
        0.0126936738
    """
    import numpy as np
    from scipy.stats import binom

    share = participating_share(clients, participants)
    weights = binom.pmf(np.arange(rounds + 1), rounds, share)
    terms = []
    for taken, weight in enumerate(weights.tolist()):
        # Each term is an integral; of many rounds most numbers are too improbable for a float.
        if taken > 0 and weight > 0:
            terms.append(weight * gaussian_delta(mu=mu * math.sqrt(taken), epsilon=epsilon))
    return math.fsum(terms)


def needed_sigma(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, epsilon: float, delta: float
) -> float:
    """Returns the sigma that rates of mu/(t + 1) need if every round's model is public.

    It is composition, which linear losses attain (docs/theory.md#a4).

    Example:
        >>> sigma = needed_sigma(
        ...     rounds=1, steps=5, rate=0.1, clip=1.0, clients=50, epsilon=1.0, delta=1e-5
        ... )
        >>> round(sigma, 4)
        0.5276
    """
    from sordino.privacy.curves import gaussian

    squares = math.fsum(1 / (t * t) for t in range(1, rounds + 1))
    sensitivity = 2 * rate * clip * steps * math.sqrt(squares / clients)
    return sensitivity / gaussian.mu_from(epsilon, delta)


def best_interpolation(*, rho: float, gamma: float, rounds: int) -> float:
    """Returns the smallest H over all lambda in [0, 1], for constant rho and gamma.

    It is exact (docs/theory.md#a7).

    Example:
        >>> round(best_interpolation(rho=1.1, gamma=0.2, rounds=100), 10)
        4.0
    """
    from sordino.privacy.amplification.last_iterate import last_iterate

    return last_iterate([rho] * rounds, [gamma] * rounds)


def relaxation_factor(*, rho: float, gamma: float, rounds: int, diameter: float) -> float:
    """Returns H_0/H_*: what fixing t_0 = 0 costs, with the best lambda on both sides.

    Example:
        >>> relaxation_factor(rho=1.0, gamma=0.2, rounds=1000, diameter=2.0)
        25.0
    """
    relaxed = best_interpolation(rho=rho, gamma=gamma, rounds=rounds)
    optimum = best_start(rho=rho, gamma=gamma, rounds=rounds, diameter=diameter)
    # The last digits are rounding of the two sums.
    return round(relaxed / optimum, 9)


def pooling_work(*, rounds: int) -> float:
    """Returns how many blocks are made and merged when every start t_0 is solved alone.

    From a start, each of the T - t_0 later rounds is made a block once and merged at most once
    (docs/theory.md#a7).

    Example:
        >>> pooling_work(rounds=100)
        10100.0
    """
    return float(sum(2 * (rounds - start) for start in range(rounds)))


def summed_stretch(*, steps: int, rate: float, smoothness: float, round_number: int = 0) -> float:
    """Returns eta(K, t) of Lemma 8 at the rates mu/(tK + k + 1), step by step.

    In round 0 these are the rates mu/(k + 1) of a cyclic schedule.

    Example:
        >>> summed = summed_stretch(steps=2, rate=1.0, smoothness=1.0)
        >>> summed
        2.0
    """
    stretch = 1.0
    total = 0.0
    for step in range(steps):
        step_rate = rate / (round_number * steps + step + 1)
        total += step_rate * stretch
        stretch *= 1 + step_rate * smoothness
    return total


def subsampled_epsilon(
    *,
    batch: int,
    records: int,
    steps: int,
    rounds: int,
    sigma: float,
    delta: float,
    interval: float | None = None,
) -> float:
    """Returns the certified epsilon of C_{B/n}(G_{1/sigma}), composed KR times (docs/theory.md#c1).

    This is the finite statement of prifedsync's Theorem 2. A wider `interval` of the grid of
    privacy losses is faster and errs further upwards.

    Raises:
        UserError: The batch is larger than the data.

    Example:
        >>> epsilon = subsampled_epsilon(
        ...     batch=16, records=600, steps=38, rounds=1, sigma=0.75, delta=1e-5
        ... )
        >>> round(epsilon, 3)
        3.115
    """
    from sordino.privacy.amplification.subsampling import compose_fixed_batches

    curve = compose_fixed_batches(
        mu=1 / sigma, rate=drawn_share(batch, records), steps=steps * rounds, interval=interval
    )
    return curve.epsilon(delta)


def participating_epsilon(
    *,
    batch: int,
    records: int,
    steps: int,
    rounds: int,
    sigma: float,
    delta: float,
    probability: float,
    interval: float | None = None,
) -> float:
    """Returns the same where a client takes part with some probability (docs/theory.md#c4).

    It holds for the weak and the strong view.

    Raises:
        UserError: The batch is larger than the data.

    Example:
        >>> setting = {"batch": 16, "records": 600, "steps": 38, "rounds": 10, "sigma": 1.0}
        >>> round(participating_epsilon(**setting, delta=1e-5, probability=0.5), 3)
        3.005
    """
    from sordino.privacy.amplification.subsampling import compose_fixed_rounds

    curve = compose_fixed_rounds(
        mu=1 / sigma,
        rate=drawn_share(batch, records),
        steps=steps,
        rounds=rounds,
        probability=probability,
        interval=interval,
    )
    return curve.epsilon(delta)
