"""Laplace noise on every coordinate (docs/theory.md#b2).

A vector with a clipped l1 norm is worst where one coordinate moves alone, one with a clipped l2
norm where all coordinates move equally. There Laplace noise of scale b behaves like Gaussian noise
of standard deviation b, though its own is sqrt(2) b.
"""

from __future__ import annotations

import math

import numpy as np

from sordino.mechanisms.keystream_noise import draw_words, give_signs
from sordino.mechanisms.mechanism import (
    MECHANISMS,
    Mechanism,
    NoisePrice,
    check_dimension,
    check_order,
    check_shift,
)
from sordino.mechanisms.noise_law import Law
from sordino.protocol import InvalidValue, Laplace, Noise
from sordino.protocol.data_entries import require_dimension
from sordino.randomness import Stream
from sordino.uniform_words import unit_interval

_TERMS = 18  # of a series whose terms fall at least as fast as 0.5^k / k!


@MECHANISMS.register(Laplace)
class LaplaceMechanism(Mechanism[Laplace]):
    """Noise of density e^(-|x|/scale) / (2 scale) on every coordinate.

    Example:
        >>> price = LaplaceMechanism(Laplace(scale=1.0)).price("l2", 10)
        >>> round(price.divergence(2.0, 1.0), 10), round(price.pure(1.0), 6)
        (0.8775779679, 3.162278)
    """

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns the price of Laplace noise under an l1 or an l2 clip.

        Args:
            norm: Which norm of the vector is clipped, "l1" or "l2".
            dimension: Number of coordinates, where it is known.

        Raises:
            UserError: The dimension is needed and not known.
        """
        scale = self.noise.scale

        def find_deltas(epsilons: np.ndarray, shifts: np.ndarray) -> np.ndarray:
            """Returns the largest deltas where one coordinate moves alone, a shift a row."""
            return laplace_deltas(epsilons, shifts / scale)

        if norm == "l1":
            return NoisePrice(
                divergence=lambda order, shift: laplace_divergence(order, shift, scale),
                table=lambda shifts, orders: laplace_divergences(orders, shifts[:, None] / scale),
                pure=lambda shift: shift / scale,
                reason=(
                    "Laplace noise under an l1 clip is worst where one coordinate moves alone "
                    "(docs/theory.md#b2)"
                ),
                deltas=find_deltas,
            )
        size = require_dimension(dimension)
        root = math.sqrt(size)
        return NoisePrice(
            divergence=lambda order, shift: laplace_divergence_l2(order, shift, scale, size),
            table=lambda shifts, orders: (
                size * laplace_divergences(orders, shifts[:, None] / root / scale)
            ),
            pure=lambda shift: shift * root / scale,
            reason=(
                f"Laplace noise under an l2 clip is worst where all {size} coordinates move alike "
                "(docs/theory.md#b2)"
            ),
            # In one dimension both norms are the same, and the worst move is known for every
            # epsilon (docs/theory.md#b10).
            deltas=find_deltas if size == 1 else None,
        )

    def draw(self, stream: Stream, trainings: int, count: int) -> np.ndarray:
        """Returns independent values of noise; equal calls give equal values.

        Args:
            stream: The place in the keystream that the values are made of.
            trainings: Number of rows, one for each training side by side.
            count: Number of values in a row.
        """
        words = draw_words(stream, trainings, count, 1)[..., 0]
        return self.noise.scale * laplace_values(words)

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of one coordinate's noise at each value.

        Args:
            values: Values of one coordinate's noise.
        """
        log_densities: np.ndarray = -np.abs(values) / self.noise.scale - math.log(
            2 * self.noise.scale
        )
        return log_densities

    @property
    def law(self) -> Law:
        return laplace_law(self.noise.scale)

    @property
    def moments(self) -> tuple[float, float]:
        return self.noise.scale, 2 * self.noise.scale**2

    @property
    def size_entry(self) -> str:
        return "scale"

    @classmethod
    def of_parameter(cls, value: float, *, reach: float, secure: bool) -> Noise:
        """Returns Laplace noise; its size does not depend on the reach.

        Args:
            value: The size that its entry is to say.
            reach: How far an upload can move.
            secure: Whether the noise comes from the operating system's entropy.
        """
        return Laplace(scale=value, secure=secure)


def laplace_law(scale: float) -> Law:
    """Returns the law of density e^(-|x|/scale) / (2 scale).

    Args:
        scale: Scale of the noise.

    Raises:
        InvalidValue: The scale is not a finite number above 0.

    Example:
        >>> round(laplace_law(1.0).std, 6)
        1.414214
    """
    if not 0 < scale < math.inf:
        raise InvalidValue("scale", scale, "a finite number above 0")
    return Law(
        name=f"Laplace, scale {scale:g}",
        std=math.sqrt(2) * scale,
        log_tail=lambda r: -math.log(2) - r / scale,
    )


