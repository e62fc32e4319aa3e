"""Draws discrete Gaussian noise: integers from a keystream, with no floating point in between.

A draw is a number in base 8 whose digits are independent discrete Gaussians of parameter 64:

    digit_0 + 8 digit_1 + 64 digit_2 + ...

It is a discrete Gaussian again, up to a factor that differs from 1 by less than 1e-300
(docs/theory.md#a12, Lemma 3: where digits are joined, the widths that meet are 7.9 grid steps at
least). Every digit is looked up in one table by 128 bits of keystream, and its law is exact to
2^-128 a value.

The first 16 bits of a number decide about most digits. The keystream of a draw begins with these,
digit by digit, and the other 112 bits follow for those few digits that need them, in order. How
many searches are made depends on the number of digits alone, never on what is drawn.

The parameters that can be drawn form a ladder, a step for each further digit. A grid is chosen so
that the noise that is wanted lies on it (`sordino.protocol.grids`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache

import numpy as np

from sordino.protocol.grids import DIGIT_PARAMETER, RADIX
from sordino.randomness import Stream

# How many bits of keystream a digit is looked up by, and the bits of a word.
PROBABILITY_BITS = 128
WORD_BITS = 64
# By how many first bits most digits are known, and how many such groups a word holds.
GUIDE_BITS = 16
GROUPS = WORD_BITS // GUIDE_BITS
# The largest digit whose probability is at least 2^-128. Larger ones are never drawn.
LARGEST_DIGIT = 827
# Decimal places of the table's arithmetic, and how far the normalising sum reaches: terms beyond
# are below 10^-80 of it.
PRECISION = 80
SUM_REACH = 2000
# How many digits may be searched for beyond the expected number: this many standard deviations, and
# this many more. Chernoff's bound: more are needed with a probability below 2^-140.
SPARE_DEVIATIONS = 14
SPARE_SEARCHES = 100
OVERFLOW_PROBABILITY = 2.0**-140
# How many draws are added up at a time. Temporaries that stay in the cache are faster.
DRAWS_PER_BLOCK = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class DigitTable:
    """The distribution function of a digit, as integers of 128 bits.

    Entry n is 2^128 times the probability of a digit of at most n - `LARGEST_DIGIT`.

    Attributes:
        high: The upper 64 bits of the entries.
        low: The lower 64 bits.
        guide: By the first 16 bits of a number, how many entries it reaches; -1 where the other
            bits matter.
        undecided: The probability that they do.
        total_variation: How far the law of the table is from a discrete Gaussian, at most.
    """

    high: np.ndarray
    low: np.ndarray
    guide: np.ndarray
    undecided: float
    total_variation: float


def count_probabilities() -> tuple[list[int], float]:
    """Returns 2^128 times the probability of every digit, and how far that is from the exact law.

    The probabilities are rounded down, and the rest is given to 0, so that the law is
    symmetric and sums to exactly 2^128.

    Returns:
        The counts for the digits from -`LARGEST_DIGIT` to `LARGEST_DIGIT`, and the total variation
        between them and a discrete Gaussian.
    """
    with localcontext() as context:
        context.prec = PRECISION
        # From one digit to the next e^(-x^2 / 2s^2) shrinks by a factor that shrinks itself, so
        # that two exponentials are enough; their errors stay far below the 128 bits.
        variance = Decimal(DIGIT_PARAMETER**2)
        shrinks = (-1 / variance).exp()
        factor = (-1 / (2 * variance)).exp()
        weights = [Decimal(1)]
        for _ in range(SUM_REACH - 1):
            weights.append(weights[-1] * factor)
            factor *= shrinks
        total = weights[0] + 2 * sum(weights[1:])
        whole = Decimal(2**PROBABILITY_BITS)
        positive = [int(weight / total * whole) for weight in weights[1 : LARGEST_DIGIT + 1]]
        # What rounding and the tail take from digits other than 0 is what 0 has too much.
        missing = 2 * (sum(weights[1:]) / total - Decimal(sum(positive)) / whole)
    zero = 2**PROBABILITY_BITS - 2 * sum(positive)
    return [*reversed(positive), zero, *positive], float(missing)


@cache
def make_digit_table() -> DigitTable:
    """Returns the table that digits are looked up in. It is made once, in a tenth of a second."""
    counts, missing = count_probabilities()
    entries = []
    below = 0
    # Numbers beyond the last entry mean the largest digit, which needs no entry.
    for count in counts[:-1]:
        below += count
        entries.append(below)
    word = (1 << WORD_BITS) - 1
    high = np.array([entry >> WORD_BITS for entry in entries], dtype=np.uint64)
    guide = make_guide(high)
    return DigitTable(
        high=high,
        guide=guide,
        undecided=float((guide < 0).mean()),
        low=np.array([entry & word for entry in entries], dtype=np.uint64),
        total_variation=missing,
    )


def make_guide(high: np.ndarray) -> np.ndarray:
    """Returns how many entries a number reaches by its first 16 bits; -1 where others matter.

    Args:
        high: The upper 64 bits of the entries, in order.
    """
    firsts = np.arange(1 << GUIDE_BITS, dtype=np.uint64)
    reached = np.searchsorted(high >> np.uint64(WORD_BITS - GUIDE_BITS), firsts, side="left")
    beyond = np.searchsorted(high >> np.uint64(WORD_BITS - GUIDE_BITS), firsts, side="right")
    # Where an entry begins with these bits, numbers that do lie on both sides of it.
    # 16 bits suffice, as there are 2 x 827 entries, and a small table stays in the cache.
    return np.where(reached == beyond, reached, -1).astype(np.int16)


def bound_total_variation(digits: int, draws: float) -> float:
    """Returns how far draws are from discrete Gaussians together, which is added to delta.

    Args:
        digits: Digits of a draw.
        draws: How many draws an adversary sees, at most.

    Example:
        >>> bound_total_variation(4, 1e12) < 1e-22
        True
    """
    # The union bound: distances of single digits add up, and so do the chances of vectors that
    # need more searches than are made. A vector has at least one draw.
    return draws * (digits * make_digit_table().total_variation + OVERFLOW_PROBABILITY)


@dataclass(frozen=True, kw_only=True)
class DrawPlan:
    """How the keystream of a vector of draws is laid out.

    Attributes:
        count: How many draws the vector has.
        digits: Digits of a draw.
    """

    count: int
    digits: int

    @property
    def guides(self) -> int:
        """The number of words with the first bits of all digits."""
        return -(-self.count * self.digits // GROUPS)

    @property
    def searches(self) -> int:
        """The number of digits that are searched for by all of their bits, wanted or not."""
        expected = self.count * self.digits * make_digit_table().undecided
        return math.ceil(expected + SPARE_DEVIATIONS * math.sqrt(expected)) + SPARE_SEARCHES

    @property
    def words(self) -> int:
        """The number of words in all: a search reads two."""
        return self.guides + 2 * self.searches


def look_up_digits(words: np.ndarray, plan: DrawPlan) -> np.ndarray:
    """Returns the digits of vectors of draws, as int16, a row for every place of the base.

    Args:
        words: Their keystreams, one vector's a row.
        plan: The layout of each keystream.

    Returns:
        A table of shape (places, vectors times draws), one vector's draws after the other's.
    """
    vectors = len(words)
    total = plan.count * plan.digits
    guides = np.ascontiguousarray(words[:, : plan.guides], dtype="<u8").view("<u2")
    firsts = np.ascontiguousarray(guides[:, :total]).ravel()
    reached = make_digit_table().guide[firsts]
    undecided, slots = assign_searches(reached, plan, vectors)
    rest = words[:, plan.guides :].reshape(-1, 2)
    # The slots that no digit needs are searched all the same, so that the work does not depend on
    # what is drawn.
    starts = np.zeros(vectors * plan.searches, dtype=np.uint64)
    starts[slots] = firsts[undecided]
    high = (starts << np.uint64(WORD_BITS - GUIDE_BITS)) | (rest[:, 0] >> np.uint64(GUIDE_BITS))
    reached[undecided] = search_entries(rest[:, 1], high)[slots]
    digits = (reached - np.int16(LARGEST_DIGIT)).reshape(vectors, plan.digits, plan.count)
    by_place: np.ndarray = digits.transpose(1, 0, 2).reshape(plan.digits, -1)
    return by_place


def assign_searches(
    reached: np.ndarray, plan: DrawPlan, vectors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which digits need the rest of their bits, and the search that each of them gets.

    Args:
        reached: What the guide says of the digits of all vectors; -1 where it does not suffice.
        plan: The layout of a vector.
        vectors: How many vectors there are.
    """
    undecided = np.flatnonzero(reached < 0)
    owners = undecided // (plan.count * plan.digits)
    firsts = np.searchsorted(owners, np.arange(vectors))
    ranks = np.arange(len(undecided)) - firsts[owners]
    # A vector has a fixed number of searches; almost no vector needs more.
    served = ranks < plan.searches
    slots = owners * plan.searches + ranks
    return undecided[served], slots[served]


