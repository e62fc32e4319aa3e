"""Discrete Gaussian draws: the law by enumeration, the sampler by tests that reject its neighbours."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from sordino.mechanisms import discrete_gaussian
from sordino.mechanisms.discrete_gaussian import (
    LARGEST_DIGIT,
    DrawPlan,
    bound_total_variation,
    count_probabilities,
    draw_integers,
    look_up_digits,
    make_digit_table,
    search_entries,
)
from sordino.protocol import InvalidValue
from sordino.protocol.grids import ladder_parameter
from sordino.randomness import Key, Purpose

STREAM = Key.from_seed(11).stream(Purpose.UPLOAD_NOISE)


def exact_law(parameter: float, reach: int) -> np.ndarray:
    """Returns the probabilities of -reach to reach in 60 digits, by Jacobi's theta function."""
    with mpmath.workdps(60):
        width = mpmath.mpf(parameter)
        nome = mpmath.exp(-1 / (2 * width**2))
        # Jacobi's identity gives the sum over all integers without adding it up.
        total = width * mpmath.sqrt(2 * mpmath.pi)
        total *= mpmath.jtheta(3, 0, mpmath.exp(-2 * mpmath.pi**2 * width**2))
        side = [mpmath.power(nome, x * x) / total for x in range(reach + 1)]
        return np.array([*reversed(side[1:]), *side], dtype=object)


def test_the_law_of_a_digit_is_exact_to_2_to_the_minus_128_a_value() -> None:
    counts, missing = count_probabilities()
    assert sum(counts) == 2**128
    assert counts == counts[::-1]
    exact = exact_law(64, LARGEST_DIGIT)
    with mpmath.workdps(60):
        gaps = [mpmath.mpf(n) / 2**128 - p for n, p in zip(counts, exact, strict=True)]
        others = [gap for place, gap in enumerate(gaps) if place != LARGEST_DIGIT]
        assert all(-(mpmath.mpf(2) ** -128) < gap <= 0 for gap in others)
        apart = (sum(abs(gap) for gap in gaps) + (1 - sum(exact))) / 2
        assert apart <= missing * (1 + 1e-9)
    assert missing < 2.0**-117


def test_the_largest_digit_is_the_last_whose_probability_reaches_the_table() -> None:
    exact = exact_law(64, LARGEST_DIGIT + 1)
    assert exact[1] * 2**128 >= 1
    assert exact[0] * 2**128 < 1


def test_two_digits_form_a_discrete_gaussian_of_the_ladder() -> None:
    """Every probability of the sum, by enumeration, against the exact law of the next parameter."""
    digit = np.array([float(p) for p in exact_law(64, 900)])
    wide = np.zeros(8 * 1800 + 1)
    wide[::8] = digit
    both = np.convolve(wide, digit)
    reach = (len(both) - 1) // 2
    near = 3000
    exact = exact_law(ladder_parameter(2), near).astype(float)
    found = both[reach - near : reach + near + 1]
    # Enumerated in float64: equal to the rounding of a thousand terms.
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_with_a_coarser_base_digits_would_not_form_a_discrete_gaussian() -> None:
    """The same enumeration sees the fault if the widths that meet were too narrow (base 128)."""
    digit = np.array([float(p) for p in exact_law(64, 900)])
    wide = np.zeros(128 * 1800 + 1)
    wide[::128] = digit
    both = np.convolve(wide, digit)
    reach = (len(both) - 1) // 2
    exact = exact_law(64 * math.sqrt(1 + 128**2), 500).astype(float)
    assert np.max(np.abs(both[reach - 500 : reach + 501] / exact - 1)) > 1e-2


