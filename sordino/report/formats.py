"""Numbers as people read them. What is promised is rounded up, what was measured is rounded down."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """A share as percent with one decimal.

    Example:
        >>> percent(0.9012), percent(float("nan"))
        ('90.1 %', 'unknown')
    """
    return "unknown" if math.isnan(share) else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """A time span in the unit that suits it.

    Example:
        >>> duration(3.14159), duration(42.0), duration(600), duration(7200)
        ('3.1 s', '42 s', '10 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def at_most(value: float | None) -> str:
    """An upper bound on epsilon, never below the true one.

    Example:
        >>> at_most(7.9312), at_most(234.0), at_most(float("inf")), at_most(None)
        ('7.94', 'no meaningful limit', 'no limit', '–')
    """
    from sordino.privacy.guarantee import epsilon_in_words

    return "–" if value is None else epsilon_in_words(value)


def at_least(value: float | None) -> str:
    """A lower bound, never above the true one.

    Example:
        >>> at_least(1.7299), at_least(None)
        ('1.72', '–')
    """
    from sordino.privacy.guarantee import rounded_down

    return "–" if value is None else rounded_down(value)


def of_a_hundred(share: float) -> str:
    """How often of 100 times, at most.

    Example:
        >>> of_a_hundred(0.7701), of_a_hundred(0.5), of_a_hundred(0.99999), of_a_hundred(0.50004)
        ('78', '50', '100', '50.1')
    """
    exact = 100 * share * (1 - 1e-12)
    return f"{math.ceil(exact * 10) / 10:g}" if exact < 51 else f"{math.ceil(exact):d}"


def measure(value: float) -> str:
    """A measured number that bounds nothing.

    Example:
        >>> measure(0.52341), measure(float("nan"))
        ('0.5234', 'unknown')
    """
    return "unknown" if math.isnan(value) else f"{value:.4g}"


def size(count: float) -> str:
    """A number of bytes in the unit that suits it.

    Example:
        >>> size(999), size(3_120_000)
        ('999 bytes', '3.1 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
