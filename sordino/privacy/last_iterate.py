"""What the last model reveals when the models before it stay hidden: the greatest convex minorant (THEORY A7).

Two neighbouring runs move apart by d <- rho_t d + gamma_t in round t, noise of unit variance is added in every round, and only
the last model is seen. Shifting the noise of round t by x_t closes the gap: the last model is sqrt(H)-GDP with

    H = min sum x_t^2   subject to   d_{t+1} = rho_t d_t + gamma_t - x_t >= 0,   d_T = 0.

With R_t = rho_0 ... rho_t this is weighted isotonic regression of gamma_t R_t with weights R_t^-2: its pooled blocks are the
edges of a convex minorant. The bound is exact: `worst_case_dynamics` are linear dynamics, no wilder than rho, that attain it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sordino.privacy import checks
from sordino.protocol.errors import UserError

_WIDEST = 300.0  # |log R| up to which the weights R^-2 and all sums of them are ordinary floats


def last_iterate(rho: Iterable[float], gamma: Iterable[float], d0: float = 0.0) -> float:
    """H for any rho >= 0 and gamma >= 0, rounded up: composition gives sum gamma_t^2, this never more.

    Args:
        rho: By how much each round stretches the distance of two models, at most.
        gamma: By how much each round moves two equal models apart, at most, in units of the round's noise.
        d0: Distance of the two initial models.

    Example:
        >>> round(last_iterate([0.9] * 10, [1.0] * 10), 9), round(last_iterate([1.5] * 5, [1.0] * 5), 9)
        (9.175730308, 5.0)
    """
    rho, gamma = _checked(rho, gamma, d0)
    gamma = gamma.copy()
    gamma[0] += float(rho[0]) * d0  # an initial distance is a larger first shift
    scale = float(gamma.max())
    if scale == 0 or math.isinf(scale):
        return scale
    blocks = _pooled(rho, gamma / scale)
    total = float(np.square(blocks.heights).sum())
    # Each product of rhos is off by half an ulp per factor, which is a change of each rho: it moves H by at most T ulps or so.
    return total * scale * scale * (1 + 4 * rho.size * 2.0**-53)


def constant(rho: float, gamma: float, rounds: int) -> float:
    """H in closed form when rho and gamma are the same in every round (THEORY A7; Bok, Su and Altschuler 2024 for rho < 1).

    Example:
        >>> round(constant(0.9, 1.0, 10), 9), constant(1.01, 2.0, 1_000_000)
        (9.175730308, 4000000.0)
    """
    checks.finite(rho=rho, gamma=gamma)
    checks.whole(at_least=1, rounds=rounds)
    if rho >= 1:
        return rounds * gamma * gamma
    if rho == 0:
        return gamma * gamma
    contracted = rounds * math.log(
        rho
    )  # (1 - rho^T) / (1 + rho^T) = tanh(-T log(rho) / 2), which does not cancel
    return gamma * gamma * (1 + rho) / (1 - rho) * math.tanh(-contracted / 2)


def linear_energy(rho: Iterable[float], gamma: Iterable[float]) -> float:
    """The exact squared GDP parameter of w <- rho_t w +- gamma_t / 2 + N(0, 1): (sum P_t gamma_t)^2 / sum P_t^2.

    P_t is the product of the rhos after round t: how much of that round's shift, and of its noise, is left in the end.

    Example:
        >>> linear_energy([1.0] * 4, [1.0] * 4)
        4.0
    """
    rho, gamma = _checked(rho, gamma, 0.0)
    with np.errstate(divide="ignore"):
        logs = np.concatenate([np.cumsum(np.log(rho[:0:-1]))[::-1], [0.0]])
    left = np.exp(logs - logs.max())
    return float(np.dot(left, gamma) ** 2 / np.dot(left, left))


def worst_case_dynamics(rho: Iterable[float], gamma: Iterable[float]) -> np.ndarray:
    """Factors rho'_t <= rho_t for which the linear dynamics w <- rho'_t w +- gamma_t / 2 + noise attain H exactly (A7, tight).

    Inside a pooled block nothing changes; at the first round of each later block rho is lowered until the slopes of the two
    blocks agree, so that in the changed dynamics all of them pool into one.

    Example:
        >>> rho, gamma = [1.5] * 5, [1.0] * 5
        >>> worst_case_dynamics(rho, gamma).round(9).tolist()
        [1.5, 1.0, 1.0, 1.0, 1.0]
        >>> round(linear_energy(worst_case_dynamics(rho, gamma), gamma), 9) == round(last_iterate(rho, gamma), 9)
        True
    """
    rho, gamma = _checked(rho, gamma, 0.0)
    scale = float(gamma.max())
    if scale == 0:
        return rho.copy()
    blocks = _pooled(rho, gamma / scale)
    lowered = rho.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        # log A/B at a block's end, and log Q A/B at its start: not merged, so the first is below the second (A7, algorithm).
        slope_end = np.log(blocks.heights) - blocks.log_masses / 2
        slope_start = slope_end + blocks.log_products
        factors = np.exp(np.minimum(slope_end[:-1] - slope_start[1:], 0.0))
    factors = np.where(blocks.heights[:-1] == 0, 0.0, factors)  # nothing to hide before: forget it
    lowered[blocks.starts[1:]] *= factors
    return lowered


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """The pooled blocks, in order. A block holds A = sum P gamma and B = sum P^2, P being the product of later rhos inside it."""

    starts: np.ndarray
    heights: np.ndarray  # A / sqrt(B): its square is the block's share of H
    log_masses: np.ndarray  # log B
    log_products: np.ndarray  # log of the product of all rhos of the block


def _checked(
    rho: Iterable[float], gamma: Iterable[float], d0: float
) -> tuple[np.ndarray, np.ndarray]:
    rho, gamma = checks.vector("rho", rho), checks.vector("gamma", gamma)
    checks.finite(d0=d0)
    if rho.size != gamma.size:
        raise UserError(
            f"rho has {rho.size} rounds and gamma {gamma.size}: expected the same number."
        )
    return rho, gamma


def _pooled(rho: np.ndarray, gamma: np.ndarray) -> _Blocks:
    """Pools; rounds before the last rho = 0 are forgotten by the dynamics and cost nothing."""
    zeros = np.flatnonzero(rho[1:] == 0)
    first = int(zeros[-1]) + 1 if zeros.size else 0
    later = rho[first + 1 :]
    log_rho = np.concatenate(
        [[0.0], np.log(later)]
    )  # the first factor meets no distance and does not matter
    logs = np.cumsum(log_rho)
    if float(np.ptp(logs)) <= _WIDEST:
        blocks = _pooled_by_regression(later, logs, gamma[first:])
    else:
        blocks = _pooled_in_logs(log_rho, gamma[first:])
    if not first:
        return blocks
    return _Blocks(
        starts=np.concatenate([[0], blocks.starts + first]),
        heights=np.concatenate([[0.0], blocks.heights]),
        log_masses=np.concatenate([[0.0], blocks.log_masses]),
        log_products=np.concatenate([[0.0], blocks.log_products]),
    )


def _pooled_by_regression(later: np.ndarray, logs: np.ndarray, gamma: np.ndarray) -> _Blocks:
    """By scipy's isotonic regression of gamma R with weights R^-2, where R stays within floats."""
    from scipy.optimize import isotonic_regression

    centred = math.exp(-float(logs.max() + logs.min()) / 2)
    products = np.cumprod(np.concatenate([[centred], later]))
    weights = products**-2.0
    found = isotonic_regression(gamma * products, weights=weights)
    starts, ends = found.blocks[:-1], found.blocks[1:] - 1
    masses = np.add.reduceat(weights, starts)
    heights = np.add.reduceat(gamma / products, starts) / np.sqrt(masses)
    return _Blocks(
        starts=starts,
        heights=heights,
        log_masses=np.log(masses) + 2 * np.log(products[ends]),
        log_products=logs[ends] - np.concatenate([[0.0], logs[ends[:-1]]]),
    )


