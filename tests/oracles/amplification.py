"""Published bounds on sampling and shuffling, recalled from the literature that udp-fl rests on.

Tests hold the package's tighter bounds against them. Nothing here is a promise.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp


def girgis(*, order: int, local: float, clients: int) -> float:
    """Returns the general bound of Girgis, Data, Diggavi, Suresh and Kairouz, CCS 2021 (docs/theory.md#b7)."""
    blanket = math.floor((clients - 1) / (2 * math.exp(local))) + 1
    terms = np.arange(3, order + 1)
    log_ratio = 2 * math.log(math.expm1(2 * local)) - 2 * local - math.log(2 * blanket)
    second = (
        math.log(order * (order - 1) / 2)
        + 2 * math.log(math.expm1(local))
        - local
        - math.log(blanket)
    )
    later = log_choose(order, terms) + np.log(terms) + gammaln(terms / 2) + terms / 2 * log_ratio
    tail = local * order - (clients - 1) / (8 * math.exp(local))
    return float(logsumexp([0.0, second, *later.tolist(), tail])) / (order - 1)


def clones_closed_form(*, delta: float, local: float, clients: int) -> float:
    """Returns the closed form of Feldman, McMillan and Talwar 2021, Theorem 3.1.

    `sordino.privacy.amplification.shuffling` sums exactly.
    """
    if local > math.log(clients / (16 * math.log(2 / delta))):
        return local
    spread = (
        8 * math.sqrt(math.exp(local) * math.log(4 / delta) / clients)
        + 8 * math.exp(local) / clients
    )
    return math.log1p(math.tanh(local / 2) * spread)


def zhu_wang(order: int, rate: float, divergence: Callable[[int], float]) -> float:
    """Returns the bound of Zhu and Wang 2019 for Poisson subsampling of any mechanism (docs/theory.md#b6).

    It has a factor 3 from the third term on.
    """
    terms = np.arange(2, order + 1)
    logs = log_choose(order, terms) + (order - terms) * math.log1p(-rate) + terms * math.log(rate)
    logs = logs + np.array([(term - 1) * divergence(int(term)) for term in terms])
    logs = logs + np.where(terms > 2, math.log(3), 0.0)
    first = (order - 1) * math.log1p(-rate) + math.log1p((order - 1) * rate)
    return float(logsumexp(np.append(logs, first))) / (order - 1)


def wang_balle_kasiviswanathan(
    order: int, rate: float, divergence: Callable[[int], float], *, largest_loss: float = math.inf
) -> float:
    """Returns the bound of Wang, Balle and Kasiviswanathan 2019, Theorem 9 (docs/theory.md#b6).

    It is for sampling without replacement, where one record is replaced.
    """
    worst = math.expm1(largest_loss) if largest_loss < 700 else math.inf
    second = divergence(2)
    factor = min(4 * math.expm1(second), math.exp(second) * min(2.0, worst**2))
    logs = [0.0, 2 * math.log(rate) + math.log(order * (order - 1) / 2) + math.log(factor)]
    for term in range(3, order + 1):
        capped = math.log(2)
        if worst <= 2:
            capped = min(capped, term * math.log(worst))
        chosen = float(log_choose(order, np.array(term)))
        logs.append(term * math.log(rate) + chosen + (term - 1) * divergence(term) + capped)
    return float(logsumexp(logs)) / (order - 1)


def log_choose(whole: int, part: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the binomial coefficient."""
    return gammaln(whole + 1) - gammaln(part + 1) - gammaln(whole - part + 1)
