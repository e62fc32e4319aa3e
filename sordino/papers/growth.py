"""Draws Table 3 of convergent-dp: how the noise for a fixed budget grows with rounds and steps.

The table compares rates whose constants are unknown, so each is drawn relative to its value at
T = 1, or at K = 1. A rate of a Rényi budget is drawn as its square root, the noise that keeps the
budget. What Sordino certifies is drawn the same way, as mu.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sordino.protocol.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
Kind = Literal["earlier", "paper", "certified"]
GREY = "#9aa5ad"
ORANGE = "#d1603d"
BLUE = "#2a6f97"
DARK = "#264653"
PALE = "#eef1f4"
# Grey recedes: the picture compares two kinds, and earlier work is their background.
_COLOURS: dict[Kind, str] = {"earlier": GREY, "paper": ORANGE, "certified": BLUE}
_LABEL_COLOURS: dict[Kind, str] = {"earlier": DARK, "paper": ORANGE, "certified": BLUE}
_LINE_WIDTHS: dict[Kind, float] = {"earlier": 1.6, "paper": 2.4, "certified": 2.4}
_DASHES: dict[bool, Any] = {False: "-", True: (0, (4, 2))}
# Constants that the table leaves open.
_CLIENTS = 50
_DELTA = 1e-5
_CONVEXITY = 0.1
# The steps where the rounds vary, and the rounds where the steps vary.
_STEPS = 5
_ROUNDS = 100
# Where both axes end.
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Rate:
    """One curve of the picture.

    Attributes:
        label: The source of the rate, and the rate in words.
        kind: Whether the rate was published earlier or by the paper, or is certified.
        value: Returns the rate at a count of rounds or steps, in any unit.
        dashed: Whether the curve is dashed.

    Example:
        >>> rates_by_rounds()[0].growth([1, 10])
        [1.0, 10.0]
    """

    label: str
    kind: Kind
    value: Callable[[int], float]
    dashed: bool = False

    def growth(self, counts: Sequence[int]) -> list[float]:
        """Returns the rate at each count, relative to the count 1.

        Args:
            counts: Counts of rounds, or of steps.
        """
        # Constants are unknown, so only quotients can be compared.
        first = self.value(1)
        return [self.value(count) / first for count in counts]


def rates_by_rounds() -> list[Rate]:
    """Returns curves of the growth in T, at K = 5.

    Example:
        >>> printed = [rate for rate in rates_by_rounds() if rate.kind == "paper"]
        >>> {rate.label: round(rate.growth([1000])[0], 3) for rate in printed}
        {'convergent-dp, Table 3: √(2 − 1/T)': 1.414, 'convergent-dp, Thm 3(a), refuted': 2.068}
    """
    from sordino.papers import convergent

    def refuted(rounds: int) -> float:
        """Returns the claim of the refuted theorem.

        Args:
            rounds: T, the number of rounds.
        """
        return convergent.theorem_3a(
            rounds=rounds,
            steps=_STEPS,
            rate=0.1,
            clip=1.0,
            smoothness=1.0,
            clients=_CLIENTS,
            sigma=1.0,
        )

    return [
        Rate(label="Wei 2020, Shi 2021: T", kind="earlier", value=float),
        Rate(
            label="Noble 2022: √(T log(2T/δ))",
            kind="earlier",
            value=lambda t: math.sqrt(t * math.log(2 * t / _DELTA)),
        ),
        Rate(label="Cheng, Zhang & Tang, Hu, Fukami: √T", kind="earlier", value=math.sqrt),
        Rate(
            label="Zhang 2021: √(T + mK)",
            kind="earlier",
            value=lambda t: math.sqrt(t + _CLIENTS * _STEPS),
        ),
        Rate(
            label="Bastianello 2024, strongly convex",
            kind="earlier",
            value=lambda t: math.sqrt(-math.expm1(-_CONVEXITY * t)),
        ),
        Rate(
            label="convergent-dp, Table 3: √(2 − 1/T)",
            kind="paper",
            value=lambda t: math.sqrt(2 - 1 / t),
        ),
        Rate(label="convergent-dp, Thm 3(a), refuted", kind="paper", value=refuted, dashed=True),
        Rate(label="certified, constant rate, every view: √T", kind="certified", value=math.sqrt),
        Rate(label="certified, stage-wise rate, every view", kind="certified", value=_composed),
        Rate(
            label="certified, clipped linear model, final view",
            kind="certified",
            value=_contracting,
            dashed=True,
        ),
        Rate(
            label="certified, stage-wise, final view, L vouched",
            kind="certified",
            value=_last_stage_wise,
            dashed=True,
        ),
    ]


def rates_by_steps() -> list[Rate]:
    """Returns curves of the growth in K, at T = 100.

    Example:
        >>> printed = [rate for rate in rates_by_steps() if rate.kind == "paper"]
        >>> {rate.label: round(rate.growth([1000])[0], 1) for rate in printed}
        {'convergent-dp, Table 3: K left out': 1.0, 'convergent-dp, Thm 3(c): K': 1000.0}
    """
    # The rate times alpha.
    pull = 0.1
    return [
        Rate(label="Shi 2021, Noble, Zhang & Tang 2022: √K", kind="earlier", value=math.sqrt),
        Rate(
            label="Zhang 2021: √(T + mK)",
            kind="earlier",
            value=lambda k: math.sqrt(_ROUNDS + _CLIENTS * k),
        ),
        Rate(
            label="Wei, Cheng, Hu, Fukami, Bastianello: no K", kind="earlier", value=lambda _: 1.0
        ),
        Rate(label="convergent-dp, Table 3: K left out", kind="paper", value=lambda _: 1.0),
        Rate(label="convergent-dp, Thm 3(c): K", kind="paper", value=float, dashed=True),
        Rate(label="certified, FedAvg, constant rate: K", kind="certified", value=float),
        Rate(
            label="certified, FedProx, pull 0.1 a step",
            kind="certified",
            value=lambda k: -math.expm1(k * math.log1p(-pull)) / pull,
        ),
        Rate(
            label="certified, FedAvg, cyclic rate: H(K)",
            kind="certified",
            value=lambda k: math.fsum(1 / j for j in range(1, k + 1)),
        ),
    ]


def draw_growth(path: Path) -> None:
    """Draws both panels.

    Args:
        path: The file; its suffix decides the format.

    Raises:
        UserError: The path does not end in .png, .svg or .pdf, or cannot be written.

    Example:
        >>> draw_growth(Path("growth.png"))  # doctest: +SKIP
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"picture {str(path)!r}: expected a name that ends in {', '.join(SUFFIXES)}."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15.5, 6.4))
    # An explicit canvas draws without pyplot, whose global state belongs to the caller.
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.045, right=0.80, wspace=0.95, top=0.83, bottom=0.10)
    _draw_panel(left, rates_by_rounds(), "rounds T", f"in rounds, relative to T = 1 (K = {_STEPS})")
    _draw_panel(
        right,
        rates_by_steps(),
        "local steps K",
        f"in local steps, relative to K = 1 (T = {_ROUNDS})",
    )
    figure.text(
        0.045,
        0.945,
        "Growth of the noise that a fixed budget needs",
        fontsize=15,
        color=DARK,
        weight="bold",
    )
    figure.text(0.045, 0.90, "rates, constants unknown", fontsize=11, color=DARK)
    for place, colour, words in (
        (0.20, GREY, "published before"),
        (0.31, ORANGE, "published by convergent-dp"),
        (0.475, BLUE, "certified by Sordino"),
    ):
        figure.text(place, 0.90, words, fontsize=11, color=colour, weight="bold")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"picture {str(path)!r} cannot be written: {error.strerror}.") from error


