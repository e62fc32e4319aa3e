"""The last model again, when every released model is projected onto a ball of diameter D (THEORY A7, bounded domain).

Two models are then never further apart than D, so the analysis may start in any round t0 with d_{t0} = D and forget what came
before: H = min over t0. Every t0 is a valid bound; the search below finds the best in O(T log T).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sordino.privacy import checks
from sordino.privacy.last_iterate import _checked, last_iterate

Edge = tuple[
    float, float, float
]  # height A / sqrt(B), log B, log Q of a stretch of rounds, as in `last_iterate`


def last_iterate_bounded(
    rho: Iterable[float], gamma: Iterable[float], diameter: float
) -> tuple[float, int]:
    """The smallest H over all starts, and the start t0 that gives it: 0 means that the diameter did not help.

    Example:
        >>> H, t0 = last_iterate_bounded([1.0] * 100, [1.0] * 100, 10.0)
        >>> round(H, 9), t0
        (40.0, 90)
    """
    rho, gamma = _checked(rho, gamma, 0.0)
    checks.finite(diameter=diameter)
    start = _best_start(rho, gamma, diameter)
    return last_iterate(rho[start:], gamma[start:], diameter if start else 0.0), start


def _best_start(rho: np.ndarray, gamma: np.ndarray, diameter: float) -> int:
    """Goes from the last round to the first, keeping the minorants of all suffixes as a tree.

    A start is skipped when one of two lower bounds passes the best value so far: the cost when all constraints but the last are
    dropped, or all but those after an anchor, the point where the first edge of an earlier start ended. The search ends when
    the rounds ahead cost more even from distance 0. Rounding can only make it miss a start that is better by that much.
    """
    zeros = np.flatnonzero(rho == 0)
    first = max(
        1, int(zeros[-1]) if zeros.size else 1
    )  # a rho of 0 forgets: no earlier start differs from that one
    scale = max(float(gamma.max()), diameter) or 1.0
    gamma = gamma / scale
    bounds, bound_slopes = _relaxed(rho, gamma, diameter / scale)
    with np.errstate(divide="ignore", over="ignore"):
        products, starting = np.log(rho).tolist(), (gamma + rho * (diameter / scale)).tolist()
    heights, tree = gamma.tolist(), _Minorants(rho.size)
    best, best_start = float(np.square(gamma).sum()), 0  # composition, which no start at 0 exceeds
    anchor: int = rho.size
    ahead: Edge | None = None  # the rounds from the next one to the anchor as one edge
    for start in range(rho.size - 1, first - 1, -1):
        if bounds[start] < best:
            opening = (starting[start], 0.0, products[start])
            if bound_slopes[start] >= tree.last_slope:
                best, best_start = (
                    bounds[start],
                    start,
                )  # the first edge reaches the end: no constraint binds
            elif anchor == rho.size or tree.bound(_merged(opening, ahead), anchor) < best:
                value, anchor, ahead = tree.opened(opening, start + 1)
                best, best_start = (value, start) if value < best else (best, best_start)
        element = (heights[start], 0.0, products[start])
        tree.push(start, element)
        if tree.energy[start] >= best:
            return best_start
        if anchor < rho.size:
            ahead = _merged(element, ahead)
    if first == 1:
        tree.push(0, (heights[0], 0.0, products[0]))
    return (
        0
        if tree.energy[min(first, rho.size - 1) if first > 1 else 0] <= best * (1 + 1e-12)
        else best_start
    )


def _relaxed(
    rho: np.ndarray, gamma: np.ndarray, diameter: float
) -> tuple[list[float], list[float]]:
    """For every start: the cost A^2/B when only d_T = 0 is asked, a lower bound, and the logarithm of its slope A/B."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = np.concatenate([np.cumsum(np.log(rho[:0:-1]))[::-1], [0.0]])  # log P_t
        shifted = np.logaddexp.accumulate((left + np.log(gamma))[::-1])[::-1]
        mass = np.logaddexp.accumulate((2 * left)[::-1])[::-1]
        total = (
            np.logaddexp(shifted, left + np.log(rho) + math.log(diameter))
            if diameter > 0
            else shifted
        )
        return np.exp(2 * total - mass).tolist(), (total - mass).tolist()