def search_entries(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns how many entries of the table numbers of 128 bits reach.

    Args:
        low: The lower 64 bits of the numbers.
        high: The upper 64 bits.
    """
    table = make_digit_table()
    reached = np.searchsorted(table.high, high, side="right")
    # Where the upper halves are equal, the lower ones decide. That happens almost only where
    # probabilities are below 2^-64.
    before = np.maximum(reached, 1) - 1
    for place in np.flatnonzero(table.high[before] == high):
        first = int(np.searchsorted(table.high, high[place], side="left"))
        equal = table.low[first : reached[place]]
        reached[place] = first + np.searchsorted(equal, low[place], side="right")
    return reached


def add_places(digits: np.ndarray) -> np.ndarray:
    """Returns the numbers that digits in base 8 represent.

    Args:
        digits: A row for every place, the ones first.

    Returns:
        A vector of int64.

    Example:
        >>> add_places(np.array([[1, 2], [1, -1]]))
        array([ 9, -6])
    """
    numbers = np.empty(digits.shape[1], dtype=np.int64)
    for start in range(0, len(numbers), DRAWS_PER_BLOCK):
        # Horner's rule. Exact: with the most digits a draw is below 827 x 8^12 / 7 < 2^43.
        block = digits[:, start : start + DRAWS_PER_BLOCK]
        number = block[-1].astype(np.int64)
        for row in block[-2::-1]:
            number *= RADIX
            number += row
        numbers[start : start + DRAWS_PER_BLOCK] = number
    return numbers


def draw_integers(
    stream: Stream,
    trainings: int,
    count: int,
    digits: int,
) -> np.ndarray:
    """Returns independent draws for several trainings.

    Args:
        stream: The place in the keystream.
        trainings: The number of trainings, from the stream's on.
        count: How many draws each training makes.
        digits: Digits of a draw; `ladder_parameter` says which parameter that is.

    Returns:
        A table of int64 of shape (trainings, count).

    Example:
        >>> from sordino.randomness import Key, Purpose
        >>> draw_integers(Key.from_seed(7).stream(Purpose.UPLOAD_NOISE), 1, 3, 2).shape
        (1, 3)
    """
    plan = DrawPlan(count=count, digits=digits)
    keystream = stream.words(plan.words, trainings).reshape(trainings, plan.words)
    numbers = np.empty((trainings, count), dtype=np.int64)
    # Many short vectors at a time, so that their number costs nothing; long ones one by one.
    together = max(1, DRAWS_PER_BLOCK // max(count, 1))
    for start in range(0, trainings, together):
        block = keystream[start : start + together]
        numbers[start : start + together] = add_places(look_up_digits(block, plan)).reshape(
            len(block), count
        )
    return numbers
