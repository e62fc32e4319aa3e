"""Exact energies of the last model, that the bound of `last_iterate` is held against."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.privacy.amplification.last_iterate import check_dynamics, last_iterate, pool_rounds


def linear_energy(rho: Iterable[float], gamma: Iterable[float]) -> float:
    """The exact squared GDP parameter of w <- rho_t w +- gamma_t / 2 + N(0, 1): (sum P_t gamma_t)^2 / sum P_t^2.

    P_t is the product of the rhos after round t: how much of that round's shift, and of its noise, is left in the end.

    Example:
        >>> linear_energy([1.0] * 4, [1.0] * 4)
        4.0
    """
    rho, gamma = check_dynamics(rho, gamma, 0.0)
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
    rho, gamma = check_dynamics(rho, gamma, 0.0)
    scale = float(gamma.max())
    if scale == 0:
        return rho.copy()
    blocks = pool_rounds(rho, gamma / scale)
    lowered = rho.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        # log A/B at a block's end, and log Q A/B at its start: not merged, so the first is below the second (A7, algorithm).
        slope_end = np.log(blocks.heights) - blocks.log_masses / 2
        slope_start = slope_end + blocks.log_products
        factors = np.exp(np.minimum(slope_end[:-1] - slope_start[1:], 0.0))
    factors = np.where(blocks.heights[:-1] == 0, 0.0, factors)  # nothing to hide before: forget it
    lowered[blocks.starts[1:]] *= factors
    return lowered


def smallest_over_all_starts(rho: np.ndarray, gamma: np.ndarray, diameter: float) -> list[float]:
    """Returns H for every start of a bounded domain, one after another: slow and exact."""
    every = [last_iterate(rho, gamma)]
    for start in range(1, len(rho)):
        every.append(last_iterate(rho[start:], gamma[start:], diameter))
    return every
