"""Rényi divergences of Laplace noise on every coordinate (THEORY B2).

A shift of s on one coordinate under noise of scale b; a vector with a clipped l1 norm is worst on one coordinate, one with a
clipped l2 norm when spread evenly over all d, where Laplace noise behaves like Gaussian noise of standard deviation b, though
its own is sqrt(2) b.
"""

from __future__ import annotations

import math

import numpy as np

from sordino.privacy import checks
from sordino.privacy.renyi import ORDERS, RenyiCurve

_TERMS = 18  # of a series whose terms fall at least as fast as 0.5^k / k!


def divergence(order: float, shift: float, scale: float) -> float:
    """Divergence of one coordinate: log(a/(2a-1) e^((a-1)x) + (a-1)/(2a-1) e^(-a x))/(a-1), x = shift/scale (Mironov 2017, Prop. 6).

    Example:
        >>> round(divergence(2.0, 1.0, 1.0), 10), round(divergence(1.0, 1.0, 1.0), 10)
        (0.61912363, 0.3678794412)
    """
    checks.order(order)
    checks.finite(shift=shift)
    checks.not_negative(scale=scale)
    if shift == 0 or math.isinf(scale):
        return 0.0
    x = shift / scale if scale > 0 else math.inf
    if math.isinf(x) or math.isinf(order):
        return x
    if order == 1:
        return float(_excess(np.array(-x)))
    return float(divergences(np.array(order), np.array(x)))


def divergences(orders: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """The same at finite orders above 1 and finite shifts in units of the scale, element by element.

    Example:
        >>> divergences(np.array([2.0, 3.0]), np.array([[1.0], [0.0]])).round(6).tolist()
        [[0.619124, 0.746828], [0.0, 0.0]]
    """
    a, x = np.broadcast_arrays(np.asarray(orders, dtype=float), shifts)
    with np.errstate(over="ignore"):
        # 1 + (a g((a-1)x) + (a-1) g(-a x))/(2a-1), g(t) = e^t - 1 - t: the linear terms cancel, what is left is positive
        near = np.log1p((a * _excess((a - 1) * x) + (a - 1) * _excess(-a * x)) / (2 * a - 1))
    far = np.logaddexp(np.log(a / (2 * a - 1)) + (a - 1) * x, np.log((a - 1) / (2 * a - 1)) - a * x)
    return np.asarray(np.where(a * x < 1, near, far) / (a - 1))


def divergence_l2(order: float, clip: float, scale: float, dimension: int) -> float:
    """Largest divergence over shifts of l2 norm at most `clip` in `dimension` coordinates: d D(clip / sqrt(d)).

    The one-coordinate divergence is concave in the squared shift, so an even spread is worst (THEORY B2, proved).

    Example:
        >>> round(divergence_l2(2.0, 1.0, 1.0, 10), 10)
        0.8775779679
    """
    checks.whole(at_least=1, dimension=dimension)
    return dimension * divergence(order, clip / math.sqrt(dimension), scale)


def curve_l1(*, clip: float, scale: float) -> RenyiCurve:
    """One release of a vector whose l1 norm moves by at most `clip`, in any dimension.

    Example:
        >>> round(curve_l1(clip=1.0, scale=1.0).epsilon(1e-9), 3)
        1.0
    """
    return RenyiCurve.of(lambda order: divergence(order, clip, scale))


def curve_l2(
    *, clip: float, scale: float, dimension: int, orders: tuple[float, ...] = ORDERS
) -> RenyiCurve:
    """One release of a vector whose l2 norm moves by at most `clip`.

    Example:
        >>> round(curve_l2(clip=1.0, scale=4.045 / 2**0.5, dimension=1).epsilon(1e-5), 2)
        0.35
    """
    return RenyiCurve.of(lambda order: divergence_l2(order, clip, scale, dimension), orders=orders)


def _excess(t: np.ndarray) -> np.ndarray:
    """e^t - 1 - t without cancellation: by its series, t^2/2! + t^3/3! + ..., where t is small."""
    small = np.clip(t, -0.5, 0.5)
    series = np.zeros_like(small)
    for index in range(_TERMS, 1, -1):
        series = (1 + series) * small / index
    return np.where(np.abs(t) > 0.5, np.expm1(t) - t, series * small)
