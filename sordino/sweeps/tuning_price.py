"""Prices the choice among several trainings on the same private records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from sordino.privacy.bounds.worst_curve import find_worst_curve
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.near_law import allow_distance
from sordino.privacy.curves.renyi import ORDERS, RenyiCurve
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, epsilon_in_words, format_delta
from sordino.protocol import UserError

# The accountant rounds to nearest, and a price rounds up.
UP = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class TuningPrice:
    """Holds the price of a sweep as a whole.

    Attributes:
        kind: "sum" or "selection".
        epsilon: The upper bound.
        delta: The delta at which it holds.
        view: The adversary.
        adjacency: How neighbouring data sets differ.
        runs: The number of trainings.
        trials: The expected number of trainings, for "selection"; None otherwise.
        sentence: The price in words.
    """

    kind: str
    epsilon: float
    delta: float
    view: str
    adjacency: str
    runs: int
    trials: float | None
    sentence: str


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A release whose Rényi divergences are known, as an event of dp_accounting."""

    curve: Curve


class CurveAccountant(RdpAccountant):  # type: ignore[misc]
    """Extends the accountant of dp_accounting to events that hold our curves."""

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        if type(event) is not CurveEvent:
            return super()._maybe_compose(event, count, do_compose)
        # Otherwise the accountant only asks whether it knows the event; None means that it does.
        if do_compose:
            for index, order in enumerate(self._orders):
                self._rdp[index] += count * find_divergence(event.curve, float(order))
        return None

    def join_curve(self) -> RenyiCurve:
        """Returns what was composed so far, as a curve; a curve refuses values that are NaN."""
        return RenyiCurve(
            orders=tuple(float(order) for order in self._orders),
            values=tuple(float(value) for value in self._rdp),
        )


def find_divergence(curve: Curve, order: float) -> float:
    """Returns a Rényi divergence; infinity where a curve overflows.

    Args:
        curve: The curve of a release.
        order: The order of the divergence.
    """
    found = curve.rdp(order)
    # The accountant of dp_accounting would take NaN for a price of nothing.
    return math.inf if math.isnan(found) else found


def price_all_runs(guarantees: Sequence[Guarantee], delta: float) -> TuningPrice:
    """Returns the price of all runs together: every score and every model may be looked at.

    The seeds of the runs must differ. Runs that share draws of records or noise are not
    independent, and no composition holds for them.

    Args:
        guarantees: The guarantee of every run, all in one view.
        delta: The delta at which epsilon is asked for.

    Raises:
        UserError: The runs have different neighbouring data sets.
    """
    adjacency = find_common_adjacency(guarantees)
    # This holds however later settings were chosen from earlier scores (docs/theory.md#a25).
    joined = guarantees[0].curve
    for guarantee in guarantees[1:]:
        joined = joined.compose(guarantee.curve)
    epsilon = joined.epsilon(delta)
    view = str(guarantees[0].view)
    return TuningPrice(
        kind="sum",
        epsilon=epsilon,
        delta=delta,
        view=view,
        adjacency=adjacency,
        runs=len(guarantees),
        trials=None,
        sentence=f"For all {len(guarantees)} runs together {state_limit(epsilon)} in the view "
        f"{view} at delta = {format_delta(delta)} ({adjacency}), whichever of them is used.",
    )


def state_limit(epsilon: float) -> str:
    """Returns an upper bound as a part of a sentence, never below the true one.

    Args:
        epsilon: The bound.

    Example:
        >>> state_limit(3.1412), state_limit(125.0)
        ('epsilon is at most 3.15', 'epsilon has no meaningful limit')
    """
    words = epsilon_in_words(epsilon)
    if epsilon > MEANINGFUL:
        return f"epsilon has {words}"
    return f"epsilon is at most {words}"


def price_selection(
    guarantees: Sequence[Guarantee], runs: int, trials: float, delta: float
) -> TuningPrice:
    """Returns the price of the best of a random number of runs, if nothing else is shown.

    The number is drawn from a Poisson distribution and every run draws its settings afresh, so a
    run costs what the costliest setting costs (docs/theory.md#a25). Papernot and Steinke 2022, Thm
    6.

    Args:
        guarantees: The guarantee of every setting that can be drawn, in the view "final".
        runs: The number of runs, which stays secret.
        trials: The mean of the distribution.
        delta: The delta at which epsilon is asked for.

    Raises:
        UserError: The settings have different neighbouring data sets.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> from sordino.protocol import View
        >>> one = Guarantee(view=View.FINAL, unit="record", method="", curve=GaussianCurve(mu=0.5))
        >>> price_selection([one], 12, 10.0, 1e-5).epsilon > one.epsilon(1e-5)
        True
    """
    adjacency = find_common_adjacency(guarantees)
    # A setting that is drawn at random costs no more than the costliest at every order
    # (docs/theory.md#a25).
    worst = find_worst_curve([one.curve.law for one in guarantees])
    accountant = CurveAccountant(list(ORDERS))
    # To dp_accounting, an infinite shape is the Poisson distribution.
    event = dp_event.RepeatAndSelectDpEvent(
        event=CurveEvent(curve=worst), mean=trials, shape=math.inf
    )
    accountant.compose(event)
    # Noise that is not drawn exactly differs from its law in every run, of which `trials` are
    # expected. No Rényi divergence says so, so it is added afterwards (docs/theory.md#a12).
    distance = trials * max(one.total_variation for one in guarantees)
    epsilon = allow_distance(accountant.join_curve(), distance).epsilon(delta) * UP
    view = str(guarantees[0].view)
    return TuningPrice(
        kind="selection",
        epsilon=epsilon,
        delta=delta,
        view=view,
        adjacency=adjacency,
        runs=runs,
        trials=trials,
        sentence=f"For the model of the best run {state_limit(epsilon)} in the view {view} "
        f"at delta = {format_delta(delta)} ({adjacency}), if nothing else of the sweep is ever "
        "shown: no table, no other run, and not how many there were.",
    )


def find_common_adjacency(guarantees: Sequence[Guarantee]) -> str:
    """Returns the adjacency of all runs, which must be the same.

    Args:
        guarantees: The guarantees of the runs.

    Raises:
        UserError: The runs have different adjacencies.
    """
    # Replacing a record and adding one are statements about different pairs of data sets.
    found = sorted({guarantee.adjacency for guarantee in guarantees})
    if len(found) > 1:
        raise UserError(
            f"the settings of this sweep have different neighbouring data sets ({', '.join(found)}"
            "), whose prices cannot be joined: set privacy.adjacency."
        )
    return found[0]
