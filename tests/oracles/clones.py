"""Rounds behind a shuffler by other ways: Rényi divergences, approximate local privacy, Gaussian outputs."""

from __future__ import annotations

import math

import numpy as np

from sordino.privacy.amplification import shuffling
from sordino.privacy.amplification.shuffling import count_clones
from sordino.privacy.curves import checks, gaussian
from sordino.privacy.curves.combinatorics import log_choose
from sordino.privacy.curves.roots import bracket_root


def delta_approximate(epsilon: float, *, local: float, local_delta: float, clients: int) -> float:
    """The same for a randomiser that is (local, local_delta)-LDP, one round (docs/theory.md#b7, proved there).

    delta_pure + (1 + e^epsilon) local_delta (1 + 2 (n - 1) e^-local).

    Example:
        >>> round(delta_approximate(0.2, local=1.0, local_delta=1e-10, clients=1000), 12)
        3.69481e-07
    """
    checks.require_probability(local_delta=local_delta)
    spill = (1 + math.exp(epsilon)) * local_delta * (1 + 2 * (clients - 1) * math.exp(-local))
    return min(1.0, shuffling.find_shuffled_delta(epsilon, local=local, clients=clients) + spill)


def shuffled_gaussian_epsilon(target: float, *, mu: float, clients: int) -> float:
    """Epsilon at delta = `target` when each of n shuffled outputs is mu-GDP between any two local data sets; one round.

    Gaussian noise is (local, delta_mu(local))-LDP for every `local`: each is valid and the best of a grid is returned. Never above
    the epsilon without shuffling, which is what few clients leave.

    Example:
        >>> round(shuffled_gaussian_epsilon(1e-6, mu=1.0, clients=100_000), 2)
        0.96
    """
    checks.require_nonnegative(mu=mu)
    checks.require_delta(target)
    checks.require_whole(at_least=1, clients=clients)
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

        best = 0.0 if excess(0.0) <= 0 else bracket_root(excess, 0.0, best)[1]
    return best


def clones_rdp(order: float, *, local: float, clients: int) -> float:
    """Rényi divergence of the two laws, the same in both directions: for composition over rounds.

    Example:
        >>> round(clones_rdp(2, local=1.0, clients=100), 10)
        0.0233609076
    """
    checks.require_order(order)
    if local == 0 or order == 1:
        return (
            0.0 if local == 0 else clones_rdp(1 + 1e-6, local=local, clients=clients)
        )  # the divergence does not decrease in the order
    keep = 1 / (1 + math.exp(-local))
    # A ratio is at most e^local, so what a cut of mass t leaves out of the moment is at most t e^(order local).
    log_cut = math.log(1e-16) - order * local
    clones, masses, _ = count_clones(clients - 1, math.exp(-local), 0.0, log_floor=log_cut)
    excess = 0.0
    for count, weight in zip(clones.tolist(), masses.tolist(), strict=True):
        half = min(
            count, math.ceil(math.sqrt(max(0.0, -log_cut) * count / 2)) + 1
        )  # Hoeffding, for A + D about (C + 1)/2
        seen = np.arange(max(0, count // 2 - half), min(count + 1, (count + 1) // 2 + 1 + half) + 1)
        lower = np.exp(log_choose(np.array(count), seen - 1) - count * math.log(2))
        upper = np.exp(log_choose(np.array(count), seen) - count * math.log(2))
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
