"""Discrete Gaussian noise drawn by the compiled kernel, with the bits of the numpy sampler."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from sordino.mechanisms.discrete_gaussian import (
    LARGEST_DIGIT,
    DrawPlan,
    draw_integers,
    make_digit_table,
)
from sordino.native.layout import DigitsStructure
from sordino.native.library import choose_instruction_set, load_library
from sordino.randomness import Stream

# A search among 2^11 - 1 entries makes 11 comparisons; the table has fewer entries.
SEARCH_STEPS = 11
FULL = (1 << 64) - 1
# The kernel's sign for a digit that 16 bits do not decide about.
UNDECIDED = 255


@functools.cache
def pad_table() -> tuple[np.ndarray, np.ndarray]:
    """Returns the halves of the table's entries, padded so that every search is equally long."""
    table = make_digit_table()
    # Entries of all ones are reached by one number in 2^128, for which the kernel knows better.
    padding = np.full((1 << SEARCH_STEPS) - 1 - len(table.high), FULL, dtype=np.uint64)
    return np.concatenate([table.high, padding]), np.concatenate([table.low, padding])


@functools.cache
def halve_guide() -> np.ndarray:
    """Returns what the digits are whose first 16 bits begin with 1, by the other 15.

    Numbers that begin with 0 have the negative digits of their complements, as the law is
    symmetric. Half of the guide, in bytes, stays in the first cache of a processor.
    """
    table = make_digit_table()
    reached = table.guide[len(table.guide) // 2 :]
    # Where 16 bits suffice, digits are below 219: larger ones are too rare.
    return np.where(reached < 0, UNDECIDED, reached - LARGEST_DIGIT).astype(np.uint8)


@functools.lru_cache(maxsize=64)
def pack_plan(plan: DrawPlan) -> DigitsStructure:
    """Returns how a vector of draws is made, as a structure of the kernel.

    Args:
        plan: The layout of its keystream.
    """
    # The tables that it points to are made once, and stay.
    high, low = pad_table()
    return DigitsStructure(
        digits=plan.digits,
        guides=plan.guides,
        searches=plan.searches,
        magnitudes=halve_guide().ctypes.data,
        high=high.ctypes.data,
        low=low.ctypes.data,
        search_steps=SEARCH_STEPS,
        largest=LARGEST_DIGIT,
    )


def draw_natively(stream: Stream, trainings: int, count: int, digits: int) -> np.ndarray:
    """Returns the draws of `draw_integers`, made by the kernel where it has been built.

    Args:
        stream: The place in the keystream.
        trainings: The number of trainings, from the stream's on.
        count: How many draws each training makes.
        digits: Digits of a draw.

    Returns:
        A table of int64 of shape (trainings, count).

    Raises:
        MemoryError: The kernel got no memory.
    """
    simd = choose_instruction_set()
    if simd is None:
        return draw_integers(stream, trainings, count, digits)
    add_up = load_library(simd).sordino_digits
    plan = DrawPlan(count=count, digits=digits)
    law = ctypes.addressof(pack_plan(plan))
    # The words that the numpy sampler reads, in its order: both give the same integers.
    words = stream.words(plan.words, trainings).reshape(trainings, plan.words)
    draws = np.empty((trainings, count), dtype=np.int64)
    for row in range(trainings):
        if add_up(law, words[row].ctypes.data, count, draws[row].ctypes.data):
            raise MemoryError("the kernel got no memory for draws of noise")
    return draws
