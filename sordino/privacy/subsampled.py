"""Noisy steps on random batches: the curve of C_q(G_mu), its composition over steps and rounds, and Poisson sampling.

C_q is subsampling without replacement under replace-one (Dong, Roth and Su 2022, Thm 4.2): a step draws a fixed number of distinct
records, each with probability q, and is mu-GDP on the batch. For epsilon >= 0 it is delta(epsilon) = q delta_mu(epsilon'), with
e^epsilon' = 1 + (e^epsilon - 1)/q, and the same in the other direction (THEORY C1).
"""

from __future__ import annotations

import math

import numpy as np

from sordino.privacy import checks, gaussian
from sordino.privacy.curves import PERFECT, Curve, GaussianCurve
from sordino.privacy.losses import INTERVAL, LossCurve

_FINEST_GRID = 1 << 21  # losses of a composition that are told apart, at most
_COARSEST = 64


def fixed_size(*, mu: float, rate: float, steps: int = 1, interval: float | None = None) -> Curve:
    """The composition of `steps` mu-GDP steps, each on a fixed number of distinct records drawn with probability `rate` each.

    Args:
        mu: Replace-one Gaussian parameter of a step on its batch.
        rate: Batch size over number of records.
        steps: Number of steps, each with a fresh batch.
        interval: Grid of the privacy losses; left out, 1e-4, or wider where the composition spreads over millions of them.

    Example:
        >>> round(fixed_size(mu=1.0, rate=16 / 600, steps=3534).epsilon(1e-5), 3)
        13.877
    """
    checks.not_negative(mu=mu)
    checks.probability(rate=rate)
    checks.whole(at_least=0, steps=steps)
    if mu == 0 or rate == 0 or steps == 0:
        return PERFECT
    if rate == 1 or math.isinf(mu):
        return GaussianCurve(mu=mu).repeat(steps)
    return _one_step(mu, rate, interval or suitable_interval(mu=mu, rate=rate, steps=steps)).repeat(
        steps
    )


def participating(
    *,
    mu: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    interval: float | None = None,
) -> Curve:
    """The same when a client takes part in each of `rounds` rounds with `probability` and then makes `steps` steps.

    ((1 - p) Id + p C_q(G_mu)^steps)^rounds: valid for every view, weak and strong, of what the client's uploads reach (THEORY C4).

    Example:
        >>> curve = participating(mu=1 / 0.9, rate=16 / 600, steps=38, rounds=176, probability=0.5)
        >>> round(curve.epsilon(1e-5), 2)
        17.14
    """
    checks.probability(probability=probability)
    checks.whole(at_least=0, rounds=rounds)
    if probability == 1:
        return fixed_size(mu=mu, rate=rate, steps=steps * rounds, interval=interval)
    if 0 in (probability, rounds, steps, mu, rate):
        return PERFECT
    if rate == 1 or math.isinf(mu):
        from sordino.privacy.mixtures import mixture

        return mixture([0.0, mu * math.sqrt(steps)], [1 - probability, probability]).repeat(rounds)
    grid = interval or suitable_interval(mu=mu, rate=rate, steps=steps * rounds)
    return _one_step(mu, rate, grid).repeat(steps).mixed_with_nothing(probability).repeat(rounds)


def poisson(*, multiplier: float, rate: float, steps: int = 1, interval: float = INTERVAL) -> Curve:
    """`steps` sampled Gaussian steps, add or remove one: each unit is in with probability `rate`, noise is `multiplier` times its norm.

    For hidden Poisson sampling with noise of constant variance and a fixed denominator (THEORY A10). By dp_accounting, both directions.

    Example:
        >>> round(poisson(multiplier=2.0, rate=0.02, steps=100).epsilon(1e-6), 4)
        0.4787
    """
    checks.not_negative(multiplier=multiplier)
    checks.probability(rate=rate)
    checks.whole(at_least=0, steps=steps)
    if rate == 0 or steps == 0 or math.isinf(multiplier):
        return PERFECT
    if multiplier == 0:
        return GaussianCurve(mu=math.inf)
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        value_discretization_interval=interval,
        sampling_prob=rate,
        use_connect_dots=True,
    )
    return LossCurve.from_distribution(one).repeat(steps)


