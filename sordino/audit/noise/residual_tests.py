"""Tests whether residuals, uploads less their known means, are the promised noise.

These tests complement the game: noise that is reused or badly seeded passes every likelihood ratio
of single uploads, and is detected here. Every residual x becomes a normal score z = Phi^-1(F(x)),
with F the distribution that the noise is claimed to have. If the claim holds, scores are
independent standard normals whatever F is, and all tests are tests of that. Their p-values are
exact, or upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from sordino.audit.noise.independence_tests import run_independence_tests
from sordino.audit.noise.normal_scores import (
    AXES,
    CLIENT,
    COORDINATE,
    ROUND,
    ROUNDING,
    TRAINING,
    ResidualTest,
    Sample,
    chi_square_p,
)
from sordino.mechanisms.noise_law import STANDARD_NORMAL, Law
from sordino.protocol.errors import UserError

# The probability with which some test of a report fails although the noise is as claimed.
FALSE_ALARM = 1e-6
# The fewest values that are tested: fewer show nothing at that level.
FEWEST = 100
# The most intervals in which values are counted.
_FINEST = 1024
# The largest probability that rounding moves a score across a border.
_SLACK = ROUNDING / math.sqrt(2 * math.pi)
# The largest normal score of a norm, so that all are finite.
_FARTHEST = 100.0
_UPLOAD = (TRAINING, ROUND, CLIENT)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Holds a p-value, where the noise fits the claim least, and what was found there."""

    p: float
    place: str
    found: str


@dataclass(frozen=True, kw_only=True)
class ResidualReport:
    """Holds all tests of one set of residuals.

    Noise that is as claimed makes `failed` non-empty with probability at most 1e-6.

    Attributes:
        law: The law that the noise is claimed to have, in words.
        values: The number of values that were tested.
        tests: The results of all tests.

    Example:
        >>> print(examine_residuals(np.random.default_rng(0).normal(size=(20, 5, 2, 3))))
        600 residuals fit the law claimed (normal, standard deviation 1): none of 35 tests fails.
    """

    law: str
    values: int
    tests: tuple[ResidualTest, ...]

    @property
    def threshold(self) -> float:
        """The p-value below which a test fails: 1e-6 shared equally by the tests that were made."""
        return FALSE_ALARM / max(1, self._made)

    @property
    def failed(self) -> tuple[ResidualTest, ...]:
        """The tests that contradict the claim."""
        return tuple(test for test in self.tests if test.p is not None and test.p < self.threshold)

    @property
    def _made(self) -> int:
        return sum(test.p is not None for test in self.tests)

    def __str__(self) -> str:
        if not self.failed:
            return (
                f"{self.values} residuals fit the law claimed ({self.law}): "
                f"none of {self._made} tests fails."
            )
        lines = [
            f"{self.values} residuals are not the noise claimed ({self.law}): "
            f"{len(self.failed)} of {self._made} tests fail."
        ]
        for test in self.failed:
            lines.append(f"  {test.name}, {test.place}: {test.found} (p = {test.p:.1e})")
        return "\n".join(lines)


