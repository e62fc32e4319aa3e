"""Computes what the page Explore shows: bounds, published claims, curves, noise for a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.explorer.background import stop_if_unwanted
from sordino.explorer.setting import Setting
from sordino.papers.applied import published_bounds
from sordino.papers.catalogue import find
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import certify
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.curve import Curve
from sordino.privacy.guarantee import Guarantee, epsilon_in_words
from sordino.protocol import Protocol, View

# The number of points of a curve over rounds.
POINTS = 9
# Points are denser at small rates, which matter most.
ALPHAS = np.concatenate([np.geomspace(1e-4, 0.05, 9), np.linspace(0.1, 1, 19)])
# The number of supporting lines that a trade-off curve is drawn from.
SLOPES = 60


@dataclass(frozen=True, kw_only=True)
class ViewPrice:
    """Holds the bounds against one adversary.

    Attributes:
        guarantee: The smallest valid bound.
        epsilon: The epsilon of that bound.
        plain: The epsilon of plain composition of the rounds.
    """

    guarantee: Guarantee
    epsilon: float
    plain: float

    @property
    def view(self) -> View:
        """The adversary."""
        return self.guarantee.view


@dataclass(frozen=True, kw_only=True)
class PublishedBound:
    """Holds a bound on the last model that a paper printed, and the verdict on it.

    Attributes:
        claim: The name of the claim in the catalogue.
        mu: The printed mu.
        epsilon: The epsilon that follows from the printed mu.
        verdict: "sound", "conditional", "asymptotic" or "unsound".
        reason: The reason for the verdict.
        instead: A statement that holds in its place.
    """

    claim: str
    mu: float
    epsilon: float
    verdict: str
    reason: str
    instead: str

    @property
    def false(self) -> bool:
        """Whether the theorem does not hold."""
        return self.verdict == "unsound"


@dataclass(frozen=True, kw_only=True)
class Line:
    """Holds a curve of a chart.

    Attributes:
        name: The name in the legend.
        values: A value for every point, which may be infinite.
    """

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Holds curves over common points, for a picture and for the table next to it.

    Attributes:
        across: The label of the horizontal axis.
        points: The points along that axis.
        lines: The curves.
    """

    across: str
    points: tuple[float, ...]
    lines: tuple[Line, ...]

    def rows(self) -> list[dict[str, float]]:
        """Returns the table of the chart, with a row per point.

        Example:
            >>> line = Line(name="certified", values=(0.5, 0.7))
            >>> Chart(across="rounds", points=(1, 2), lines=(line,)).rows()[1]
            {'rounds': 2, 'certified': 0.7}
        """
        rows = []
        for index, point in enumerate(self.points):
            values = {line.name: line.values[index] for line in self.lines}
            rows.append({self.across: point, **values})
        return rows


def price_view(setting: Setting, view: View) -> ViewPrice:
    """Prices one view: the smallest valid bound, and plain composition of the rounds.

    Args:
        setting: The position of the controls.
        view: The adversary.

    Example:
        >>> found = price_view(Setting(), View.ROUNDS)
        >>> format_epsilon(found.epsilon), found.epsilon < found.plain
        ('3.92', True)
    """
    guarantee = certify(setting.protocol, view, setting.unit, delta=setting.delta)
    plain = find_composition(setting.protocol, view, setting.unit).epsilon(setting.delta)
    return ViewPrice(guarantee=guarantee, epsilon=guarantee.epsilon(setting.delta), plain=plain)


def find_composition(protocol: Protocol, view: View, unit: str) -> Curve:
    """Returns the composition of the rounds: the first of all valid bounds.

    Args:
        protocol: The federation.
        view: The adversary.
        unit: "record" or "client".
    """
    # The first valid bound is always that of plain composition.
    return next(iter(find_bounds(pose_question(protocol, view, unit, None, None)))).curve


def find_quick_epsilon(setting: Setting, view: View) -> float | None:
    """Returns a valid epsilon that takes no time to compute: that of Gaussian composition.

    Args:
        setting: The position of the controls.
        view: The adversary.

    Returns:
        The epsilon; None where composition is not Gaussian.

    Example:
        >>> find_quick_epsilon(Setting(), View.SERVER) > price_view(Setting(), View.SERVER).epsilon
        True
    """
    curve = find_composition(setting.protocol, view, setting.unit)
    # Other compositions take seconds.
    if curve.law.mu is None:
        return None
    return curve.epsilon(setting.delta)


def find_published(setting: Setting) -> tuple[PublishedBound, ...]:
    """Returns the bounds that the papers printed for exactly this federation.

    Args:
        setting: The position of the controls.

    Example:
        >>> [one.claim for one in find_published(Setting(schedule="stage-wise"))]
        ['convergent/theorem-3c']
    """
    # The papers' theorems are about one record.
    if setting.unit != "record":
        return ()
    found = []
    for name, mu in published_bounds(setting.protocol).items():
        claim = find(name)
        found.append(
            PublishedBound(
                claim=name,
                mu=mu,
                epsilon=gaussian.epsilon(mu, setting.delta),
                verdict=claim.verdict,
                reason=claim.reason,
                instead=claim.sound_replacement,
            )
        )
    return tuple(found)


