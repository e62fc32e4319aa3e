"""Shuffled uploads: amplification by clones, exact and from above (docs/theory.md#b7).

All n clients apply the SAME eps0-LDP randomiser to their whole contribution, and the adversary sees
only the multiset of outputs (Feldman, McMillan and Talwar 2021, Thm 3.1). Every other client then
imitates either of the two inputs of the attacked one, a fair coin, with probability e^-eps0. What
the adversary sees is a post-processing of one of the two laws

    (A + D, C - A + 1 - D)  and  (A + 1 - D, C - A + D),
    C ~ Bin(n - 1, e^-eps0), A ~ Bin(C, 1/2), D ~ Bern(e^eps0 / (1 + e^eps0)).

`clients` counts honest clients actually in the batch. Noise calibrated for one record is not
enough: eps0 is between any two local data sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc

from sordino.privacy.curves import checks
from sordino.privacy.curves.combinatorics import log_binomial, log_choose
from sordino.privacy.curves.roots import bracket_root

# Probability of the numbers of clones that are not summed but added to delta whole.
_TAIL = 1e-25
# Pairs of an epsilon and a number of clones in memory.
_AT_ONCE = 1 << 20
# Points from one at which a bound is looked at to the next.
_STRIDE = 8
# Clones up to which the tails of a fair coin are kept as a table (8 MB), made once a process.
_TABLED = 1023


def find_shuffled_delta(
    epsilon: float,
    *,
    local: float,
    clients: int,
    share: float = 1.0,
) -> float:
    """Returns delta at one epsilon; see `find_shuffled_deltas`.

    Args:
        epsilon: The epsilon, of at least 0.
        local: The pure epsilon of the randomiser that every client applies.
        clients: The number of outputs in the batch, the attacked client's included.
        share: The probability that each of the others is in the batch.

    Returns:
        Delta, rounded up.

    Example:
        >>> round(find_shuffled_delta(0.6, local=3.0, clients=1000), 8)
        0.00147389
    """
    checks.require_nonnegative(epsilon=epsilon)
    found = find_shuffled_deltas(
        np.array([epsilon]),
        local=local,
        clients=clients,
        share=share,
    )
    return float(found[0])


def find_shuffled_deltas(
    epsilons: np.ndarray, *, local: float, clients: int, share: float = 1.0
) -> np.ndarray:
    """Returns delta at each epsilon >= 0 after shuffling, rounded up.

    Args:
        epsilons: The epsilons, each of at least 0.
        local: The pure epsilon of the randomiser that every client applies.
        clients: The number of outputs in the batch, the attacked client's included.
        share: The probability that each of the others is in the batch: the number of clones is then
            Bin(n - 1, share e^-local), a binomial of a binomial.

    Returns:
        Delta at each of them; 0 from `local` on.

    Example:
        >>> find_shuffled_deltas(np.array([0.6, 3.0]), local=3.0, clients=1000).round(8).tolist()
        [0.00147389, 0.0]
    """
    _check_batch(local, clients)
    rate = share * math.exp(-local)
    clones, masses, cut = count_clones(clients - 1, rate, _TAIL)
    found = np.zeros(epsilons.size)
    below = np.flatnonzero(epsilons < local)
    pieces = max(1, below.size * clones.size // _AT_ONCE)
    for some in np.array_split(below, pieces):
        given_clones = _excess_given_clones(epsilons[some], local, clones)
        found[some] = given_clones @ masses
    # Numbers of clones that were left out are counted as if they hid nothing.
    rounded_up = found[below] * (1 + 1e-11) + cut
    found[below] = np.minimum(rounded_up, 1.0)
    return found


def _excess_given_clones(epsilons: np.ndarray, local: float, clones: np.ndarray) -> np.ndarray:
    """Returns delta given the number of clones: an epsilon a row, a number of clones a column."""
    # The probabilities that D is 1 and 0.
    keep = 1 / (1 + math.exp(-local))
    flip = 1 - keep
    growth = np.exp(epsilons)[:, None]
    # The ratio of the two laws rises in A + D and passes e^epsilon at this share of the C + 1.
    share = (growth * keep - flip) / ((2 * keep - 1) * (1 + growth))
    first = np.floor(share * (clones + 1)) + 1
    tail = _at_least(first, clones)
    # Sum over a >= first of P(a) - e^epsilon Q(a), with
    # P(A >= first - 1) = P(A >= first) + P(A = first - 1).
    log_point = log_choose(clones, first - 1) - clones * math.log(2)
    point = np.exp(log_point)
    gained = (keep - growth * flip) * point
    lost = (growth - 1) * tail
    deltas: np.ndarray = np.maximum(gained - lost, 0.0)
    return deltas


def smallest_deltas(
    epsilons: np.ndarray,
    known: np.ndarray,
    guarantees: Iterable[tuple[float, float]],
    *,
    others: int,
    share: float,
) -> np.ndarray:
    """Returns the smallest of many clones bounds of one round at each epsilon.

    A randomiser that is (eps0, delta0)-LDP has delta_pure + (1 + e^eps) delta0 (1 + 2 (n - 1)
    e^-eps0) (docs/theory.md#b7); a random batch averages both terms, which keeps the form. A bound
    is only computed where it may be the smallest: its second term is cheap, and its first never
    grows in epsilon.

    Args:
        epsilons: The epsilons, increasing from 0 on.
        known: The delta of one output at each epsilon, which always holds.
        guarantees: The pairs (eps0, delta0) that hold for one output.
        others: The number of other honest clients who may be in the batch.
        share: The probability that each of them is in the batch.

    Returns:
        Delta at each epsilon, never above `known`.
    """
    best = known.copy()
    for local, spill in guarantees:
        crowd = 1 + 2 * others * share * math.exp(-local)
        with np.errstate(over="ignore"):
            extra = (1 + np.exp(epsilons)) * spill * crowd
        if spill == 0:
            extra = np.zeros_like(epsilons)
        unsettled = np.flatnonzero(extra < best)
        if unsettled.size == 0:
            continue
        marks = np.unique(np.append(unsettled[::_STRIDE], unsettled[-1]))
        at_marks = find_shuffled_deltas(
            epsilons[marks],
            local=local,
            clients=others + 1,
            share=share,
        )
        # Delta does not increase, so that it is at least what it is at the next mark.
        at_least = at_marks[np.searchsorted(marks, unsettled)]
        may_improve = at_least + extra[unsettled] < best[unsettled]
        rest = np.setdiff1d(unsettled[may_improve], marks, assume_unique=True)
        at_rest = find_shuffled_deltas(epsilons[rest], local=local, clients=others + 1, share=share)
        at_marks = at_marks + extra[marks]
        at_rest = at_rest + extra[rest]
        best[marks] = np.minimum(best[marks], at_marks)
        best[rest] = np.minimum(best[rest], at_rest)
    return best


def find_shuffled_epsilon(
    target: float, *, local: float, clients: int, share: float = 1.0
) -> float:
    """Returns the smallest epsilon at delta = `target`, rounded up; never above `local`.

    Args:
        target: The delta of the guarantee, above 0 and below 1.
        local: The pure epsilon of the randomiser that every client applies.
        clients: The number of outputs in the batch, the attacked client's included.
        share: The probability that each of the others is in the batch.

    Example:
        >>> round(find_shuffled_epsilon(1e-6, local=1.0, clients=1000), 6)
        0.182412
    """
    checks.require_delta(target)
    _check_batch(local, clients)

    def find_delta(value: float) -> float:
        """Returns the delta of the shuffled uploads.

        Args:
            value: An epsilon.
        """
        return find_shuffled_delta(
            value,
            local=local,
            clients=clients,
            share=share,
        )

    if local == 0 or find_delta(0.0) <= target:
        return 0.0

    def find_excess(value: float) -> float:
        """Returns by how much the logarithm of delta passes the target's.

        Args:
            value: An epsilon.
        """
        # The logarithm of a delta that may be 0, which is kept off it.
        positive = max(find_delta(value), 1e-320)
        return math.log(positive / target)

    _, found = bracket_root(find_excess, 0.0, local)
    return found


def _check_batch(local: float, clients: int) -> None:
    """Refuses randomisers without a finite epsilon, and batches without the attacked client."""
    checks.require_finite(local=local)
    checks.require_whole(at_least=1, clients=clients)


@lru_cache(maxsize=64)
def count_clones(
    others: int, rate: float, tail: float, log_floor: float = -math.inf
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns numbers of clones, their probabilities, and the probability of those left out.

    Args:
        others: The number of clients who may be clones.
        rate: The probability that each of them is a clone.
        tail: The probability that may be left out.
        log_floor: Logarithm of the probability below which a number is left out; by default it
            follows from `tail`.

    Returns:
        Successive numbers, the probability of each, and that of all others together.
    """
    counts = np.arange(others + 1)
    logs = log_binomial(others, rate)
    if math.isinf(log_floor):
        log_floor = math.log(tail) - math.log(others + 1)
    kept = np.flatnonzero(logs > log_floor - math.log(others + 1))
    low = int(kept[0])
    high = int(kept[-1])
    cut = 0.0
    if low > 0:
        cut += float(bdtr(low - 1, others, rate))
    if high < others:
        cut += float(bdtrc(high, others, rate))
    window = slice(low, high + 1)
    return counts[window], np.exp(logs[window]), cut


def _at_least(first: np.ndarray, clones: np.ndarray) -> np.ndarray:
    """Returns P(Bin(clones, 1/2) >= first)."""
    if clones[-1] <= _TABLED:
        column = np.clip(first, 0, _TABLED + 1).astype(np.intp)
        tails: np.ndarray = tabulate_coin_tails()[clones, column]
        return tails
    inside = (first >= 1) & (first <= clones)
    # Any arguments that are allowed do outside, where the answer is 0 or 1.
    below = np.where(inside, first - 1, 0)
    trials = np.where(inside, clones, 1)
    tail = bdtrc(below, trials, 0.5)
    outside = np.where(first < 1, 1.0, 0.0)
    return np.where(inside, tail, outside)


@lru_cache(maxsize=1)
def tabulate_coin_tails() -> np.ndarray:
    """Returns P(Bin(n, 1/2) >= k) in row n and column k, by Pascal's rule.

    All terms are positive, so no digit is lost. Calibration looks up millions of tails, for which
    the incomplete beta function takes twenty times as long.
    """
    tails = np.zeros((_TABLED + 1, _TABLED + 2))
    tails[:, 0] = 1.0
    for trials in range(1, _TABLED + 1):
        previous = tails[trials - 1]
        tails[trials, 1:] = (previous[1:] + previous[:-1]) / 2
    return tails
