"""Noisy steps on random batches: batches of a fixed size, Poisson batches, and their composition.

C_q is subsampling without replacement under replace-one (Dong, Roth and Su 2022, Thm 4.2): a step
draws a fixed number of distinct records, each with probability q, and is mu-GDP on the batch. For
epsilon >= 0 it is delta(epsilon) = q delta_mu(epsilon'), with e^epsilon' = 1 + (e^epsilon - 1)/q,
and the same in the other direction (docs/theory.md#c1).

Poisson sampling under add-or-remove compares (1 - q) N(0, 1) + q N(mu, 1) with N(0, 1). Removing a
record has the delta of C_q; adding one has q b e^epsilon delta_mu(log 1/b), where
b = 1 - (1 - e^-epsilon)/q, as long as that is above 0 (docs/theory.md#a10).
"""

from __future__ import annotations

import math

import numpy as np

from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import NOTHING, PERFECT, GaussianCurve
from sordino.privacy.curves.loss_distributions import INTERVAL, LossCurve

# Losses of a composition that are told apart, at most.
_FINEST_GRID = 1 << 21
_COARSEST = 64


def compose_fixed_batches(
    *,
    mu: float,
    rate: float,
    steps: int = 1,
    interval: float | None = None,
) -> Curve:
    """Returns the composition of mu-GDP steps, each on a fixed number of distinct records.

    Args:
        mu: The Gaussian parameter of a step on its batch, under replace-one.
        rate: The size of a batch over the number of records.
        steps: The number of steps, each with a fresh batch.
        interval: The spacing of the grid of privacy losses; by default 1e-4, or wider
            where the composition spreads over millions of them.

    Example:
        >>> round(compose_fixed_batches(mu=1.0, rate=16 / 600, steps=3534).epsilon(1e-5), 3)
        13.877
    """
    checks.require_nonnegative(mu=mu)
    checks.require_probability(rate=rate)
    checks.require_whole(at_least=0, steps=steps)
    if mu == 0 or rate == 0 or steps == 0:
        return PERFECT
    if rate == 1 or math.isinf(mu):
        return GaussianCurve(mu=mu).repeat(steps)
    if interval is None:
        interval = choose_interval(mu=mu, rate=rate, steps=steps)
    return _one_step(mu, rate, interval).repeat(steps)


def compose_fixed_rounds(
    *,
    mu: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    interval: float | None = None,
) -> Curve:
    """Returns the composition of rounds, each of which takes place with some probability.

    ((1 - p) Id + p C_q(G_mu)^steps)^rounds: valid for every view, weak and strong, of what the
    client's uploads reach (docs/theory.md#c4).

    Args:
        mu: The Gaussian parameter of a step on its batch, under replace-one.
        rate: The size of a batch over the number of records.
        steps: The number of steps in a round.
        rounds: The number of rounds.
        probability: The probability that the client takes part in a round, which may be seen.
        interval: The spacing of the grid of privacy losses.

    Example:
        >>> curve = compose_fixed_rounds(
        ...     mu=1 / 0.9, rate=16 / 600, steps=38, rounds=176, probability=0.5
        ... )
        >>> round(curve.epsilon(1e-5), 2)
        17.14
    """
    checks.require_probability(probability=probability)
    checks.require_whole(at_least=0, rounds=rounds)
    if probability == 1:
        return compose_fixed_batches(
            mu=mu,
            rate=rate,
            steps=steps * rounds,
            interval=interval,
        )
    if 0 in (probability, rounds, steps, mu, rate):
        return PERFECT
    if rate == 1 or math.isinf(mu):
        from sordino.privacy.curves.mixtures import mix_gaussians

        return mix_gaussians([0.0, mu * math.sqrt(steps)], [1 - probability, probability]).repeat(
            rounds
        )
    if interval is None:
        interval = choose_interval(mu=mu, rate=rate, steps=steps * rounds)
    one_round = _one_step(mu, rate, interval).repeat(steps).mix_with_nothing(probability)
    return one_round.repeat(rounds)


