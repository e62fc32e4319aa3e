"""Whether noise is independent: correlation along every axis, and noise that occurs again anywhere.

If it is, its normal scores are independent standard normals, and every p-value here is exact or a union bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import special

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
    spread,
)

_PAIRED = 2048  # rounds, clients, coordinates, trainings or places of which every pair is compared
_STRETCH = 8  # values in a row that are compared with every other such stretch


def dependence_tests(sample: Sample) -> Iterator[ResidualTest]:
    """All tests of this module.

    Example:
        >>> from sordino.audit.laws import GAUSSIAN
        >>> noise = np.repeat(np.random.default_rng(0).normal(size=(9, 4, 1, 20)), 2, axis=2)
        >>> sample = Sample.of(noise, np.ones((9, 4, 2), dtype=bool), GAUSSIAN)
        >>> [(test.place, test.found) for test in dependence_tests(sample) if test.name == "correlation of clients"]
        [('clients 0 and 1', 'correlation +1')]
    """
    for axes in ((ROUND,), (CLIENT,), (COORDINATE,), (TRAINING,), (ROUND, CLIENT)):
        yield _pairs(sample, axes)
    for axis in (ROUND, CLIENT, COORDINATE, TRAINING):
        yield _neighbours(sample, axis)
    for axis in (ROUND, CLIENT, COORDINATE, TRAINING):
        yield _shared_part(sample, axis)
    dimension = sample.scores.shape[COORDINATE]
    if 4 <= dimension < _STRETCH:  # fewer values can be alike by chance
        yield _repetition(sample, dimension)
    yield _repetition(sample, _STRETCH)


def correlation_p(cosine: float, count: int) -> float:
    """Of two vectors of `count` independent normals, two-sided and exact: the squared cosine is Beta(1/2, (count - 1)/2).

    It is Student's t with count - 1 degrees, the means being known to be 0; the vectors' lengths do not matter.

    Example:
        >>> round(correlation_p(0.5, 20), 4)
        0.021
    """
    return float(special.betainc((count - 1) / 2, 0.5, max(0.0, 1 - cosine**2)))


def _pairs(sample: Sample, axes: tuple[int, ...]) -> ResidualTest:
    """Every pair along an axis, over all that the two have in common; by matrix products."""
    several = f"{AXES[axes[0]]}s" if len(axes) == 1 else "places (round, client)"
    name, tested = f"correlation of {several}", f"correlation of the noise of every two {several}"
    lengths = [sample.scores.shape[axis] for axis in axes]
    if min(lengths) == 1:
        return ResidualTest.untested(name, tested, f"a single {AXES[axes[lengths.index(1)]]}")
    chosen = spread(math.prod(lengths), _PAIRED)
    cosines, counts = _cosines(
        _rows(sample.scores, axes)[chosen], _rows(sample.present, axes)[chosen]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -(counts - 1) * np.log1p(
            -np.minimum(cosines**2, 1.0)
        )  # grows as the p-value falls, and costs less
    compared = np.triu(counts, 1) >= 2
    if not compared.any():
        return ResidualTest.untested(name, tested, "no two have two residuals in common")
    pair = np.unravel_index(int(np.argmax(np.where(compared, surprise, -1.0))), surprise.shape)
    p = int(compared.sum()) * correlation_p(float(cosines[pair]), int(counts[pair]))
    if len(axes) == 1:
        first, second = sample.numbers[axes[0]][chosen[list(pair)]]
        place = f"{several} {first} and {second}"
    else:
        place = " and ".join(sample.place(axes, int(chosen[index])) for index in pair)
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, p),
        place=place,
        found=f"correlation {cosines[pair]:+.4g}",
    )


def _rows(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A row for each combination along `axes`."""
    return np.moveaxis(array, axes, range(len(axes))).reshape(
        math.prod(array.shape[axis] for axis in axes), -1
    )


