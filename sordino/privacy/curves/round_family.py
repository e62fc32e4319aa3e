"""Rounds that differ only in their shifts, such as those of a falling learning rate.

Adding ten thousand laws two by two takes half a minute; this takes a tenth of a second. Rounds that
matter are put on grids, rounds of similar size on one, and convolved by a single product of Fourier
transforms. Rounds that hardly matter are gathered in blocks, and each block is replaced by a law on
two values, 0 and the largest that the blocks can reach, with the mean of e^(-bend x) kept: by the
argument at the top of `sum_law` nothing is promised that does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sordino.privacy.curves import sum_law
from sordino.privacy.curves.sum_law import SumLaw, law_on_grid, make_law

# Distinct rounds up to which laws are added two by two.
FEW = 64
# Variance that blocks may add, in units of the squared mean of the whole sum.
_SPREAD = 2e-6
# Exponents up to which 1 - z + z^2/2 - z^3/6 <= e^-z is close.
_TAYLOR = 0.1
# A sum leaves its window with probability below 1e-19.
_OUTSIDE = math.log(2e19)
# What is left out of all rounds together, and counted as the worst.
_IMPROBABLE = 1e-13
# Points of the coarsest grid.
_LEAST = 64
# Points of grids that are transformed at a time.
_AT_ONCE = 1 << 22
# Mass that Fourier transforms may misplace for each round.
_ROUND_OFF = 2.0**-52


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundFamily:
    """Rounds whose mu^2 is a random square of the round times a random factor, or else 0.

    Attributes:
        squares: The squares, one row per round; finite.
        use: The probability of each square of a round.
        factors: The factors, such as 1 over the number of participants.
        masses: The probability of each factor.
        counts: How often each round occurs.

    Example:
        >>> one = np.ones(1)
        >>> coins = RoundFamily(
        ...     squares=np.array([[1.0], [0.5]]),
        ...     use=one, factors=one, masses=one / 2, counts=np.array([1, 1]),
        ... )
        >>> coins.add_rounds(sum_law.UPWARDS).values.round(6).tolist()
        [0.0, 0.5, 1.0, 1.5]
    """

    squares: np.ndarray
    use: np.ndarray
    factors: np.ndarray
    masses: np.ndarray
    counts: np.ndarray

    def repeat(self, times: int) -> RoundFamily:
        """Returns the same rounds, each `times` as often.

        Args:
            times: How often the whole family occurs.

        Returns:
            The family with larger counts.
        """
        return replace(self, counts=self.counts * times)

    def laws(self) -> Iterator[tuple[SumLaw, int]]:
        """Yields the law of every distinct round, and how often it occurs."""
        for row, count in enumerate(self.counts.tolist()):
            yield self._law_of_round(row), count

    def add_rounds(self, bend: float) -> SumLaw:
        """Returns the law of the sum of all rounds, for functions that bend by at most `bend`.

        Args:
            bend: What may be assumed of the function of the sum, as in `sum_law`.

        Returns:
            The law of mu^2 over all rounds.
        """
        if math.isinf(bend):
            parts = []
            for law, count in self.laws():
                parts.append(sum_law.repeat_law(law, count))
            return sum_law.add_all_laws(parts)
        kept, left_out = self._leave_out_improbable()
        found = kept._add_probable(bend)
        # What was left out is counted as the worst that all rounds can reach.
        top = float(np.dot(self.counts, self._tops))
        rest = found.rest + left_out
        return replace(found, top=top, rest=rest)

    def _leave_out_improbable(self) -> tuple[RoundFamily, float]:
        """Returns the family without improbable factors, and their probability in all rounds."""
        rounds = float(self.counts.sum())
        improbable = self.masses * rounds * self.factors.size <= _IMPROBABLE
        kept = replace(
            self,
            factors=self.factors[~improbable],
            masses=self.masses[~improbable],
        )
        left_out = float(self.masses[improbable].sum())
        return kept, rounds * left_out

    def _add_probable(self, bend: float) -> SumLaw:
        """Returns the law of the sum of all rounds, where no factor is left out any more."""
        mean = float(np.dot(self.counts, self._moment(1)))
        if mean == 0:
            return make_law([0.0], [1.0])
        everything = np.arange(len(self._tops))
        top = float(np.dot(self.counts, self._tops))
        reach = min(top, mean + self._bound_deviation(everything))
        # Blocks may not add more variance than grids do.
        grid_step = reach / sum_law.ATOMS
        variance = max(_SPREAD * mean**2, grid_step**2 / 10)
        block = self._choose_block(variance, bend)
        is_small = self._tops <= block / 2
        small = np.flatnonzero(is_small)
        large = np.flatnonzero(~is_small)
        parts = [self._gather_blocks(small, block, bend)]
        # Rounds within a factor of two of one another share a grid.
        relative = self._tops[large] / self._tops.max()
        octaves = np.floor(np.log2(relative))
        for octave in np.unique(octaves):
            alike = large[octaves == octave]
            parts.append(self._convolve_rounds(alike, reach, bend))
        return sum_law.add_all_laws(parts, bend)

    @cached_property
    def _tops(self) -> np.ndarray:
        """The largest value of every round."""
        largest_square = self.squares.max(axis=1)
        largest_factor = self.factors.max(initial=0.0)
        return np.asarray(largest_square * largest_factor)

    @cached_property
    def _moments(self) -> list[np.ndarray]:
        """The first three moments of every round: squares and factors are independent."""
        found = []
        for power in (1, 2, 3):
            of_factor = float(np.dot(self.factors**power, self.masses))
            of_square = self.squares**power @ self.use
            found.append(np.asarray(of_square * of_factor))
        return found

    def _moment(self, power: int) -> np.ndarray:
        """Returns E x^power of every round."""
        return self._moments[power - 1]

    @property
    def _value_masses(self) -> np.ndarray:
        """Probability of each pair of a square and a factor, the same in every round."""
        pairs = np.multiply.outer(self.use, self.masses)
        flat: np.ndarray = pairs.ravel()
        return flat

    def _list_values(self, rows: np.ndarray) -> np.ndarray:
        """Returns the values of mu^2 of some rounds, in the order of `_value_masses`."""
        products = np.multiply.outer(self.squares[rows], self.factors)
        table: np.ndarray = products.reshape(len(rows), -1)
        return table

    def _law_of_round(self, row: int) -> SumLaw:
        """Returns the law of mu^2 of one round, no shift included."""
        values = self._list_values(np.array([row]))[0]
        masses = self._value_masses
        unused = max(0.0, 1 - float(masses.sum()))
        return make_law(
            [0.0, *values.tolist()],
            [unused, *masses.tolist()],
        )

    def _bound_deviation(self, rows: np.ndarray) -> float:
        """Returns how far a sum strays from its mean, but for a probability of 1e-19.

        Bernstein's inequality, for amounts between 0 and the largest of them.
        """
        means = self._moment(1)[rows]
        variances = self._moment(2)[rows] - means**2
        variance = float(np.dot(self.counts[rows], variances))
        largest = float(self._tops[rows].max())
        third = _OUTSIDE * largest / 3
        return third + math.sqrt(third**2 + 2 * _OUTSIDE * variance)

    def _choose_block(self, variance: float, bend: float) -> float:
        """Returns how large blocks may be.

        A block with mean m, split between 0 and its size, adds a variance of less than m times its
        size.
        """
        order = np.argsort(self._tops)
        tops = self._tops[order]
        means = (self.counts * self._moment(1))[order]
        # What it adds to gather the smallest rounds, one more each time.
        added = 2 * tops * np.cumsum(means)
        affordable = int(np.searchsorted(added, variance, side="right"))
        if affordable == 0:
            return 0.0
        largest_gathered = float(tops[affordable - 1])
        return min(2 * largest_gathered, _TAYLOR / bend)

    def _gather_blocks(self, rows: np.ndarray, block: float, bend: float) -> SumLaw:
        """Returns the law of rounds of at most half a block each, as a number of blocks.

        In order, as many rounds as fill half a block are summed; the sum becomes 0 or `block`.
        """
        if rows.size == 0 or block == 0:
            return make_law([0.0], [1.0])
        rows = np.repeat(rows, self.counts[rows])
        first = self._moment(1)[rows] * bend
        second = self._moment(2)[rows] * bend**2
        third = self._moment(3)[rows] * bend**3
        # Logarithms of at most E e^(-bend x).
        logs = np.log1p(-first + second / 2 - third / 6)
        filled = np.cumsum(self._tops[rows]) / (block / 2)
        numbers = np.floor(filled * (1 - 1e-12)).astype(np.int64)
        # Moments of a block multiply, so that their logarithms add.
        log_moments = np.bincount(numbers, weights=logs)
        moments = np.expm1(log_moments)
        up = moments / math.expm1(-bend * block) * (1 + 1e-12)
        up = np.clip(up, 0.0, 1.0)
        return law_on_grid(
            _count_successes(up),
            0,
            block,
            top=block * up.size,
            rest=up.size * _ROUND_OFF,
        )

    def _convolve_rounds(self, rows: np.ndarray, reach: float, bend: float) -> SumLaw:
        """Returns the law of rounds of similar size, in a window that their sum does not leave."""
        counts = self.counts[rows]
        rounds = int(counts.sum())
        if rounds == 1:
            return self._law_of_round(int(rows[0]))
        top = float(np.dot(counts, self._tops[rows]))
        width = min(top, 2 * self._bound_deviation(rows))
        # Where errors are about squares of steps, their sum is least for a given number of points
        # if steps go with the cube roots.
        share = (width / reach) ** (2 / 3)
        points = max(_LEAST, sum_law.ATOMS * min(1.0, share))
        step = width / points
        # A tenth more than the window, rounded up to a power of two.
        needed = math.ceil(width / step * 1.1 + 4)
        size = 1 << needed.bit_length()
        transform = np.ones(size // 2 + 1, dtype=complex)
        centre = 0.0
        pieces = max(1, rows.size * size // _AT_ONCE)
        for some in np.array_split(np.arange(rows.size), pieces):
            grid, means = self._put_on_grid(rows[some], step, size, bend)
            factors = np.fft.rfft(grid, axis=1)
            often = counts[some]
            if often.max() > 1:
                factors = factors ** often[:, None]
            transform = transform * np.prod(factors, axis=0)
            centre += float(np.dot(often, means))
        start = 0
        # Where the sum may be longer than the circle, the window lies around its mean.
        if top / step + rounds >= size:
            start = max(0, round(centre) - size // 2)
        circle = np.fft.irfft(transform, size)
        window = np.arange(start, start + size) % size
        return law_on_grid(
            circle[window],
            start,
            step,
            top=top,
            rest=rounds * _ROUND_OFF + 1e-19,
        )

    def _put_on_grid(
        self,
        rows: np.ndarray,
        step: float,
        size: int,
        bend: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns masses of rounds on a grid, a round a row, and their means in steps."""
        values = self._list_values(rows)
        below, up = sum_law.split_values(values, step, bend)
        masses = self._value_masses
        # All rounds are counted at once, on grids that follow one another.
        row_starts = np.arange(rows.size)[:, None] * size
        low = row_starts + below % size
        high = row_starts + (below + 1) % size
        masses_low = (1 - up) * masses
        masses_high = up * masses
        points = np.concatenate([low, high], axis=1)
        shares = np.concatenate([masses_low, masses_high], axis=1)
        counted = np.bincount(
            points.ravel(),
            weights=shares.ravel(),
            minlength=rows.size * size,
        )
        grid = np.asarray(counted, dtype=float).reshape(rows.size, size)
        # A round that does not use the record adds nothing.
        unused = max(0.0, 1 - float(masses.sum()))
        grid[:, 0] += unused
        means = (below + up) @ masses
        return grid, means


def _count_successes(chances: np.ndarray) -> np.ndarray:
    """Returns the law of how many of some independent trials succeed, each with its chance."""
    size = 1 << int(chances.size).bit_length()
    frequencies = np.arange(size // 2 + 1)
    turns = np.exp(-2j * math.pi * frequencies / size)
    factors = 1 - chances[:, None] + chances[:, None] * turns
    transform = np.prod(factors, axis=0)
    circle = np.fft.irfft(transform, size)
    return circle[: chances.size + 1]