def compose_poisson_batches(
    *,
    multiplier: float,
    rate: float,
    steps: int = 1,
    interval: float = INTERVAL,
) -> Curve:
    """Returns the composition of sampled Gaussian steps, where one unit is added or removed.

    For hidden Poisson sampling with noise of constant variance and a fixed denominator
    (docs/theory.md#a10); both directions.

    Args:
        multiplier: The standard deviation of the noise over the largest norm of a unit.
        rate: The probability that a step holds the unit.
        steps: The number of steps.
        interval: The spacing of the grid of privacy losses.

    Example:
        >>> round(compose_poisson_batches(multiplier=2.0, rate=0.02, steps=100).epsilon(1e-6), 4)
        0.4787
    """
    checks.require_nonnegative(multiplier=multiplier)
    checks.require_probability(rate=rate)
    checks.require_whole(at_least=0, steps=steps)
    if rate == 0 or steps == 0 or math.isinf(multiplier):
        return PERFECT
    if multiplier == 0:
        return NOTHING
    mu = 1 / multiplier
    if rate == 1:
        return GaussianCurve(mu=mu).losses(interval).repeat(steps)
    one = LossCurve.from_profiles(
        lambda epsilons: find_sampled_deltas(epsilons, mu=mu, rate=rate),
        lambda epsilons: find_adding_deltas(epsilons, mu=mu, rate=rate),
        interval=interval,
    )
    return one.repeat(steps)


def compose_poisson_rounds(
    *,
    multiplier: float,
    rate: float,
    steps: int,
    rounds: int,
    probability: float,
    interval: float = INTERVAL,
) -> Curve:
    """Returns the composition of rounds of sampled Gaussian steps with random participation.

    Args:
        multiplier: The standard deviation of the noise over the largest norm of a unit.
        rate: The probability that a step holds the unit.
        steps: The number of steps in a round.
        rounds: The number of rounds.
        probability: The probability that the client takes part in a round, which may be seen.
        interval: The spacing of the grid of privacy losses.

    Example:
        >>> curve = compose_poisson_rounds(
        ...     multiplier=1.0, rate=16 / 600, steps=38, rounds=194, probability=0.5
        ... )
        >>> round(curve.epsilon(1e-5), 2)
        11.26
    """
    checks.require_probability(probability=probability)
    checks.require_whole(at_least=0, rounds=rounds)
    if probability == 1:
        return compose_poisson_batches(
            multiplier=multiplier,
            rate=rate,
            steps=steps * rounds,
            interval=interval,
        )
    one = compose_poisson_batches(
        multiplier=multiplier,
        rate=rate,
        steps=steps,
        interval=interval,
    )
    if probability == 0 or rounds == 0 or one.mu == 0:
        return PERFECT
    if not isinstance(one, LossCurve):
        return NOTHING
    return one.mix_with_nothing(probability).repeat(rounds)


def find_sampled_deltas(epsilons: np.ndarray, *, mu: float, rate: float) -> np.ndarray:
    """Returns delta of one step at each epsilon >= 0: of C_q, and of removing a Poisson record.

    Args:
        epsilons: The epsilons, each of at least 0.
        mu: The Gaussian parameter of a step that holds the record.
        rate: The probability that a step holds it.

    Example:
        >>> find_sampled_deltas(np.array([0.0, 1.0]), mu=1.0, rate=1.0).round(6).tolist()
        [0.382925, 0.126937]
    """
    amplified = amplify_epsilons(epsilons, rate)
    logs = gaussian.log_deltas(mu, amplified)
    deltas: np.ndarray = rate * np.exp(logs)
    return deltas


