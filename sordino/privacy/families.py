"""Rounds that differ in their shifts alone, such as those of a falling learning rate: the law of what thousands of them add up to.

Joining ten thousand laws two by two takes half a minute; this takes a tenth of a second. Rounds that matter are put on grids, rounds of
similar size on one, and convolved by a single product of Fourier transforms. Rounds that hardly matter are gathered in blocks, and each
block is replaced by a law on two values, 0 and the largest that the blocks can reach, with the mean of e^(-bend x) kept: by the argument
at the top of `sums` nothing is promised that does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sordino.privacy import sums
from sordino.privacy.sums import Law

FEW = 64  # distinct rounds up to which laws are joined two by two
_SPREAD = 2e-6  # variance that blocks may add, in units of the squared mean of the whole sum
_TAYLOR = 0.1  # exponents up to which 1 - z + z^2/2 - z^3/6 <= e^-z is close
_OUTSIDE = math.log(2e19)  # a sum leaves its window with probability below 1e-19
_IMPROBABLE = 1e-13  # what is left out of all rounds together, and counted as the worst
_LEAST = 64  # points of the coarsest grid
_AT_ONCE = 1 << 22  # points of grids that are transformed at a time
_ROUND_OFF = 2.0**-52  # mass that Fourier transforms may misplace for each round


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Rounds whose mu^2 is one of the round's own squares, with probabilities `use`, times one of `factors`, with `masses`; else 0.

    Attributes:
        squares: one round a row; finite.
        use: probability of each square of a round.
        factors: such as 1 over the number of participants.
        masses: probability of each factor.
        counts: how often each round occurs.

    Example:
        >>> one = np.ones(1)
        >>> coins = Family(squares=np.array([[1.0], [0.5]]), use=one, factors=one, masses=one / 2, counts=np.array([1, 1]))
        >>> coins.total(sums.UPWARDS).values.round(6).tolist()
        [0.0, 0.5, 1.0, 1.5]
    """

    squares: np.ndarray
    use: np.ndarray
    factors: np.ndarray
    masses: np.ndarray
    counts: np.ndarray

    def repeated(self, times: int) -> Family:
        """The same rounds, each so many times as often."""
        return replace(self, counts=self.counts * times)

    def laws(self) -> Iterator[tuple[Law, int]]:
        """The law of every distinct round, and how often it occurs."""
        for row, count in enumerate(self.counts.tolist()):
            yield self._law(row), count

    def total(self, bend: float) -> Law:
        """The law of the sum of all rounds, for functions that bend by at most `bend`."""
        if math.isinf(bend):
            return sums.total(sums.times(law, count) for law, count in self.laws())
        kept, rest = self._probable()
        summed = kept._summed(bend)
        return replace(summed, top=float(np.dot(self.counts, self._tops)), rest=summed.rest + rest)

    def _probable(self) -> tuple[Family, float]:
        """The family without factors that are improbable in all rounds together, and their probability in all rounds together."""
        rounds = float(self.counts.sum())
        left_out = self.masses * rounds * self.factors.size <= _IMPROBABLE
        kept = replace(self, factors=self.factors[~left_out], masses=self.masses[~left_out])
        return kept, rounds * float(self.masses[left_out].sum())

    def _summed(self, bend: float) -> Law:
        whole = float(np.dot(self.counts, self._moment(1)))
        if whole == 0:
            return sums.law([0.0], [1.0])
        range_ = min(
            float(np.dot(self.counts, self._tops)), whole + self._strays(np.arange(len(self._tops)))
        )
        block = self._block_size(max(_SPREAD * whole**2, (range_ / sums.ATOMS) ** 2 / 10), bend)
        large = np.flatnonzero(self._tops > block / 2)
        octaves = np.floor(np.log2(self._tops[large] / self._tops.max()))
        parts = [
            self._convolved(large[octaves == octave], range_, bend) for octave in np.unique(octaves)
        ]
        return sums.total(
            [self._gathered(np.flatnonzero(self._tops <= block / 2), block, bend), *parts], bend
        )

    @cached_property
    def _tops(self) -> np.ndarray:
        """The largest value of every round."""
        return np.asarray(self.squares.max(axis=1) * self.factors.max(initial=0.0))

    @cached_property
    def _moments(self) -> tuple[np.ndarray, ...]:
        return tuple(
            np.asarray(self.squares**p @ self.use * float(np.dot(self.factors**p, self.masses)))
            for p in (1, 2, 3)
        )

    def _moment(self, power: int) -> np.ndarray:
        """E x^power of every round."""
        return self._moments[power - 1]

    @property
    def _masses(self) -> np.ndarray:
        return np.multiply.outer(self.use, self.masses).ravel()

    def _values(self, rows: np.ndarray) -> np.ndarray:
        return np.multiply.outer(self.squares[rows], self.factors).reshape(len(rows), -1)

    def _law(self, row: int) -> Law:
        values, masses = self._values(np.array([row]))[0], self._masses
        return sums.law(
            [0.0, *values.tolist()], [max(0.0, 1 - float(masses.sum())), *masses.tolist()]
        )

    def _strays(self, rows: np.ndarray) -> float:
        """How far the sum of these rounds strays from its mean, but for a probability of 1e-19 (Bernstein)."""
        variance = float(
            np.dot(self.counts[rows], self._moment(2)[rows] - self._moment(1)[rows] ** 2)
        )
        third = _OUTSIDE * float(self._tops[rows].max()) / 3
        return third + math.sqrt(third**2 + 2 * _OUTSIDE * variance)

    def _block_size(self, variance: float, bend: float) -> float:
        """How large blocks may be: one with mean m, split between 0 and its size, adds a variance of less than m times its size."""
        order = np.argsort(self._tops)
        added = 2 * self._tops[order] * np.cumsum((self.counts * self._moment(1))[order])
        affordable = int(np.searchsorted(added, variance, side="right"))
        return (
            min(2 * float(self._tops[order[affordable - 1]]), _TAYLOR / bend) if affordable else 0.0
        )

    def _gathered(self, rows: np.ndarray, block: float, bend: float) -> Law:
        """Rounds of at most half a block, in order: a block's sum becomes 0 or `block`, so that all of them are a number of blocks."""
        if rows.size == 0 or block == 0:
            return sums.law([0.0], [1.0])
        rows = np.repeat(rows, self.counts[rows])
        first, second, third = (self._moment(power)[rows] * bend**power for power in (1, 2, 3))
        logs = np.log1p(-first + second / 2 - third / 6)  # of at most E e^(-bend x)
        numbers = np.floor(np.cumsum(self._tops[rows]) / (block / 2) * (1 - 1e-12)).astype(np.int64)
        up = np.clip(
            np.expm1(np.bincount(numbers, weights=logs)) / math.expm1(-bend * block) * (1 + 1e-12),
            0.0,
            1.0,
        )
        size = 1 << int(up.size).bit_length()
        turns = np.exp(-2j * math.pi * np.arange(size // 2 + 1) / size)
        masses = np.fft.irfft(np.prod(1 - up[:, None] + up[:, None] * turns, axis=0), size)[
            : up.size + 1
        ]
        return sums.on_grid(masses, 0, block, top=block * up.size, rest=up.size * _ROUND_OFF)

    def _convolved(self, rows: np.ndarray, range_: float, bend: float) -> Law:
        """Rounds of similar size on one grid, in a window around the mean of their sum that it does not leave."""
        counts = self.counts[rows]
        rounds, top = int(counts.sum()), float(np.dot(counts, self._tops[rows]))
        if rounds == 1:
            return self._law(int(rows[0]))
        width = min(top, 2 * self._strays(rows))
        # Where errors are about squares of steps, their sum is least for a given number of points if steps go with the cube roots.
        step = width / max(_LEAST, sums.ATOMS * min(1.0, (width / range_) ** (2 / 3)))
        size = 1 << math.ceil(width / step * 1.1 + 4).bit_length()
        transform, centre = np.ones(size // 2 + 1, dtype=complex), 0.0
        for some in np.array_split(np.arange(rows.size), max(1, rows.size * size // _AT_ONCE)):
            grid, means = self._gridded(rows[some], step, size, bend)
            factors = np.fft.rfft(grid, axis=1)
            transform = transform * np.prod(
                factors if counts[some].max() == 1 else factors ** counts[some, None], axis=0
            )
            centre += float(np.dot(counts[some], means))
        start = 0 if top / step + rounds < size else max(0, round(centre) - size // 2)
        masses = np.fft.irfft(transform, size)[np.arange(start, start + size) % size]
        return sums.on_grid(masses, start, step, top=top, rest=rounds * _ROUND_OFF + 1e-19)

    def _gridded(
        self, rows: np.ndarray, step: float, size: int, bend: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masses of rounds on a grid, a round a row, and their means in steps."""
        below, up = sums.split(self._values(rows), step, bend)
        masses, at = self._masses, np.arange(rows.size)[:, None] * size
        points = np.concatenate([at + below % size, at + (below + 1) % size], axis=1)
        shares = np.concatenate([(1 - up) * masses, up * masses], axis=1)
        counted = np.bincount(points.ravel(), weights=shares.ravel(), minlength=rows.size * size)
        grid = np.asarray(counted, dtype=float).reshape(rows.size, size)
        grid[:, 0] += max(0.0, 1 - float(masses.sum()))
        return grid, (below + up) @ masses
