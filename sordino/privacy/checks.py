"""Refuses numbers for which a privacy statement would be meaningless, naming the number and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sordino.protocol.errors import UserError


def not_negative(**values: float) -> None:
    """Each value is a number of at least 0; infinity is allowed (no noise at all is a fact, not a mistake).

    Example:
        >>> not_negative(mu=0.0, epsilon=float("inf"))
        >>> not_negative(mu=-1.0)
        Traceback (most recent call last):
        ...
        sordino.protocol.errors.UserError: mu = -1.0: expected a number of at least 0.
    """
    for name, value in values.items():
        if not value >= 0:  # also catches NaN
            raise UserError(f"{name} = {value!r}: expected a number of at least 0.")


def finite(**values: float) -> None:
    """Each value is a finite number of at least 0.

    Example:
        >>> finite(rate=0.1)
    """
    not_negative(**values)
    for name, value in values.items():
        if math.isinf(value):
            raise UserError(f"{name} = {value!r}: expected a finite number.")


def positive(**values: float) -> None:
    """Each value is a finite number above 0.

    Example:
        >>> positive(sigma=0.5)
    """
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise UserError(f"{name} = {value!r}: expected a finite number above 0.")


def proper_delta(delta: float) -> None:
    """A delta lies strictly between 0 and 1: at 0 a Gaussian promises nothing, at 1 everything holds.

    Example:
        >>> proper_delta(1e-5)
    """
    if not 0 < delta < 1:
        raise UserError(f"delta = {delta!r}: expected a number above 0 and below 1.")


def probability(**values: float) -> None:
    """Each value lies between 0 and 1, both allowed.

    Example:
        >>> probability(rate=1.0)
    """
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} = {value!r}: expected a probability, from 0 to 1.")


def whole(*, at_least: int, **values: int) -> None:
    """Each value is a whole number of at least `at_least`.

    Example:
        >>> whole(at_least=1, rounds=3)
    """
    for name, value in values.items():
        if isinstance(value, bool) or value != int(value) or value < at_least:
            raise UserError(f"{name} = {value!r}: expected a whole number of at least {at_least}.")


def order(value: float) -> None:
    """A Rényi order is at least 1 (1 is the Kullback-Leibler divergence, infinity the largest privacy loss).

    Example:
        >>> order(2)
    """
    if not value >= 1:
        raise UserError(f"order = {value!r}: expected a Rényi order of at least 1.")


def vector(name: str, values: Iterable[float]) -> np.ndarray:
    """The values as an array of finite numbers of at least 0, at least one of them.

    Example:
        >>> vector("rates", [0.1, 0.2])
        array([0.1, 0.2])
    """
    array = np.atleast_1d(
        np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=float)
    )
    if array.ndim != 1 or array.size == 0:
        raise UserError(f"{name}: expected a list of one or more numbers.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        worst = array[~(np.isfinite(array) & (array >= 0))][0]
        raise UserError(f"{name}: {worst!r} is among them; expected finite numbers of at least 0.")
    return array