def find_adding_deltas(epsilons: np.ndarray, *, mu: float, rate: float) -> np.ndarray:
    """Returns delta at each epsilon >= 0 of one Poisson step to which a record is added.

    Args:
        epsilons: The epsilons, each of at least 0.
        mu: The Gaussian parameter of a step that holds the record.
        rate: The probability that a step holds it.

    Example:
        >>> find_adding_deltas(np.array([0.0, 0.1, 1.0]), mu=1.0, rate=0.5).round(6).tolist()
        [0.191462, 0.142768, 0.0]
    """
    # The loss never passes -log(1 - q): beyond it b would not be positive.
    left = np.maximum(1 + np.expm1(-epsilons) / rate, 0.0)
    with np.errstate(divide="ignore"):
        amplified = np.maximum(-np.log(left) * (1 - 2.0**-50), 0.0)
    logs = gaussian.log_deltas(mu, amplified)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_found = np.log(rate * left) + epsilons + logs
        found = np.exp(log_found)
    return np.where(left > 0, found * (1 + 1e-12), 0.0)


def find_many_deltas(epsilons: np.ndarray, *, mus: np.ndarray, rate: float) -> np.ndarray:
    """Returns `find_sampled_deltas` for many values of mu, one a row.

    Args:
        epsilons: The epsilons, each of at least 0.
        mus: Gaussian parameters of steps that hold the record.
        rate: The probability that a step holds it.

    Returns:
        Delta, a mu a row and an epsilon a column.

    Example:
        >>> find_many_deltas(np.array([1.0]), mus=np.array([0.0, 1.0]), rate=1.0).round(6).tolist()
        [[0.0], [0.126937]]
    """
    amplified = amplify_epsilons(epsilons, rate)
    logs = gaussian.log_deltas(mus[:, None], amplified)
    deltas: np.ndarray = rate * np.exp(logs)
    return deltas


def amplify_epsilons(epsilons: np.ndarray, rate: float) -> np.ndarray:
    """Returns epsilon' with e^epsilon' = 1 + (e^epsilon - 1)/rate, rounded down.

    Delta at epsilon of a release that happens with probability `rate`, unseen, is `rate` times
    delta at epsilon' of the release.

    Args:
        epsilons: Epsilons of the release that is unseen.
        rate: The probability that it happens, above 0.

    Returns:
        Epsilon' for each of them.

    Example:
        >>> amplify_epsilons(np.array([0.0, math.log(2)]), 0.5).round(6).tolist()
        [0.0, 1.098612]
    """
    growth = np.expm1(np.minimum(epsilons, 1.0))
    small = np.log1p(growth / rate)
    # The same without overflow: epsilon - log q + log(q e^-epsilon + 1 - e^-epsilon).
    decay = np.exp(-epsilons)
    large = epsilons - math.log(rate) + np.log1p((rate - 1) * decay)
    found = np.where(epsilons < 1, small, large)
    rounded_down: np.ndarray = np.maximum(found * (1 - 2.0**-50), 0.0)
    return rounded_down


def choose_interval(*, mu: float, rate: float, steps: int) -> float:
    """Returns a grid on which a composition spreads over at most some millions of losses.

    1e-4, doubled until the composition, some ten standard deviations wide, fits: a matter of
    cost, not of validity.

    Args:
        mu: The Gaussian parameter of a step that holds the record.
        rate: The probability that a step holds it.
        steps: The number of steps.

    Returns:
        The interval of the grid.

    Example:
        >>> choose_interval(mu=1.0, rate=0.01, steps=1000)
        0.0001
        >>> choose_interval(mu=4.0, rate=0.1, steps=10_000) > 1e-4
        True
    """
    epsilons = np.linspace(0.0, mu * (mu / 2 + 9.5), 2001)
    # The second moment of the loss is a twofold integral of its tail; delta is a single one, which
    # is close enough to choose a grid.
    tail = (1 + epsilons) * find_sampled_deltas(epsilons, mu=mu, rate=rate)
    moment = float(np.trapezoid(tail, epsilons))
    spread = math.sqrt(4 * moment * steps)
    furthest = float(epsilons[-1])
    width = 2 * furthest + 20 * spread
    interval = INTERVAL
    while width / interval > _FINEST_GRID and interval < INTERVAL * _COARSEST:
        interval *= 2
    return interval


def _one_step(mu: float, rate: float, interval: float) -> LossCurve:
    """Returns one step on a fixed number of distinct records."""
    return LossCurve.from_profile(
        lambda epsilons: find_sampled_deltas(epsilons, mu=mu, rate=rate), interval=interval
    )
