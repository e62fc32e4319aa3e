"""Residuals as normal scores, each with its place, and the results of noise tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from sordino.mechanisms.noise_law import Law

AXES = ("training", "round", "client", "coordinate")
TRAINING, ROUND, CLIENT, COORDINATE = range(4)
# The largest distance by which the rounding of uploads may move a score.
ROUNDING = 1e-4
# The most values that are tested.
_MOST = 4_000_000
# A subset consists of evenly spread runs of this many neighbours.
_RUN = 32


@dataclass(frozen=True, kw_only=True)
class ResidualTest:
    """Holds the result of one test of the noise.

    Attributes:
        name: The name of the test.
        tested: The tested property, in words.
        p: The p-value, corrected for the comparisons within the test; None if the shape of the data
            leaves nothing to test.
        place: The place where the noise fits the claim least.
        found: What was found at that place.

    Example:
        >>> test = ResidualTest.untested("mean by round", "mean of each round", "a single round")
        >>> test.found
        'not tested: a single round'
    """

    name: str
    tested: str
    p: float | None
    place: str
    found: str

    @classmethod
    def untested(cls, name: str, tested: str, why: str) -> ResidualTest:
        """Returns the result of a test that has nothing to test.

        Args:
            name: The name of the test.
            tested: The property that would be tested, in words.
            why: The reason.
        """
        return cls(
            name=name,
            tested=tested,
            p=None,
            place="",
            found=f"not tested: {why}",
        )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Holds normal scores of residuals.

    Attributes:
        scores: The scores, with the axes of `AXES`; 0 where there is no upload.
        taken: Which uploads exist, with the first three axes.
        numbers: For each axis, the positions of the scores in the array of residuals.

    Example:
        >>> from sordino.mechanisms.noise_law import STANDARD_NORMAL
        >>> taken = np.ones((1, 2, 3), dtype=bool)
        >>> sample = Sample.of(np.zeros((1, 2, 3, 50)), taken, STANDARD_NORMAL)
        >>> sample.size, sample.place((ROUND, CLIENT), 5)
        (300, 'round 1, client 2')
    """

    scores: np.ndarray
    taken: np.ndarray
    numbers: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, residuals: np.ndarray, taken: np.ndarray, law: Law) -> Sample:
        """Returns the scores of residuals, or of a subset if there are too many.

        Coordinates are left out first, then trainings, rounds and clients.

        Args:
            residuals: The uploads less their known means, with the axes of `AXES`.
            taken: Which uploads exist.
            law: The law that the noise is claimed to have.
        """
        keep = list(residuals.shape)
        for axis, least in ((COORDINATE, _RUN), (TRAINING, 1), (ROUND, 1), (CLIENT, 1)):
            others = math.prod(keep) // keep[axis]
            keep[axis] = min(keep[axis], max(least, _MOST // others))
        numbers = tuple(
            spread_evenly(count, most) for count, most in zip(residuals.shape, keep, strict=True)
        )
        taken = taken[np.ix_(*numbers[:3])]
        chosen = residuals[np.ix_(*numbers)].astype(float)
        chosen[~taken] = 0.0
        scores = law.scores(chosen)
        scores[~taken] = 0.0
        return cls(scores=scores, taken=taken, numbers=numbers)

    @property
    def size(self) -> int:
        """The number of scores."""
        return int(self.taken.sum()) * int(self.scores.shape[COORDINATE])

    @cached_property
    def squares(self) -> np.ndarray:
        """The scores squared."""
        return self.scores**2

    @property
    def present(self) -> np.ndarray:
        """Which scores exist, with the axes of the scores."""
        return np.broadcast_to(self.taken[..., None], self.scores.shape)

    def place(self, axes: tuple[int, ...], flat: int) -> str:
        """Returns a place in words.

        Args:
            axes: Some axes.
            flat: The position among all combinations along these axes.
        """
        where = np.unravel_index(flat, [self.scores.shape[axis] for axis in axes])
        return ", ".join(
            f"{AXES[axis]} {self.numbers[axis][index]}"
            for axis, index in zip(axes, where, strict=True)
        )


def spread_evenly(count: int, most: int) -> np.ndarray:
    """Returns some of the whole numbers from 0 on, in evenly spread runs of neighbours.

    Args:
        count: The number after the last.
        most: The most numbers that are returned.

    Example:
        >>> spread_evenly(1000, 64)[[0, 31, 32, 63]].tolist()
        [0, 31, 968, 999]
    """
    if count <= most:
        return np.arange(count)
    run = min(_RUN, most)
    starts = np.linspace(0, count - run, most // run).astype(int)
    return np.unique(starts[:, None] + np.arange(run))


def chi_square_p(total: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Returns the two-sided, exact p-value of sums of squares of independent standard normals.

    Args:
        total: The sums.
        degrees: The number of squares in each sum.

    Example:
        >>> round(float(chi_square_p(np.array(140.0), np.array(100))), 4)
        0.0103
    """
    below = special.gammainc(degrees / 2, total / 2)
    above = special.gammaincc(degrees / 2, total / 2)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))
