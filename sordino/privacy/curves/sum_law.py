"""The law of a sum of independent random amounts, on the safe side.

It says what squared shifts add up to over the rounds. A `SumLaw` puts masses on values >= 0. Sums
of few values are exact; otherwise values move to a grid and are convolved by fast Fourier
transform. Moving all of them up is always safe for an increasing function F of the sum. Where F''
>= -bend F', so that F is a convex function of -e^(-bend x), a value may be split between its two
neighbours with the mean of e^(-bend x) kept: E F still does not decrease (Jensen), and the error
falls from the grid's width to about its square. Whatever is cut off, or may be misplaced by
rounding, sits at the largest possible value.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sordino.protocol.errors import UserError

# Values that a law keeps, about.
ATOMS = 1 << 14
# The bend that assumes nothing of F: all values move up.
UPWARDS = math.inf
# Products of values that are summed one by one.
_FEW = 1 << 12
# Relative distance at which two values are the same, rounded up.
_NEAR = 1e-12
# Mass that is cut off at each end of a convolution.
_TAIL = 1e-19
# Mass that one fast Fourier transform may misplace.
_ROUND_OFF = 2.0**-51


@dataclass(frozen=True, kw_only=True, eq=False)
class SumLaw:
    """Masses on increasing values, and the rest of the mass at the largest possible value.

    Attributes:
        values: The values, increasing and finite.
        masses: The probability of each value.
        top: The largest possible value, which may be infinite.
        rest: The probability that is counted at the largest possible value.

    Example:
        >>> coin = make_law([0.0, 1.0], [0.5, 0.5])
        >>> two = add_laws(coin, coin)
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
        ends = np.array([self.top, self.rest])
        return self.values.tobytes() + self.masses.tobytes() + ends.tobytes()

    def atoms(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all values and masses, the rest included.

        Returns:
            The values, of which the last is the top, and the probability of each.
        """
        values = np.append(self.values, self.top)
        masses = np.append(self.masses, self.rest)
        return values, masses


def make_law(values: Iterable[float], masses: Iterable[float]) -> SumLaw:
    """Returns the law with given masses.

    Args:
        values: Values of at least 0; infinite ones are allowed.
        masses: The probability of each, which must sum to 1.

    Returns:
        The law, with its values sorted and equal ones joined.

    Raises:
        UserError: A negative number, or probabilities that do not sum to 1.

    Example:
        >>> make_law([1.0, 0.0], [0.25, 0.75]).top
        1.0
    """
    value = np.asarray(list(values), dtype=float)
    mass = np.asarray(list(masses), dtype=float)
    fits = value.size > 0 and value.shape == mass.shape
    if not (fits and (value >= 0).all() and (mass >= 0).all()):
        raise UserError("a mixture needs as many probabilities as values, none of them negative.")
    whole = float(mass.sum())
    if not abs(whole - 1) < 1e-9:
        raise UserError(f"the probabilities of a mixture sum to {whole!r}: expected 1.")
    possible = mass > 0
    kept = np.isfinite(value) & possible
    top = float(value[possible].max())
    # An infinite value cannot lie on a grid: its mass is counted at the top.
    rest = float(mass[np.isinf(value)].sum())
    return _collect_values(value[kept], mass[kept], top, rest)


def add_laws(one: SumLaw, other: SumLaw, bend: float = UPWARDS) -> SumLaw:
    """Returns the law of the sum of two independent amounts.

    Args:
        one: The law of the first amount.
        other: The law of the second.
        bend: The bound on how the function F of the sum bends.

    Returns:
        The law, exact where there are few values and on a grid otherwise.

    Example:
        >>> coin = make_law([0.0, 2.0], [0.5, 0.5])
        >>> add_laws(make_law([1.0], [1.0]), coin).values.round(6).tolist()
        [1.0, 3.0]
    """
    top = one.top + other.top
    # The sum is at its top as soon as one of the two amounts is.
    rest = one.rest + other.rest - one.rest * other.rest
    pairs = one.values.size * other.values.size
    if pairs == 0:
        nothing = np.zeros(0)
        return SumLaw(
            values=nothing,
            masses=nothing,
            top=top,
            rest=rest,
        )
    shifts_only = min(one.values.size, other.values.size) == 1
    if pairs <= _FEW or shifts_only:
        values = np.add.outer(one.values, other.values)
        masses = np.multiply.outer(one.masses, other.masses)
        return _collect_values(values.ravel(), masses.ravel(), top, rest)
    largest = float(one.values[-1] + other.values[-1])
    step = largest / ATOMS
    left = _put_on_grid(one, step, bend)
    right = _put_on_grid(other, step, bend)
    return law_on_grid(
        _convolve_masses(left, right),
        0,
        step,
        top=top,
        rest=rest + _ROUND_OFF,
    )


def _convolve_masses(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the masses of the sum of two amounts on the same grid."""
    length = left.size + right.size - 1
    # A power of two that the sum fits into, so that nothing wraps around the circle.
    size = 1 << (length - 1).bit_length()
    transform = np.fft.rfft(left, size) * np.fft.rfft(right, size)
    circle = np.fft.irfft(transform, size)
    return circle[:length]


def law_on_grid(
    masses: np.ndarray,
    start: int,
    step: float,
    *,
    top: float,
    rest: float,
) -> SumLaw:
    """Returns the law of masses on successive multiples of a step.

    A low tail moves up to the first value that is kept, a high one to the top.

    Args:
        masses: The masses of the multiples.
        start: The first multiple.
        step: The spacing of the grid.
        top: The largest possible value.
        rest: The mass that is counted there already.

    Returns:
        The law without its negligible tails.

    Example:
        >>> law_on_grid(np.array([0.5, 0.5]), 3, 2.0, top=8.0, rest=0.0).values.round(6).tolist()
        [6.0, 8.0]
    """
    masses = np.maximum(masses, 0.0)
    from_below = np.cumsum(masses)
    from_above = np.cumsum(masses[::-1])
    first = int(np.searchsorted(from_below, _TAIL))
    last = masses.size - int(np.searchsorted(from_above, _TAIL))
    kept = masses[first:last].copy()
    kept[0] += masses[:first].sum()
    cut_off = float(masses[last:].sum())
    multiples = np.arange(start + first, start + last)
    return SumLaw(
        values=multiples * _round_step_up(step),
        masses=kept,
        top=top,
        rest=rest + cut_off,
    )


def _round_step_up(step: float) -> float:
    """Returns a step whose multiples are not below the true ones, whatever was rounded."""
    return step * (1 + 2 * _NEAR)


def repeat_law(one: SumLaw, count: int, bend: float = UPWARDS) -> SumLaw:
    """Returns the law of the sum of independent copies, by repeated doubling.

    Args:
        one: The law of each copy.
        count: The number of copies.
        bend: The bound on how the function F of the sum bends.

    Returns:
        The law of the sum; that of 0 where there are no copies.

    Example:
        >>> repeat_law(make_law([0.0, 1.0], [0.5, 0.5]), 3).masses.tolist()
        [0.125, 0.375, 0.375, 0.125]
    """
    total: SumLaw | None = None
    while count:
        # `one` is the law of 1, 2, 4, ... copies, and the binary digits of the count choose.
        if count & 1:
            if total is None:
                total = one
            else:
                total = add_laws(total, one, bend)
        count >>= 1
        if count:
            one = add_laws(one, one, bend)
    return total or make_law([0.0], [1.0])


def add_all_laws(parts: Iterable[SumLaw], bend: float = UPWARDS) -> SumLaw:
    """Returns the law of the sum of all parts.

    The smallest are added first, where a fine grid costs nothing.

    Args:
        parts: The laws of independent amounts.
        bend: The bound on how the function F of the sum bends.

    Returns:
        The law of the sum; that of 0 where there are no parts.

    Example:
        >>> add_all_laws([make_law([1.0], [1.0])] * 3).values.round(6).tolist()
        [3.0]
    """
    # The index decides between laws of the same size, which cannot be compared.
    heap = []
    for index, part in enumerate(parts):
        heap.append((_largest_value(part), index, part))
    if not heap:
        return make_law([0.0], [1.0])
    heapq.heapify(heap)
    index = len(heap)
    while len(heap) > 1:
        _, _, one = heapq.heappop(heap)
        _, _, other = heapq.heappop(heap)
        both = add_laws(one, other, bend)
        index += 1
        heapq.heappush(heap, (_largest_value(both), index, both))
    return heap[0][2]


def coarsen_law(one: SumLaw, atoms: int) -> SumLaw:
    """Returns the same law with values moved up to at most about `atoms` of them.

    Args:
        one: The law to approximate.
        atoms: The number of values to keep.

    Returns:
        A law that is never below the given one.

    Example:
        >>> coarsen_law(make_law([0.1, 0.2, 1.0], [0.2, 0.3, 0.5]), 2).masses.tolist()
        [0.5, 0.5]
    """
    if one.values.size <= atoms:
        return one
    step = float(one.values[-1]) / atoms
    grid = _put_on_grid(one, step, UPWARDS)
    kept = np.flatnonzero(grid)
    return SumLaw(
        values=kept * _round_step_up(step),
        masses=grid[kept],
        top=one.top,
        rest=one.rest,
    )


def thin_law(one: SumLaw, atoms: int) -> SumLaw:
    """Returns a law with about `atoms` values, each the mean of neighbouring ones.

    It is close to the full law, and on neither side of it: a guess, not a bound.

    Args:
        one: The law to approximate.
        atoms: The number of values to keep.

    Returns:
        The law of the means of successive groups of values.

    Example:
        >>> thin_law(make_law([1.0, 3.0, 5.0, 7.0], [0.25] * 4), 2).values.tolist()
        [2.0, 6.0]
    """
    if one.values.size <= atoms:
        return one
    group = math.ceil(one.values.size / atoms)
    starts = np.arange(0, one.values.size, group)
    masses = np.add.reduceat(one.masses, starts)
    moments = np.add.reduceat(one.masses * one.values, starts)
    means = one.values[starts]
    # A group without mass keeps its first value.
    np.divide(moments, masses, out=means, where=masses > 0)
    return SumLaw(
        values=means,
        masses=masses,
        top=one.top,
        rest=one.rest,
    )


def split_values(values: np.ndarray, step: float, bend: float) -> tuple[np.ndarray, np.ndarray]:
    """Splits values between two neighbours on a grid, with the mean of e^(-bend x) kept.

    Args:
        values: Values of at least 0.
        step: The spacing of the grid.
        bend: The bound on how the function F of the sum bends.

    Returns:
        The multiple of the step below each value, and what share of its mass goes to the one above.

    Example:
        >>> below, up = split_values(np.array([2.5]), 1.0, 1e-9)
        >>> below.tolist(), up.round(6).tolist()
        ([2], [0.5])
    """
    below = np.floor(values / step).astype(np.int64)
    beyond = values - below * step
    # With e^(-bend x) kept in the mean, the function F of the sum does not decrease in the mean.
    up = np.expm1(-bend * beyond) / math.expm1(-bend * step)
    return below, np.clip(up, 0.0, 1.0)


def _put_on_grid(one: SumLaw, step: float, bend: float) -> np.ndarray:
    """Returns masses on multiples of a step; the top of this module says how values are split."""
    if math.isinf(bend):
        # A value that lies above a multiple by rounding alone stays on it.
        multiples = one.values / step * (1 - _NEAR)
        above = np.ceil(multiples).astype(np.int64)
        return np.bincount(above, weights=one.masses)
    below, up = split_values(one.values, step, bend)
    size = int(below[-1]) + 2
    masses_below = one.masses * (1 - up)
    masses_above = one.masses * up
    low = np.bincount(below, weights=masses_below, minlength=size)
    high = np.bincount(below + 1, weights=masses_above, minlength=size)
    return low + high


def _collect_values(
    values: np.ndarray,
    masses: np.ndarray,
    top: float,
    rest: float,
) -> SumLaw:
    """Sorts, and joins values that differ by rounding only at the larger of them."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    masses = masses[order]
    if values.size > 1:
        differs_from_next = np.diff(values) > _NEAR * values[1:]
        ends = np.flatnonzero(np.append(differs_from_next, True))
        starts = np.append(0, ends[:-1] + 1)
        masses = np.add.reduceat(masses, starts)
        values = values[ends]
    return SumLaw(
        values=values,
        masses=masses,
        top=top,
        rest=rest,
    )


def _largest_value(one: SumLaw) -> float:
    """Returns the largest finite value of a law, by which laws are ordered."""
    if one.values.size == 0:
        return 0.0
    return float(one.values[-1])