def trace_rounds(setting: Setting, view: View) -> Chart:
    """Traces epsilon against rounds: certified, composed, and as papers printed it.

    Args:
        setting: The position of the controls.
        view: The adversary.

    Example:
        >>> chart = trace_rounds(Setting(rounds=100), View.FINAL)
        >>> chart.points[-1], [line.name for line in chart.lines]
        (100, ['certified', 'plain composition'])
    """
    # Evenly spaced on a logarithmic axis; rounding makes the first counts equal.
    counts = np.unique(np.geomspace(1, setting.rounds, POINTS).round().astype(int)).tolist()
    plans = [replace(setting, rounds=count) for count in counts]
    prices = []
    for plan in plans:
        # Once the controls have moved, nobody wants the rest of the curve.
        stop_if_unwanted()
        prices.append(price_view(plan, view))
    lines = [
        Line(name="certified", values=tuple(price.epsilon for price in prices)),
        Line(name="plain composition", values=tuple(price.plain for price in prices)),
    ]
    # The papers' theorems are about the last model.
    if view == View.FINAL:
        printed = [{one.claim: one for one in find_published(plan)} for plan in plans]
        for claim, one in printed[-1].items():
            epsilons = tuple(row[claim].epsilon for row in printed)
            lines.append(Line(name=f"printed, {one.verdict}: {claim}", values=epsilons))
    return Chart(across="rounds", points=tuple(counts), lines=tuple(lines))


def trace_tradeoffs(prices: Sequence[ViewPrice], delta: float) -> Chart:
    """Traces the least false negative rates of any test, rounded down.

    Views that look the same in a picture share a line. It is the highest of some supporting lines,
    which are never above the true curve.

    Args:
        prices: The prices of the views.
        delta: Where views are compared.
    """
    from sordino.report.run_prices import group_similar_views

    named = group_similar_views([price.guarantee for price in prices], delta)
    lines = []
    for name, guarantee in named.items():
        stop_if_unwanted()
        lines.append(Line(name=name, values=tuple(tabulate_betas(guarantee.curve).tolist())))
    return Chart(
        across="false positives",
        points=tuple(ALPHAS.tolist()),
        lines=(*lines, Line(name="guessing", values=tuple((1 - ALPHAS).tolist()))),
    )


def tabulate_betas(curve: Curve) -> np.ndarray:
    """Bounds the trade-off function at `ALPHAS` from below (Dong, Roth and Su 2022, Prop. 2.12).

    Args:
        curve: The bound.

    Example:
        >>> from sordino.privacy.curves.gaussian_curve import GaussianCurve
        >>> bool(np.allclose(tabulate_betas(GaussianCurve(mu=0.0)), 1 - ALPHAS, atol=1e-6))
        True
    """
    if curve.law.mu is not None:
        return np.array([curve.beta(float(alpha)) for alpha in ALPHAS])
    # A line with a slope beyond e^20 is below every point that is drawn.
    steepest = min(20.0, curve.epsilon(1e-6))
    slopes = np.zeros(1)
    if math.isfinite(steepest):
        slopes = np.concatenate([[0.0], np.geomspace(1e-3, max(2e-3, steepest), SLOPES)])
    # Every slope e^epsilon gives two lines below the curve; the highest of all lines is drawn.
    factors = np.exp(slopes)
    weights = (1 - curve.deltas(slopes))[:, None]
    one_way = weights - np.multiply.outer(factors, ALPHAS)
    other_way = (weights - ALPHAS) / factors[:, None]
    betas: np.ndarray = np.maximum(np.maximum(one_way, other_way).max(axis=0), 0.0)
    return betas


def meet_target(setting: Setting) -> tuple[Setting, float]:
    """Finds the smallest noise that meets the target of a setting.

    Args:
        setting: The position of the controls.

    Returns:
        The setting with that noise, and the epsilon that is then certified.

    Raises:
        UserError: No noise meets it.

    Example:
        >>> found, reached = meet_target(Setting(adversary="rounds", target=2.0))
        >>> found.noise > Setting().noise, reached <= 2.0
        (True, True)
    """
    found = calibrate(
        setting.protocol, setting.view, setting.unit, epsilon=setting.target, delta=setting.delta
    )
    return replace(setting, noise=found.value), found.achieved


def format_epsilon(epsilon: float) -> str:
    """Returns an epsilon for people.

    Args:
        epsilon: An upper bound.

    Example:
        >>> format_epsilon(7.9361), format_epsilon(math.inf)
        ('7.94', 'no limit')
    """
    return epsilon_in_words(epsilon)
