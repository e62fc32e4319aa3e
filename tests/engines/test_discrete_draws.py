"""The kernel draws discrete noise with the bits of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.mechanisms.discrete_gaussian import LARGEST_DIGIT, draw_integers, make_digit_table
from sordino.native import discrete_draws
from sordino.native.discrete_draws import UNDECIDED, draw_natively, halve_guide
from sordino.native.library import choose_instruction_set, list_runnable
from sordino.randomness import Key, Purpose, Stream
from tests.mechanisms.test_discrete_gaussian import keystream_of

pytestmark = pytest.mark.skipif(choose_instruction_set() is None, reason="no compiled kernel")
each_library = pytest.mark.parametrize("simd", list_runnable())
STREAM = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE, client=3)


@each_library
@pytest.mark.parametrize("digits", [1, 2, 5, 12])
@pytest.mark.parametrize("trainings", [1, 3])
@pytest.mark.parametrize("count", [1, 959, 960, 1001, 5000])
def test_draws_are_those_of_numpy(monkeypatch, simd, digits, trainings, count) -> None:
    monkeypatch.setenv("SORDINO_SIMD", simd)
    found = draw_natively(STREAM, trainings, count, digits)
    np.testing.assert_array_equal(found, draw_integers(STREAM, trainings, count, digits))


@each_library
def test_numbers_at_the_borders_of_digits_belong_where_the_table_says(monkeypatch, simd) -> None:
    """Keystreams that meet entries of the table exactly, and miss them by one."""
    monkeypatch.setenv("SORDINO_SIMD", simd)
    table = make_digit_table()
    numbers = [int(h) << 64 | int(low) for h, low in zip(table.high, table.low, strict=True)]
    near = {n + d for n in numbers for d in (-1, 0, 1)} | {0, 2**128 - 2, 2**128 - 1}
    near = sorted(n for n in near if 0 <= n < 2**128)
    words, plan = keystream_of(near)
    monkeypatch.setattr(Stream, "words", lambda self, count, trainings=1: words)
    found = draw_natively(STREAM, 1, plan.count, 1)[0, : len(near)]
    exact = [sum(n >= entry for entry in numbers) - LARGEST_DIGIT for n in near]
    assert found.tolist() == exact


def test_half_the_guide_says_what_the_whole_says() -> None:
    """The law of the table is symmetric to the last bit, and no digit is taken for undecided."""
    guide = make_digit_table().guide.astype(np.int64)
    half = halve_guide().astype(np.int64)
    first = np.arange(1 << 16)
    found = np.where(first >= 1 << 15, half[first & 0x7FFF], -half[~first & 0x7FFF])
    known = guide >= 0
    np.testing.assert_array_equal(found[known], guide[known] - LARGEST_DIGIT)
    np.testing.assert_array_equal(np.abs(found) == UNDECIDED, ~known)


def test_without_a_kernel_numpy_draws(monkeypatch) -> None:
    monkeypatch.setattr(discrete_draws, "choose_instruction_set", lambda: None)
    np.testing.assert_array_equal(draw_natively(STREAM, 1, 9, 2), draw_integers(STREAM, 1, 9, 2))
