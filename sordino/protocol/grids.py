"""Grids of integers on which updates and their noise are sent.

An update x is sent as round(g x) plus discrete Gaussian noise, g being the scale of the grid. The
noise that can be drawn forms a ladder of parameters, and the scale is chosen so that the noise of
the protocol lies on it: `sordino.mechanisms.discrete_gaussian` draws it, docs/theory.md#a12, says
what it hides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sordino.protocol.errors import InvalidValue

# Parameter of a digit of the noise, in grid steps, and the base of the numbers that digits form.
DIGIT_PARAMETER = 64
RADIX = 8
# Up to this number of digits, sums over many clients still fit 64 bits.
MOST_DIGITS = 12
# Rounding may move a vector of d coordinates by sqrt(d) grid steps. A grid is chosen so that this
# is at most this share of one client's noise...
FINENESS = 1e-4
# ... and refused where it is more than this share: the price would be that of rounding.
COARSEST = 0.1
# A sum's noise stays within this many standard deviations but for a probability of 2 exp(-72),
# which is below 1.1e-31, a coordinate.
NOISE_REACH = 12
# Sums use a quarter of the modulus in either direction: what lies beyond is noticed.
SHARE_OF_MODULUS = 4
# The finest grid step of updates without noise.
SILENT_STEP = 2.0**-30
# The r of docs/theory.md#a12: noise of parameter s costs what a normal of sqrt(s^2 - r^2) does.
ROUNDING_WIDTH = 6


def _format_steps(number: float) -> str:
    """Returns a number of steps for people, without an exponent."""
    if number < 1e6:
        return f"{number:,.6g}"
    return f"{number:,.0f}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The public grid of a federation's uploads.

    Attributes:
        scale: g, the number of grid steps in a length of 1.
        digits: Digits of a draw of the noise, which fix its parameter; 0 where there is no noise.
        bits: Sums are known modulo 2^bits.
        contributions: The number of uploads that the modulus has room for.

    Example:
        >>> grid = Grid(scale=330270.0, digits=4, bits=64, contributions=100)
        >>> round(grid.parameter), round(grid.sigma, 3)
        (33027, 0.1)
    """

    scale: float
    digits: int
    bits: int
    contributions: int

    @property
    def parameter(self) -> float:
        """The parameter of one client's noise, in grid steps."""
        return ladder_parameter(self.digits) if self.digits > 0 else 0.0

    @property
    def sigma(self) -> float:
        """The standard deviation of one client's noise."""
        return self.parameter / self.scale

    @property
    def priced_sigma(self) -> float:
        """The standard deviation of the normal noise that hides as much (docs/theory.md#a12)."""
        return math.sqrt(self.parameter**2 - ROUNDING_WIDTH**2) / self.scale

    @property
    def in_words(self) -> str:
        """The grid as people read it.

        Example:
            >>> Grid(scale=330270.0, digits=4, bits=64, contributions=100).in_words
            'integers, 330,270 steps to a length of 1; noise of 4 digits, 33,027 steps wide; \
sums of up to 100 uploads, modulo 2^64'
        """
        words = f"integers, {_format_steps(self.scale)} steps to a length of 1"
        if self.digits > 0:
            words += f"; noise of {self.digits} digits, {_format_steps(self.parameter)} steps wide"
        if self.contributions > 1:
            words += f"; sums of up to {self.contributions:,} uploads, modulo 2^{self.bits}"
        return words

    @property
    def modulus(self) -> int:
        """Sums are known modulo this number."""
        return 1 << self.bits

    @property
    def largest_sum(self) -> int:
        """The largest magnitude of a coordinate of a sum; a larger one is a fault."""
        return self.modulus // SHARE_OF_MODULUS

    @property
    def largest_coordinate(self) -> int:
        """The largest magnitude of a rounded coordinate of one update, to which it is clamped."""
        # So that the sum of all updates and all noise stays within a quarter of the modulus on
        # either side, and what lies beyond is known to be a fault (docs/theory.md#a12).
        room = self.largest_sum - NOISE_REACH * math.sqrt(self.contributions) * self.parameter
        return int(room / self.contributions)

    def rounding_move(self, coordinates: int) -> float:
        """Returns how much further apart rounding moves two vectors, at most.

        Args:
            coordinates: The number of their coordinates.
        """
        # In each coordinate two vectors are rounded apart by at most half a step each.
        return math.sqrt(coordinates) / self.scale