def test_look_ups_agree_with_the_definition_at_every_entry() -> None:
    """At an entry, one below it, and at both ends, by whole numbers of 128 bits."""
    counts, _ = count_probabilities()
    numbers = [0, 2**128 - 1]
    below = 0
    for count in counts[:-1]:
        below += count
        numbers += [below - 1, below, min(below + 1, 2**128 - 1)]
    expected = []
    for number in numbers:
        total = 0
        digit = -LARGEST_DIGIT
        for count in counts:
            total += count
            if number < total:
                break
            digit += 1
        expected.append(digit)
    low = np.array([number & (2**64 - 1) for number in numbers], dtype=np.uint64)
    high = np.array([number >> 64 for number in numbers], dtype=np.uint64)
    assert (search_entries(low, high) - LARGEST_DIGIT).tolist() == expected
    assert look_up_digits(*keystream_of(numbers))[0, : len(numbers)].tolist() == expected


def keystream_of(numbers: list[int]) -> tuple[np.ndarray, DrawPlan]:
    """Returns the keystream of draws of one digit that begin with given numbers of 128 bits, by its definition:
    16 bits of each, and then the other 112 of those that 16 do not decide about. So many others follow, all
    decided by 16 bits, that there are searches enough."""
    plan = DrawPlan(count=150 * len(numbers), digits=1)
    guide = make_digit_table().guide
    firsts = np.full(4 * plan.guides, np.argmax(guide >= 0), dtype="<u2")
    firsts[: len(numbers)] = [number >> 112 for number in numbers]
    rest = [number for number in numbers if guide[number >> 112] < 0]
    # A searched number has its 48 middle bits at the top of a word, and then a whole word.
    words = [word for n in rest for word in ((n >> 64 & (2**48 - 1)) << 16, n & (2**64 - 1))]
    idle = [0] * (2 * plan.searches - len(words))
    keystream = np.concatenate([firsts.view("<u8"), np.array([*words, *idle], dtype=np.uint64)])
    return keystream[None], plan


def test_the_work_of_a_vector_depends_on_its_length_alone(monkeypatch) -> None:
    """However many digits are undecided, as many numbers are searched for."""
    searched = []

    def counting(low, high):
        searched.append(len(low))
        return search_entries(low, high)

    monkeypatch.setattr(discrete_gaussian, "search_entries", counting)
    plan = DrawPlan(count=500, digits=2)
    for seed in range(20):
        draw_integers(Key.from_seed(seed).stream(Purpose.UPLOAD_NOISE), 1, 500, 2)
    assert searched == [plan.searches] * 20


@pytest.mark.parametrize(("count", "digits"), [(1, 1), (40, 5), (10_000, 5), (4_000_000, 12)])
def test_more_searches_than_are_made_are_hardly_ever_needed(count, digits) -> None:
    """By the exact binomial law of how many digits are undecided."""
    plan = DrawPlan(count=count, digits=digits)
    share = float((make_digit_table().guide < 0).mean())
    assert stats.binom.logsf(plan.searches, count * digits, share) < -140 * math.log(2)
    assert plan.searches < 2 * count * digits * share + 400


def scores_of(draws: np.ndarray, parameter: float, seed: int = 0) -> np.ndarray:
    """Returns uniform scores: the exact distribution function with a uniform place in each step."""
    place = np.random.default_rng(seed).uniform(size=draws.shape)
    upper = stats.norm.cdf((draws + 0.5) / parameter)
    lower = stats.norm.cdf((draws - 0.5) / parameter)
    return lower + place * (upper - lower)


@pytest.mark.slow
@pytest.mark.parametrize("digits", [1, 2, 4, 8, 12])
def test_draws_have_their_law_and_no_neighbouring_one(digits) -> None:
    """Kolmogorov-Smirnov, accepted at the parameter and rejected 2 % beside it."""
    draws = draw_integers(STREAM, 1, 400_000, digits)[0]
    parameter = ladder_parameter(digits)
    assert stats.kstest(scores_of(draws, parameter), "uniform").pvalue > 1e-4
    for wrong in (0.98, 1.02):
        assert stats.kstest(scores_of(draws, wrong * parameter), "uniform").pvalue < 1e-4


