"""Finds where a monotone function crosses zero, as a bracket, so that callers keep the safe end."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# Relative width at which a bracket is narrow enough: far below any tolerance on epsilon.
TOLERANCE = 2.0**-44
_LONGEST_SEARCH = 300


def bracket_root(
    function: Callable[[float], float], low: float, high: float
) -> tuple[float, float]:
    """Narrows an interval in which a nonincreasing function crosses zero.

    Regula falsi with the Illinois weights (Dowell and Jarratt 1971), and a bisection whenever
    three steps have not halved the bracket, so that neither infinite values nor flat stretches
    stop it. The invariant holds at every step, so that a bound which must not be optimistic takes
    the second end.

    Args:
        function: Nonincreasing, above 0 at `low` and at most 0 at `high`.
        low: Lower end of the interval.
        high: Upper end of the interval.

    Returns:
        Two neighbouring arguments: above 0 at the first, at most 0 at the second.

    Example:
        >>> low, high = bracket_root(lambda x: 2 - x * x, 0.0, 4.0)
        >>> low * low < 2 <= high * high, round(high, 12)
        (True, 1.414213562373)
    """
    value_low = function(low)
    value_high = function(high)
    last_width = math.inf
    moved_low: bool | None = None
    for step in range(_LONGEST_SEARCH):
        width = high - low
        if width <= TOLERANCE * high:
            break
        stuck = step % 3 == 2 and width > last_width / 2
        if step % 3 == 2:
            last_width = width
        middle = low + width / 2
        if not stuck:
            middle = _interpolate(low, high, value_low, value_high)
        if not low < middle < high:
            break
        value = function(middle)
        # An end that stays twice in a row has its value halved, which draws the next guess to it.
        if value > 0:
            low = middle
            value_low = value
            if moved_low is True:
                value_high /= 2
            moved_low = True
        else:
            high = middle
            value_high = value
            if moved_low is False:
                value_low /= 2
            moved_low = False
    return low, high


def _interpolate(
    low: float,
    high: float,
    value_low: float,
    value_high: float,
) -> float:
    """Returns where the chord crosses zero, moved off the ends; the middle where there is none."""
    width = high - low
    span = value_low - value_high
    if not (math.isfinite(span) and span > 0):
        return low + width / 2
    guess = high + value_high * (width / span)
    # A guess next to one end steps over the root, so that the other end comes near as well.
    aside = min(TOLERANCE * high / 2, width / 4)
    return min(max(guess, low + aside), high - aside)


def double_until(accepts: Callable[[float], bool], start: float) -> float:
    """Returns the first of start, 2 start, 4 start, ... that is accepted, or infinity.

    Args:
        accepts: Whether a number is large enough.
        start: Where the search begins; above 0.

    Returns:
        The number, or infinity where none is accepted.

    Example:
        >>> double_until(lambda x: x > 10, 1.0)
        16.0
    """
    value = start
    while not accepts(value):
        value *= 2
        if math.isinf(value):
            return math.inf
    return value


def find_first(
    holds: Callable[[np.ndarray], np.ndarray], low: int, high: int, at_once: int = 32
) -> int:
    """Returns the least whole number at which a condition holds, by asking for many at once.

    Args:
        holds: Whether the condition holds at each of several numbers; once it does, it does at all
            larger ones.
        low: A number at which it does not hold, or is not asked.
        high: A number at which it holds.
        at_once: How many are asked for at a time; 1 where each costs as much as the first.

    Returns:
        A number above `low` at which it holds, while it does not at the one before.

    Example:
        >>> find_first(lambda numbers: numbers >= 7, 0, 1000)
        7
    """
    while high - low > 1:
        asked = np.unique(np.linspace(low, high, at_once + 2).astype(np.int64))[1:-1]
        met = int(np.argmax(np.append(holds(asked), True)))
        if met < asked.size:
            high = int(asked[met])
        if met > 0:
            low = int(asked[met - 1])
    return high
