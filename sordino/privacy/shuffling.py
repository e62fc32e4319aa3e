"""Shuffled uploads: amplification by clones, exact and from above (THEORY B7; Feldman, McMillan and Talwar 2021, Thm 3.1).

All n clients apply the SAME eps0-LDP randomiser to their whole contribution, and the adversary sees only the multiset of outputs.
Every other client then imitates either of the two inputs of the attacked one, a fair coin, with probability e^-eps0. What
the adversary sees is a post-processing of one of the two laws

    (A + D, C - A + 1 - D)  and  (A + 1 - D, C - A + D),   C ~ Bin(n - 1, e^-eps0), A ~ Bin(C, 1/2), D ~ Bern(e^eps0 / (1 + e^eps0)).

`clients` counts honest clients actually in the batch. Noise calibrated for one record is not enough: eps0 is between any two
local data sets.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln, xlog1py, xlogy

from sordino.privacy import checks, gaussian
from sordino.privacy.losses import INTERVAL, LossCurve
from sordino.privacy.roots import bracket

_TAIL = 1e-25  # probability of the numbers of clones that are not summed but added to delta whole
_DOTS = 400


def delta(epsilon: float, *, local: float, clients: int, share: float = 1.0) -> float:
    """Delta at `epsilon` after shuffling `clients` outputs of a pure `local`-LDP randomiser, rounded up.

    Where every other client is in the batch with probability `share` only, C ~ Bin(n - 1, share e^-local): a binomial of a binomial.

    Example:
        >>> round(delta(0.6, local=3.0, clients=1000), 8)
        0.00147389
    """
    checks.not_negative(epsilon=epsilon)
    _check(local, clients)
    if epsilon >= local:
        return 0.0
    clones, masses, cut = _clones(clients - 1, share * math.exp(-local), _TAIL)
    keep = 1 / (1 + math.exp(-local))  # P(D = 1)
    growth = math.exp(epsilon)
    # The ratio of the two laws rises in A + D and passes e^epsilon at this share of the C + 1 outputs.
    share = (growth * keep - (1 - keep)) / ((2 * keep - 1) * (1 + growth))
    first = np.floor(share * (clones + 1)) + 1
    tail = _at_least(first, clones)
    # sum over a >= first of P(a) - e^epsilon Q(a), with P(A >= first - 1) = P(A >= first) + P(A = first - 1)
    point = np.exp(_log_choose(clones, first - 1) - clones * math.log(2))
    excess = (keep - growth * (1 - keep)) * point - (growth - 1) * tail
    return min(1.0, float(np.dot(masses, np.maximum(excess, 0.0))) * (1 + 1e-11) + cut)


def epsilon(target: float, *, local: float, clients: int, share: float = 1.0) -> float:
    """Smallest epsilon at delta = `target`, rounded up; never above `local`.

    Example:
        >>> round(epsilon(1e-6, local=1.0, clients=1000), 6)
        0.182412
    """
    checks.proper_delta(target)
    _check(local, clients)
    if local == 0 or delta(0.0, local=local, clients=clients, share=share) <= target:
        return 0.0
    return bracket(
        lambda value: math.log(
            max(delta(value, local=local, clients=clients, share=share), 1e-320) / target
        ),
        0.0,
        local,
    )[1]


def rdp(order: float, *, local: float, clients: int) -> float:
    """Rényi divergence of the two laws, the same in both directions: for composition over rounds.

    Example:
        >>> round(rdp(2, local=1.0, clients=100), 10)
        0.0233609076
    """
    checks.order(order)
    _check(local, clients)
    if local == 0 or order == 1:
        return (
            0.0 if local == 0 else rdp(1 + 1e-6, local=local, clients=clients)
        )  # the divergence does not decrease in the order
    keep = 1 / (1 + math.exp(-local))
    # A ratio is at most e^local, so what a cut of mass t leaves out of the moment is at most t e^(order local).
    log_cut = math.log(1e-16) - order * local
    clones, masses, _ = _clones(clients - 1, math.exp(-local), 0.0, log_floor=log_cut)
    excess = 0.0
    for count, weight in zip(clones.tolist(), masses.tolist(), strict=True):
        half = min(
            count, math.ceil(math.sqrt(max(0.0, -log_cut) * count / 2)) + 1
        )  # Hoeffding, for A + D about (C + 1)/2
        seen = np.arange(max(0, count // 2 - half), min(count + 1, (count + 1) // 2 + 1 + half) + 1)
        lower = np.exp(_log_choose(np.array(count), seen - 1) - count * math.log(2))
        upper = np.exp(_log_choose(np.array(count), seen) - count * math.log(2))
        second = (1 - keep) * lower + keep * upper
        ratio = (keep * seen + (1 - keep) * (count + 1 - seen)) / (
            (1 - keep) * seen + keep * (count + 1 - seen)
        )
        with np.errstate(over="ignore"):
            excess += weight * float(np.dot(second, np.expm1(order * np.log(ratio))))
    return (
        min(local, max(0.0, math.log1p(excess + 1e-16)) / (order - 1))
        if math.isfinite(excess)
        else local
    )


def delta_approximate(epsilon: float, *, local: float, local_delta: float, clients: int) -> float:
    """The same for a randomiser that is (local, local_delta)-LDP, one round (THEORY B7, proved there).

    delta_pure + (1 + e^epsilon) local_delta (1 + 2 (n - 1) e^-local).

    Example:
        >>> round(delta_approximate(0.2, local=1.0, local_delta=1e-10, clients=1000), 12)
        3.69481e-07
    """
    checks.probability(local_delta=local_delta)
    spill = (1 + math.exp(epsilon)) * local_delta * (1 + 2 * (clients - 1) * math.exp(-local))
    return min(1.0, delta(epsilon, local=local, clients=clients) + spill)


def gaussian_epsilon(target: float, *, mu: float, clients: int) -> float:
    """Epsilon at delta = `target` when each of n shuffled outputs is mu-GDP between any two local data sets; one round.

    Gaussian noise is (local, delta_mu(local))-LDP for every `local`: each is valid and the best of a grid is returned. Never above
    the epsilon without shuffling, which is what few clients leave.

    Example:
        >>> round(gaussian_epsilon(1e-6, mu=1.0, clients=100_000), 2)
        0.96
    """
    checks.not_negative(mu=mu)
    checks.proper_delta(target)
    checks.whole(at_least=1, clients=clients)
    best = gaussian.epsilon(mu, target)
    if best == 0 or math.isinf(best):
        return best
    for local in np.linspace(best, 3 * best + 2, 40).tolist():
        spilled = gaussian.delta(mu, local)
        if delta_approximate(best, local=local, local_delta=spilled, clients=clients) >= target:
            continue

        def excess(value: float, local: float = local, spilled: float = spilled) -> float:
            return math.log(
                max(
                    delta_approximate(value, local=local, local_delta=spilled, clients=clients),
                    1e-320,
                )
                / target
            )

        best = 0.0 if excess(0.0) <= 0 else bracket(excess, 0.0, best)[1]
    return best


def curve(
    *, local: float, clients: int, share: float = 1.0, interval: float = INTERVAL
) -> LossCurve:
    """One shuffled round of a pure `local`-LDP randomiser as a privacy-loss distribution, to be composed over rounds.

    Example:
        >>> round(curve(local=1.0, clients=1000).epsilon(1e-6), 3)
        0.182
    """
    _check(local, clients)
    top = max(epsilon(1e-18, local=local, clients=clients, share=share), interval)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        return np.array(
            [delta(float(value), local=local, clients=clients, share=share) for value in epsilons]
        )

    return LossCurve.from_profile(
        deltas, interval=interval, gap=max(1, round(top / _DOTS / interval))
    )


def _check(local: float, clients: int) -> None:
    checks.finite(local=local)
    checks.whole(at_least=1, clients=clients)


@lru_cache(maxsize=64)
def _clones(
    others: int, rate: float, tail: float, log_floor: float = -math.inf
) -> tuple[np.ndarray, np.ndarray, float]:
    """Numbers of clones, their probabilities, and the probability of those left out at both ends."""
    counts = np.arange(others + 1)
    logs = (
        _log_choose(np.array(others), counts)
        + xlogy(counts, rate)
        + xlog1py(others - counts, -rate)
    )
    if math.isinf(log_floor):
        log_floor = math.log(tail) - math.log(others + 1)
    kept = np.flatnonzero(logs > log_floor - math.log(others + 1))
    low, high = int(kept[0]), int(kept[-1])
    cut = (float(bdtr(low - 1, others, rate)) if low > 0 else 0.0) + (
        float(bdtrc(high, others, rate)) if high < others else 0.0
    )
    return counts[low : high + 1], np.exp(logs[low : high + 1]), cut


def _at_least(first: np.ndarray, clones: np.ndarray) -> np.ndarray:
    """P(Bin(clones, 1/2) >= first)."""
    inside = (first >= 1) & (first <= clones)
    tail = bdtrc(np.where(inside, first - 1, 0), np.where(inside, clones, 1), 0.5)
    return np.where(inside, tail, np.where(first < 1, 1.0, 0.0))


def _log_choose(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    inside = (part >= 0) & (part <= whole)
    chosen = np.where(inside, part, 0)
    return np.where(
        inside,
        gammaln(whole + 1.0) - gammaln(chosen + 1.0) - gammaln(whole - chosen + 1.0),
        -np.inf,
    )