def examine_residuals(
    residuals: np.ndarray, *, law: Law = STANDARD_NORMAL, taken: np.ndarray | None = None
) -> ResidualReport:
    """Tests whether residuals are independent draws of the distribution that is claimed.

    The tests cover the standard deviation and the mean (overall, of every coordinate, round,
    client, training and upload), the distribution of the values and of the uploads' norms,
    correlation (every pair of rounds, clients, coordinates, trainings and places (round, client);
    neighbours pooled; a part shared by all), and repetition: noise that occurs again anywhere, at
    any offset.

    The whole report fails on correct noise with probability at most 1e-6: every p-value is exact or
    an upper bound, corrected for the comparisons within its test, and compared with 1e-6 divided by
    the number of tests. That holds while the rounding of the uploads moves a normal score by less
    than 1e-4: for Gaussian noise and float32, uploads of up to 800 standard deviations. Generators
    that an adversary can predict are not detected, nor is dependence that is neither correlation
    nor repetition, such as random signs.

    Of more than four million values a subset is tested: evenly spread runs of 32 coordinates, then
    of trainings, rounds and clients. Pairs are compared among at most 2048 rounds, clients,
    coordinates and so on, spread in the same way.

    Args:
        residuals: The uploads less their known means: (trainings, rounds, clients, coordinates).
        law: The law that the noise is claimed to have (`mechanism_of(noise).law`).
        taken: Which uploads exist: (trainings, rounds, clients). Residuals elsewhere are ignored.
            None if all exist.

    Returns:
        The results of all tests.

    Raises:
        UserError: `residuals` or `taken` of another shape or type, or fewer than 100 values.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(10, 4, 5, 20))
        >>> examine_residuals(noise).failed
        ()
        >>> noise[:, 3] = noise[:, 1]
        >>> failed = examine_residuals(noise).failed
        >>> [test.place for test in failed if test.name == "correlation of rounds"]
        ['rounds 1 and 3']
    """
    residuals = np.asarray(residuals)
    taken = _check_residuals(residuals, taken)
    finite = np.stack([np.isfinite(part).all(axis=-1) for part in residuals])
    sample = Sample.of(residuals, taken & finite, law)
    tests = [_test_finiteness(taken & ~finite)]
    if sample.size >= FEWEST:
        tests += [*_test_moments(sample), *_test_law(sample), *run_independence_tests(sample)]
    elif tests[0].p == 0:
        why = f"{sample.size} finite values, at least {FEWEST} are needed"
        tests.append(ResidualTest.untested("the noise", "everything else", why))
    else:
        raise UserError(
            f"residuals: {sample.size} values in the subset that is tested; give an array with "
            "fewer places without uploads."
        )
    return ResidualReport(law=law.name, values=sample.size, tests=tuple(tests))


def _check_residuals(residuals: np.ndarray, taken: np.ndarray | None) -> np.ndarray:
    """Returns which uploads exist, if the arrays have the right shapes and types."""
    if residuals.ndim != 4 or residuals.dtype.kind not in "fiu":
        raise UserError(
            f"residuals: an array of {residuals.dtype} of shape {residuals.shape}; expected real "
            "numbers with the axes (trainings, rounds, clients, coordinates)."
        )
    if taken is None:
        taken = np.ones(residuals.shape[:3], dtype=bool)
    taken = np.asarray(taken)
    if taken.shape != residuals.shape[:3] or taken.dtype != bool:
        raise UserError(
            f"taken: an array of {taken.dtype} of shape {taken.shape}; expected booleans of shape "
            f"{residuals.shape[:3]}."
        )
    given = int(taken.sum()) * residuals.shape[COORDINATE]
    if given < FEWEST:
        raise UserError(
            f"residuals: {given} values; at least {FEWEST} are needed. Take more trainings, rounds "
            "or coordinates."
        )
    return taken


def _test_finiteness(broken: np.ndarray) -> ResidualTest:
    tested = "every residual is a finite number"
    count = int(broken.sum())
    if count == 0:
        return ResidualTest(
            name="finite",
            tested=tested,
            p=1.0,
            place="everywhere",
            found="all finite",
        )
    first = ", ".join(
        f"{name} {index}" for name, index in zip(AXES, np.argwhere(broken)[0], strict=False)
    )
    uploads = "upload" if count == 1 else "uploads"
    found = f"not finite: {count} {uploads}, left out of the other tests"
    return ResidualTest(
        name="finite",
        tested=tested,
        p=0.0,
        place=first,
        found=found,
    )


def _test_moments(sample: Sample) -> Iterator[ResidualTest]:
    """Yields the tests of standard deviations and means, overall and by group."""
    groupings: tuple[tuple[tuple[int, ...], str], ...] = (
        ((), ""),
        ((COORDINATE,), "coordinate"),
        ((ROUND,), "round"),
        ((CLIENT,), "client"),
        ((TRAINING,), "training"),
        (_UPLOAD, "upload"),
    )
    for axes, word in groupings:
        yield _test_grouped("standard deviation", _test_deviation, sample, axes, word)
        yield _test_grouped("mean", _test_mean, sample, axes, word)


