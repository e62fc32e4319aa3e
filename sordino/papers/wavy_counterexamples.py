"""Counterexamples to convergent-dp's theorems on losses that are really not convex.

A wave on top of the linear losses of `counterexamples.py` breaks no assumption of the paper.
"""

from __future__ import annotations

import math

from sordino.papers.counterexamples import (
    Gradient,
    constant_fedavg,
    constant_fedprox,
    cyclic_fedavg,
)
from sordino.protocol.errors import UserError


def wavy_gradient(slope: float, *, height: float, smoothness: float) -> Gradient:
    """Returns the gradient slope + A cos(w L/A) of a loss that is L-smooth and not convex.

    Args:
        slope: The mean slope of the loss.
        height: A, the height of the wave.
        smoothness: L, the largest curvature, which occurs with either sign.

    Example:
        >>> wavy_gradient(0.9, height=0.1, smoothness=1.0)(0.0)
        1.0
    """
    return lambda model: slope + height * math.cos(model * smoothness / height)


def wavy_constant_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float, wave: float
) -> float:
    """Returns a mu that Noisy-FedAvg's last model reaches on a loss that is really not convex.

    The attacked client has the gradient +-(V - A) + A cos(w L/A), A = `wave` V, for any L.
    Whatever the noise, the wave moves a step by at most A, so the sign of the last model tells the
    data sets apart at least as well as linear losses of slope +-(V - 2A) do (docs/theory.md#a2).

    Example:
        >>> mu = wavy_constant_fedavg(
        ...     rounds=100, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0, wave=0.1
        ... )
        >>> round(mu, 8)
        1.13137085
    """
    return constant_fedavg(
        rounds=rounds,
        steps=steps,
        rate=rate,
        clip=clip * (1 - 2 * wave),
        clients=clients,
        sigma=sigma,
    )


def wavy_cyclic_fedavg(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float, wave: float
) -> float:
    """Returns the same at the cyclic rates mu/(k + 1) (docs/theory.md#a2).

    Example:
        >>> mu = wavy_cyclic_fedavg(
        ...     rounds=1000, steps=20, rate=0.5, clip=2.0, clients=10, sigma=1.0, wave=0.1
        ... )
        >>> round(mu, 6)
        57.563835
    """
    return cyclic_fedavg(
        rounds=rounds,
        steps=steps,
        rate=rate,
        clip=clip * (1 - 2 * wave),
        clients=clients,
        sigma=sigma,
    )


def wavy_constant_fedprox(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    proximal: float,
    clients: int,
    sigma: float,
    wave: float,
) -> float:
    """Returns the same for Noisy-FedProx (docs/theory.md#a3), at a rate of at most 1/alpha.

    The weight (1 - eta alpha)^j of an earlier step is then not negative, so the argument for every
    step carries over to their weighted sum.

    Raises:
        UserError: The rate is above 1/alpha.

    Example:
        >>> setting = {"rate": 0.5, "clip": 1.0, "proximal": 1.0, "clients": 50, "sigma": 1.0}
        >>> round(wavy_constant_fedprox(rounds=1000, steps=20, wave=0.1, **setting), 8)
        7.1554107
    """
    if rate * proximal > 1:
        raise UserError(f"rate = {rate!r}: expected at most 1/proximal = {1 / proximal:g}.")
    return constant_fedprox(
        rounds=rounds,
        steps=steps,
        rate=rate,
        clip=clip * (1 - 2 * wave),
        proximal=proximal,
        clients=clients,
        sigma=sigma,
    )
