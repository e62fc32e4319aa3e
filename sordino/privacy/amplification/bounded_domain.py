"""The last model again, when every released model is projected onto a ball of diameter D.

Two models are then never further apart than D, so the analysis may start in any round t0 with
d_{t0} = D and forget what came before: H = min over t0 (docs/theory.md#a7, bounded domain). Every
t0 is a valid bound, so a few hundred of them are looked at; of longer runs that costs at most some
hundredths of a percent of H.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.privacy.amplification.last_iterate import check_dynamics, last_iterate
from sordino.privacy.curves import checks

# Starts that are looked at first; shorter runs are searched completely.
_STARTS = 256
# Starts between the neighbours of the best one that are looked at in each further pass.
_BETWEEN = 8


def last_iterate_bounded(
    rho: Iterable[float], gamma: Iterable[float], diameter: float | np.ndarray
) -> tuple[float, int]:
    """Returns the smallest H over many starts, and the start that gives it.

    Args:
        rho: By how much each round stretches the distance of two models, at most.
        gamma: By how much each round moves two equal models apart, at most, in units of its noise.
        diameter: How far apart two models ever are, such as the diameter of a ball onto which every
            one is projected; one for each round, before it, where the unit differs.

    Returns:
        H, and the round t0 in which the analysis starts; 0 means that the diameter did not help.

    Example:
        >>> H, t0 = last_iterate_bounded([1.0] * 100, [1.0] * 100, 10.0)
        >>> round(H, 9), t0
        (40.0, 90)
    """
    rho, gamma = check_dynamics(rho, gamma, 0.0)
    distances = np.broadcast_to(np.asarray(diameter, dtype=np.float64), rho.shape)
    checks.require_finite(diameter=float(distances.max(initial=0.0)))
    checks.require_finite(diameter=float(distances.min(initial=0.0)))
    relaxed = _relax_starts(rho, gamma, distances)
    best = last_iterate(rho, gamma)
    best_start = 0
    # Rounds from the start to the end grow geometrically: late starts differ the most.
    lengths = np.geomspace(1, rho.size, min(_STARTS, rho.size)).round().astype(np.int64)
    if rho.size <= _STARTS:
        lengths = np.arange(1, rho.size + 1)
    starts = np.unique(rho.size - lengths)
    while True:
        # Promising starts first: once a lower bound is not below the best, neither are the others.
        later = starts[starts > 0]
        order = np.argsort(relaxed[later], kind="stable")
        for start in later[order].tolist():
            if relaxed[start] >= best:
                break
            energy = last_iterate(rho[start:], gamma[start:], float(distances[start]))
            if energy < best:
                best = energy
                best_start = start
        if best_start == 0:
            return best, 0
        # The best start lies between the neighbours of the best one that was looked at.
        earlier = starts[starts < best_start]
        later = starts[starts > best_start]
        left = int(earlier.max(initial=0))
        right = int(later.min(initial=rho.size))
        if right - left <= 2:
            return best, best_start
        between = np.linspace(left, right, _BETWEEN + 2).astype(np.int64)
        starts = np.unique(np.append(between, best_start))
        starts = starts[starts < rho.size]


def _relax_starts(rho: np.ndarray, gamma: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Returns a lower bound on H from every start: the cost when only d_T = 0 is asked for.

    By Cauchy and Schwarz it is (sum P_t gamma_t + P D)^2 / sum P_t^2, with P_t the product of the
    rhos after round t.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log P_t, and logarithms of the two sums from every start on.
        later_logs = np.cumsum(np.log(rho[:0:-1]))
        left = np.concatenate([later_logs[::-1], [0.0]])
        shifted = _sum_from_each(left + np.log(gamma))
        mass = _sum_from_each(2 * left)
        # The logarithm of no distance is minus infinity, and adds nothing.
        initial = left + np.log(rho) + np.log(distances)
        total = np.logaddexp(shifted, initial)
        bounds = np.exp(2 * total - mass) * (1 - 1e-9)
    valid: np.ndarray = np.nan_to_num(bounds, nan=0.0)
    return valid


def _sum_from_each(logs: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the sum of all terms from each one on."""
    from_the_end = np.logaddexp.accumulate(logs[::-1])
    return from_the_end[::-1]
