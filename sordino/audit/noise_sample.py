"""Residuals as normal scores, each with its place: what the tests of the noise work on, and what a test answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from sordino.audit.laws import Law

AXES = ("training", "round", "client", "coordinate")
TRAINING, ROUND, CLIENT, COORDINATE = range(4)
ROUNDING = 1e-4  # how far the uploads' own rounding may move a score
_MOST = 4_000_000  # values that are looked at
_RUN = 32  # a subset is made of runs of so many neighbours, evenly spread


@dataclass(frozen=True, kw_only=True)
class ResidualTest:
    """One test: `p` is corrected for the comparisons made within it, and None where the shape of the data leaves nothing to test.

    Example:
        >>> ResidualTest.untested("mean by round", "mean of the noise of each round", "a single round").found
        'not tested: a single round'
    """

    name: str
    tested: str  # in words
    p: float | None
    place: str  # where the noise fits the claim least
    found: str  # what was seen there

    @classmethod
    def untested(cls, name: str, tested: str, why: str) -> ResidualTest:
        """There is nothing to test."""
        return cls(name=name, tested=tested, p=None, place="", found=f"not tested: {why}")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Normal scores, 0 where there is no upload; `numbers` are the places along each axis in the array they come from.

    Example:
        >>> from sordino.audit.laws import GAUSSIAN
        >>> sample = Sample.of(np.zeros((1, 2, 3, 50)), np.ones((1, 2, 3), dtype=bool), GAUSSIAN)
        >>> sample.size, sample.place((ROUND, CLIENT), 5)
        (300, 'round 1, client 2')
    """

    scores: np.ndarray
    taken: np.ndarray
    numbers: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, residuals: np.ndarray, taken: np.ndarray, law: Law) -> Sample:
        """Of a subset if there are too many: coordinates are left out first, then trainings, rounds and clients."""
        keep = list(residuals.shape)
        for axis, least in ((COORDINATE, _RUN), (TRAINING, 1), (ROUND, 1), (CLIENT, 1)):
            others = math.prod(keep) // keep[axis]
            keep[axis] = min(keep[axis], max(least, _MOST // others))
        numbers = tuple(
            spread(count, most) for count, most in zip(residuals.shape, keep, strict=True)
        )
        taken = taken[np.ix_(*numbers[:3])]
        chosen = residuals[np.ix_(*numbers)].astype(float)
        chosen[~taken] = 0.0
        scores = law.scores(chosen)
        scores[~taken] = 0.0
        return cls(scores=scores, taken=taken, numbers=numbers)

    @property
    def size(self) -> int:
        """How many scores there are."""
        return int(self.taken.sum()) * self.scores.shape[COORDINATE]

    @cached_property
    def squares(self) -> np.ndarray:
        """The scores squared."""
        return self.scores**2

    @property
    def present(self) -> np.ndarray:
        """Which scores there are, with the axes of the scores."""
        return np.broadcast_to(self.taken[..., None], self.scores.shape)

    def place(self, axes: tuple[int, ...], flat: int) -> str:
        """In words, from the position among all combinations along `axes`."""
        where = np.unravel_index(flat, [self.scores.shape[axis] for axis in axes])
        return ", ".join(
            f"{AXES[axis]} {self.numbers[axis][index]}"
            for axis, index in zip(axes, where, strict=True)
        )


def spread(count: int, most: int) -> np.ndarray:
    """At most `most` of `count` numbers, in evenly spread runs of neighbours.

    Example:
        >>> spread(1000, 64)[[0, 31, 32, 63]].tolist()
        [0, 31, 968, 999]
    """
    if count <= most:
        return np.arange(count)
    run = min(_RUN, most)
    starts = np.linspace(0, count - run, most // run).astype(int)
    return np.unique(starts[:, None] + np.arange(run))


def chi_square_p(total: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Of a sum of squares of independent standard normals, two-sided and exact.

    Example:
        >>> round(float(chi_square_p(np.array(140.0), np.array(100))), 4)
        0.0103
    """
    return np.minimum(
        1.0,
        2
        * np.minimum(
            special.gammainc(degrees / 2, total / 2), special.gammaincc(degrees / 2, total / 2)
        ),
    )
