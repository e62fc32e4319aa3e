"""What the last model reveals when the models before it stay hidden (docs/theory.md#a7).

Two neighbouring runs move apart by d <- rho_t d + gamma_t in round t, noise of unit variance is
added in every round, and only the last model is seen. Shifting the noise of round t by x_t closes
the gap: the last model is sqrt(H)-GDP with

    H = min sum x_t^2   subject to   d_{t+1} = rho_t d_t + gamma_t - x_t >= 0,   d_T = 0.

With R_t = rho_0 ... rho_t this is weighted isotonic regression of gamma_t R_t with weights R_t^-2:
its pooled blocks are the edges of the greatest convex minorant. The bound is exact: linear
dynamics, no wilder than rho, attain it (docs/theory.md#a7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sordino.privacy.curves import checks
from sordino.protocol.errors import UserError

# |log R| up to which the weights R^-2 and all sums of them are ordinary floats.
_WIDEST = 300.0


def last_iterate(rho: Iterable[float], gamma: Iterable[float], d0: float = 0.0) -> float:
    """Returns H for any rho >= 0 and gamma >= 0, rounded up.

    Composition gives sum gamma_t^2, this never more.

    Args:
        rho: By how much each round stretches the distance of two models, at most.
        gamma: By how much each round moves two equal models apart, at most, in units of its noise.
        d0: The distance between the two initial models.

    Returns:
        H, whose root is the Gaussian parameter of the last model.

    Example:
        >>> round(last_iterate([0.9] * 10, [1.0] * 10), 9)
        9.175730308
        >>> round(last_iterate([1.5] * 5, [1.0] * 5), 9)
        5.0
    """
    rho, gamma = check_dynamics(rho, gamma, d0)
    gamma = gamma.copy()
    # An initial distance is a larger first shift.
    gamma[0] += float(rho[0]) * d0
    scale = float(gamma.max())
    if scale == 0 or math.isinf(scale):
        return scale
    blocks = pool_rounds(rho, gamma / scale)
    total = float(np.square(blocks.heights).sum())
    # Each product of rhos is off by half an ulp per factor, which is a change of each rho: it moves
    # H by at most T ulps or so.
    return total * scale * scale * (1 + 4 * rho.size * 2.0**-53)


def price_constant_rounds(rho: float, gamma: float, rounds: int) -> float:
    """Returns H in closed form when rho and gamma are the same in every round.

    Bok, Su and Altschuler 2024 for rho < 1.

    Args:
        rho: By how much a round stretches the distance of two models, at most.
        gamma: By how much a round moves two equal models apart, at most.
        rounds: The number of rounds.

    Example:
        >>> round(price_constant_rounds(0.9, 1.0, 10), 9)
        9.175730308
        >>> price_constant_rounds(1.01, 2.0, 1_000_000)
        4000000.0
    """
    checks.require_finite(rho=rho, gamma=gamma)
    checks.require_whole(at_least=1, rounds=rounds)
    if rho >= 1:
        return rounds * gamma * gamma
    if rho == 0:
        return gamma * gamma
    # (1 - rho^T) / (1 + rho^T) = tanh(-T log(rho) / 2), which does not cancel.
    contracted = rounds * math.log(rho)
    return gamma * gamma * (1 + rho) / (1 - rho) * math.tanh(-contracted / 2)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The pooled blocks, in order.

    A block has A = sum P gamma and B = sum P^2, P being the product of later rhos inside it.

    Attributes:
        starts: The first round of each block.
        heights: The height A / sqrt(B) of each block, whose square is the block's share of H.
        log_masses: The logarithm of B.
        log_products: The logarithm of the product of all rhos of the block.
    """

    starts: np.ndarray
    heights: np.ndarray
    log_masses: np.ndarray
    log_products: np.ndarray


