"""Staircase noise on every coordinate (docs/theory.md#b1, #b2).

The density is y e^(-step N(|x|)), N(r) = number of k >= 0 with (k + nu) width <= r: it falls by
e^-step once in every `width`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sordino.mechanisms.keystream_noise import draw_words, give_signs
from sordino.mechanisms.mechanism import MECHANISMS, Mechanism, NoisePrice
from sordino.mechanisms.noise_law import Law
from sordino.mechanisms.staircase_density import StaircaseDensity
from sordino.protocol import InvalidValue, Noise, Staircase
from sordino.protocol.data_entries import require_dimension
from sordino.randomness import Stream
from sordino.uniform_words import unit_interval

STEEPEST = 700.0  # largest step of a staircase: e^step is still a number
# A staircase is made this much wider than the longest move, so that rounding cannot narrow it.
MARGIN = 1 + 1e-9


@MECHANISMS.register(Staircase)
class StaircaseMechanism(Mechanism[Staircase]):
    """Noise whose density falls in steps.

    Example:
        >>> mechanism = StaircaseMechanism(Staircase(step=2.0, width=1.0))
        >>> mechanism.size, mechanism.resize(0.25).step, round(mechanism.amplitude, 6)
        (0.5, 4.0, 0.425459)
    """

    @property
    def density(self) -> StaircaseDensity:
        """The density of one coordinate's noise."""
        noise = self.noise
        return StaircaseDensity(step=noise.step, width=noise.width, nu=noise.falls_at)

    @property
    def always_priced(self) -> bool:
        # Where an upload moves further than the width, the worst case is not known.
        return False

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns the price of staircase noise, for moves of at most its width.

        Args:
            norm: Which norm of the vector is clipped, "l1" or "l2".
            dimension: Number of coordinates, where it is known.

        Raises:
            UserError: The dimension is needed and not known.
        """
        size = require_dimension(dimension)
        density = self.density
        find_largest = density.divergence_l2
        share = math.sqrt(size)
        if norm == "l1":
            find_largest = density.divergence_l1
            share = float(size)

        def find_divergence(order: float, shift: float) -> float:
            """Returns the largest divergence over moves of at most a norm.

            Args:
                order: Order of the divergence.
                shift: The largest norm of the move.
            """
            self._refuse_beyond_width(shift)
            return find_largest(order, shift, size) if shift > 0 else 0.0

        def tabulate(shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
            """Returns the divergences of all pairs, a shift a row.

            Args:
                shifts: Norms of moves.
                orders: Orders of the divergences.
            """
            self._refuse_beyond_width(float(shifts.max(initial=0.0)))
            # An even spread over all coordinates is the worst move in either norm
            # (docs/theory.md#b2).
            return size * density.divergences(orders, shifts[:, None] / share)

        def find_deltas(epsilons: np.ndarray, shifts: np.ndarray) -> np.ndarray:
            """Returns the largest deltas, a shift a row.

            Args:
                epsilons: Epsilons of at least 0.
                shifts: Norms of moves.
            """
            self._refuse_beyond_width(float(shifts.max(initial=0.0)))
            return density.find_deltas(epsilons, shifts)

        return NoisePrice(
            divergence=find_divergence,
            table=tabulate,
            # Within a width every coordinate falls by one step at most (docs/theory.md#b1).
            pure=lambda shift: size * self.noise.step if shift > 0 else 0.0,
            reason=(
                f"staircase noise is worst where all {size} coordinates move alike, in either norm "
                "(docs/theory.md#b2)"
            ),
            deltas=find_deltas if size == 1 else None,
        )

    def _refuse_beyond_width(self, shift: float) -> None:
        width = self.noise.width
        if shift > width:
            # Rounded up, so that the number printed is wide enough.
            enough = f"{shift * (1 + 1e-5):.6g}"
            raise InvalidValue(
                "noise.width",
                width,
                f"at least {enough}, the distance an upload can move: "
                "beyond the width the worst case is not known",
            )

    def draw(self, stream: Stream, trainings: int, count: int) -> np.ndarray:
        """Returns independent values of noise; equal calls give equal values.

        Args:
            stream: The place in the keystream that the values are made of.
            trainings: Number of rows, one for each training side by side.
            count: Number of values in a row.
        """
        words = draw_words(stream, trainings, count, 2)
        return staircase_values(words, self.noise.step, self.noise.width, self.noise.falls_at)

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of one coordinate's noise at each value.

        Args:
            values: Values of one coordinate's noise.
        """
        falls = np.floor(np.abs(values) / self.noise.width + 1 - self.noise.falls_at)
        log_densities: np.ndarray = math.log(self.density.height) - self.noise.step * falls
        return log_densities

    @property
    def law(self) -> Law:
        return staircase_law(self.density)

    @property
    def moments(self) -> tuple[float, float]:
        return self.density.moments()

    @property
    def size_entry(self) -> str:
        return "step"

    @property
    def size(self) -> float:
        # The scale of the Laplace noise that it approaches.
        return self.noise.width / self.noise.step

    @property
    def size_words(self) -> str:
        return "width / step"

    def resize(self, size: float) -> Noise:
        """Returns a staircase of the same width with another step.

        Args:
            size: The width over the step.
        """
        return replace(self.noise, step=min(STEEPEST, self.noise.width / size))

    @property
    def growing_entry(self) -> None:
        # A larger step is less noise, and another width is another shape.
        return None

    @classmethod
    def of_parameter(cls, value: float, *, reach: float, secure: bool) -> Noise:
        """Returns staircase noise that is as wide as an upload can move.

        Args:
            value: The size that its entry is to say.
            reach: How far an upload can move.
            secure: Whether the noise comes from the operating system's entropy.
        """
        # As wide as an upload can move: beyond that its price is not known.
        return Staircase(step=value, width=reach * MARGIN, secure=secure)

    @property
    def words(self) -> str:
        return f"{super().words}, width {self.noise.width:g}"


