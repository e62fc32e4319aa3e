"""What the page Explore shows, as values: certified bounds per view, plain composition, what papers printed, curves, noise for a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.papers.applied import published_bounds
from sordino.papers.catalogue import find
from sordino.privacy import gaussian
from sordino.privacy.calibrate import calibrate
from sordino.privacy.certify import asked, certify, valid_bounds
from sordino.privacy.curves import Curve, GaussianCurve
from sordino.privacy.guarantee import Guarantee, epsilon_in_words
from sordino.protocol import Protocol, View
from sordino.ui.explorer.background import stop_if_unwanted
from sordino.ui.explorer.setting import Setting

POINTS = 9  # numbers of rounds at which a curve over rounds is worked out
ALPHAS = np.concatenate([np.geomspace(1e-4, 0.05, 9), np.linspace(0.1, 1, 19)])
SLOPES = 60  # supporting lines that a trade-off curve is drawn from


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What one adversary learns at most, and what plain composition would say of it."""

    guarantee: Guarantee
    epsilon: float
    plain: float

    @property
    def view(self) -> View:
        """The adversary."""
        return self.guarantee.view


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a paper printed for who sees the last model only, and the verdict on it."""

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
    """A curve of a chart: its name, and values that may be infinite."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over common points: what is drawn, and what the table beside it says."""

    across: str
    points: tuple[float, ...]
    lines: tuple[Line, ...]

    def rows(self) -> list[dict[str, float]]:
        """The table, a row per point.

        Example:
            >>> Chart(across="rounds", points=(1, 2), lines=(Line(name="certified", values=(0.5, 0.7)),)).rows()[1]
            {'rounds': 2, 'certified': 0.7}
        """
        return [
            {self.across: point, **{line.name: line.values[at] for line in self.lines}}
            for at, point in enumerate(self.points)
        ]


def priced(setting: Setting, view: View) -> Priced:
    """The smallest valid bound of a view, and the first: rounds composed without any further thought.

    Example:
        >>> found = priced(Setting(), View.ROUNDS)
        >>> in_words(found.epsilon), found.epsilon < found.plain
        ('3.92', True)
    """
    guarantee = certify(setting.protocol, view, setting.unit, delta=setting.delta)
    plain = plain_curve(setting.protocol, view, setting.unit).epsilon(setting.delta)
    return Priced(guarantee=guarantee, epsilon=guarantee.epsilon(setting.delta), plain=plain)


def plain_curve(protocol: Protocol, view: View, unit: str) -> Curve:
    """Composition of the rounds: the first of all valid bounds."""
    return next(iter(valid_bounds(asked(protocol, view, unit, None, None)))).curve


def quick(setting: Setting, view: View) -> float | None:
    """An epsilon that holds and is found at once, where there is one: that of composition, if it is Gaussian.

    Example:
        >>> quick(Setting(), View.SERVER) > priced(Setting(), View.SERVER).epsilon
        True
    """
    curve = plain_curve(setting.protocol, view, setting.unit)
    return curve.epsilon(setting.delta) if isinstance(curve, GaussianCurve) else None


def published(setting: Setting) -> tuple[Published, ...]:
    """What the papers printed for this very federation.

    Example:
        >>> [one.claim for one in published(Setting(schedule="stage-wise"))]
        ['convergent/theorem-3c']
    """
    found = []
    for name, mu in published_bounds(setting.protocol).items() if setting.unit == "record" else ():
        claim = find(name)
        epsilon = gaussian.epsilon(mu, setting.delta)
        found.append(
            Published(
                claim=name,
                mu=mu,
                epsilon=epsilon,
                verdict=claim.verdict,
                reason=claim.reason,
                instead=claim.sound_replacement,
            )
        )
    return tuple(found)


def over_rounds(setting: Setting, view: View) -> Chart:
    """Epsilon of fewer rounds, up to all: certified, composed, and printed where something was.

    Example:
        >>> chart = over_rounds(Setting(rounds=100), View.FINAL)
        >>> chart.points[-1], [line.name for line in chart.lines]
        (100, ['certified', 'plain composition'])
    """
    counts = np.unique(np.geomspace(1, setting.rounds, POINTS).round().astype(int)).tolist()
    plans = [replace(setting, rounds=count) for count in counts]
    prices = []
    for plan in plans:
        stop_if_unwanted()
        prices.append(priced(plan, view))
    lines = [
        Line(name="certified", values=tuple(price.epsilon for price in prices)),
        Line(name="plain composition", values=tuple(price.plain for price in prices)),
    ]
    printed = (
        [{one.claim: one for one in published(plan)} for plan in plans]
        if view == View.FINAL
        else [{} for _ in plans]
    )
    for claim, one in printed[-1].items():
        word = "printed, unsound" if one.false else f"printed, {one.verdict}"
        lines.append(
            Line(name=f"{word}: {claim}", values=tuple(row[claim].epsilon for row in printed))
        )
    return Chart(across="rounds", points=tuple(counts), lines=tuple(lines))


def tradeoffs(prices: Sequence[Priced], delta: float) -> Chart:
    """What any test can reach: for every view the least false negative rate at some false positive rates, rounded down.

    Views that cannot be told apart in a picture share a line. Each is the highest of some supporting lines, never above the true curve.
    """
    from sordino.ui.plots import grouped

    named = grouped([price.guarantee for price in prices], delta)
    lines = []
    for name, guarantee in named.items():
        stop_if_unwanted()
        lines.append(Line(name=name, values=tuple(betas(guarantee.curve).tolist())))
    return Chart(
        across="false positives",
        points=tuple(ALPHAS.tolist()),
        lines=(*lines, Line(name="guessing", values=tuple((1 - ALPHAS).tolist()))),
    )


def betas(curve: Curve) -> np.ndarray:
    """The trade-off function at `ALPHAS`, from below (Dong, Roth and Su 2022, Prop. 2.12).

    Example:
        >>> betas(GaussianCurve(mu=0.0)).round(6).tolist() == (1 - ALPHAS).round(6).tolist()
        True
    """
    if isinstance(curve, GaussianCurve):
        return np.array([curve.beta(float(alpha)) for alpha in ALPHAS])
    steepest = min(20.0, curve.epsilon(1e-6))
    slopes = (
        np.concatenate([[0.0], np.geomspace(1e-3, max(2e-3, steepest), SLOPES)])
        if math.isfinite(steepest)
        else np.zeros(1)
    )
    left, deltas = np.exp(slopes), curve.deltas(slopes)
    one_way = (1 - deltas)[:, None] - np.multiply.outer(left, ALPHAS)
    other_way = ((1 - deltas)[:, None] - ALPHAS) / left[:, None]
    return np.maximum(np.maximum(one_way, other_way).max(axis=0), 0.0)


def with_noise_for(setting: Setting) -> tuple[Setting, float]:
    """The setting with the smallest noise that meets its target, and the epsilon that is then certified.

    Raises:
        UserError: no noise meets it.

    Example:
        >>> found, reached = with_noise_for(Setting(adversary="rounds", target=2.0))
        >>> found.noise > Setting().noise, reached <= 2.0
        (True, True)
    """
    found = calibrate(
        setting.protocol, setting.view, setting.unit, epsilon=setting.target, delta=setting.delta
    )
    return replace(setting, noise=found.value), found.achieved


def in_words(epsilon: float) -> str:
    """An epsilon for people.

    Example:
        >>> in_words(7.9361), in_words(math.inf)
        ('7.94', 'no limit')
    """
    return epsilon_in_words(epsilon)
