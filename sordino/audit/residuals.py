"""The residual test: what is left of the uploads without their known means must be the noise that was promised, and nothing else.

It stands beside the game: noise that is reused or badly seeded passes every likelihood ratio of single uploads, and is seen here.
Every residual x becomes a normal score z = Phi^-1(F(x)), F being the law that the noise is claimed to have. If the claim holds, scores
are independent standard normals whatever the law, and all tests are tests of that: exact, or bounds that err towards silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from sordino.audit.laws import GAUSSIAN, Law, gaussian, laplace, staircase
from sordino.audit.noise_dependence import dependence_tests
from sordino.audit.noise_sample import (
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
from sordino.protocol.errors import UserError

__all__ = [
    "FEWEST",
    "GAUSSIAN",
    "Law",
    "ResidualReport",
    "ResidualTest",
    "gaussian",
    "laplace",
    "residual_tests",
    "staircase",
]

FALSE_ALARM = 1e-6  # of a whole report, on noise that is as claimed
FEWEST = 100  # values below which nothing can be said at that level
_FINEST = 1024  # intervals that values are counted in
_SLACK = ROUNDING / math.sqrt(
    2 * math.pi
)  # probability that rounding moves from one side of a border to the other, at most
_UPLOAD = (TRAINING, ROUND, CLIENT)
_Answer = tuple[float, str, str]  # p-value, place, found


@dataclass(frozen=True, kw_only=True)
class ResidualReport:
    """All tests of one set of residuals. Noise that is as claimed makes `failed` non-empty with probability at most 1e-6.

    Example:
        >>> print(residual_tests(np.random.default_rng(0).normal(size=(20, 5, 2, 3))))
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
            return f"{self.values} residuals fit the law claimed ({self.law}): none of {self._made} tests fails."
        head = f"{self.values} residuals are not the noise claimed ({self.law}): {len(self.failed)} of {self._made} tests fail."
        return "\n".join(
            [
                head,
                *(
                    f"  {test.name}, {test.place}: {test.found} (p = {test.p:.1e})"
                    for test in self.failed
                ),
            ]
        )


def residual_tests(
    residuals: np.ndarray, *, law: Law = GAUSSIAN, taken: np.ndarray | None = None
) -> ResidualReport:
    """Test whether residuals are independent draws of the law that the noise is claimed to have.

    Tested are the standard deviation and the mean (overall, of every coordinate, round, client, training and upload), the law of the
    values and of the uploads' norms, correlation (every pair of rounds, clients, coordinates, trainings and places (round, client);
    neighbours pooled; a part shared by all), and repetition: noise that occurs again anywhere, at whatever offset.

    The whole report fails on correct noise with probability at most 1e-6: every p-value is exact or an upper bound, corrected for the
    comparisons within its test, and compared with 1e-6 divided by the number of tests. That holds while the rounding of the uploads
    moves a normal score by less than 1e-4: for Gaussian noise and float32, uploads of up to 800 standard deviations. Not seen are
    generators that an adversary can predict, and dependence that is neither correlation nor repetition, such as random signs.

    Of more than four million values a subset is tested: evenly spread runs of 32 coordinates, then of trainings, rounds and clients.
    Pairs are compared among at most 2048 rounds, clients, coordinates and so on, spread in the same way.

    Args:
        residuals: Upload minus known mean; axes (trainings, rounds, clients, coordinates).
        law: What the noise is claimed to be (`gaussian`, `laplace`, `staircase`).
        taken: Which uploads exist, axes (trainings, rounds, clients); residuals elsewhere are ignored. None: all.

    Raises:
        UserError: residuals or `taken` of another shape or type, or fewer than 100 values.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(10, 4, 5, 20))
        >>> residual_tests(noise).failed
        ()
        >>> noise[:, 3] = noise[:, 1]
        >>> [test.place for test in residual_tests(noise).failed if test.name == "correlation of rounds"]
        ['rounds 1 and 3']
    """
    residuals, taken = _checked(residuals, taken)
    finite = np.stack([np.isfinite(part).all(axis=-1) for part in residuals])
    sample = Sample.of(residuals, taken & finite, law)
    tests = [_finite(taken & ~finite)]
    if sample.size >= FEWEST:
        tests += [*_moment_tests(sample), *_law_tests(sample), *dependence_tests(sample)]
    elif tests[0].p == 0:
        tests.append(
            ResidualTest.untested(
                "the noise",
                "everything else",
                f"{sample.size} finite values, at least {FEWEST} are needed",
            )
        )
    else:
        raise UserError(
            f"residuals: {sample.size} values in the subset that is tested; give an array with fewer places without uploads."
        )
    return ResidualReport(law=law.name, values=sample.size, tests=tuple(tests))


