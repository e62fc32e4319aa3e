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
        return _excess(-x)
    if order * x < 1:
        # 1 + (a g((a-1)x) + (a-1) g(-a x))/(2a-1), g(t) = e^t - 1 - t: the linear terms cancel, what is left is positive
        moment = (order * _excess((order - 1) * x) + (order - 1) * _excess(-order * x)) / (2 * order - 1)
        return math.log1p(moment) / (order - 1)
    grown = math.log(order / (2 * order - 1)) + (order - 1) * x
    shrunk = math.log((order - 1) / (2 * order - 1)) - order * x
    return float(np.logaddexp(grown, shrunk)) / (order - 1)


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


def curve_l2(*, clip: float, scale: float, dimension: int, orders: tuple[float, ...] = ORDERS) -> RenyiCurve:
    """One release of a vector whose l2 norm moves by at most `clip`.

    Example:
        >>> round(curve_l2(clip=1.0, scale=4.045 / 2**0.5, dimension=1).epsilon(1e-5), 2)
        0.35
    """
    return RenyiCurve.of(lambda order: divergence_l2(order, clip, scale, dimension), orders=orders)


def _excess(t: float) -> float:
    """e^t - 1 - t without cancellation."""
    if abs(t) > 0.5:
        return math.expm1(t) - t
    term, total, index = t * t / 2, 0.0, 2
    while abs(term) > 2.0**-60 * abs(total) and term != 0:
        total += term
        index += 1
        term *= t / index
    return total
