"""Closed forms about convergent-dp that tests hold the package against. Nothing here is a promise."""

import math
from collections.abc import Iterable

import numpy as np


def table_2_least_z(*, steps: int, rate: float) -> float:
    """Returns the z that Table 2's gamma_0 = (2 z V/m) ln 2 needs: rate H_K / ln 2 (docs/theory.md#a5)."""
    return rate * math.fsum(1 / k for k in range(1, steps + 1)) / math.log(2)


def theorem_3d_energy(*, rounds: int, steps: int, rate: float, clip: float, clients: int) -> float:
    """Returns the sum that Theorem 3(d) bounds (docs/theory.md#a5).

    H = sum_t (2V/m rate sum_k 1/(tK + k + 1))^2.
    """
    rates = rate / np.arange(1, rounds * steps + 1).reshape(rounds, steps)
    return float(np.square(2 * clip / clients * rates.sum(axis=1)).sum())


def appendix_g3_energy(rho: Iterable[float], gamma: Iterable[float]) -> float:
    """Returns H_0 of G.3, by Cauchy and Schwarz: (sum P gamma)^2 / sum P^2.

    Unsound for rho > 1, where its path has negative distances (docs/theory.md#a1).
    """
    left = 1.0
    shifted = 0.0
    squares = 0.0
    for factor, shift in zip(reversed(list(rho)), reversed(list(gamma)), strict=True):
        shifted += left * shift
        squares += left * left
        left *= factor
    return shifted**2 / squares


def linear_fedavg_mu(
    *, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float
) -> float:
    """Returns the exact mu of the last model for linear losses at a constant rate (docs/theory.md#a2).

    sqrt(T) 2 rate V K / (sqrt(m) sigma).
    """
    return math.sqrt(rounds) * 2 * rate * clip * steps / (math.sqrt(clients) * sigma)


def linear_fedprox_mu(
    *,
    rounds: int,
    steps: int,
    rate: float,
    clip: float,
    proximal: float,
    clients: int,
    sigma: float,
) -> float:
    """Returns the exact mu of the last model for linear losses with a proximal term (docs/theory.md#a3).

    sqrt(T) 2 V (1 - (1 - eta alpha)^K) / (sqrt(m) alpha sigma).
    """
    shift = 2 * clip * abs(1 - (1 - rate * proximal) ** steps) / proximal
    return math.sqrt(rounds) * shift / (math.sqrt(clients) * sigma)