def staircase_law(density: StaircaseDensity) -> Law:
    """Returns the law of a density.

    Args:
        density: Density of one coordinate.

    Example:
        >>> law = staircase_law(StaircaseDensity(step=1.0, width=1.0, nu=0.3))
        >>> round(law.std**2, 6), law.cdf(np.array([0.0, 1.3])).round(6)
        (1.932934, array([0.5     , 0.878626]))
    """
    step = density.step
    width = density.width
    nu = density.nu
    # All further stairs together, in units of the present one's height.
    beyond = width * math.exp(-step) / -math.expm1(-step)

    def find_log_tail(r: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the probability of a value above each r.

        Args:
            r: Of at least 0.
        """
        widths = np.minimum(r / width, 1e15)  # beyond that a float64 has no fractions
        stair = np.floor(widths + 1 - nu)
        rest = width * np.clip(stair + nu - widths, 0.0, 1.0)
        return math.log(density.height) - step * stair + np.log(rest + beyond)

    return Law(
        name=f"staircase, step {step:g}, width {width:g}, nu {nu:g}",
        std=math.sqrt(density.moments()[1]),
        log_tail=find_log_tail,
    )


def staircase_values(
    words: np.ndarray,
    step: float,
    width: float,
    nu: float,
) -> np.ndarray:
    """Returns staircase values from pairs of words (Geng and Viswanath 2015, Alg. 1).

    A geometric number G of widths from 0 on, P(G >= k) = e^(-k step), then a place in the upper or
    the lower stair: |X| / width = G + nu U with probability nu / (nu + (1 - nu) e^-step), else
    G + nu + (1 - nu) U.

    Args:
        words: Uniform 64-bit words, the last axis of length 2.
        step: By how much the logarithm of the density falls.
        width: How often it falls.
        nu: Where in a width it falls.
    """
    widths = np.floor(-np.log(unit_interval(words[..., 0])) / step)
    # One uniform gives both the stair and the place in it.
    place = unit_interval(words[..., 1])
    upper = nu / (nu + (1 - nu) * math.exp(-step))
    with np.errstate(divide="ignore", invalid="ignore"):
        in_lower = nu + (1 - nu) * ((place - upper) / (1 - upper))
        within = np.where(place < upper, nu * (place / upper), in_lower)
    return give_signs(words[..., 0], width * (widths + within))
