"""Tests whether noise is independent: correlation along every axis, and repetition anywhere.

Normal scores of independent noise are independent standard normals, for which every p-value here is
exact or a union bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import special

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
    spread_evenly,
)

# The most rounds, clients, coordinates, trainings or places of which every pair is compared.
_PAIRED = 2048
# The length of the stretches of consecutive values that are searched for repetition.
_STRETCH = 8
# The length of the shortest stretches: fewer values can be equal by chance.
_SHORTEST_STRETCH = 4
# The cells per standard deviation by which equal stretches are found.
_CELLS = 64
# An odd multiplier whose products fill all 64 bits (2^64 over the golden ratio).
_HASH_MULTIPLIER = 0x9E3779B97F4A7C15


def run_independence_tests(sample: Sample) -> Iterator[ResidualTest]:
    """Yields the results of all tests of this module.

    Args:
        sample: Normal scores of residuals.

    Example:
        >>> from sordino.mechanisms.noise_law import STANDARD_NORMAL
        >>> noise = np.repeat(np.random.default_rng(0).normal(size=(9, 4, 1, 20)), 2, axis=2)
        >>> sample = Sample.of(noise, np.ones((9, 4, 2), dtype=bool), STANDARD_NORMAL)
        >>> for test in run_independence_tests(sample):
        ...     if test.name == "correlation of clients":
        ...         print(test.place, test.found)
        clients 0 and 1 correlation +1
    """
    for axes in ((ROUND,), (CLIENT,), (COORDINATE,), (TRAINING,), (ROUND, CLIENT)):
        yield _compare_pairs(sample, axes)
    for axis in (ROUND, CLIENT, COORDINATE, TRAINING):
        yield _compare_neighbours(sample, axis)
    for axis in (ROUND, CLIENT, COORDINATE, TRAINING):
        yield _find_shared_part(sample, axis)
    dimension = sample.scores.shape[COORDINATE]
    if _SHORTEST_STRETCH <= dimension < _STRETCH:
        yield _find_repetition(sample, dimension)
    yield _find_repetition(sample, _STRETCH)


def correlation_p(cosine: float, count: int) -> float:
    """Returns the two-sided, exact p-value of the cosine of two vectors of independent normals.

    The squared cosine is Beta(1/2, (count - 1)/2). This is Student's t with count - 1 degrees, the
    means being known to be 0; the lengths of the vectors do not matter.

    Args:
        cosine: The cosine.
        count: How many entries each vector has.

    Example:
        >>> round(correlation_p(0.5, 20), 4)
        0.021
    """
    return float(special.betainc((count - 1) / 2, 0.5, max(0.0, 1 - cosine**2)))


def _compare_pairs(sample: Sample, axes: tuple[int, ...]) -> ResidualTest:
    """Returns the test of the correlation of every pair along an axis, or along two axes."""
    several = "places (round, client)"
    if len(axes) == 1:
        several = f"{AXES[axes[0]]}s"
    name = f"correlation of {several}"
    tested = f"correlation of the noise of every two {several}"
    lengths = [sample.scores.shape[axis] for axis in axes]
    if min(lengths) == 1:
        return ResidualTest.untested(name, tested, f"a single {AXES[axes[lengths.index(1)]]}")
    chosen = spread_evenly(math.prod(lengths), _PAIRED)
    scores = _arrange_rows(sample.scores, axes)[chosen]
    present = _arrange_rows(sample.present, axes)[chosen]
    cosines, counts = _compute_cosines(scores, present)
    # It grows as the p-value falls, and is cheaper to compute.
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -(counts - 1) * np.log1p(-np.minimum(cosines**2, 1.0))
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


def _arrange_rows(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Returns a table with a row for each combination along some axes."""
    rows = math.prod(array.shape[axis] for axis in axes)
    return np.moveaxis(array, axes, range(len(axes))).reshape(rows, -1)


