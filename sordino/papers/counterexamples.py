"""Counterexamples that run: small federations on losses simple enough for their privacy to be known exactly.

Models are numbers. One client, the attacked one, has one of two data sets; the others agree. On linear losses the record that is exchanged
turns a gradient from -V to V, on quadratic ones all gradients are curvature w; both are L-smooth, and are clipped like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

Gradient = Callable[[float], float]


def linear(slope: float) -> Gradient:
    """The gradient of slope w.

    Example:
        >>> linear(-1.0)(5.0)
        -1.0
    """
    return lambda _: slope


def quadratic(curvature: float) -> Gradient:
    """The gradient of curvature/2 w^2; a negative curvature drives models apart.

    Example:
        >>> quadratic(-1.0)(5.0)
        -5.0
    """
    return lambda model: curvature * model


def local_training(
    start: float, gradient: Gradient, rates: Iterable[float], *, clip: float, proximal: float = 0.0
) -> float:
    """Clipped gradient steps from `start`, Eq. (2) of convergent-dp, or Eq. (4) with a proximal pull to the start.

    Example:
        >>> local_training(0.0, lambda w: 5.0, [0.5, 0.5], clip=1.0)
        -1.0
    """
    model = start
    for rate in rates:
        clipped = min(max(gradient(model), -clip), clip)
        model -= rate * (clipped + proximal * (model - start))
    return model


def one_round(
    start: float,
    attacked: Gradient,
    others: Gradient,
    rates: Sequence[float],
    *,
    clients: int,
    clip: float,
    proximal: float = 0.0,
) -> float:
    """The mean of the clients' models after local training: phi of Eq. (8), before the noise.

    Example:
        >>> one_round(0.0, lambda w: 1.0, lambda w: 0.0, [0.5], clients=5, clip=1.0)
        -0.1
    """
    own = local_training(start, attacked, rates, clip=clip, proximal=proximal)
    other = local_training(start, others, rates, clip=clip, proximal=proximal)
    return (own + (clients - 1) * other) / clients


def linear_gap(
    rates: Sequence[float], *, clients: int, clip: float, proximal: float = 0.0
) -> float:
    """How far apart one round takes two equal models when the attacked client's linear loss has slope -V or V.

    Example:
        >>> round(linear_gap([0.1] * 5, clients=50, clip=1.0), 12)
        0.02
    """
    up, down = (
        one_round(
            0.0, linear(slope), linear(0.0), rates, clients=clients, clip=clip, proximal=proximal
        )
        for slope in (-clip, clip)
    )
    return abs(up - down)


def last_linear_model(gaps: Iterable[float], *, clients: int, sigma: float) -> float:
    """Exact Gaussian parameter of the last model on linear losses, from the gap of each round.

    A round then moves every model by the same amount: gaps add up, and so do the variances sigma^2/m of the noises.

    Example:
        >>> last_linear_model([0.5] * 4, clients=1, sigma=1.0)
        1.0
    """
    distances = list(gaps)
    return math.fsum(distances) / math.sqrt(len(distances) * sigma * sigma / clients)


def constant_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """The last model of Noisy-FedAvg on linear losses at a constant rate (THEORY A2).

    Example:
        >>> round(constant_fedavg(rounds=1000, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0), 8)
        4.47213595
    """
    gap = linear_gap([rate] * steps, clients=clients, clip=clip)
    return last_linear_model([gap] * rounds, clients=clients, sigma=sigma)


def cyclic_gap(*, steps: int, rate: float, clip: float, clients: int) -> float:
    """One round's gap on linear losses at the rates mu/(k + 1).

    Example:
        >>> round(cyclic_gap(steps=5, rate=2.0, clip=1.0, clients=50), 8)
        0.18266667
    """
    return linear_gap([rate / (k + 1) for k in range(steps)], clients=clients, clip=clip)


def cyclic_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """The last model of Noisy-FedAvg on linear losses at the rates mu/(k + 1), restored in every round (THEORY A2).

    Example:
        >>> round(cyclic_fedavg(rounds=1000, steps=20, rate=0.5, clip=2.0, clients=10, sigma=1.0), 6)
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
    """The last model of Noisy-FedProx on linear losses at a constant rate (THEORY A3).

    Example:
        >>> round(constant_fedprox(rounds=1000, steps=20, rate=0.5, clip=1.0, proximal=1.0, clients=50, sigma=1.0), 8)
        8.94426338
    """
    gap = linear_gap([rate] * steps, clients=clients, clip=clip, proximal=proximal)
    return last_linear_model([gap] * rounds, clients=clients, sigma=sigma)


def fedavg_gap(*, steps: int, rate: float, clip: float, clients: int) -> float:
    """Lemma 7's example: one round's gap on linear losses at a constant rate.

    Example:
        >>> round(fedavg_gap(steps=5, rate=0.5, clip=1.0, clients=50), 12)
        0.1
    """
    return linear_gap([rate] * steps, clients=clients, clip=clip)


def fedprox_gap(*, steps: int, rate: float, clip: float, clients: int, proximal: float) -> float:
    """Lemma 9's example: the same with a proximal pull.

    Example:
        >>> round(fedprox_gap(steps=3, rate=5.0, clip=1.0, clients=1, proximal=1.0), 9)
        130.0
    """
    return linear_gap([rate] * steps, clients=clients, clip=clip, proximal=proximal)


def stretch(*, steps: int, rate: float, smoothness: float, proximal: float = 0.0) -> float:
    """By how much local training stretches the distance of two models on one data set, on a quadratic loss of curvature -L or L.

    Example:
        >>> round(stretch(steps=5, rate=0.1, smoothness=1.0), 8)
        1.61051
        >>> round(stretch(steps=3, rate=5.0, smoothness=0.9, proximal=1.0), 3)
        290.375
    """
    rates, far = [rate] * steps, math.inf  # a clip that is never reached
    ends = (
        local_training(0.5, quadratic(curvature), rates, clip=far, proximal=proximal)
        for curvature in (-smoothness, smoothness)
    )
    return max(2 * abs(end) for end in ends)  # by symmetry, of models that started at -0.5 and 0.5


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
    """Theorem 2's example: two models, `distance` apart, after one round on neighbouring data sets.

    The attacked client's loss is linear and turns with the data set, the other losses are quadratic, of curvature -L or L.

    Example:
        >>> found = apart_after_round(steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, proximal=0.0, distance=0.1)
        >>> round(found, 8)
        0.17982998
    """

    def ended(side: float, curvature: float) -> float:
        own, others, rates = linear(-side * clip), quadratic(curvature), [rate] * steps
        return one_round(
            side * distance / 2, own, others, rates, clients=clients, clip=clip, proximal=proximal
        )

    return max(
        abs(ended(1.0, curvature) - ended(-1.0, curvature))
        for curvature in (-smoothness, smoothness)
    )
