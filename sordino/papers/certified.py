"""What holds in place of a published bound: exact or certified values of `sordino.privacy`, in the words of the claims."""

from __future__ import annotations

import math

from sordino.protocol.errors import UserError


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
    """Largest Gaussian parameter of the last model at the rates mu/(t + 1), over all L-smooth losses (THEORY A7, tight).

    Example:
        >>> round(stage_wise(rounds=2, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0), 8)
        0.15493168
    """
    from sordino.privacy.last_iterate import last_iterate

    rates = [rate / (t + 1) for t in range(rounds)]
    gammas = [2 * clip * step * steps / clients for step in rates]
    energy = last_iterate([(1 + step * smoothness) ** steps for step in rates], gammas)
    return math.sqrt(clients * energy) / sigma


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
    """The same at the rates mu/(tK + k + 1).

    Example:
        >>> round(continuous(rounds=1, steps=50, rate=1.0, clip=1.0, smoothness=1.0, clients=1, sigma=1.0), 8)
        8.99841068
    """
    import numpy as np

    from sordino.privacy.last_iterate import last_iterate

    if rounds * steps > 10_000_000:
        raise UserError(
            f"rounds = {rounds}, steps = {steps}: expected at most 10,000,000 steps together."
        )
    rates = rate / np.arange(1, rounds * steps + 1).reshape(rounds, steps)
    energy = last_iterate(
        np.exp(np.log1p(rates * smoothness).sum(axis=1)), 2 * clip / clients * rates.sum(axis=1)
    )
    return math.sqrt(clients * energy) / sigma


def sampled_round(*, mu: float, clients: int, participants: int, delta: float) -> float:
    """Exact epsilon of one round in which n of m clients take part and nobody sees who (THEORY A10, one round, add or remove).

    ((1 - q) N(0, 1) + q N(mu, 1), N(0, 1)) has delta(epsilon) = q delta_mu(epsilon'), e^epsilon' = 1 + (e^epsilon - 1)/q.

    Example:
        >>> round(sampled_round(mu=1.0, clients=100, participants=1, delta=1e-5), 4)
        0.1995
    """
    from sordino.privacy import gaussian

    share = participants / clients
    return (
        0.0
        if delta >= share
        else math.log1p(share * math.expm1(gaussian.epsilon(mu, delta / share)))
    )


def best_start(*, rho: float, gamma: float, rounds: int, diameter: float) -> float:
    """H_*: the smallest H over all t_0, models being no further apart than the diameter; exact, in O(T log T) (THEORY A7).

    Example:
        >>> round(best_start(rho=1.1, gamma=0.2, rounds=1000, diameter=2.0), 8)
        2.52078969
    """
    from sordino.privacy.bounded_domain import last_iterate_bounded

    return last_iterate_bounded([rho] * rounds, [gamma] * rounds, diameter)[0]


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
    """Certified epsilon of C_{B/n}(G_{1/sigma}), KR times: the finite statement of prifedsync's Theorem 2 (THEORY C1).

    `interval` is the grid of privacy losses: a wider one is faster and errs further upwards.

    Example:
        >>> round(subsampled_epsilon(batch=16, records=600, steps=38, rounds=1, sigma=0.75, delta=1e-5), 3)
        3.115
    """
    from sordino.privacy.subsampled import fixed_size

    return fixed_size(
        mu=1 / sigma, rate=_share(batch, records), steps=steps * rounds, interval=interval
    ).epsilon(delta)


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
    """The same when a client takes part in a round with `probability`; for the weak and the strong view alike (THEORY C4).

    Example:
        >>> round(participating_epsilon(batch=16, records=600, steps=38, rounds=10, sigma=1.0, delta=1e-5, probability=0.5), 3)
        3.005
    """
    from sordino.privacy.subsampled import participating

    rate = _share(batch, records)
    curve = participating(
        mu=1 / sigma,
        rate=rate,
        steps=steps,
        rounds=rounds,
        probability=probability,
        interval=interval,
    )
    return curve.epsilon(delta)


def _share(batch: int, records: int) -> float:
    if batch > records:
        raise UserError(f"batch = {batch!r}: there are only {records!r} records.")
    return batch / records