def _draw_panel(axes: Axes, rates: list[Rate], word: str, title: str) -> None:
    """Draws the curves of one panel, on log axes."""
    # Twenty counts per decade, rounded: the small ones would otherwise appear twice.
    counts = sorted({round(10 ** (exponent / 20)) for exponent in range(61)})
    ends = []
    for rate in rates:
        values = rate.growth(counts)
        axes.plot(
            counts,
            values,
            color=_COLOURS[rate.kind],
            linewidth=_LINE_WIDTHS[rate.kind],
            # Dashes lie above, so that both of two equal curves are seen.
            linestyle=_DASHES[rate.dashed],
            zorder=2 + rate.dashed,
            clip_on=False,
        )
        ends.append(values[-1])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, _MOST)
    axes.set_ylim(min(0.8, *ends) * 0.9, max(ends) * 1.1)
    axes.set_xlabel(word, color=DARK)
    axes.set_title(title, loc="left", fontsize=11, color=DARK)
    axes.grid(color=PALE)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=DARK)
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.minorticks_off()
    _name_ends(axes, rates, ends)


def _name_ends(axes: Axes, rates: list[Rate], ends: list[float]) -> None:
    """Writes each label next to the end of its curve, moved apart where ends are close.

    A thin line joins the label to the curve.
    """
    # Labels are placed in the picture's own units, since the axis is logarithmic.
    low, high = (math.log(limit) for limit in axes.get_ylim())
    heights = [(math.log(end) - low) / (high - low) for end in ends]
    places = spread_labels(heights, gap=0.048)
    for rate, height, place in zip(rates, heights, places, strict=True):
        axes.plot(
            [1.0, 1.04],
            [height, place],
            transform=axes.transAxes,
            color=_COLOURS[rate.kind],
            linewidth=0.8,
            clip_on=False,
        )
        axes.text(
            1.05,
            place,
            rate.label,
            transform=axes.transAxes,
            va="center",
            fontsize=9,
            color=_LABEL_COLOURS[rate.kind],
        )