def poisson_participating(
    *,
    multiplier: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    interval: float = INTERVAL,
) -> Curve:
    """The same when a client takes part in each of `rounds` rounds with `probability` and then makes `steps` such steps.

    Example:
        >>> curve = poisson_participating(multiplier=1.0, rate=16 / 600, steps=38, rounds=194, probability=0.5)
        >>> round(curve.epsilon(1e-5), 2)
        11.26
    """
    checks.probability(probability=probability)
    checks.whole(at_least=0, rounds=rounds)
    if probability == 1:
        return poisson(multiplier=multiplier, rate=rate, steps=steps * rounds, interval=interval)
    one = poisson(multiplier=multiplier, rate=rate, steps=steps, interval=interval)
    if probability == 0 or rounds == 0 or one.mu == 0:
        return PERFECT
    if not isinstance(one, LossCurve):
        return GaussianCurve(mu=math.inf)
    return one.mixed_with_nothing(probability).repeat(rounds)


def deltas(epsilons: np.ndarray, *, mu: float, rate: float) -> np.ndarray:
    """Delta of one step at each epsilon >= 0, in closed form.

    Example:
        >>> deltas(np.array([0.0, 1.0]), mu=1.0, rate=1.0).round(6).tolist()
        [0.382925, 0.126937]
    """
    return rate * np.exp(gaussian.log_deltas(mu, amplified_epsilons(epsilons, rate)))


def deltas_of_many(epsilons: np.ndarray, *, mus: np.ndarray, rate: float) -> np.ndarray:
    """The same for many values of mu, one a row.

    Example:
        >>> deltas_of_many(np.array([1.0]), mus=np.array([0.0, 1.0]), rate=1.0).round(6).tolist()
        [[0.0], [0.126937]]
    """
    return rate * np.exp(gaussian.log_deltas(mus[:, None], amplified_epsilons(epsilons, rate)))


def amplified_epsilons(epsilons: np.ndarray, rate: float) -> np.ndarray:
    """epsilon' with e^epsilon' = 1 + (e^epsilon - 1)/q, rounded down: where a release must be looked at that happens with probability q.

    Example:
        >>> amplified_epsilons(np.array([0.0, math.log(2)]), 0.5).round(6).tolist()
        [0.0, 1.098612]
    """
    # For small epsilon log(1 + x), for large epsilon without overflow: epsilon - log q + log(q e^-epsilon + 1 - e^-epsilon)
    small = np.log1p(np.expm1(np.minimum(epsilons, 1.0)) / rate)
    large = epsilons - math.log(rate) + np.log1p((rate - 1) * np.exp(-epsilons))
    found = np.where(epsilons < 1, small, large)
    return np.maximum(found * (1 - 2.0**-50), 0.0)


def _one_step(mu: float, rate: float, interval: float) -> LossCurve:
    return LossCurve.from_profile(
        lambda epsilons: deltas(epsilons, mu=mu, rate=rate), interval=interval
    )


def suitable_interval(*, mu: float, rate: float, steps: int) -> float:
    """1e-4, doubled until the composition, some ten standard deviations wide, fits the grid: a matter of cost, not of validity.

    Example:
        >>> suitable_interval(mu=1.0, rate=0.01, steps=1000), suitable_interval(mu=4.0, rate=0.1, steps=10_000) > 1e-4
        (0.0001, True)
    """
    epsilons = np.linspace(0.0, mu * (mu / 2 + 9.5), 2001)
    # The second moment of the loss is a twofold integral of its tail; delta is a single one, close enough to choose a grid.
    spread = math.sqrt(
        4
        * float(np.trapezoid((1 + epsilons) * deltas(epsilons, mu=mu, rate=rate), epsilons))
        * steps
    )
    width = 2 * float(epsilons[-1]) + 20 * spread
    interval = INTERVAL
    while width / interval > _FINEST_GRID and interval < INTERVAL * _COARSEST:
        interval *= 2
    return interval