def _pooled_in_logs(log_rho: np.ndarray, gamma: np.ndarray) -> _Blocks:
    """Pool adjacent violators, with logarithms for everything that can overflow.

    Merging l and r, while A_l/B_l >= Q_r A_r/B_r, takes A <- Q_r A_l + A_r, B <- Q_r^2 B_l + B_r, Q <- Q_l Q_r. The height A / sqrt(B)
    stays an ordinary float: the sum of the two heights times sqrt(w) and sqrt(1 - w), w being the left share of B.
    """
    exp, log, log1p, sqrt = math.exp, math.log, math.log1p, math.sqrt
    starts: list[int] = []
    heights: list[float] = []
    masses: list[float] = []
    products: list[float] = []
    slopes: list[float] = []  # log A/B, at the block's end
    for start, (product, height) in enumerate(zip(log_rho.tolist(), gamma.tolist(), strict=True)):
        mass, slope = 0.0, log(height) if height > 0 else -math.inf
        while starts and slopes[-1] >= slope + product:
            left_share = (
                2 * product + masses.pop() - mass
            )  # log of left B over right B, both at the right end
            left_height = heights.pop()
            product += products.pop()
            start = starts.pop()
            slopes.pop()
            if left_share > 0:
                odds = exp(-left_share)
                mass += left_share + log1p(odds)
                height = (left_height + sqrt(odds) * height) / sqrt(1 + odds)
            else:
                odds = exp(left_share)
                mass += log1p(odds)
                height = (sqrt(odds) * left_height + height) / sqrt(1 + odds)
            slope = log(height) - mass / 2 if height > 0 else -math.inf
        starts.append(start)
        heights.append(height)
        masses.append(mass)
        products.append(product)
        slopes.append(slope)
    return _Blocks(
        starts=np.array(starts),
        heights=np.array(heights),
        log_masses=np.array(masses),
        log_products=np.array(products),
    )
