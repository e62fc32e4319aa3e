"""The law of a sum of independent random amounts, on the safe side: what squared shifts add up to over the rounds.

A `Law` puts masses on values >= 0. Sums of few values are exact; otherwise values move to a grid and are convolved by fast Fourier
transform. Moving all of them up is always safe for an increasing function F of the sum. Where F'' >= -bend F', so that F is a
convex function of -e^(-bend x), a value may be split between its two neighbours with the mean of e^(-bend x) kept: E F still
does not decrease (Jensen), and the error falls from the grid's width to about its square. Whatever is cut off, or may be
misplaced by rounding, sits at the largest possible value.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sordino.protocol.errors import UserError

ATOMS = 1 << 14  # values that a law keeps, about
UPWARDS = math.inf  # the bend that assumes nothing of F: all values move up
_FEW = 1 << 12  # products of values that are summed one by one
_NEAR = 1e-12  # relative distance at which two values are the same, rounded up
_TAIL = 1e-19  # mass that is cut off at each end of a convolution
_ROUND_OFF = 2.0**-51  # mass that one fast Fourier transform may misplace


@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """Masses on increasing values, and the `rest` of the mass at `top`, the largest possible value.

    Example:
        >>> coin = law([0.0, 1.0], [0.5, 0.5])
        >>> two = plus(coin, coin)
        >>> two.values.round(6).tolist(), two.masses.tolist()
        ([0.0, 1.0, 2.0], [0.25, 0.5, 0.25])
    """

    values: np.ndarray
    masses: np.ndarray
    top: float
    rest: float = 0.0

    @property
    def key(self) -> bytes:
        """Equal for equal laws."""
        return (
            self.values.tobytes()
            + self.masses.tobytes()
            + np.array([self.top, self.rest]).tobytes()
        )

    def atoms(self) -> tuple[np.ndarray, np.ndarray]:
        """All values and masses, the rest included."""
        return np.append(self.values, self.top), np.append(self.masses, self.rest)


def law(values: Iterable[float], masses: Iterable[float]) -> Law:
    """The law with these masses, which must sum to 1; infinite values are allowed.

    Example:
        >>> law([1.0, 0.0], [0.25, 0.75]).top
        1.0
    """
    value, mass = np.asarray(list(values), dtype=float), np.asarray(list(masses), dtype=float)
    if (
        value.size == 0
        or value.shape != mass.shape
        or not (value >= 0).all()
        or not (mass >= 0).all()
    ):
        raise UserError("a mixture needs as many probabilities as values, none of them negative.")
    if not abs(float(mass.sum()) - 1) < 1e-9:
        raise UserError(f"the probabilities of a mixture sum to {float(mass.sum())!r}: expected 1.")
    kept = np.isfinite(value) & (mass > 0)
    top = float(value[mass > 0].max())
    return _collected(value[kept], mass[kept], top, float(mass[np.isinf(value)].sum()))


def plus(one: Law, other: Law, bend: float = UPWARDS) -> Law:
    """The law of the sum of two independent amounts.

    Example:
        >>> plus(law([1.0], [1.0]), law([0.0, 2.0], [0.5, 0.5])).values.round(6).tolist()
        [1.0, 3.0]
    """
    top, rest = one.top + other.top, one.rest + other.rest - one.rest * other.rest
    if one.values.size == 0 or other.values.size == 0:
        return Law(values=np.zeros(0), masses=np.zeros(0), top=top, rest=rest)
    if one.values.size * other.values.size <= _FEW or min(one.values.size, other.values.size) == 1:
        values = np.add.outer(one.values, other.values).ravel()
        return _collected(values, np.multiply.outer(one.masses, other.masses).ravel(), top, rest)
    step = float(one.values[-1] + other.values[-1]) / ATOMS
    left, right = _gridded(one, step, bend), _gridded(other, step, bend)
    length = left.size + right.size - 1
    size = 1 << (length - 1).bit_length()
    masses = np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)[:length]
    return on_grid(masses, 0, step, top=top, rest=rest + _ROUND_OFF)


def on_grid(masses: np.ndarray, start: int, step: float, *, top: float, rest: float) -> Law:
    """The law of masses on multiples of `step` from the `start`-th; a low tail moves up to the first that is kept, a high one to the top.

    Example:
        >>> on_grid(np.array([0.5, 0.5]), 3, 2.0, top=8.0, rest=0.0).values.round(6).tolist()
        [6.0, 8.0]
    """
    masses = np.maximum(masses, 0.0)
    first = int(np.searchsorted(np.cumsum(masses), _TAIL))
    last = masses.size - int(np.searchsorted(np.cumsum(masses[::-1]), _TAIL))
    kept = masses[first:last].copy()
    kept[0] += masses[:first].sum()
    values = np.arange(start + first, start + last) * (step * (1 + 2 * _NEAR))
    return Law(values=values, masses=kept, top=top, rest=rest + float(masses[last:].sum()))


def times(one: Law, count: int, bend: float = UPWARDS) -> Law:
    """The law of the sum of `count` independent copies, by repeated doubling.

    Example:
        >>> times(law([0.0, 1.0], [0.5, 0.5]), 3).masses.tolist()
        [0.125, 0.375, 0.375, 0.125]
    """
    sum_so_far: Law | None = None
    while count:
        if count & 1:
            sum_so_far = one if sum_so_far is None else plus(sum_so_far, one, bend)
        count >>= 1
        one = plus(one, one, bend) if count else one
    return sum_so_far or law([0.0], [1.0])


def total(parts: Iterable[Law], bend: float = UPWARDS) -> Law:
    """The law of the sum of all parts; the smallest are joined first, where a fine grid costs nothing.

    Example:
        >>> total([law([1.0], [1.0])] * 3).values.round(6).tolist()
        [3.0]
    """
    heap = [
        (float(part.values[-1]) if part.values.size else 0.0, index, part)
        for index, part in enumerate(parts)
    ]
    heapq.heapify(heap)
    index = len(heap)
    while len(heap) > 1:
        joined = plus(heapq.heappop(heap)[2], heapq.heappop(heap)[2], bend)
        index += 1
        heapq.heappush(
            heap, (float(joined.values[-1]) if joined.values.size else 0.0, index, joined)
        )
    return heap[0][2] if heap else law([0.0], [1.0])


def coarsened(one: Law, atoms: int) -> Law:
    """The same law with values moved up to at most about `atoms` of them.

    Example:
        >>> coarsened(law([0.1, 0.2, 1.0], [0.2, 0.3, 0.5]), 2).masses.tolist()
        [0.5, 0.5]
    """
    if one.values.size <= atoms:
        return one
    step = float(one.values[-1]) / atoms
    grid = _gridded(one, step, UPWARDS)
    kept = np.flatnonzero(grid)
    return Law(
        values=kept * (step * (1 + 2 * _NEAR)), masses=grid[kept], top=one.top, rest=one.rest
    )


def thinned(one: Law, atoms: int) -> Law:
    """A law with about `atoms` values, each the mean of neighbouring ones: close, but on neither side of the full one.

    Example:
        >>> thinned(law([1.0, 3.0, 5.0, 7.0], [0.25] * 4), 2).values.tolist()
        [2.0, 6.0]
    """
    if one.values.size <= atoms:
        return one
    starts = np.arange(0, one.values.size, math.ceil(one.values.size / atoms))
    masses = np.add.reduceat(one.masses, starts)
    summed, lowest = np.add.reduceat(one.masses * one.values, starts), one.values[starts]
    return Law(
        values=np.divide(summed, masses, out=lowest, where=masses > 0),
        masses=masses,
        top=one.top,
        rest=one.rest,
    )


def _gridded(one: Law, step: float, bend: float) -> np.ndarray:
    """Masses on multiples of `step`; see the top of this module for how values between two of them are split."""
    if math.isinf(bend):
        return np.bincount(
            np.ceil(one.values / step * (1 - _NEAR)).astype(np.int64), weights=one.masses
        )
    below, up = split(one.values, step, bend)
    low = np.bincount(below, weights=one.masses * (1 - up), minlength=int(below[-1]) + 2)
    return low + np.bincount(below + 1, weights=one.masses * up, minlength=low.size)


def split(values: np.ndarray, step: float, bend: float) -> tuple[np.ndarray, np.ndarray]:
    """The multiple of `step` below each value, and what share of its mass goes to the one above: the mean of e^(-bend x) is kept.

    Example:
        >>> below, up = split(np.array([2.5]), 1.0, 1e-9)
        >>> below.tolist(), up.round(6).tolist()
        ([2], [0.5])
    """
    below = np.floor(values / step).astype(np.int64)
    return below, np.clip(
        np.expm1(-bend * (values - below * step)) / math.expm1(-bend * step), 0.0, 1.0
    )


def _collected(values: np.ndarray, masses: np.ndarray, top: float, rest: float) -> Law:
    """Sorts, and joins values that differ by rounding only at the larger of them."""
    order = np.argsort(values, kind="stable")
    values, masses = values[order], masses[order]
    if values.size > 1:
        ends = np.flatnonzero(np.append(np.diff(values) > _NEAR * values[1:], True))
        masses = np.add.reduceat(masses, np.append(0, ends[:-1] + 1))
        values = values[ends]
    return Law(values=values, masses=masses, top=top, rest=rest)