def laplace_values(words: np.ndarray) -> np.ndarray:
    """Returns Laplace values of scale 1: an exponential magnitude, up to 36.7, and a fair sign.

    Args:
        words: Uniform 64-bit words, one for each value.
    """
    return give_signs(words, -np.log(unit_interval(words)))


def laplace_divergence(order: float, shift: float, scale: float) -> float:
    """Returns the Rényi divergence of one coordinate (Mironov 2017, Prop. 6).

    It is log(a/(2a-1) e^((a-1)x) + (a-1)/(2a-1) e^(-a x))/(a-1), x = shift/scale.

    Args:
        order: a, from 1 (Kullback-Leibler) to infinity (the largest privacy loss).
        shift: How far the coordinate moves.
        scale: Scale of the noise.

    Raises:
        InvalidValue: An argument out of its range.

    Example:
        >>> [round(laplace_divergence(order, 1.0, 1.0), 10) for order in (2.0, 1.0)]
        [0.61912363, 0.3678794412]
    """
    check_order(order)
    check_shift(shift)
    if not scale >= 0:
        raise InvalidValue("scale", scale, "a number of at least 0")
    if shift == 0 or math.isinf(scale):
        return 0.0
    x = shift / scale if scale > 0 else math.inf
    # The largest privacy loss of Laplace noise is the shift in units of the scale.
    if math.isinf(x) or math.isinf(order):
        return x
    if order == 1:
        return float(_excess(np.array(-x)))
    return float(laplace_divergences(np.array(order), np.array(x)))


def laplace_divergences(orders: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Returns the divergences at many orders and shifts, element by element.

    Args:
        orders: Finite, above 1.
        shifts: Finite, in units of the scale.

    Example:
        >>> laplace_divergences(np.array([2.0, 3.0]), np.array([[1.0], [0.0]])).round(6).tolist()
        [[0.619124, 0.746828], [0.0, 0.0]]
    """
    a, x = np.broadcast_arrays(np.asarray(orders, dtype=float), shifts)
    # 1 + (a g((a-1)x) + (a-1) g(-a x))/(2a-1), g(t) = e^t - 1 - t: the linear terms cancel, and
    # what is left is positive.
    with np.errstate(over="ignore"):
        rising = a * _excess((a - 1) * x)
        falling = (a - 1) * _excess(-a * x)
        near = np.log1p((rising + falling) / (2 * a - 1))
    # In logarithms, since e^((a-1)x) overflows long before the divergence is large.
    log_rising = np.log(a / (2 * a - 1)) + (a - 1) * x
    log_falling = np.log((a - 1) / (2 * a - 1)) - a * x
    far = np.logaddexp(log_rising, log_falling)
    return np.asarray(np.where(a * x < 1, near, far) / (a - 1))


def laplace_deltas(epsilons: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Returns the largest delta over vectors of bounded l1 norm, a norm a row.

    One coordinate that moves alone is the worst vector for every epsilon (docs/theory.md#b10), and
    has delta = 1 - e^((epsilon - shift)/2) up to a loss of the whole shift.

    Args:
        epsilons: Epsilons of at least 0.
        shifts: Norms in units of the scale.

    Example:
        >>> laplace_deltas(np.array([0.0, 0.5, 2.0]), np.array([1.0])).round(6).tolist()
        [[0.393469, 0.221199, 0.0]]
    """
    # No loss is larger than the shift, so from there on delta is 0.
    left = np.minimum(epsilons[None, :] - shifts[:, None], 0.0)
    deltas: np.ndarray = np.abs(np.expm1(left / 2))
    return deltas


def laplace_divergence_l2(
    order: float,
    clip: float,
    scale: float,
    dimension: int,
) -> float:
    """Returns the largest divergence over shifts of l2 norm at most `clip`: d D(clip / sqrt(d)).

    The one-coordinate divergence is concave in the squared shift, so an even spread is worst
    (docs/theory.md#b2, proved).

    Args:
        order: Order of the divergence.
        clip: The largest norm of a shift.
        scale: Scale of the noise.
        dimension: d, the number of coordinates.

    Example:
        >>> round(laplace_divergence_l2(2.0, 1.0, 1.0, 10), 10)
        0.8775779679
    """
    check_dimension(dimension)
    return dimension * laplace_divergence(order, clip / math.sqrt(dimension), scale)


def _excess(t: np.ndarray) -> np.ndarray:
    """Returns e^t - 1 - t without cancellation: by its series where t is small."""
    small = np.clip(t, -0.5, 0.5)
    series = np.zeros_like(small)
    for index in range(_TERMS, 1, -1):
        series = (1 + series) * small / index
    differences: np.ndarray = np.where(np.abs(t) > 0.5, np.expm1(t) - t, series * small)
    return differences
