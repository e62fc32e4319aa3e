"""Charts in colours that everybody can tell apart (Okabe and Ito 2008); dashes and marks say the same without colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sordino.ui.explorer.answers import Chart, Line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
MOST_MARKS = 40  # points above which a line has no marks
FALSE = {"color": "#D55E00", "dash": "dot"}  # what does not hold, and nothing else


def figure(
    chart: Chart, *, title: str, up: str, log_x: bool = False, now: float | None = None
) -> Figure:
    """Lines with marks, legend below; what is infinite is left out. A vertical line says how far something has come by now.

    Example:
        >>> one = Chart(across="rounds", points=(1, 2), lines=(Line(name="certified", values=(0.5, math.inf)),))
        >>> figure(one, title="Epsilon", up="epsilon").data[0].y
        (0.5, None)
    """
    from plotly.graph_objects import Figure, Scatter

    drawn = Figure()
    for index, line in enumerate(chart.lines):
        style = styled(index, line.name)
        marked = len(chart.points) <= MOST_MARKS
        drawn.add_trace(
            Scatter(
                x=chart.points,
                y=[value if math.isfinite(value) else None for value in line.values],
                name=line.name,
                connectgaps=True,
                mode="lines+markers" if marked else "lines",
                line={"width": 2.5, **style},
                marker={"symbol": MARKS[index % len(MARKS)], "size": 6},
            )
        )
    drawn.update_layout(
        title={"text": title, "font": {"size": 16}},
        height=380,
        margin={"l": 10, "r": 10, "t": 44, "b": 10},
        legend={"orientation": "h", "y": -0.22},
        hovermode="x unified",
    )
    drawn.update_xaxes(
        title=chart.across, type="log" if log_x else "linear", **ticks(chart.points, log_x)
    )
    drawn.update_yaxes(title=up, rangemode="tozero")
    if now is not None:
        drawn.add_vline(x=now, line={"dash": "dot", "color": COLOURS[-1]}, annotation_text="now")
    return drawn


def ticks(points: Sequence[float], log: bool) -> dict[str, Any]:
    """Where an axis is labelled, where the usual places would not do: 1, 2 and 5 of every decade, and no halves of few rounds.

    Example:
        >>> ticks((1, 25), log=True)
        {'tickvals': [1, 2, 5, 10, 20]}
        >>> ticks((1, 4), log=False), ticks((0.0, 1.0), log=False)
        ({'dtick': 1}, {})
    """
    low, high = min(points), max(points)
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        stops = (1, 2, 5) if high < 1000 * low else (1,)
        return {
            "tickvals": [
                stop * 10**decade
                for decade in decades
                for stop in stops
                if low <= stop * 10**decade <= high
            ]
        }
    return (
        {"dtick": 1}
        if 1 <= high - low <= 10 and all(isinstance(point, int) for point in points)
        else {}
    )


def styled(index: int, name: str) -> dict[str, Any]:
    """Colour and dash of a line; what does not hold is always dotted and vermilion."""
    return (
        FALSE
        if "unsound" in name
        else {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)]}
    )


def described(chart: Chart, title: str) -> str:
    """A chart in a sentence, for who does not see it."""
    ends = ", ".join(f"{line.name} ends at {last_finite(line.values)}" for line in chart.lines)
    return f"{title}. {ends}. The table below has all values."


def last_finite(values: Sequence[float]) -> str:
    """The last value that is a number.

    Example:
        >>> last_finite((1.0, math.nan)), last_finite((math.inf,))
        ('1', 'no value')
    """
    known = [value for value in values if math.isfinite(value)]
    return f"{known[-1]:.4g}" if known else "no value"


def thinned(chart: Chart, most: int) -> Chart:
    """Every so many points, the last one always: ten thousand rounds need not all be drawn.

    Example:
        >>> long = Chart(across="round", points=tuple(range(1000)), lines=())
        >>> len(thinned(long, 100).points) <= 101, thinned(long, 100).points[-1]
        (True, 999)
    """
    if len(chart.points) <= most:
        return chart
    step = math.ceil(len(chart.points) / most)
    kept = sorted({*range(0, len(chart.points), step), len(chart.points) - 1})
    lines = tuple(
        Line(name=line.name, values=tuple(line.values[at] for at in kept)) for line in chart.lines
    )
    return Chart(across=chart.across, points=tuple(chart.points[at] for at in kept), lines=lines)
