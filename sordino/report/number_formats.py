"""Formats numbers for people: upper bounds are rounded up, lower bounds are rounded down."""

from __future__ import annotations

import math

# What stands for a number that is not known, and for one that does not exist.
UNKNOWN = "unknown"
MISSING = "–"


def format_percent(share: float) -> str:
    """Returns a share as percent with one decimal.

    Args:
        share: A number from 0 to 1, or NaN.

    Example:
        >>> format_percent(0.9012), format_percent(float("nan"))
        ('90.1 %', 'unknown')
    """
    if math.isnan(share):
        return UNKNOWN
    return f"{100 * share:.1f} %"


def format_duration(seconds: float) -> str:
    """Returns a time span in the unit that suits it.

    Args:
        seconds: How long it is.

    Example:
        >>> [format_duration(seconds) for seconds in (3.14159, 42.0, 600, 7200)]
        ['3.1 s', '42 s', '10 min', '2.0 h']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_upper_bound(value: float | None) -> str:
    """Returns an upper bound on epsilon, never below the true one.

    Args:
        value: The bound, or None where there is none.

    Example:
        >>> [format_upper_bound(value) for value in (7.9312, 234.0, float("inf"), None)]
        ['7.94', 'no meaningful limit', 'no limit', '–']
    """
    # Imported here: the progress display formats times only, and starts without the curves.
    from sordino.privacy.guarantee import epsilon_in_words

    if value is None:
        return MISSING
    return epsilon_in_words(value)


def state_epsilon(value: float) -> str:
    """Returns an upper bound on epsilon as an equation, or that there is none worth stating.

    Args:
        value: The bound.

    Example:
        >>> [state_epsilon(value) for value in (7.9312, 234.0, float("inf"))]
        ['ε = 7.94', 'no meaningful limit', 'no limit']
    """
    from sordino.privacy.guarantee import MEANINGFUL

    words = format_upper_bound(value)
    # "ε = no limit" is not a sentence that anybody would say.
    return words if value > MEANINGFUL else f"ε = {words}"


def format_lower_bound(value: float | None) -> str:
    """Returns a lower bound, never above the true one.

    Args:
        value: The bound, or None where there is none.

    Example:
        >>> format_lower_bound(1.7299), format_lower_bound(None)
        ('1.72', '–')
    """
    from sordino.privacy.guarantee import round_down

    if value is None:
        return MISSING
    return round_down(value)


def format_cases_of_100(share: float) -> str:
    """Returns the largest number of cases, out of 100, in which something happens.

    Args:
        share: The probability, from 0 to 1.

    Example:
        >>> [format_cases_of_100(share) for share in (0.7701, 0.5, 0.99999, 0.50004)]
        ['78', '50', '100', '50.1']
    """
    # Without the factor, the last bit of a product such as 100 x 0.57 would cost a whole case.
    exact = 100 * share * (1 - 1e-12)
    if exact < 51:
        return f"{math.ceil(exact * 10) / 10:g}"
    return f"{math.ceil(exact):d}"


def format_measurement(value: float) -> str:
    """Returns a measured number that bounds nothing.

    Args:
        value: The number, or NaN.

    Example:
        >>> format_measurement(0.52341), format_measurement(float("nan"))
        ('0.5234', 'unknown')
    """
    if math.isnan(value):
        return UNKNOWN
    return f"{value:.4g}"


def format_bytes(count: float) -> str:
    """Returns a number of bytes in the unit that suits it.

    Args:
        count: The number of bytes.

    Example:
        >>> format_bytes(999), format_bytes(3_120_000)
        ('999 bytes', '3.1 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"
