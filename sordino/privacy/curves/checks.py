"""Refuses numbers for which a privacy statement would be meaningless."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np

from sordino.protocol.errors import UserError


def refuse_other_types(name: str, value: object) -> None:
    """Refuses anything that is not a number, such as a text that holds one.

    Args:
        name: The name of the argument in an error message.
        value: The value to check.

    Raises:
        UserError: The value is not a number.

    Example:
        >>> refuse_other_types("epsilon", "4")
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: epsilon = '4': expected a number.
    """
    # numpy's numbers are registered as real ones too; a truth value is none that anybody means.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} = {value!r}: expected a number.")


def require_nonnegative(**values: float) -> None:
    """Refuses values below 0; infinity is allowed (no noise is a fact, not a mistake).

    Args:
        **values: The numbers to check, by the names that an error message gives them.

    Raises:
        UserError: One of the values is refused.

    Example:
        >>> require_nonnegative(mu=0.0, epsilon=float("inf"))
        >>> require_nonnegative(mu=-1.0)
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: mu = -1.0: expected a number of at least 0.
    """
    for name, value in values.items():
        refuse_other_types(name, value)
        # Written so that it refuses NaN as well.
        if not value >= 0:
            raise UserError(f"{name} = {value!r}: expected a number of at least 0.")


def require_finite(**values: float) -> None:
    """Refuses values below 0 and infinite ones.

    Args:
        **values: The numbers to check, by the names that an error message gives them.

    Raises:
        UserError: One of the values is refused.

    Example:
        >>> require_finite(rate=0.1)
    """
    require_nonnegative(**values)
    for name, value in values.items():
        refuse_other_types(name, value)
        if math.isinf(value):
            raise UserError(f"{name} = {value!r}: expected a finite number.")


def require_positive(**values: float) -> None:
    """Refuses values that are not finite and above 0.

    Args:
        **values: The numbers to check, by the names that an error message gives them.

    Raises:
        UserError: One of the values is refused.

    Example:
        >>> require_positive(sigma=0.5)
    """
    for name, value in values.items():
        refuse_other_types(name, value)
        if not (value > 0 and math.isfinite(value)):
            raise UserError(f"{name} = {value!r}: expected a finite number above 0.")


def require_delta(delta: float) -> None:
    """Refuses a delta that does not lie strictly between 0 and 1.

    At 0 a Gaussian promises nothing, at 1 everything holds.

    Args:
        delta: The delta to check.

    Raises:
        UserError: The value is refused.

    Example:
        >>> require_delta(1e-5)
    """
    refuse_other_types("delta", delta)
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta!r}: expected a number above 0 and below 1.")


def require_probability(**values: float) -> None:
    """Refuses values outside 0 to 1, both of which are allowed.

    Args:
        **values: The numbers to check, by the names that an error message gives them.

    Raises:
        UserError: One of the values is refused.

    Example:
        >>> require_probability(rate=1.0)
    """
    for name, value in values.items():
        refuse_other_types(name, value)
        if not 0 <= value <= 1:
            raise UserError(f"{name} = {value!r}: expected a probability, from 0 to 1.")


def require_whole(*, at_least: int, **values: int) -> None:
    """Refuses values that are not whole numbers of at least `at_least`.

    Args:
        at_least: The smallest number that is allowed.
        **values: The numbers to check, by the names that an error message gives them.

    Raises:
        UserError: One of the values is refused.

    Example:
        >>> require_whole(at_least=1, rounds=3)
    """
    for name, value in values.items():
        refuse_other_types(name, value)
        if isinstance(value, bool) or value != int(value) or value < at_least:
            raise UserError(f"{name} = {value!r}: expected a whole number of at least {at_least}.")


def require_order(value: float) -> None:
    """Refuses a Rényi order below 1.

    1 is the Kullback-Leibler divergence, infinity the largest privacy loss.

    Args:
        value: The order to check.

    Raises:
        UserError: The value is refused.

    Example:
        >>> require_order(2)
    """
    if not value >= 1:
        raise UserError(f"order = {value!r}: expected a Rényi order of at least 1.")


def read_vector(name: str, values: Iterable[float]) -> np.ndarray:
    """Returns the values as an array of finite numbers of at least 0, at least one of them.

    Args:
        name: The name of the argument in an error message.
        values: The numbers.

    Returns:
        An array of one axis.

    Raises:
        UserError: None at all, more axes than one, or a number that is refused.

    Example:
        >>> read_vector("rates", [0.1, 0.2])
        array([0.1, 0.2])
    """
    if not isinstance(values, np.ndarray):
        values = list(values)
    array = np.atleast_1d(np.asarray(values, dtype=float))
    if array.ndim != 1 or array.size == 0:
        raise UserError(f"{name}: expected a list of one or more numbers.")
    allowed = np.isfinite(array) & (array >= 0)
    if not allowed.all():
        worst = array[~allowed][0]
        raise UserError(f"{name}: {worst!r} is among them; expected finite numbers of at least 0.")
    return array