def check_dynamics(
    rho: Iterable[float], gamma: Iterable[float], d0: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the stretches and the shifts of all rounds as arrays.

    Args:
        rho: By how much each round stretches the distance of two models.
        gamma: By how much each round moves two equal models apart.
        d0: The distance between the two initial models.

    Returns:
        Two arrays of the same length.

    Raises:
        UserError: Numbers that are not finite or below 0, or different numbers of rounds.
    """
    rho = checks.read_vector("rho", rho)
    gamma = checks.read_vector("gamma", gamma)
    checks.require_finite(d0=d0)
    if rho.size != gamma.size:
        raise UserError(
            f"rho has {rho.size} rounds and gamma {gamma.size}: expected the same number."
        )
    return rho, gamma


def pool_rounds(rho: np.ndarray, gamma: np.ndarray) -> Blocks:
    """Pools rounds into blocks.

    Rounds before the last rho = 0 are forgotten by the dynamics and cost nothing.

    Args:
        rho: The stretch of each round.
        gamma: The shift of each round.

    Returns:
        The blocks; one without cost represents all rounds that are forgotten.
    """
    zeros = np.flatnonzero(rho[1:] == 0)
    first = 0
    if zeros.size:
        first = int(zeros[-1]) + 1
    later = rho[first + 1 :]
    # The first factor meets no distance and does not matter.
    log_rho = np.concatenate([[0.0], np.log(later)])
    logs = np.cumsum(log_rho)
    if float(np.ptp(logs)) <= _WIDEST:
        blocks = _pooled_by_regression(later, logs, gamma[first:])
    else:
        blocks = _pooled_in_logs(log_rho, gamma[first:])
    if not first:
        return blocks
    return Blocks(
        starts=np.concatenate([[0], blocks.starts + first]),
        heights=np.concatenate([[0.0], blocks.heights]),
        log_masses=np.concatenate([[0.0], blocks.log_masses]),
        log_products=np.concatenate([[0.0], blocks.log_products]),
    )


def _pooled_by_regression(later: np.ndarray, logs: np.ndarray, gamma: np.ndarray) -> Blocks:
    """By isotonic regression of gamma R with weights R^-2, where R stays within floats."""
    # A factor common to all R, which H does not depend on, keeps them around 1.
    extremes = float(logs.max() + logs.min())
    centred = math.exp(-extremes / 2)
    products = np.cumprod(np.concatenate([[centred], later]))
    weights = products**-2.0
    starts = _pool_violators(gamma * products, weights)
    ends = np.append(starts[1:], len(products)) - 1
    masses = np.add.reduceat(weights, starts)
    heights = np.add.reduceat(gamma / products, starts) / np.sqrt(masses)
    return Blocks(
        starts=starts,
        heights=heights,
        log_masses=np.log(masses) + 2 * np.log(products[ends]),
        log_products=logs[ends] - np.concatenate([[0.0], logs[ends[:-1]]]),
    )


def _pool_violators(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns where the blocks of the best nondecreasing fit to the values begin.

    To import scipy's regression takes longer than all that a certificate asks of one.
    """
    starts: list[int] = []
    means: list[float] = []
    masses: list[float] = []
    for start, (mean, mass) in enumerate(zip(values.tolist(), weights.tolist(), strict=True)):
        while starts and means[-1] >= mean:
            joined = masses[-1] + mass
            mean = (masses.pop() * means.pop() + mass * mean) / joined
            mass = joined
            start = starts.pop()
        starts.append(start)
        means.append(mean)
        masses.append(mass)
    return np.array(starts)


def _pooled_in_logs(log_rho: np.ndarray, gamma: np.ndarray) -> Blocks:
    """Pool adjacent violators, with logarithms for everything that can overflow.

    Merging l and r, while A_l/B_l >= Q_r A_r/B_r, takes A <- Q_r A_l + A_r, B <- Q_r^2 B_l + B_r,
    Q <- Q_l Q_r. The height A / sqrt(B) stays an ordinary float: the sum of the two heights times
    sqrt(w) and sqrt(1 - w), w being the left share of B.
    """
    exp, log, log1p, sqrt = math.exp, math.log, math.log1p, math.sqrt
    starts: list[int] = []
    heights: list[float] = []
    masses: list[float] = []
    products: list[float] = []
    # log A/B, at the block's end.
    slopes: list[float] = []
    for start, (product, height) in enumerate(zip(log_rho.tolist(), gamma.tolist(), strict=True)):
        mass, slope = 0.0, log(height) if height > 0 else -math.inf
        while starts and slopes[-1] >= slope + product:
            # Logarithm of left B over right B, both at the right end.
            left_share = 2 * product + masses.pop() - mass
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
    return Blocks(
        starts=np.array(starts),
        heights=np.array(heights),
        log_masses=np.array(masses),
        log_products=np.array(products),
    )
