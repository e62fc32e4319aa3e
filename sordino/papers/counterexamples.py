"""Counterexamples that run: small federations whose privacy is known exactly.

Models are numbers. One client, the attacked one, has one of two data sets; the others agree. On
linear losses the exchanged record turns a gradient from -V to V, on quadratic ones all gradients
are curvature w. All are L-smooth, and their gradients are clipped like any other.
`parameters.PARAMETERS` says what the parameters of the federations mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Gradient = Callable[[float], float]


def linear_gradient(slope: float) -> Gradient:
    """Returns the gradient of the loss slope w.

    Args:
        slope: The slope of the loss.

    Example:
        >>> linear_gradient(-1.0)(5.0)
        -1.0
    """
    return lambda _: slope


def quadratic_gradient(curvature: float) -> Gradient:
    """Returns the gradient of the loss curvature/2 w^2; a negative one drives models apart.

    Args:
        curvature: The curvature of the loss.

    Example:
        >>> quadratic_gradient(-1.0)(5.0)
        -5.0
    """
    return lambda model: curvature * model


def take_steps(
    start: float, gradient: Gradient, rates: Iterable[float], *, clip: float, proximal: float = 0.0
) -> float:
    """Returns the model after clipped gradient steps.

    These are the local steps of convergent-dp, Eq. (2), or Eq. (4) with a pull to the start.

    Args:
        start: The model before the first step.
        gradient: The gradient of the client's loss.
        rates: The learning rate of each step.
        clip: V, the largest norm of a gradient.
        proximal: Alpha, the strength of the pull.

    Example:
        >>> take_steps(0.0, lambda w: 5.0, [0.5, 0.5], clip=1.0)
        -1.0
    """
    model = start
    for rate in rates:
        clipped = min(max(gradient(model), -clip), clip)
        # The pull towards the start is not clipped: it depends on no record.
        model -= rate * (clipped + proximal * (model - start))
    return model


def average_models(
    start: float,
    attacked: Gradient,
    others: Gradient,
    rates: Sequence[float],
    *,
    clients: int,
    clip: float,
    proximal: float = 0.0,
) -> float:
    """Returns the mean of the clients' models after one round: phi of Eq. (8), before the noise.

    Args:
        start: The global model before the round.
        attacked: The gradient of the attacked client's loss.
        others: The gradient of the other clients' loss.
        rates: The learning rate of each step.
        clients: m, the number of clients.
        clip: V, the largest norm of a gradient.
        proximal: Alpha, the strength of the proximal term.

    Example:
        >>> average_models(0.0, lambda w: 1.0, lambda w: 0.0, [0.5], clients=5, clip=1.0)
        -0.1
    """
    # All other clients hold the same data, so one of them is trained for all.
    own = take_steps(start, attacked, rates, clip=clip, proximal=proximal)
    other = take_steps(start, others, rates, clip=clip, proximal=proximal)
    return (own + (clients - 1) * other) / clients


def linear_gap(
    rates: Sequence[float], *, clients: int, clip: float, proximal: float = 0.0
) -> float:
    """Returns how far apart one round takes two equal models.

    The attacked client's linear loss has the slope -V in one federation and V in the other; no
    pair of clipped gradients is further apart.

    Args:
        rates: The learning rate of each step.
        clients: m, the number of clients.
        clip: V, the largest norm of a gradient.
        proximal: Alpha, the strength of the proximal term.

    Example:
        >>> round(linear_gap([0.1] * 5, clients=50, clip=1.0), 12)
        0.02
    """
    setting: dict[str, Any] = {"clients": clients, "clip": clip, "proximal": proximal}
    others = linear_gradient(0.0)
    low = average_models(0.0, linear_gradient(-clip), others, rates, **setting)
    high = average_models(0.0, linear_gradient(clip), others, rates, **setting)
    return abs(low - high)


def last_linear_model(gaps: Iterable[float], *, clients: int, sigma: float) -> float:
    """Returns the exact mu of the last model on linear losses, from the gap of each round.

    A round then moves every model by the same amount, so the gaps add up along the rounds, and so
    do the variances sigma^2/m of their noise.

    Args:
        gaps: How far each round takes two equal models apart.
        clients: m, the number of clients.
        sigma: The standard deviation of the noise.

    Example:
        >>> last_linear_model([0.5] * 4, clients=1, sigma=1.0)
        1.0
    """
    distances = list(gaps)
    return math.fsum(distances) / math.sqrt(len(distances) * sigma * sigma / clients)


def constant_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """Returns the exact mu of Noisy-FedAvg's last model on linear losses at a constant rate.

    It grows like the root of the rounds (docs/theory.md#a2).

    Example:
        >>> mu = constant_fedavg(rounds=1000, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0)
        >>> round(mu, 8)
        4.47213595
    """
    gap = constant_gap(steps=steps, rate=rate, clip=clip, clients=clients)
    return last_linear_model([gap] * rounds, clients=clients, sigma=sigma)


def cyclic_gap(*, steps: int, rate: float, clip: float, clients: int) -> float:
    """Returns one round's gap on linear losses at the rates mu/(k + 1).

    Example:
        >>> round(cyclic_gap(steps=5, rate=2.0, clip=1.0, clients=50), 8)
        0.18266667
    """
    return linear_gap([rate / (k + 1) for k in range(steps)], clients=clients, clip=clip)


def cyclic_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """Returns the exact mu of Noisy-FedAvg's last model on linear losses at cyclic rates.

    The rates are mu/(k + 1), and begin again in every round (docs/theory.md#a2).

    Example:
        >>> mu = cyclic_fedavg(rounds=1000, steps=20, rate=0.5, clip=2.0, clients=10, sigma=1.0)
        >>> round(mu, 6)
        71.954793
    """
    gap = cyclic_gap(steps=steps, rate=rate, clip=clip, clients=clients)
    return last_linear_model([gap] * rounds, clients=clients, sigma=sigma)


def constant_fedprox(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    proximal: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the exact mu of Noisy-FedProx's last model on linear losses at a constant rate.

    It grows like the root of the rounds (docs/theory.md#a3).

    Example:
        >>> mu = constant_fedprox(
        ...     rounds=1000, steps=20, rate=0.5, clip=1.0, proximal=1.0, clients=50, sigma=1.0
        ... )
        >>> round(mu, 8)
        8.94426338
    """
    gap = constant_gap(steps=steps, rate=rate, clip=clip, clients=clients, proximal=proximal)
    return last_linear_model([gap] * rounds, clients=clients, sigma=sigma)


def constant_gap(
    *, steps: int, rate: float, clip: float, clients: int, proximal: float = 0.0
) -> float:
    """Returns one round's gap on linear losses at a constant rate.

    It is the example of Lemma 7, and with a proximal term that of Lemma 9.

    Example:
        >>> round(constant_gap(steps=5, rate=0.5, clip=1.0, clients=50), 12)
        0.1
        >>> round(constant_gap(steps=3, rate=5.0, clip=1.0, clients=1, proximal=1.0), 9)
        130.0
    """
    return linear_gap([rate] * steps, clients=clients, clip=clip, proximal=proximal)


def stretch_factor(*, steps: int, rate: float, smoothness: float, proximal: float = 0.0) -> float:
    """Returns by how much local training stretches the distance of two models on one data set.

    The loss is quadratic, of curvature -L or L, whichever stretches more.

    Example:
        >>> round(stretch_factor(steps=5, rate=0.1, smoothness=1.0), 8)
        1.61051
        >>> round(stretch_factor(steps=3, rate=5.0, smoothness=0.9, proximal=1.0), 3)
        290.375
    """
    # The two models start at -0.5 and 0.5, and stay symmetric. No gradient reaches the clip.
    factors = []
    # Either sign of the curvature may stretch more: a high rate makes a convex loss overshoot.
    for curvature in (-smoothness, smoothness):
        gradient = quadratic_gradient(curvature)
        end = take_steps(0.5, gradient, [rate] * steps, clip=math.inf, proximal=proximal)
        factors.append(2 * abs(end))
    return max(factors)


def apart_after_round(
    *,
    steps: int,
    rate: float,
    clip: float,
    smoothness: float,
    clients: int,
    proximal: float,
    distance: float,
) -> float:
    """Returns the distance of two models after one round on neighbouring data: Theorem 2's example.

    The attacked client's loss is linear and turns with the data set; the other losses are
    quadratic, of curvature -L or L, whichever takes them further apart.

    Example:
        >>> apart = apart_after_round(
        ...     steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, proximal=0.0, distance=0.1
        ... )
        >>> round(apart, 8)
        0.17982998
    """
    rates = [rate] * steps
    setting: dict[str, Any] = {"clients": clients, "clip": clip, "proximal": proximal}
    half = distance / 2
    distances = []
    for curvature in (-smoothness, smoothness):
        others = quadratic_gradient(curvature)
        # The attacked client pushes each of the two models away from the other.
        high = average_models(half, linear_gradient(-clip), others, rates, **setting)
        low = average_models(-half, linear_gradient(clip), others, rates, **setting)
        distances.append(abs(high - low))
    return max(distances)