def _test_grouped(
    kind: str,
    test: Callable[[Sample, tuple[int, ...]], _Answer],
    sample: Sample,
    axes: tuple[int, ...],
    word: str,
) -> ResidualTest:
    """Returns the result of a test of a moment, for all groups along some axes."""
    name = kind
    tested = f"{kind} of the noise of all uploads"
    if word:
        name = f"{kind} by {word}"
        tested = f"{kind} of the noise of each {word}"
    groups = math.prod(sample.scores.shape[axis] for axis in axes)
    if axes and groups == 1:
        return ResidualTest.untested(name, tested, f"a single {word}")
    if groups == sample.scores.size:
        return ResidualTest.untested(name, tested, "a single value each, whose law is tested below")
    return _report(name, tested, test(sample, axes))


def _report(name: str, tested: str, answer: _Answer) -> ResidualTest:
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, answer.p),
        place=answer.place,
        found=answer.found,
    )


def _test_deviation(sample: Sample, axes: tuple[int, ...]) -> _Answer:
    """Uses that the sum of n squared scores is chi-square with n degrees."""
    groups, counts, totals = _sum_groups(sample, sample.squares, axes)
    p = chi_square_p(totals, counts)
    worst = int(np.argmin(p))
    ratio = math.sqrt(totals[worst] / counts[worst])
    return _Answer(
        p=len(p) * float(p[worst]),
        place=sample.place(axes, int(groups[worst])) or "overall",
        found=f"{ratio:.4g} times what is claimed",
    )


def _test_mean(sample: Sample, axes: tuple[int, ...]) -> _Answer:
    """Uses that the sum of n scores is normal with variance n."""
    groups, counts, totals = _sum_groups(sample, sample.scores, axes)
    p = special.erfc(np.abs(totals) / np.sqrt(2 * counts))
    worst = int(np.argmin(p))
    mean = totals[worst] / counts[worst]
    return _Answer(
        p=len(p) * float(p[worst]),
        place=sample.place(axes, int(groups[worst])) or "overall",
        found=f"{mean:+.4g} standard deviations",
    )