def _cosines(rows: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every two rows over the entries that both have, and how many these are; 0 for a row of zeros."""
    used = present.any(axis=0)
    if not used.all():
        rows, present = rows[:, used], present[:, used]
    if present.all():
        counts = np.full((len(rows), len(rows)), rows.shape[1])
        lengths = np.einsum("ij,ij->i", rows, rows)[:, None]
    else:
        weights = present.astype(float)
        counts, lengths = np.rint(weights @ weights.T).astype(int), (rows**2) @ weights.T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num((rows @ rows.T) / np.sqrt(lengths * lengths.T)), counts


def _neighbours(sample: Sample, axis: int) -> ResidualTest:
    """Pooled over the disjoint neighbours (0, 1), (2, 3), ... and then over (1, 2), (3, 4), ..., so that each is exact."""
    name, tested = (
        f"neighbouring {AXES[axis]}s",
        f"correlation of the noise of a {AXES[axis]} with that of the next, all together",
    )
    scores, present = np.moveaxis(sample.scores, axis, 0), np.moveaxis(sample.present, axis, 0)
    results = []
    for start in (0, 1):
        both = present[start:-1:2] & present[start + 1 :: 2]
        left, right, count = scores[start:-1:2][both], scores[start + 1 :: 2][both], int(both.sum())
        if count >= 2:
            length = math.sqrt(float(left @ left) * float(right @ right))
            cosine = float(left @ right) / length if length > 0 else 0.0
            results.append((correlation_p(cosine, count), cosine))
    if not results:
        return ResidualTest.untested(name, tested, f"no two {AXES[axis]}s to compare")
    p, cosine = min(results)
    place = f"each {AXES[axis]} and the next"
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, len(results) * p),
        place=place,
        found=f"correlation {cosine:+.4g}",
    )


def _shared_part(sample: Sample, axis: int) -> ResidualTest:
    """Sums over n entries along an axis have variance n; a shared part makes it larger, noise that cancels smaller."""
    name, tested = (
        f"shared by {AXES[axis]}s",
        f"noise that all {AXES[axis]}s share, or that cancels among them",
    )
    counts = sample.present.sum(axis=axis)
    several = counts >= 2
    sums = int(several.sum())
    if sums == 0:
        return ResidualTest.untested(name, tested, f"no two {AXES[axis]}s to compare")
    total = float((sample.scores.sum(axis=axis)[several] ** 2 / counts[several]).sum())
    p = float(chi_square_p(np.array(total), np.array(sums)))
    found = f"sums have {total / sums:.4g} times the variance of independent ones"
    return ResidualTest(name=name, tested=tested, p=p, place=f"all {AXES[axis]}s", found=found)


def _repetition(sample: Sample, length: int) -> ResidualTest:
    """The two stretches of `length` values that are nearest to each other, in the order training, client, round, coordinate.

    A value of the later stretch is within D of its partner with probability at most erf(D / sqrt 2) given all values before it,
    also where the two stretches overlap, so p <= pairs * erf(D / sqrt 2)^length. No tolerance is chosen; D has the rounding added.
    """
    name, tested = (
        f"repetition of {length} values",
        f"noise that occurs again: any {length} values in a row, anywhere",
    )
    order = np.swapaxes(sample.taken, ROUND, CLIENT)
    values = np.swapaxes(sample.scores, ROUND, CLIENT)[order].ravel()
    count = len(values) - length + 1
    first, second = _candidates(values, count)
    if len(first) == 0:
        return ResidualTest(
            name=name, tested=tested, p=1.0, place="nowhere", found="no two are alike"
        )
    apart = np.zeros(len(first))
    for offset in range(length):
        np.maximum(apart, np.abs(values[first + offset] - values[second + offset]), out=apart)
    nearest = int(np.argmin(apart))
    p = math.comb(count, 2) * math.erf((float(apart[nearest]) + ROUNDING) / math.sqrt(2)) ** length
    uploads, dimension = np.argwhere(order)[:, [0, 2, 1]], sample.scores.shape[COORDINATE]
    places = []
    for start in (int(first[nearest]), int(second[nearest])):
        where = (*uploads[start // dimension], start % dimension)
        places.append(
            sample.place(
                (TRAINING, ROUND, CLIENT, COORDINATE),
                int(np.ravel_multi_index(where, sample.scores.shape)),
            )
        )
    found = f"equal to {apart[nearest]:.1e} standard deviations"
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, p),
        place=f"from {places[0]} and from {places[1]}",
        found=found,
    )


def _candidates(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Stretches whose first four values lie in the same cells of 1/64: those that repeat, but for a few that a cell's border parts.

    Any choice of candidates is allowed, since the p-value pays for all pairs.
    """
    cells = np.floor(values * 64).astype(np.int64).view(np.uint64)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(4):
        keys = (
            keys * np.uint64(0x9E3779B97F4A7C15) + cells[offset : offset + count]
        )  # a hash: wraps on purpose
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    return order[same], order[same + 1]
