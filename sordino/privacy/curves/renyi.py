"""Rényi curves: divergences at a list of orders, and what they say about (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.curves.combinatorics import log_choose
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.loss_distributions import NEGLIGIBLE, LossCurve
from sordino.protocol.errors import UserError

# Dense where the best order usually lies, sparse where many releases or tiny deltas put it.
ORDERS = (
    *(1 + k / 20 for k in range(1, 20)),
    *(2 + k / 4 for k in range(32)),
    *range(10, 64),
    *range(64, 128, 4),
    *range(128, 512, 16),
    *(512, 768, 1024, 2048),
    *(4096, 8192, 16384, 65536),
)

# Orders at which the divergence of a Poisson-sampled release is known (docs/theory.md#b6).
INTEGER_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, kw_only=True)
class RenyiCurve(Curve):
    """A bound on the Rényi divergence, in both directions, at each of some orders.

    Attributes:
        orders: The orders, increasing and above 1.
        values: The divergence at each order.

    Example:
        >>> ten = RenyiCurve.from_divergence(lambda order: order / 32, orders=ORDERS).repeat(10)
        >>> round(ten.epsilon(1e-5), 3)
        3.617
    """

    rank: ClassVar[int] = 2
    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        fits = 0 < len(self.orders) == len(self.values)
        if not (fits and self.orders[0] > 1 and _is_increasing(self.orders)):
            raise UserError("a Rényi curve needs increasing orders above 1 and one value for each.")
        for order, value in zip(self.orders, self.values, strict=True):
            checks.require_nonnegative(**{f"divergence of order {order:g}": value})

    @classmethod
    def from_divergence(
        cls, divergence: Callable[[float], float], *, orders: Iterable[float] = ORDERS
    ) -> RenyiCurve:
        """Returns the curve of a function of the order.

        Args:
            divergence: A bound on the divergence of an order.
            orders: The orders at which it is evaluated.

        Returns:
            The curve through these orders.

        Example:
            >>> RenyiCurve.from_divergence(lambda order: order / 2, orders=[2, 3]).values
            (1.0, 1.5)
        """
        known = tuple(orders)
        values = tuple(float(divergence(order)) for order in known)
        return cls(orders=known, values=values)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`: the best order for each epsilon.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        orders = np.array(self.orders)
        values = np.array(self.values)
        found = []
        for epsilon in np.ravel(epsilons):
            best = float(log_deltas_by_order(orders, values, epsilon).min())
            found.append(math.exp(min(0.0, best)))
        return np.array(found)

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`: the best order for this delta.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        best = math.inf
        for order, value in zip(self.orders, self.values, strict=True):
            best = min(best, convert_to_epsilon(order, value, delta))
        return best

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`: between two orders on the chord of (order - 1) D.

        It is convex in the order (van Erven and Harremoës 2014).

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        checks.require_order(order)
        # The divergence does not decrease in the order.
        if order <= self.orders[0]:
            return self.values[0]
        if order > self.orders[-1]:
            return math.inf
        moments = (np.array(self.orders) - 1) * np.array(self.values)
        at = int(np.searchsorted(self.orders, order))
        low = self.orders[at - 1]
        high = self.orders[at]
        share = (order - low) / (high - low)
        left = 0.0
        # Otherwise it would be 0 times a moment that may be infinite.
        if share < 1:
            left = (1 - share) * moments[at - 1]
        moment = float(left + share * moments[at])
        return moment / (order - 1)

    def repeat(self, times: int) -> RenyiCurve:
        """See `Curve.repeat`.

        Args:
            times: How many such releases are composed.
        """
        checks.require_whole(at_least=0, times=times)
        if times == 0:
            return RenyiCurve(orders=self.orders, values=(0.0,) * len(self.values))
        values = tuple(value * times for value in self.values)
        return RenyiCurve(orders=self.orders, values=values)

    def losses(self, interval: float) -> LossCurve:
        """See `Curve.losses`: by the convex minorant of this bound.

        The true curve is convex in e^epsilon, so it lies below that.

        Args:
            interval: The distance between neighbouring losses of the grid.
        """
        top = max(1.0, self.epsilon(NEGLIGIBLE / 2))
        if math.isinf(top):
            raise UserError(
                "a Rényi curve without a finite divergence has no privacy-loss distribution."
            )
        grid = np.linspace(0.0, top * 1.01, 4001)
        profile = convex_profile(grid, self.deltas(grid))
        gap = max(1, round(top / 4000 / interval))
        return LossCurve.from_profile(profile, interval=interval, gap=gap)

    def _absorb(self, other: Curve) -> RenyiCurve:
        """Divergences add (Mironov 2017, Prop. 1); at the orders of both curves."""
        orders: Iterable[float] = self.orders
        if isinstance(other, RenyiCurve):
            orders = sorted({*self.orders, *other.orders})
        return RenyiCurve.from_divergence(
            lambda order: self.rdp(order) + other.rdp(order), orders=orders
        )


def convert_to_epsilon(order: float, rdp: float, delta: float) -> float:
    """Returns epsilon from one divergence (docs/theory.md#b5).

    rdp + log((a - 1)/a) - (log delta + log a)/(a - 1), for an order a > 1.
    Canonne, Kamath and Steinke 2020, Prop. 12; Balle, Barthe, Gaboardi, Hsu and Sato 2020, Thm 21.

    Args:
        order: The order a of the divergence.
        rdp: The Rényi divergence of that order.
        delta: The delta of the guarantee, above 0 and below 1.

    Returns:
        Epsilon, of at least 0.

    Raises:
        UserError: An order of at most 1, a negative divergence, or no proper delta.

    Example:
        >>> round(convert_to_epsilon(10.0, 0.5, 1e-5), 10)
        1.4180106368
    """
    _check_order(order, rdp)
    checks.require_delta(delta)
    spent = (math.log(delta) + math.log(order)) / (order - 1)
    epsilon = rdp + math.log1p(-1 / order) - spent
    return max(0.0, epsilon)


def amplify_divergence(
    order: int,
    rate: float,
    divergence: Callable[[int], float],
) -> float:
    """Returns the divergence of a Poisson-subsampled release with symmetric additive noise.

    One record is added or removed (docs/theory.md#b6). It is
    log(sum_l C(a, l) (1 - q)^(a - l) q^l e^((l - 1) D_l)) / (a - 1): exact at a given shift, a
    bound with the largest D_l, for Gaussian, Laplace and staircase noise and every integer order;
    no factor 3 is needed. Written as 1 + a sum of positive terms.

    Args:
        order: Integer order a >= 2.
        rate: The probability q with which a record is in the sample.
        divergence: D_l of the release without sampling, at integer orders l from 2 to a.

    Returns:
        The divergence of order a.

    Example:
        >>> round(amplify_divergence(2, 0.01, lambda order: order / 2), 13)
        0.0001718134221
    """
    checks.require_whole(at_least=2, order=order)
    checks.require_probability(rate=rate)
    if rate == 0:
        return 0.0
    if rate == 1:
        return divergence(order)
    terms = np.arange(2, order + 1)
    exponents = np.array([(term - 1) * divergence(int(term)) for term in terms])
    # log(e^x - 1), as the sum without noise is 1.
    with np.errstate(divide="ignore"):
        growth = exponents + np.log(-np.expm1(-exponents))
    left_out = (order - terms) * math.log1p(-rate)
    drawn = terms * math.log(rate)
    logs = log_choose(order, terms) + left_out + drawn + growth
    total = np.logaddexp.reduce(logs)
    return float(np.logaddexp(0.0, total)) / (order - 1)


def amplify_divergences(orders: np.ndarray, rate: float, values: np.ndarray) -> np.ndarray:
    """Returns what `amplify_divergence` does, for many orders at once.

    Args:
        orders: The orders, integers of at least 2.
        rate: The probability q with which a record is in the sample.
        values: D_l of the release without sampling, at l = 2, 3, and so on to the largest order.

    Example:
        >>> halves = np.arange(2, 9) / 2
        >>> many = amplify_divergences(np.array([2, 8]), 0.01, halves)
        >>> alone = [amplify_divergence(a, 0.01, lambda order: order / 2) for a in (2, 8)]
        >>> bool(np.allclose(many, alone, rtol=1e-12))
        True
    """
    checks.require_probability(rate=rate)
    if rate == 0:
        return np.zeros(len(orders))
    if rate == 1:
        return np.asarray(values[orders - 2], dtype=float)
    terms = np.arange(2, len(values) + 2)
    exponents = (terms - 1) * values
    with np.errstate(divide="ignore"):
        growth = exponents + np.log(-np.expm1(-exponents))
    drawn = terms * math.log(rate) + growth
    totals = []
    for order in orders.tolist():
        used = terms[: order - 1]
        logs = _log_choices(order) + (order - used) * math.log1p(-rate) + drawn[: order - 1]
        totals.append(np.logaddexp.reduce(logs))
    return np.asarray(np.logaddexp(0.0, totals) / (orders - 1))


@lru_cache(maxsize=128)
def _log_choices(order: int) -> np.ndarray:
    """Returns the logarithms of C(order, l) at l = 2 to the order."""
    return log_choose(order, np.arange(2, order + 1))


def _is_increasing(orders: tuple[float, ...]) -> bool:
    """Returns whether every order is above the one before it."""
    return all(low < high for low, high in pairwise(orders))


def _check_order(order: float, rdp: float) -> None:
    """Refuses orders and divergences that cannot be converted."""
    if not order > 1:
        raise UserError(f"order = {order!r}: a conversion needs an order above 1.")
    checks.require_nonnegative(rdp=rdp)


def log_deltas_by_order(orders: np.ndarray, values: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns the logarithm of delta at one epsilon, by each of some divergences.

    The conversion of docs/theory.md#b5, solved for delta.

    Args:
        orders: The orders, each above 1.
        values: The divergence at each order.
        epsilon: The epsilon, of at least 0; may be infinite.

    Returns:
        A logarithm for every order, which may be above 0.
    """
    if math.isinf(epsilon):
        return np.where(np.isinf(values), 0.0, -np.inf)
    exponents = values - epsilon + np.log1p(-1 / orders)
    logs: np.ndarray = (orders - 1) * exponents - np.log(orders)
    return logs


def convex_profile(
    epsilons: np.ndarray,
    deltas: np.ndarray,
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the lower convex hull, over e^epsilon, of points of a delta curve.

    The true curve is convex, at most 1 at e^epsilon = 0 and below all the points; so it is below
    the chords of their hull. Beyond the last point it is as good as 0.

    Args:
        epsilons: The epsilons of the points, increasing.
        deltas: A valid delta at each of them.

    Returns:
        A function from epsilons to deltas.
    """
    # Andrew's monotone chain, of which only the lower half is needed.
    hull: list[int] = []
    for index in range(epsilons.size):
        while len(hull) >= 2 and _turns_up(epsilons, deltas, hull[-2], hull[-1], index):
            hull.pop()
        hull.append(index)
    ends = epsilons[hull]
    heights = deltas[hull]

    def find_profile(wanted: np.ndarray) -> np.ndarray:
        """Returns deltas on the chords between the corners of the convex minorant.

        Args:
            wanted: The epsilons.
        """
        right = np.searchsorted(ends, wanted)
        right = np.clip(right, 1, ends.size - 1)
        left = right - 1
        start = ends[left]
        end = ends[right]
        inside = np.clip(wanted, start, end)
        # (e^w - e^a) / (e^b - e^a), only by differences: e^w itself may be beyond all numbers.
        share = np.exp(inside - end) * np.expm1(start - inside) / np.expm1(start - end)
        rise = heights[right] - heights[left]
        chords = heights[left] + rise * share
        return np.where(wanted > ends[-1], NEGLIGIBLE / 2, chords)

    return find_profile


def _turns_up(
    epsilons: np.ndarray,
    deltas: np.ndarray,
    first: int,
    middle: int,
    last: int,
) -> bool:
    """Returns whether a point is on or above the chord of its neighbours, over e^epsilon."""
    low, between = np.exp(epsilons[[first, middle]] - epsilons[last])
    rise_to_middle = deltas[middle] - deltas[first]
    rise_to_last = deltas[last] - deltas[first]
    return bool(rise_to_middle * (1 - low) >= rise_to_last * (between - low))