def _checked(residuals: np.ndarray, taken: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    residuals = np.asarray(residuals)
    if residuals.ndim != 4 or residuals.dtype.kind not in "fiu":
        raise UserError(
            f"residuals: an array of {residuals.dtype} of shape {residuals.shape}; expected real numbers with the axes "
            "(trainings, rounds, clients, coordinates)."
        )
    taken = np.ones(residuals.shape[:3], dtype=bool) if taken is None else np.asarray(taken)
    if taken.shape != residuals.shape[:3] or taken.dtype != bool:
        raise UserError(
            f"taken: an array of {taken.dtype} of shape {taken.shape}; expected booleans of shape {residuals.shape[:3]}."
        )
    given = int(taken.sum()) * residuals.shape[COORDINATE]
    if given < FEWEST:
        raise UserError(
            f"residuals: {given} values; at least {FEWEST} are needed. Take more trainings, rounds or coordinates."
        )
    return residuals, taken


def _finite(broken: np.ndarray) -> ResidualTest:
    tested, count = "every residual is a finite number", int(broken.sum())
    if count == 0:
        return ResidualTest(
            name="finite", tested=tested, p=1.0, place="everywhere", found="all finite"
        )
    first = ", ".join(
        f"{name} {index}" for name, index in zip(AXES, np.argwhere(broken)[0], strict=False)
    )
    found = (
        f"not finite: {count} {'upload' if count == 1 else 'uploads'}, left out of the other tests"
    )
    return ResidualTest(name="finite", tested=tested, p=0.0, place=first, found=found)


def _moment_tests(sample: Sample) -> Iterator[ResidualTest]:
    for axes in ((), (COORDINATE,), (ROUND,), (CLIENT,), (TRAINING,), _UPLOAD):
        word = "upload" if axes == _UPLOAD else AXES[axes[0]] if axes else ""
        for kind in ("standard deviation", "mean"):
            name, tested = (
                f"{kind} by {word}" if word else kind,
                f"{kind} of the noise of {'each ' + word if word else 'all uploads'}",
            )
            groups = math.prod(sample.scores.shape[axis] for axis in axes)
            if axes and groups == 1:
                yield ResidualTest.untested(name, tested, f"a single {word}")
            elif groups == sample.scores.size:
                yield ResidualTest.untested(
                    name, tested, "a single value each, whose law is tested below"
                )
            else:
                p, place, found = (_deviation if kind == "standard deviation" else _mean)(
                    sample, axes
                )
                yield ResidualTest(
                    name=name, tested=tested, p=min(1.0, p), place=place, found=found
                )


def _deviation(sample: Sample, axes: tuple[int, ...]) -> _Answer:
    """The sum of n squared scores is chi-square with n degrees."""
    groups, counts, totals = _grouped(sample, sample.squares, axes)
    p = chi_square_p(totals, counts)
    worst = int(np.argmin(p))
    ratio = math.sqrt(totals[worst] / counts[worst])
    return (
        len(p) * float(p[worst]),
        sample.place(axes, int(groups[worst])) or "overall",
        f"{ratio:.4g} times what is claimed",
    )


def _mean(sample: Sample, axes: tuple[int, ...]) -> _Answer:
    """The sum of n scores is normal of variance n."""
    groups, counts, totals = _grouped(sample, sample.scores, axes)
    p = special.erfc(np.abs(totals) / np.sqrt(2 * counts))
    worst = int(np.argmin(p))
    mean = totals[worst] / counts[worst]
    return (
        len(p) * float(p[worst]),
        sample.place(axes, int(groups[worst])) or "overall",
        f"{mean:+.4g} standard deviations",
    )


def _grouped(
    sample: Sample, part: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups along `axes` that have scores, how many they have, and the sums of `part` over them."""
    others = tuple(axis for axis in range(4) if axis not in axes)
    counts = sample.present.sum(axis=others).ravel()
    groups = np.flatnonzero(counts)
    return groups, counts[groups], part.sum(axis=others).ravel()[groups]


def _law_tests(sample: Sample) -> Iterator[ResidualTest]:
    """Of all scores, and of the norms of the uploads, in which clipping shows, and noise whose size is drawn anew."""
    dimension = sample.scores.shape[COORDINATE]
    norms = np.empty(0) if dimension == 1 else _norm_scores(sample)
    for what, scores in (
        ("values", np.sort(sample.scores[sample.taken], axis=None)),
        ("norms", np.sort(norms)),
    ):
        for name, tested, test in (
            (
                "shares",
                f"how many {what} fall into equally likely intervals, from coarse to fine",
                _shares,
            ),
            (
                "distribution",
                f"how far the distribution of {what} is from the law (Kolmogorov-Smirnov)",
                _distance,
            ),
            (
                "crowding",
                f"{what} that nearly coincide, as where noise is constant, absent or rounded",
                _crowding,
            ),
            ("largest", f"the largest of the {what}, too large or too small", _largest),
        ):
            if len(scores) < 2:
                yield ResidualTest.untested(
                    f"{name} of {what}",
                    tested,
                    f"a single {'coordinate' if dimension == 1 else 'upload'}",
                )
            else:
                p, place, found = test(scores)
                yield ResidualTest(
                    name=f"{name} of {what}", tested=tested, p=min(1.0, p), place=place, found=found
                )


def _norm_scores(sample: Sample) -> np.ndarray:
    """The squared norm of an upload's scores is chi-square; as a normal score, by the nearer tail."""
    half = sample.scores.shape[COORDINATE] / 2
    totals = sample.squares.sum(axis=COORDINATE)[sample.taken]
    low, high = special.gammainc(half, totals / 2), special.gammaincc(half, totals / 2)
    return np.clip(np.where(low < high, special.ndtri(low), -special.ndtri(high)), -100.0, 100.0)


def _shares(scores: np.ndarray) -> _Answer:
    """Binomial counts in 2, 4, 8, ... intervals, each exact but for what rounding may move; Pearson's sum is not, this far in the tail."""
    count = len(scores)
    level = math.floor(math.log2(min(_FINEST, max(2, count // 32))))
    inside = np.bincount(
        np.minimum((special.ndtr(scores) * 2**level).astype(int), 2**level - 1), minlength=2**level
    )
    best, comparisons, place, found = math.inf, 0, "", ""
    while level > 0:
        intervals = 2**level
        few = stats.binom.cdf(inside, count, 1 / intervals - _SLACK)
        many = stats.binom.sf(inside - 1, count, 1 / intervals + _SLACK)
        p = 2 * np.minimum(few, many)
        worst = int(np.argmin(p))
        if p[worst] < best:
            best, place = (
                float(p[worst]),
                f"between the quantiles {worst / intervals:.4g} and {(worst + 1) / intervals:.4g}",
            )
            found = f"{inside[worst]} of {count}, {count / intervals:.1f} expected"
        comparisons += intervals
        inside, level = inside.reshape(-1, 2).sum(axis=1), level - 1
    return best * comparisons, place, found


def _distance(scores: np.ndarray) -> _Answer:
    """P(distance >= D) <= 2 exp(-2 n D^2) for every n (Massart 1990)."""
    count, law = len(scores), special.ndtr(scores)
    gaps = np.maximum(np.arange(1, count + 1) / count - law, law - np.arange(count) / count)
    worst = int(np.argmax(gaps))
    p = 2 * math.exp(-2 * count * max(0.0, float(gaps[worst]) - _SLACK) ** 2)
    return p, f"at the quantile {law[worst]:.4g}", f"{gaps[worst]:.4g} away"


def _crowding(scores: np.ndarray) -> _Answer:
    """The most scores within `ROUNDING` above one of them: each of the others is there with at most the probability at the mode.

    Scores that are so near were within twice that before rounding.
    """
    count, chance = len(scores), math.erf(ROUNDING / math.sqrt(2))
    inside = np.searchsorted(scores, scores + ROUNDING, side="right") - np.arange(count)
    worst = int(np.argmax(inside))
    p = count * float(stats.binom.sf(inside[worst] - 2, count - 1, chance))
    return (
        p,
        f"at the quantile {special.ndtr(scores[worst]):.4g}",
        f"{inside[worst]} of {count} within {ROUNDING:g} standard deviations",
    )


def _largest(scores: np.ndarray) -> _Answer:
    """P(all |z| <= M) = (1 - 2 Phi(-M))^n."""
    largest = max(-float(scores[0]), float(scores[-1]))
    with np.errstate(divide="ignore"):
        log_within = len(scores) * np.log1p(-2 * special.ndtr(-largest))
    return (
        2 * float(min(np.exp(log_within), -np.expm1(log_within))),
        "overall",
        f"{largest:.4g} standard deviations",
    )
