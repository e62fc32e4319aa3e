"""Epsilon that two given laws really have, from below: an oracle that shares nothing with the curves of the package.

Outputs are put into cells, which is post-processing, so that two lists of probabilities remain. Their privacy losses are rounded
down to a grid, composed by fast Fourier transform, and what leaves the window is dropped: every step can only lower delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import laplace, norm

CELLS = np.linspace(-40.0, 40.0, 40_001)
# Coarser cells hide more, so that an epsilon of theirs holds as well; they are quick.
COARSE = np.linspace(-40.0, 40.0, 4_001)
Law = np.ndarray


def normal_mixture(
    centres: Sequence[float], masses: Sequence[float], cells: np.ndarray = CELLS
) -> Law:
    """Returns the cells of a mixture of normal laws of standard deviation 1."""
    return _cells(norm.cdf, centres, masses, cells)


def laplace_mixture(
    centres: Sequence[float], masses: Sequence[float], cells: np.ndarray = CELLS
) -> Law:
    """Returns the cells of a mixture of Laplace laws of scale 1."""
    return _cells(laplace.cdf, centres, masses, cells)


def _cells(cdf, centres: Sequence[float], masses: Sequence[float], cells: np.ndarray) -> Law:
    found = np.zeros(cells.size - 1)
    for centre, mass in zip(centres, masses, strict=True):
        # Beyond the middle differences of tails are exact where differences of the distribution function are not.
        left = np.diff(cdf(cells - centre))
        right = -np.diff(cdf(centre - cells))
        found += mass * np.where(cells[:-1] < centre, left, right)
    return found


@dataclass(frozen=True, kw_only=True)
class Release:
    """A pair of laws of one release.

    Attributes:
        first: Probabilities of the cells on a data set.
        second: On its neighbour.
        times: Independent repetitions.
        probability: That a repetition happens at all, which is seen.
    """

    first: Law
    second: Law
    times: int = 1
    probability: float = 1.0


def epsilon_at_least(
    first: Law, second: Law, delta: float, *, times: int = 1, probability: float = 1.0
) -> float:
    """Returns an epsilon that repeated releases cannot have less of, the worse of both directions."""
    return composed_epsilon(
        [Release(first=first, second=second, times=times, probability=probability)], delta
    )


def composed_epsilon(releases: Sequence[Release], delta: float, *, points: int = 50_000) -> float:
    """Returns an epsilon that releases together cannot have less of, the worse of both directions.

    Args:
        releases: Pairs of laws.
        delta: Where epsilon is wanted.
        points: Steps of the grid of losses in a standard deviation of their sum.
    """
    turned = [
        Release(first=one.second, second=one.first, times=one.times, probability=one.probability)
        for one in releases
    ]
    return max(_one_direction(releases, delta, points), _one_direction(turned, delta, points))


def _one_direction(releases: Sequence[Release], delta: float, points: int) -> float:
    parts = []
    for one in releases:
        # Far cells are dropped: less mass, less delta.
        both = (one.probability * one.first > 1e-18) & (one.second > 1e-300)
        losses = np.log(one.first[both]) - np.log(one.second[both])
        parts.append((losses, one.probability * one.first[both]))
    variance = sum(
        one.times * float(np.dot(masses, losses**2))
        for one, (losses, masses) in zip(releases, parts, strict=True)
    )
    widest = max(float(np.abs(losses).max()) for losses, _ in parts)
    step = (variance**0.5 + widest) / points
    size = 1 << int(40 * points).bit_length()
    transform = np.ones(size // 2 + 1, dtype=complex)
    mean, bottom = 0.0, 0
    for one, (losses, masses) in zip(releases, parts, strict=True):
        places = np.floor(losses / step).astype(np.int64)
        lowest = min(int(places.min()), 0)
        law = np.bincount(places - lowest, weights=masses)
        law = np.append(law, np.zeros(max(0, 1 - lowest - law.size)))
        law[-lowest] += 1 - one.probability
        mean += one.times * float(np.dot(np.arange(law.size) + lowest, law))
        bottom += one.times * lowest
        transform *= np.fft.rfft(law, size) ** one.times
    start = int(mean) - size // 2
    total = np.maximum(np.roll(np.fft.irfft(transform, size), -((start - bottom) % size)), 0.0)
    return _smallest_epsilon((np.arange(size) + start) * step, total, delta)


def _smallest_epsilon(losses: np.ndarray, masses: np.ndarray, delta: float) -> float:
    low, high = 0.0, float(losses[-1])
    for _ in range(40):
        middle = (low + high) / 2
        above = np.searchsorted(losses, middle, side="right")
        found = float((masses[above:] * -np.expm1(middle - losses[above:])).sum())
        low, high = (middle, high) if found > delta else (low, middle)
    return low


def mixture_epsilon(mus: np.ndarray, masses: np.ndarray, delta: float) -> float:
    """Returns epsilon of a Gaussian release whose mu is drawn publicly, by the definition of delta."""
    low, high = 0.0, 500.0
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            ratio = middle / mus
        gone = norm.sf(ratio - mus / 2) - np.exp(middle + norm.logsf(ratio + mus / 2))
        low, high = (middle, high) if float(np.dot(masses, gone)) > delta else (low, middle)
    return low
