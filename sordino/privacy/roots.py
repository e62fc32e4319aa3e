"""Where a monotone function crosses zero, as a bracket, so that the caller can keep the end that is safe."""

from __future__ import annotations

import math
from collections.abc import Callable

TOLERANCE = (
    2.0**-44
)  # relative width at which a bracket is narrow enough: far below any tolerance on epsilon
_LONGEST_SEARCH = 300


def bracket(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Narrows [low, high], where the nonincreasing `function` is above 0 at `low` and at most 0 at `high`.

    Regula falsi with the Illinois weights, and a bisection whenever two steps have not halved the bracket, so that neither
    infinite values nor flat stretches stop it. The invariant holds at every step: the result is `(above, at_most)`, and a bound
    that must not be optimistic takes the second.

    Example:
        >>> low, high = bracket(lambda x: 2 - x * x, 0.0, 4.0)
        >>> low * low < 2 <= high * high, round(high, 12)
        (True, 1.414213562373)
    """
    value_low, value_high = function(low), function(high)
    last_width = math.inf
    for step in range(_LONGEST_SEARCH):
        width = high - low
        if width <= TOLERANCE * high:
            break
        middle = low + width / 2
        if step % 3 != 2 or width <= last_width / 2:
            span = value_low - value_high
            if math.isfinite(span) and span > 0:
                guess = high + value_high * (width / span)
                middle = guess if low < guess < high else middle
        if step % 3 == 2:
            last_width = width
        if not low < middle < high:
            break
        value = function(middle)
        if value > 0:
            low, value_low, value_high = middle, value, value_high / 2
        else:
            high, value_high, value_low = middle, value, value_low / 2
    return low, high


def grown(accepts: Callable[[float], bool], start: float) -> float:
    """The first of start, 2 start, 4 start, ... that is accepted, or infinity.

    Example:
        >>> grown(lambda x: x > 10, 1.0)
        16.0
    """
    value = start
    while not accepts(value):
        value *= 2
        if math.isinf(value):
            return math.inf
    return value