def _compute_cosines(rows: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cosine of every two rows over their common entries, and how many those are.

    The cosine of a row of zeros with any other is 0.
    """
    used = present.any(axis=0)
    if not used.all():
        rows = rows[:, used]
        present = present[:, used]
    if present.all():
        counts = np.full((len(rows), len(rows)), rows.shape[1])
        lengths = np.einsum("ij,ij->i", rows, rows)[:, None]
    else:
        weights = present.astype(float)
        counts = np.rint(weights @ weights.T).astype(int)
        lengths = (rows**2) @ weights.T
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.nan_to_num((rows @ rows.T) / np.sqrt(lengths * lengths.T))
    return cosines, counts


def _compare_neighbours(sample: Sample, axis: int) -> ResidualTest:
    """Returns the test of pooled neighbours: (0, 1), (2, 3), ... and then (1, 2), (3, 4), ...

    Each of the two pools is exact, since no entry occurs twice in it.
    """
    word = AXES[axis]
    name = f"neighbouring {word}s"
    tested = f"correlation of the noise of a {word} with that of the next, all together"
    scores = np.moveaxis(sample.scores, axis, 0)
    present = np.moveaxis(sample.present, axis, 0)
    results = []
    for start in (0, 1):
        both = present[start:-1:2] & present[start + 1 :: 2]
        left = scores[start:-1:2][both]
        right = scores[start + 1 :: 2][both]
        count = int(both.sum())
        if count < 2:
            continue
        length = math.sqrt(float(left @ left) * float(right @ right))
        cosine = 0.0
        if length > 0:
            cosine = float(left @ right) / length
        results.append((correlation_p(cosine, count), cosine))
    if not results:
        return ResidualTest.untested(name, tested, f"no two {word}s to compare")
    p, cosine = min(results)
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, len(results) * p),
        place=f"each {word} and the next",
        found=f"correlation {cosine:+.4g}",
    )


def _find_shared_part(sample: Sample, axis: int) -> ResidualTest:
    """Returns the test of whether sums over n entries along an axis have variance n.

    A shared part makes the variance larger; noise that cancels makes it smaller.
    """
    word = AXES[axis]
    name = f"shared by {word}s"
    tested = f"noise that all {word}s share, or that cancels among them"
    counts = sample.present.sum(axis=axis)
    several = counts >= 2
    compared = int(several.sum())
    if compared == 0:
        return ResidualTest.untested(name, tested, f"no two {word}s to compare")
    sums = sample.scores.sum(axis=axis)[several]
    total = float((sums**2 / counts[several]).sum())
    p = float(chi_square_p(np.array(total), np.array(compared)))
    found = f"sums have {total / compared:.4g} times the variance of independent ones"
    return ResidualTest(
        name=name,
        tested=tested,
        p=p,
        place=f"all {word}s",
        found=found,
    )


def _find_repetition(sample: Sample, length: int) -> ResidualTest:
    """Returns the test of the two stretches of values that are nearest to each other.

    Values are in the order training, client, round, coordinate. Given all values before it, a value
    of the later stretch is within D of its partner with probability at most erf(D / sqrt 2), even
    if the two stretches overlap, so p <= pairs * erf(D / sqrt 2)^length. D is the distance that was
    found, plus the rounding.
    """
    name = f"repetition of {length} values"
    tested = f"noise that occurs again: any {length} values in a row, anywhere"
    order = np.swapaxes(sample.taken, ROUND, CLIENT)
    values = np.swapaxes(sample.scores, ROUND, CLIENT)[order].ravel()
    count = len(values) - length + 1
    first, second = _find_candidates(values, count)
    if len(first) == 0:
        return ResidualTest(
            name=name,
            tested=tested,
            p=1.0,
            place="nowhere",
            found="no two are alike",
        )
    distances = np.zeros(len(first))
    for offset in range(length):
        gaps = np.abs(values[first + offset] - values[second + offset])
        np.maximum(distances, gaps, out=distances)
    nearest = int(np.argmin(distances))
    distance = float(distances[nearest])
    p = math.comb(count, 2) * math.erf((distance + ROUNDING) / math.sqrt(2)) ** length
    uploads = np.argwhere(order)[:, [0, 2, 1]]
    dimension = sample.scores.shape[COORDINATE]
    places = []
    for start in (int(first[nearest]), int(second[nearest])):
        where = (*uploads[start // dimension], start % dimension)
        flat = int(np.ravel_multi_index(where, sample.scores.shape))
        places.append(sample.place((TRAINING, ROUND, CLIENT, COORDINATE), flat))
    return ResidualTest(
        name=name,
        tested=tested,
        p=min(1.0, p),
        place=f"from {places[0]} and from {places[1]}",
        found=f"equal to {distance:.1e} standard deviations",
    )


def _find_candidates(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of stretches whose first four values lie in the same cells.

    These are the stretches that repeat, except for a few that a cell's border separates. Any choice
    of candidates is valid, since the p-value accounts for all pairs.
    """
    cells = np.floor(values * _CELLS).astype(np.int64).view(np.uint64)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(_SHORTEST_STRETCH):
        # A hash, which wraps on purpose.
        keys = keys * np.uint64(_HASH_MULTIPLIER) + cells[offset : offset + count]
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    return order[same], order[same + 1]
