"""Published bounds of convergent-dp (Noisy-FedAvg, Noisy-FedProx) as printed, and the exact values that contradict some of them.

Verdicts are those of THEORY. `rate` is the paper's mu, a learning rate; the results are Gaussian parameters of the last model
unless said otherwise. None of this is used for a promise: see `sordino.privacy.last_iterate` for what is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def theorem_3a(*, rounds: int, steps: int, rate: float, clip: float, smoothness: float, clients: int, sigma: float) -> float:
    """Theorem 3(a), Eq. (15), constant rate. Verdict A2: UNSOUND for every rounds >= 2; `linear_fedavg` exceeds it.

    Example:
        >>> round(theorem_3a(rounds=2, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0), 8)
        0.19474525
    """
    one_round = 2 * rate * clip * steps / (math.sqrt(clients) * sigma)
    return one_round * _saturating(math.log1p(rate * smoothness) * steps, rounds)


def theorem_3b(*, rounds: int, steps: int, rate: float, clip: float, smoothness: float, clients: int, sigma: float, c: float) -> float:
    """Theorem 3(b), Eq. (16), cyclic rate; the printed shift lacks the rate. Verdict A2: UNSOUND.

    Example:
        >>> round(theorem_3b(rounds=10, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=50, sigma=1.0, c=1.2), 8)
        1.65314662
    """
    one_round = 2 * c * clip * math.log(steps + 1) / (math.sqrt(clients) * sigma)
    return one_round * _saturating(c * rate * smoothness * math.log(steps + 1), rounds)


def theorem_3c(*, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float) -> float:
    """Theorem 3(c), Eq. (17), stage-wise rate. Verdict A4: sound; it is plain composition, with 2 - 1/T for sum 1/t^2.

    Example:
        >>> round(theorem_3c(rounds=2, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0), 8)
        0.17320508
    """
    return 2 * rate * clip * steps / (math.sqrt(clients) * sigma) * math.sqrt(2 - 1 / rounds)


def theorem_3d(*, rounds: int, z: float, clip: float, clients: int, sigma: float) -> float:
    """Theorem 3(d), Eq. (18), continuous rate. Verdict A5: sound only with z >= `theorem_3d_least_z`, which grows with the steps.

    Example:
        >>> round(theorem_3d(rounds=10, z=3.3, clip=1.0, clients=50, sigma=1.0), 8)
        1.28657685
    """
    return 2 * z * clip / (math.sqrt(clients) * sigma) * math.sqrt(2 - 1 / rounds)


def theorem_3d_least_z(*, steps: int, rate: float) -> float:
    """The condition that Theorem 3(d) omits: z >= rate H_K / ln 2, H_K the harmonic number (THEORY A5).

    Example:
        >>> round(theorem_3d_least_z(steps=5, rate=1.0), 3)
        3.294
    """
    return rate * float((1 / np.arange(1, steps + 1)).sum()) / math.log(2)


def theorem_3d_exact(*, rounds: int, steps: int, rate: float, clip: float, clients: int) -> float:
    """The sum that Theorem 3(d) bounds: H = sum_t (2V/m rate sum_k 1/(tK + k + 1))^2 (THEORY A5). Sound.

    Example:
        >>> round(theorem_3d_exact(rounds=1000, steps=5, rate=1.0, clip=0.5, clients=1), 8)
        6.10257969
    """
    rates = rate / np.arange(1, rounds * steps + 1).reshape(rounds, steps)
    return float(np.square(2 * clip / clients * rates.sum(axis=1)).sum())


def theorem_4(*, rounds: int, clip: float, smoothness: float, proximal: float, clients: int, sigma: float) -> float:
    """Theorem 4, Eq. (19), FedProx. Verdict A3: UNSOUND; `linear_fedprox` exceeds it, and eta <= 1/alpha is needed besides.

    Example:
        >>> round(theorem_4(rounds=2, clip=1.0, smoothness=0.5, proximal=1.0, clients=50, sigma=1.0), 8)
        0.37947332
    """
    one_round = 2 * clip / (math.sqrt(clients) * proximal * sigma)
    return one_round * _saturating(math.log(proximal / (proximal - smoothness)), rounds)


def appendix_g3(rho: Iterable[float], gamma: Iterable[float]) -> float:
    """H_0 of G.3 (Cauchy-Schwarz): (sum P gamma)^2 / sum P^2. Verdict A1: UNSOUND for rho > 1, where its path has d < 0.

    Example:
        >>> round(appendix_g3([1.5] * 5, [1.0] * 5), 8)
        3.83636364
    """
    factors, shifts = np.asarray(list(rho), dtype=float), np.asarray(list(gamma), dtype=float)
    left = np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
    return float(np.dot(left, shifts) ** 2 / np.dot(left, left))


def linear_fedavg(*, rounds: int, steps: int, rate: float, clip: float, clients: int, sigma: float) -> float:
    """Exact Gaussian parameter of the last model for linear losses, constant rate: sqrt(T) 2 rate V K / (sqrt(m) sigma) (THEORY A2).

    Example:
        >>> round(linear_fedavg(rounds=2, steps=5, rate=0.1, clip=1.0, clients=50, sigma=1.0), 8)
        0.2
    """
    return math.sqrt(rounds) * 2 * rate * clip * steps / (math.sqrt(clients) * sigma)


def linear_fedprox(*, rounds: int, steps: int, rate: float, clip: float, proximal: float, clients: int, sigma: float) -> float:
    """The same for FedProx: sqrt(T) 2 V (1 - (1 - eta alpha)^K) / (sqrt(m) alpha sigma) (THEORY A3).

    Example:
        >>> round(linear_fedprox(rounds=2, steps=20, rate=0.5, clip=1.0, proximal=1.0, clients=50, sigma=1.0), 8)
        0.39999962
    """
    shift = 2 * clip * abs(1 - (1 - rate * proximal) ** steps) / proximal
    return math.sqrt(rounds) * shift / (math.sqrt(clients) * sigma)


def _saturating(log_rho: float, rounds: int) -> float:
    """sqrt((rho + 1)/(rho - 1) (rho^T - 1)/(rho^T + 1)): the factor of (15), (16) and (19), which stays bounded in T."""
    if log_rho == 0:
        return math.sqrt(rounds)
    return math.sqrt(math.tanh(rounds * log_rho / 2) / math.tanh(log_rho / 2))
