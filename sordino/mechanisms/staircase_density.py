"""The staircase density, and its Rényi divergences in one dimension and in many.

The density is y e^(-step N(|x|)), N(r) = number of k >= 0 with (k + nu) width <= r: it falls by
e^-step once in every `width` (docs/theory.md#b1, #b2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.mechanisms.mechanism import check_dimension, check_order, check_shift
from sordino.protocol import InvalidValue


@dataclass(frozen=True, kw_only=True)
class StaircaseDensity:
    """The density of staircase noise on one coordinate.

    Attributes:
        step: The privacy loss of a shift by `width`.
        width: The distance in which the density falls once.
        nu: Where in a width it falls, from 0 to 1.

    Example:
        >>> round(StaircaseDensity(step=1.0, width=1.0, nu=0.3).divergence(2.0, 1.0), 10)
        0.6909206953
    """

    step: float
    width: float
    nu: float

    def __post_init__(self) -> None:
        for name, value in (("step", self.step), ("width", self.width)):
            if not 0 < value < math.inf:
                raise InvalidValue(name, value, "a finite number above 0")
        if not 0 <= self.nu <= 1:
            raise InvalidValue("nu", self.nu, "a number from 0 to 1")

    @classmethod
    def usual(cls, *, step: float, width: float) -> StaircaseDensity:
        """Returns the density of least expected magnitude, nu = 1 / (1 + e^(step/2)).

        Args:
            step: The privacy loss of a shift by `width`.
            width: The distance in which the density falls once.

        Example:
            >>> round(StaircaseDensity.usual(step=1.0, width=1.0).nu, 6)
            0.377541
        """
        # Geng and Viswanath 2015.
        return cls(step=step, width=width, nu=1 / (1 + math.exp(step / 2)))

    @property
    def height(self) -> float:
        """The density y at 0."""
        left = self.nu + math.exp(-self.step) * (1 - self.nu)
        return -math.expm1(-self.step) / (2 * self.width * left)

    def jump_probability(self, shift: float) -> float:
        """Returns the probability pi that the privacy loss of a shift is +step.

        The loss is -step with probability pi e^-step, and 0 otherwise, with
        pi = y (min(s, 2 nu width) + s / (e^step - 1)) (docs/theory.md#b1).

        Args:
            shift: s, at most the width.

        Raises:
            InvalidValue: The shift is longer than the width.

        Example:
            >>> round(StaircaseDensity(step=1.0, width=1.0, nu=0.3).jump_probability(1.0), 10)
            0.6700725187
        """
        self._check_within_width("shift", shift)
        return float(self._jumps(np.array(shift)))

    def find_deltas(self, epsilons: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Returns delta of one coordinate, a shift a row: pi (1 - e^(epsilon - step))_+.

        It grows with the shift, so that of all shifts up to one, the longest is the worst.

        Args:
            epsilons: Epsilons of at least 0.
            shifts: Each at most the width.

        Example:
            >>> noise = StaircaseDensity(step=1.0, width=1.0, nu=0.3)
            >>> noise.find_deltas(np.array([0.0, 1.0]), np.array([1.0])).round(6).tolist()
            [[0.423567, 0.0]]
        """
        gains = np.abs(np.expm1(np.minimum(epsilons - self.step, 0.0)))
        deltas: np.ndarray = np.multiply.outer(self._jumps(shifts), gains)
        return deltas

    def _jumps(self, shifts: np.ndarray) -> np.ndarray:
        at_first_stair = np.minimum(shifts, 2 * self.nu * self.width)
        at_later_stairs = shifts * math.exp(-self.step) / -math.expm1(-self.step)
        jumps: np.ndarray = self.height * (at_first_stair + at_later_stairs)
        return jumps

    def divergence(self, order: float, shift: float) -> float:
        """Returns the Rényi divergence of one coordinate, for any order and shift.

        Args:
            order: Order from 1 to infinity.
            shift: How far the coordinate moves.

        Raises:
            InvalidValue: An argument out of its range.

        Example:
            >>> round(StaircaseDensity(step=1.0, width=1.0, nu=0.3).divergence(2.0, 1.5), 10)
            1.4211339085
        """
        check_order(order)
        check_shift(shift)
        if shift == 0:
            return 0.0
        # Up to the width there are three losses only; beyond it the densities are integrated.
        if shift > self.width or math.isinf(order):
            return self._integrate(order, shift)
        if order == 1:
            return self.jump_probability(shift) * self.step * -math.expm1(-self.step)
        return float(self.divergences(np.array(order), np.array(shift)))

    def divergences(self, orders: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Returns the divergences of one coordinate at many orders and shifts.

        Args:
            orders: Finite, above 1.
            shifts: At most the width.

        Example:
            >>> density = StaircaseDensity(step=1.0, width=1.0, nu=0.3)
            >>> density.divergences(np.array([2.0]), np.array([1.0, 0.0])).round(10).tolist()
            [0.6909206953, 0.0]
        """
        # log(1 + pi (e^((a-1)step) - 1)(1 - e^(-a step)))/(a-1) (docs/theory.md#b1), with
        # the logarithm of each factor, so that nothing overflows.
        growth = (orders - 1) * self.step
        with np.errstate(divide="ignore"):
            jumps = np.log(self._jumps(shifts))
        rising = np.log(-np.expm1(-growth))
        falling = np.log(-np.expm1(-orders * self.step))
        log_moment = jumps + growth + rising + falling
        return np.asarray(np.logaddexp(0.0, log_moment) / (orders - 1))

    def divergence_l1(self, order: float, clip: float, dimension: int) -> float:
        """Returns the largest divergence over shifts of l1 norm at most `clip`.

        It is that of an even spread, d D(clip/d) (docs/theory.md#b2).

        Args:
            order: Order of the divergence.
            clip: The largest norm of a shift, at most the width.
            dimension: d, the number of coordinates.

        Example:
            >>> round(StaircaseDensity(step=1.0, width=1.0, nu=0.3).divergence_l1(2.0, 1.0, 10), 10)
            1.2508633237
        """
        self._check_within_width("clip", clip)
        check_dimension(dimension)
        return dimension * self.divergence(order, clip / dimension)

    def divergence_l2(self, order: float, clip: float, dimension: int) -> float:
        """Returns the largest divergence over shifts of l2 norm at most `clip`.

        It is that of an even spread, d D(clip/sqrt(d)), and grows like sqrt(d) (docs/theory.md#b2).

        Args:
            order: Order of the divergence.
            clip: The largest norm of a shift, at most the width.
            dimension: d, the number of coordinates.

        Example:
            >>> density = StaircaseDensity.usual(step=1.0, width=1.0)
            >>> round(density.divergence_l2(2.0, 1.0, 100_000), 6)
            386.562481
        """
        self._check_within_width("clip", clip)
        check_dimension(dimension)
        return dimension * self.divergence(order, clip / math.sqrt(dimension))

    def slope(self, order: float) -> float:
        """Returns kappa = dD/ds at 0.

        The l2 divergence grows as kappa clip sqrt(d), the l1 one tends to kappa clip
        (docs/theory.md#b2).

        Args:
            order: Order of the divergence, from 1 to infinity.

        Raises:
            InvalidValue: The order is below 1.

        Example:
            >>> round(StaircaseDensity.usual(step=1.0, width=1.0).slope(2.0), 10)
            1.22478365
        """
        check_order(order)
        rate = self.height / -math.expm1(-self.step)  # y (1 + 1/(e^step - 1))
        if order == 1:
            return rate * self.step * -math.expm1(-self.step)
        gain = math.expm1((order - 1) * self.step)
        return rate * gain * -math.expm1(-order * self.step) / (order - 1)

    def moments(self) -> tuple[float, float]:
        """Returns E|X| and E X^2.

        Summing by parts, E|X|^p = 2 y width^(p+1) (1 - r)/(p + 1) sum_k r^k (k + nu)^(p+1) with
        r = e^-step.

        Example:
            >>> density = StaircaseDensity(step=1.0, width=1.0, nu=0.3)
            >>> [round(moment, 8) for moment in density.moments()]
            [0.96292594, 1.93293365]
        """
        r = math.exp(-self.step)
        gap = -math.expm1(-self.step)
        nu = self.nu
        # Sums of r^k k^p for p = 1, 2, 3.
        sum1 = r / gap**2
        sum2 = r * (1 + r) / gap**3
        sum3 = r * (1 + 4 * r + r * r) / gap**4
        second = sum2 + 2 * nu * sum1 + nu**2 / gap
        third = sum3 + 3 * nu * sum2 + 3 * nu**2 * sum1 + nu**3 / gap
        magnitude = self.height * self.width**2 * gap * second
        square = 2 / 3 * self.height * self.width**3 * gap * third
        return magnitude, square

    def epsilon_at_least(
        self,
        delta: float,
        *,
        clip: float,
        dimension: int,
        rounds: int = 1,
    ) -> float:
        """Returns the exact epsilon of the even spread, below which no bound can promise.

        The even spread is an admissible shift (docs/theory.md#b2).

        Args:
            delta: Delta at which epsilon is asked for.
            clip: l2 norm of the shift, at most the width.
            dimension: Number of coordinates.
            rounds: Number of releases.

        Raises:
            InvalidValue: An argument out of its range.

        Example:
            >>> density = StaircaseDensity.usual(step=1.0, width=1.0)
            >>> round(density.epsilon_at_least(1e-5, clip=1.0, dimension=1000), 4)
            42.5555
        """
        self._check_within_width("clip", clip)
        if not 0 < delta < 1:
            raise InvalidValue("delta", delta, "a number above 0 and below 1")
        check_dimension(dimension)
        check_dimension(rounds)
        # The loss is a sum of independent three-valued losses, all multiples of `step`.
        up = self.jump_probability(clip / math.sqrt(dimension))
        losses, masses = _find_walk_law(up, up * math.exp(-self.step), dimension * rounds)
        return _find_smallest_epsilon(losses * self.step, masses, delta)

    def _check_within_width(self, name: str, value: float) -> None:
        check_shift(value)
        if value > self.width * (1 + 1e-12):
            raise InvalidValue(
                name,
                value,
                f"at most the width {self.width!r} of the staircase, up to which the worst shift "
                "is known (docs/theory.md#b2)",
            )

    def _count_falls(self, distance: np.ndarray) -> np.ndarray:
        """Returns N(|x|): how often the density has fallen."""
        falls: np.ndarray = np.floor(np.abs(distance) / self.width + 1 - self.nu)
        return falls

    def _integrate(self, order: float, shift: float) -> float:
        """Returns the divergence from the pieces on which both densities are constant."""
        reach = math.ceil(shift / self.width) + 2
        stairs = np.arange(-reach, reach + 1)[:, None]
        jumps = (stairs + np.array([self.nu, -self.nu])).ravel() * self.width
        first = -self.width
        last = shift + self.width
        cuts = np.concatenate([jumps, jumps + shift, [first, 0.0, shift, last]])
        cuts = np.unique(cuts[(cuts >= first) & (cuts <= last)])
        lengths = np.diff(cuts)
        middles = (cuts[1:] + cuts[:-1]) / 2
        own = self._count_falls(middles)
        moved = self._count_falls(middles - shift)
        # Outside [0, shift] one width repeats, with weight e^-step each time.
        outside = (middles < 0) | (middles > shift)
        repeated = np.where(outside, -math.log(-math.expm1(-self.step)), 0.0)
        losses = self.step * (moved - own)
        if math.isinf(order):
            return float(losses[lengths > 1e-12 * self.width].max())
        logs = np.log(lengths) + math.log(self.height) - self.step * own + repeated
        if order == 1:
            return float(np.dot(np.exp(logs), losses))
        log_moment = float(np.logaddexp.reduce(logs + (order - 1) * losses))
        return max(0.0, log_moment / (order - 1))


def _find_walk_law(up: float, down: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns places and masses of a sum of steps +1 (mass up), -1 (mass down) or 0."""
    mean = steps * (up - down)
    variance = steps * (up + down)
    # A window that the sum leaves with probability below 1e-20, by Bernstein's inequality:
    # exp(-half^2 / (2 (variance + half/3))).
    half = math.ceil(10 * math.sqrt(variance + 1)) + 70
    low = max(-steps, math.floor(mean) - half)
    high = min(steps, math.ceil(mean) + half)
    # The law of a sum is the inverse Fourier transform of a power.
    size = 1 << (high - low).bit_length()
    angles = 2 * math.pi * np.arange(size // 2 + 1) / size
    upwards = up * np.exp(-1j * angles)
    downwards = down * np.exp(1j * angles)
    transform = (1 - up - down) + upwards + downwards
    moved = transform**steps * np.exp(1j * angles * low)
    masses = np.fft.irfft(moved, size)
    return np.arange(low, high + 1), np.maximum(masses[: high - low + 1], 0.0)


def _find_smallest_epsilon(losses: np.ndarray, masses: np.ndarray, delta: float) -> float:
    """Returns where the sum of mass (1 - e^(epsilon - loss))_+ falls to delta."""
    order = np.argsort(losses)[::-1]
    losses = losses[order]
    masses = masses[order]
    mass = np.cumsum(masses)
    # Between two losses the sum is linear in e^epsilon. A candidate is the epsilon that exactly
    # the losses so far exceed.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weight = np.logaddexp.accumulate(np.log(masses) - losses)
        candidates = np.log(mass - delta) - log_weight
    following = np.append(losses[1:], -np.inf)
    inside = (mass > delta) & (candidates < losses) & (candidates >= following)
    if not inside.any():
        return 0.0
    return max(0.0, float(candidates[inside].max()))