class _Minorants:
    """Convex minorants of all suffixes: `edge t` is the first edge of the minorant that starts in round t, `after[t]` its end.

    An edge is (height A / sqrt(B), log B, log Q) as in `last_iterate`; jump pointers to ancestors (skew-binary, Myers 1983) with
    the edges between them merged into one let a query skip along the path in O(log T).
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.after = [rounds] * (rounds + 1)
        self.jump = [rounds] * (rounds + 1)
        self.depth = [0] * (rounds + 1)
        self.edge: list[Edge] = [(0.0, 0.0, 0.0)] * (rounds + 1)
        self.slope = [math.inf] * (
            rounds + 1
        )  # log of the edge's slope seen from its start; infinite after the end
        self.energy = [0.0] * (rounds + 1)
        self.last_slope = (
            -math.inf
        )  # log of the slope of the edge that reaches the end, seen from the end
        self._skipped: dict[int, Edge] = {}

    def push(self, start: int, edge: Edge) -> None:
        """Adds the round before all others: pools it with the edges to its right while it is steeper."""
        end, log_slope = start + 1, _log_slope(edge)
        while log_slope >= self.slope[end]:
            edge, end = _merged(edge, self.edge[end]), self.after[end]
            log_slope = _log_slope(edge)
        self.after[start], self.edge[start] = end, edge
        self.slope[start] = log_slope + edge[2]
        self.energy[start] = edge[0] * edge[0] + self.energy[end]
        self.depth[start] = self.depth[end] + 1
        jump = self.jump[end]
        same = self.depth[end] - self.depth[jump] == self.depth[jump] - self.depth[self.jump[jump]]
        self.jump[start] = self.jump[jump] if same and end != self.rounds else end
        if end == self.rounds:
            self.last_slope = log_slope

    def opened(self, opening: Edge, at: int) -> tuple[float, int, Edge | None]:
        """The minorant whose first round is `opening`, followed by the suffix from `at`.

        The first edge grows along the path while it is steeper than the next edge; once it is not, it never is again.

        Returns:
            Its energy, where its first edge ends, and the rounds from `at` to there as one edge.
        """
        first: Edge = opening
        passed: Edge | None = None
        while _log_slope(first) >= self.slope[at]:
            skipped = self._between(at)
            further = _merged(first, skipped)
            if _log_slope(further) >= self.slope[self.jump[at]]:
                at = self.jump[at]
            else:
                skipped = self.edge[at]
                further, at = _merged(first, skipped), self.after[at]
            first, passed = further, skipped if passed is None else _merged(passed, skipped)
        return first[0] * first[0] + self.energy[at], at, passed

    def bound(self, first: Edge, at: int) -> float:
        """A lower bound on the energy of the minorant over the rounds of `first`, which end in `at`, and all later ones.

        Slopes that never decrease are feasible in the dual problem max 2 sum s_t g_t - sum s_t^2 v_t; where they do, no bound.
        """
        return (
            first[0] * first[0] + self.energy[at]
            if _log_slope(first) <= self.slope[at]
            else -math.inf
        )

    def _between(self, at: int) -> Edge:
        """All edges from `at` to its jump as one, remembered once it was needed."""
        end, jump = self.after[at], self.jump[at]
        if jump == end:
            return self.edge[at]
        found = self._skipped.get(at)
        if found is None:
            found = _merged(
                _merged(self.edge[at], self._between(end)), self._between(self.jump[end])
            )
            self._skipped[at] = found
        return found


def _log_slope(edge: Edge) -> float:
    return math.log(edge[0]) - edge[1] / 2 if edge[0] > 0 else -math.inf


def _merged(left: Edge, right: Edge | None) -> Edge:
    """A <- Q_r A_l + A_r, B <- Q_r^2 B_l + B_r, Q <- Q_l Q_r, kept as A / sqrt(B), log B and log Q; None is no round at all."""
    if right is None:
        return left
    share = 2 * right[2] + left[1] - right[1]
    if share > 0:
        odds = math.exp(-share)
        root = math.sqrt(odds)
        return (
            (left[0] + root * right[0]) / math.sqrt(1 + odds),
            right[1] + share + math.log1p(odds),
            left[2] + right[2],
        )
    odds = math.exp(share)
    root = math.sqrt(odds)
    return (
        (root * left[0] + right[0]) / math.sqrt(1 + odds),
        right[1] + math.log1p(odds),
        left[2] + right[2],
    )