def ladder_parameter(digits: int) -> float:
    """Returns the parameter of a draw with a number of digits, in grid steps.

    Args:
        digits: Digits from 1 to `MOST_DIGITS`.

    Raises:
        InvalidValue: There is no such draw.

    Example:
        >>> [round(ladder_parameter(digits)) for digits in (1, 2, 3, 4)]
        [64, 516, 4128, 33027]
    """
    if not 1 <= digits <= MOST_DIGITS:
        raise InvalidValue("digits", digits, f"from 1 to {MOST_DIGITS}")
    # The squares of the digits' parameters add up: 64^2 (1 + 8^2 + 8^4 + ...).
    squares = (RADIX ** (2 * digits) - 1) // (RADIX**2 - 1)
    return DIGIT_PARAMETER * math.sqrt(squares)


def choose_grid(
    *,
    sigma: float,
    reach: float,
    contributions: int,
    coordinates: int,
    bits: int = 64,
    digits: int | None = None,
) -> Grid:
    """Returns the grid of a federation's uploads.

    It is the coarsest on which rounding hardly matters, or the finest for which the modulus has
    room. Everything that it depends on is public.

    Args:
        sigma: The standard deviation of one client's noise.
        reach: The largest norm of an update; infinite where nothing bounds it.
        contributions: The largest number of uploads in a sum.
        coordinates: Coordinates of an update.
        bits: Sums are known modulo 2^bits.
        digits: Digits of a draw of the noise, where the protocol says them.

    Raises:
        InvalidValue: The grid is too fine for the modulus, or too coarse for the noise.

    Example:
        >>> choose_grid(sigma=0.1, reach=1.0, contributions=100, coordinates=650).digits
        5
    """
    if sigma == 0:
        return _make_silent_grid(reach, contributions, bits)
    fitting = [
        _make_grid(sigma, count, contributions, bits)
        for count in range(1, MOST_DIGITS + 1)
        if digits in (None, count)
    ]
    # Every further digit makes the grid finer and the integers larger.
    held = [grid for grid in fitting if _has_room(grid, reach)]
    if not held:
        refuse_fine_grid(fitting[0], reach)
    fine = [grid for grid in held if math.sqrt(coordinates) <= FINENESS * grid.parameter]
    # The coarsest grid that is fine enough leaves the most room; where none is, the finest.
    chosen = fine[0] if fine else held[-1]
    if math.sqrt(coordinates) > COARSEST * chosen.parameter:
        refuse_coarse_grid(chosen, coordinates)
    return chosen


def refuse_fine_grid(grid: Grid, reach: float) -> None:
    """Refuses a grid on which sums would wrap around.

    Args:
        grid: The public grid of integers that updates are rounded to.
        reach: The largest norm of an update.

    Raises:
        InvalidValue: Names the digits and what the modulus has room for.
    """
    raise InvalidValue(
        "noise.digits",
        grid.digits,
        f"fewer, or more bits in the modulus: the sum of {grid.contributions} updates of norm "
        f"{reach:g} on a grid of {grid.scale:.3g} steps a unit does not fit {grid.bits} bits",
    )


def refuse_coarse_grid(grid: Grid, coordinates: int) -> None:
    """Refuses a grid on which rounding moves updates almost as far as noise does.

    Args:
        grid: The public grid of integers that updates are rounded to.
        coordinates: Coordinates of an update.

    Raises:
        InvalidValue: Names the digits and what would do.
    """
    raise InvalidValue(
        "noise.digits",
        grid.digits,
        f"more, with the bits in the modulus for them: rounding {coordinates:,} coordinates moves "
        f"an update by up to {math.sqrt(coordinates) / grid.parameter:.2g} times the noise on a "
        f"coordinate, and {COARSEST:g} times is the most",
    )


def _make_grid(
    sigma: float,
    digits: int,
    contributions: int,
    bits: int,
) -> Grid:
    # Only a ladder of parameters can be drawn, so the step of the grid is what gives way: on it the
    # protocol's sigma is met exactly.
    scale = ladder_parameter(digits) / sigma
    return Grid(
        scale=scale,
        digits=digits,
        bits=bits,
        contributions=contributions,
    )


def _make_silent_grid(reach: float, contributions: int, bits: int) -> Grid:
    """Returns the grid of a federation without noise, about which nothing is promised."""
    grid = Grid(scale=1.0, digits=0, bits=bits, contributions=contributions)
    farthest = reach if math.isfinite(reach) else 1 / SILENT_STEP
    # A power of two, so that rounding is the only thing that changes an update.
    scale = 2.0 ** math.floor(math.log2(grid.largest_coordinate / farthest))
    # Half of what would just fit, so that no coordinate within reach is clamped.
    return replace(grid, scale=min(scale / 2, 1 / SILENT_STEP))


def _has_room(grid: Grid, reach: float) -> bool:
    # Without a bound, coordinates are clamped where the modulus ends; the noise has to fit.
    if math.isinf(reach):
        return grid.largest_coordinate > 0
    # No coordinate is larger than the norm, and rounding adds less than a step.
    return reach * grid.scale + 1 <= grid.largest_coordinate
