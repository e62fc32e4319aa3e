"""Discrete Gaussian noise drawn by the compiled kernel, with the bits of the numpy sampler."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from sordino.mechanisms.discrete_gaussian import (
    LARGEST_DIGIT,
    DrawPlan,
    draw_integers,
    make_digit_table,
)
from sordino.native.library import choose_instruction_set, load_library
from sordino.randomness import Stream

# A search among 2^11 - 1 entries makes 11 comparisons; the table has fewer entries.
SEARCH_STEPS = 11
FULL = (1 << 64) - 1
_integer = ctypes.c_int64


@functools.cache
def pad_table() -> tuple[np.ndarray, np.ndarray]:
    """Returns the halves of the table's entries, padded so that every search is equally long."""
    table = make_digit_table()
    # Entries of all ones are reached by one number in 2^128, for which the kernel knows better.
    padding = np.full((1 << SEARCH_STEPS) - 1 - len(table.high), FULL, dtype=np.uint64)
    return np.concatenate([table.high, padding]), np.concatenate([table.low, padding])


@functools.cache
def find_sampler() -> Callable[..., None] | None:
    """Returns the kernel's sampler; None where no library has one."""
    simd = choose_instruction_set()
    if simd is None:
        return None
    # A library that was built earlier may lack it, and trains all the same.
    return getattr(load_library(simd), "sordino_digits", None)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def draw_natively(stream: Stream, trainings: int, count: int, digits: int) -> np.ndarray:
    """Returns the draws of `draw_integers`, made by the kernel where it has been built.

    Args:
        stream: The place in the keystream.
        trainings: The number of trainings, from the stream's on.
        count: How many draws each training makes.
        digits: Digits of a draw.

    Returns:
        A table of int64 of shape (trainings, count).
    """
    sampler = find_sampler()
    if sampler is None:
        return draw_integers(stream, trainings, count, digits)
    table = make_digit_table()
    high, low = pad_table()
    plan = DrawPlan(count=count, digits=digits)
    # The words that the numpy sampler reads, in its order: both give the same integers.
    words = stream.words(plan.words, trainings).reshape(trainings, plan.words)
    draws = np.empty((trainings, count), dtype=np.int64)
    for row in range(trainings):
        sampler(
            _address(words[row]),
            _integer(count),
            _integer(digits),
            _address(table.guide),
            _integer(plan.guides),
            _integer(plan.searches),
            _address(high),
            _address(low),
            _integer(SEARCH_STEPS),
            _integer(LARGEST_DIGIT),
            _address(draws[row]),
        )
    return draws