def test_the_lowest_bits_are_fair() -> None:
    """Odd and even, and residues of 8: of a discrete Gaussian this wide they are all alike."""
    draws = draw_integers(STREAM, 1, 80_000, 4)[0]
    assert stats.chisquare(np.bincount(draws % 8, minlength=8)).pvalue > 1e-4
    biased = np.where(np.random.default_rng(0).uniform(size=draws.shape) < 0.03, draws & ~1, draws)
    assert stats.chisquare(np.bincount(biased % 8, minlength=8)).pvalue < 1e-4


def test_the_tail_reaches_as_far_as_it_must() -> None:
    """Beyond 3.5 parameters lie 4.65e-4 of all draws, and a table that ends at 3.7 has a third of them."""
    digits = draw_integers(STREAM, 1, 400_000, 1)[0]
    exact = exact_law(64, 900)
    expected = 2 * float(sum(exact[: 900 - 224]))
    far = int((np.abs(digits) > 224).sum())
    assert stats.binomtest(far, 400_000, expected).pvalue > 1e-4
    shortened = int(((np.abs(digits) > 224) & (np.abs(digits) <= 237)).sum())
    assert stats.binomtest(shortened, 400_000, expected).pvalue < 1e-4


def test_rows_are_what_each_training_draws_alone() -> None:
    together = draw_integers(Key.from_seed(5).stream(Purpose.UPLOAD_NOISE, training=1), 3, 7, 3)
    for row in range(3):
        stream = Key.from_seed(5).stream(Purpose.UPLOAD_NOISE, training=1 + row)
        np.testing.assert_array_equal(together[row], draw_integers(stream, 1, 7, 3)[0])


def test_draws_do_not_depend_on_how_many_are_looked_up_at_a_time(monkeypatch) -> None:
    whole = draw_integers(STREAM, 1, 1000, 3)
    monkeypatch.setattr(discrete_gaussian, "DRAWS_PER_BLOCK", 17)
    np.testing.assert_array_equal(draw_integers(STREAM, 1, 1000, 3), whole)


@pytest.mark.parametrize("digits", [0, 13, -1])
def test_a_draw_of_no_such_number_of_digits_is_refused(digits) -> None:
    with pytest.raises(InvalidValue, match="from 1 to 12"):
        ladder_parameter(digits)


def test_the_total_variation_of_all_draws_of_a_large_training_is_stated() -> None:
    """A million parameters, a thousand rounds, a thousand clients, four digits."""
    of_tables = 4e12 * make_digit_table().total_variation
    assert of_tables <= bound_total_variation(4, 1e12) == pytest.approx(of_tables)
    assert bound_total_variation(4, 1e12) < 1e-22


def test_first_bits_decide_alone_only_where_the_others_cannot_matter() -> None:
    """The smallest and the largest number that begin with 16 bits reach the same entries, or are searched for."""
    firsts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    lasts = firsts | np.uint64((1 << 48) - 1)
    nothing = np.zeros(1 << 16, dtype=np.uint64)
    everything = np.full(1 << 16, 2**64 - 1, dtype=np.uint64)
    smallest = search_entries(nothing, firsts)
    largest = search_entries(everything, lasts)
    decided = make_digit_table().guide >= 0
    assert np.array_equal(decided, smallest == largest)
    assert np.array_equal(make_digit_table().guide[decided], smallest[decided])
    assert decided.mean() > 0.99


@pytest.mark.parametrize(("trainings", "count"), [(1, 1), (70, 5), (7, 30_000), (3, 70_000)])
def test_what_is_drawn_together_is_what_each_training_draws_alone(
    trainings: int, count: int
) -> None:
    """Within a block of vectors, across blocks, and with vectors that are longer than a block."""
    key = Key.from_seed(3)
    first = key.stream(Purpose.UPLOAD_NOISE, training=5)
    together = draw_integers(first, trainings, count, 4)
    for number, row in enumerate(together):
        alone = key.stream(Purpose.UPLOAD_NOISE, training=5 + number)
        np.testing.assert_array_equal(row, draw_integers(alone, 1, count, 4)[0])