def _sum_groups(
    sample: Sample, part: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the groups along `axes` that have scores, their sizes, and the sums of `part`."""
    others = tuple(axis for axis in range(4) if axis not in axes)
    counts = sample.present.sum(axis=others).ravel()
    groups = np.flatnonzero(counts)
    return groups, counts[groups], part.sum(axis=others).ravel()[groups]


def _test_law(sample: Sample) -> Iterator[ResidualTest]:
    """Yields the tests of the distribution of values, and of norms of uploads.

    Norms show clipping, and noise whose size is drawn again and again.
    """
    dimension = sample.scores.shape[COORDINATE]
    norms = np.empty(0)
    if dimension > 1:
        norms = np.sort(_score_norms(sample))
    values = np.sort(sample.scores[sample.taken], axis=None)
    single = "a single coordinate" if dimension == 1 else "a single upload"
    for what, scores in (("values", values), ("norms", norms)):
        for name, tested, test in _list_law_tests(what):
            if len(scores) < 2:
                yield ResidualTest.untested(name, tested, single)
            else:
                yield _report(name, tested, test(scores))


def _list_law_tests(what: str) -> list[tuple[str, str, Callable[[np.ndarray], _Answer]]]:
    """Returns the names of the tests of a distribution, what they test, and the tests."""
    return [
        (
            f"shares of {what}",
            f"how many {what} fall into equally likely intervals, from coarse to fine",
            _test_shares,
        ),
        (
            f"distribution of {what}",
            f"how far the distribution of {what} is from the law (Kolmogorov-Smirnov)",
            _test_distance,
        ),
        (
            f"crowding of {what}",
            f"{what} that nearly coincide, as where noise is constant, absent or rounded",
            _test_crowding,
        ),
        (f"largest of {what}", f"the largest of the {what}, too large or too small", _test_largest),
    ]


def _score_norms(sample: Sample) -> np.ndarray:
    """Returns normal scores of the squared norms of uploads, which are chi-square."""
    half = sample.scores.shape[COORDINATE] / 2
    totals = sample.squares.sum(axis=COORDINATE)[sample.taken]
    below = special.gammainc(half, totals / 2)
    above = special.gammaincc(half, totals / 2)
    # By the nearer tail, which keeps its digits.
    scores = np.where(below < above, special.ndtri(below), -special.ndtri(above))
    return np.asarray(np.clip(scores, -_FARTHEST, _FARTHEST))


def _test_shares(scores: np.ndarray) -> _Answer:
    """Compares counts in 2, 4, 8, ... intervals with the binomial.

    Each comparison is exact, with an allowance for rounding. Pearson's chi-square is not exact this
    far in the tail.
    """
    count = len(scores)
    level = math.floor(math.log2(min(_FINEST, max(2, count // 32))))
    finest = np.minimum((special.ndtr(scores) * 2**level).astype(int), 2**level - 1)
    inside = np.bincount(finest, minlength=2**level)
    best = _Answer(p=math.inf, place="", found="")
    comparisons = 0
    while level > 0:
        intervals = 2**level
        few = stats.binom.cdf(inside, count, 1 / intervals - _SLACK)
        many = stats.binom.sf(inside - 1, count, 1 / intervals + _SLACK)
        p = 2 * np.minimum(few, many)
        worst = int(np.argmin(p))
        if p[worst] < best.p:
            low = worst / intervals
            high = (worst + 1) / intervals
            best = _Answer(
                p=float(p[worst]),
                place=f"between the quantiles {low:.4g} and {high:.4g}",
                found=f"{inside[worst]} of {count}, {count / intervals:.1f} expected",
            )
        comparisons += intervals
        inside = inside.reshape(-1, 2).sum(axis=1)
        level -= 1
    return _Answer(p=best.p * comparisons, place=best.place, found=best.found)


def _test_distance(scores: np.ndarray) -> _Answer:
    """Uses that P(distance >= D) <= 2 exp(-2 n D^2) for every n (Massart 1990)."""
    count = len(scores)
    law = special.ndtr(scores)
    above = np.arange(1, count + 1) / count - law
    below = law - np.arange(count) / count
    gaps = np.maximum(above, below)
    worst = int(np.argmax(gaps))
    p = 2 * math.exp(-2 * count * max(0.0, float(gaps[worst]) - _SLACK) ** 2)
    return _Answer(p=p, place=f"at the quantile {law[worst]:.4g}", found=f"{gaps[worst]:.4g} away")


def _test_crowding(scores: np.ndarray) -> _Answer:
    """Returns the test of the most scores within `ROUNDING` above one of them.

    Each of the others lies there with at most the probability at the mode. Scores this near were
    within twice that distance before rounding.
    """
    count = len(scores)
    chance = math.erf(ROUNDING / math.sqrt(2))
    inside = np.searchsorted(scores, scores + ROUNDING, side="right") - np.arange(count)
    worst = int(np.argmax(inside))
    p = count * float(stats.binom.sf(inside[worst] - 2, count - 1, chance))
    return _Answer(
        p=p,
        place=f"at the quantile {special.ndtr(scores[worst]):.4g}",
        found=f"{inside[worst]} of {count} within {ROUNDING:g} standard deviations",
    )


def _test_largest(scores: np.ndarray) -> _Answer:
    """Uses that P(all |z| <= M) = (1 - 2 Phi(-M))^n."""
    largest = max(-float(scores[0]), float(scores[-1]))
    with np.errstate(divide="ignore"):
        log_within = len(scores) * np.log1p(-2 * special.ndtr(-largest))
    p = 2 * float(min(np.exp(log_within), -np.expm1(log_within)))
    return _Answer(p=p, place="overall", found=f"{largest:.4g} standard deviations")