def spread_labels(heights: Sequence[float], *, gap: float) -> list[float]:
    """Returns places near the heights, in the same order and at least `gap` apart.

    Isotonic regression makes the sum of the squared moves least.

    Args:
        heights: The heights at which the labels would be.
        gap: The least distance of two labels.

    Example:
        >>> [round(place, 3) for place in spread_labels([0.5, 0.5, 0.9], gap=0.1)]
        [0.45, 0.55, 0.9]
    """
    from scipy.optimize import isotonic_regression

    order = sorted(range(len(heights)), key=lambda index: heights[index])
    # Lowered by the gaps, labels that only keep their order are at least a gap apart once raised
    # again.
    lowered = [heights[index] - gap * rank for rank, index in enumerate(order)]
    fitted = isotonic_regression(lowered).x
    places = [0.0] * len(heights)
    for rank, index in enumerate(order):
        places[index] = float(fitted[rank]) + gap * rank
    return places


def _composed(rounds: int) -> float:
    """Returns the growth by composition, at the rates 1/t."""
    return math.sqrt(math.fsum(1 / (t * t) for t in range(1, rounds + 1)))


def _last_stage_wise(rounds: int) -> float:
    """Returns the growth of the last model's mu, at the rates 1/t.

    The vouched smoothness lets the first round stretch distances by about 1 + 1/2.
    """
    from sordino.privacy.amplification.last_iterate import last_iterate

    times = range(1, rounds + 1)
    factors = [(1 + 0.5 / (_STEPS * t)) ** _STEPS for t in times]
    shifts = [1 / t for t in times]
    return math.sqrt(last_iterate(factors, shifts))


def _contracting(rounds: int) -> float:
    """Returns the growth of the last clipped linear model's mu, where a round contracts by 0.774.

    It is the example of docs/theory.md#a9.
    """
    from sordino.privacy.amplification.last_iterate import price_constant_rounds

    return math.sqrt(price_constant_rounds(0.95**_STEPS, 1.0, rounds))
