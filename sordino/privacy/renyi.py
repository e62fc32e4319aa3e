"""Rényi curves: divergences at a list of orders, added up under composition, and what they say about (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln

from sordino.privacy import checks
from sordino.privacy.curves import Curve
from sordino.privacy.losses import NEGLIGIBLE, LossCurve
from sordino.protocol.errors import UserError

ORDERS = (
    *(1 + k / 20 for k in range(1, 20)), *(2 + k / 4 for k in range(32)), *range(10, 64), *range(64, 128, 4),
    *range(128, 512, 16), 512, 768, 1024, 2048, 4096, 8192, 16384, 65536,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RenyiCurve(Curve):
    """A bound on the Rényi divergence, in both directions, at each of some increasing orders above 1.

    Example:
        >>> ten = RenyiCurve.of(lambda order: order / 32, orders=ORDERS).repeat(10)
        >>> round(ten.epsilon(1e-5), 3)
        3.617
    """

    rank: ClassVar[int] = 2
    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(
            1 < low < high for low, high in zip(self.orders, self.orders[1:], strict=False)
        )
        if (
            not self.orders
            or len(self.orders) != len(self.values)
            or not (rising or len(self.orders) == 1)
            or self.orders[0] <= 1
        ):
            raise UserError("a Rényi curve needs increasing orders above 1 and one value for each.")
        checks.not_negative(
            **{
                f"divergence of order {order:g}": value
                for order, value in zip(self.orders, self.values, strict=True)
            }
        )

    @classmethod
    def of(
        cls, divergence: Callable[[float], float], *, orders: Iterable[float] = ORDERS
    ) -> RenyiCurve:
        """The curve of a function of the order.

        Example:
            >>> RenyiCurve.of(lambda order: order / 2, orders=[2, 3]).values
            (1.0, 1.5)
        """
        taken = tuple(orders)
        return cls(orders=taken, values=tuple(float(divergence(order)) for order in taken))

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`: the best order for each epsilon."""
        orders, values = np.array(self.orders), np.array(self.values)
        return np.array(
            [
                math.exp(min(0.0, float(_log_deltas(orders, values, epsilon).min())))
                for epsilon in np.ravel(epsilons)
            ]
        )

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`: the best order for this delta."""
        return min(
            to_epsilon(order, value, delta)
            for order, value in zip(self.orders, self.values, strict=True)
        )

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: between two orders on the chord of (order - 1) D, which is convex in the order (van Erven, Harremoës 2014)."""
        checks.order(order)
        if order <= self.orders[0]:
            return self.values[0]  # the divergence does not decrease in the order
        if order > self.orders[-1]:
            return math.inf
        moments = (np.array(self.orders) - 1) * np.array(self.values)
        at = int(np.searchsorted(self.orders, order))
        low, high = self.orders[at - 1], self.orders[at]
        share = (order - low) / (high - low)
        left = (1 - share) * moments[at - 1] if share < 1 else 0.0  # not 0 times infinity
        return float(left + share * moments[at]) / (order - 1)

    def repeat(self, times: int) -> RenyiCurve:
        """See `Curve.repeat`."""
        checks.whole(at_least=0, times=times)
        return RenyiCurve(
            orders=self.orders,
            values=tuple(value * times if times else 0.0 for value in self.values),
        )

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`: the true curve is convex in e^epsilon, so it lies below the convex minorant of this bound."""
        top = max(1.0, self.epsilon(NEGLIGIBLE / 2))
        if math.isinf(top):
            raise UserError(
                "a Rényi curve without a finite divergence has no privacy-loss distribution."
            )
        grid = np.linspace(0.0, top * 1.01, 4001)
        return LossCurve.from_profile(
            convex_profile(grid, self.deltas(grid)),
            interval=interval,
            gap=max(1, round(top / 4000 / interval)),
        )

    def _absorb(self, other: Curve) -> RenyiCurve:
        """Divergences add (Mironov 2017, Prop. 1); at the orders of both curves."""
        orders = (
            sorted({*self.orders, *other.orders}) if isinstance(other, RenyiCurve) else self.orders
        )
        return RenyiCurve.of(lambda order: self.rdp(order) + other.rdp(order), orders=orders)


def to_epsilon(order: float, rdp: float, delta: float) -> float:
    """Epsilon from one divergence: rdp + log((a - 1)/a) - (log delta + log a)/(a - 1), for order a > 1 (THEORY B5).

    Canonne, Kamath and Steinke 2020, Prop. 12; Balle, Barthe, Gaboardi, Hsu and Sato 2020, Thm 21.

    Example:
        >>> round(to_epsilon(10.0, 0.5, 1e-5), 10)
        1.4180106368
    """
    _check_order(order, rdp)
    checks.proper_delta(delta)
    return max(
        0.0, rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    )


def to_epsilon_classic(order: float, rdp: float, delta: float) -> float:
    """The older, looser conversion rdp + log(1/delta)/(a - 1) (Mironov 2017, Prop. 3): sound, kept for comparison.

    Example:
        >>> round(to_epsilon_classic(10.0, 0.5, 1e-5), 10)
        1.7792139406
    """
    _check_order(order, rdp)
    checks.proper_delta(delta)
    return rdp - math.log(delta) / (order - 1)


def to_delta(order: float, rdp: float, epsilon: float) -> float:
    """Delta from one divergence: e^((a - 1)(rdp - epsilon)) (1 - 1/a)^(a - 1) / a, at most 1 (THEORY B5).

    Example:
        >>> round(to_delta(2.0, 0.1, 3.0), 12)
        0.013755805014
    """
    _check_order(order, rdp)
    checks.not_negative(epsilon=epsilon)
    return min(
        1.0, math.exp(min(0.0, float(_log_deltas(np.array([order]), np.array([rdp]), epsilon)[0])))
    )


def poisson_subsampled(order: int, rate: float, divergence: Callable[[int], float]) -> float:
    """Divergence of a Poisson-subsampled release with symmetric additive noise, add or remove one record (THEORY B6).

    log(sum_l C(a, l) (1 - q)^(a - l) q^l e^((l - 1) D_l)) / (a - 1): exact at a given shift, a bound with the largest D_l, for
    Gaussian, Laplace and staircase noise and every integer order; no factor 3 is needed. Written as 1 + a sum of positive terms.

    Args:
        order: Integer order a >= 2.
        rate: Probability q with which a record is in the sample.
        divergence: D_l of the release without sampling, at integer orders l from 2 to a.

    Example:
        >>> round(poisson_subsampled(2, 0.01, lambda order: order / 2), 13)
        0.0001718134221
    """
    checks.whole(at_least=2, order=order)
    checks.probability(rate=rate)
    if rate == 0:
        return 0.0
    if rate == 1:
        return divergence(order)
    terms = np.arange(2, order + 1)
    exponents = np.array([(term - 1) * divergence(int(term)) for term in terms])
    with np.errstate(divide="ignore"):
        growth = exponents + np.log(-np.expm1(-exponents))  # log(e^x - 1)
    chosen = gammaln(order + 1) - gammaln(terms + 1) - gammaln(order - terms + 1)
    logs = chosen + (order - terms) * math.log1p(-rate) + terms * math.log(rate) + growth
    return float(np.logaddexp(0.0, np.logaddexp.reduce(logs))) / (order - 1)


def _check_order(order: float, rdp: float) -> None:
    if not order > 1:
        raise UserError(f"order = {order!r}: a conversion needs an order above 1.")
    checks.not_negative(rdp=rdp)


def _log_deltas(orders: np.ndarray, values: np.ndarray, epsilon: float) -> np.ndarray:
    if math.isinf(epsilon):
        return np.where(np.isinf(values), 0.0, -np.inf)
    return (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)


def convex_profile(epsilons: np.ndarray, deltas: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The lower convex hull, over e^epsilon, of points of a delta curve, between which it interpolates; 0 beyond the last.

    The true curve is convex, at most 1 at e^epsilon = 0 and below all the points; so it is below the chords of their hull.
    """
    hull: list[int] = []
    for index in range(epsilons.size):
        while len(hull) >= 2 and _turns_up(epsilons, deltas, hull[-2], hull[-1], index):
            hull.pop()
        hull.append(index)
    ends, heights = epsilons[hull], deltas[hull]

    def profile(wanted: np.ndarray) -> np.ndarray:
        right = np.clip(np.searchsorted(ends, wanted), 1, ends.size - 1)
        left, inside = right - 1, np.clip(wanted, ends[right - 1], ends[right])
        # (e^w - e^a) / (e^b - e^a), by differences alone: e^w itself may be beyond all numbers
        share = (
            np.exp(inside - ends[right])
            * np.expm1(ends[left] - inside)
            / np.expm1(ends[left] - ends[right])
        )
        return np.where(
            wanted > ends[-1],
            NEGLIGIBLE / 2,
            heights[left] + (heights[right] - heights[left]) * share,
        )

    return profile


def _turns_up(epsilons: np.ndarray, y: np.ndarray, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies on or above the chord of the other two, over e^epsilon."""
    low, between = np.exp(epsilons[[first, middle]] - epsilons[last])
    return bool((y[middle] - y[first]) * (1 - low) >= (y[last] - y[first]) * (between - low))
