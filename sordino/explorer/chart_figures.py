"""Builds figures in colours that everybody can tell apart (Okabe and Ito 2008).

Dashes and marks say the same without colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sordino.explorer.results import Chart, Line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
# Lines with more points have no marks.
MOST_MARKS = 40
# The style of bounds that do not hold, and of nothing else.
FALSE = {"color": "#D55E00", "dash": "dot"}


def build_figure(
    chart: Chart,
    *,
    title: str,
    up: str,
    log_x: bool = False,
    now: float | None = None,
) -> Figure:
    """Builds a figure of lines with marks, and a legend below; infinite values are left out.

    Args:
        chart: The chart to draw.
        title: The title of the figure.
        up: The label of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
        now: The position of a vertical line that shows how far a run has come; None for none.

    Example:
        >>> line = Line(name="certified", values=(0.5, math.inf))
        >>> one = Chart(across="rounds", points=(1, 2), lines=(line,))
        >>> build_figure(one, title="Epsilon", up="epsilon").data[0].y
        (0.5, None)
    """
    from plotly.graph_objects import Figure, Scatter

    drawn = Figure()
    mode = "lines"
    if len(chart.points) <= MOST_MARKS:
        mode = "lines+markers"
    for index, line in enumerate(chart.lines):
        drawn.add_trace(
            Scatter(
                x=chart.points,
                # Plotly draws infinity as a line off the page.
                y=[value if math.isfinite(value) else None for value in line.values],
                name=line.name,
                # A missing value must not cut a curve into dots.
                connectgaps=True,
                mode=mode,
                line={"width": 2.5, **choose_line_style(index, line.name)},
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
    scale = "log" if log_x else "linear"
    drawn.update_xaxes(title=chart.across, type=scale, **choose_ticks(chart.points, log_x))
    # The axis begins at zero, or small differences would look large.
    drawn.update_yaxes(title=up, rangemode="tozero")
    if now is not None:
        drawn.add_vline(x=now, line={"dash": "dot", "color": COLOURS[-1]}, annotation_text="now")
    return drawn


def choose_ticks(points: Sequence[float], log: bool) -> dict[str, Any]:
    """Chooses the labels of an axis where Plotly's choice would be unsuitable.

    Args:
        points: The points along the axis.
        log: Whether the axis is logarithmic.

    Returns:
        Options for Plotly: 1, 2 and 5 of every decade, and no halves between few rounds.

    Example:
        >>> choose_ticks((1, 25), log=True)
        {'tickvals': [1, 2, 5, 10, 20]}
        >>> choose_ticks((1, 4), log=False), choose_ticks((0.0, 1.0), log=False)
        ({'dtick': 1}, {})
    """
    low = min(points)
    high = max(points)
    if log:
        return {"tickvals": _list_decade_ticks(low, high)}
    whole = all(isinstance(point, int) for point in points)
    if whole and 1 <= high - low <= 10:
        return {"dtick": 1}
    return {}


def _list_decade_ticks(low: float, high: float) -> list[float]:
    """Lists powers of ten; on a short axis also 2 and 5 times each."""
    stops: tuple[int, ...] = (1,)
    if high < 1000 * low:
        stops = (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [stop * 10**decade for decade in decades for stop in stops]
    # Ticks outside of the points would widen the axis.
    return [tick for tick in ticks if low <= tick <= high]


def choose_line_style(index: int, name: str) -> dict[str, Any]:
    """Returns colour and dash of a line; what does not hold is always dotted and vermilion.

    Args:
        index: The number of the line, from 0.
        name: The name of the line.
    """
    # Vermilion is kept for what is false, whichever line it is.
    if "unsound" in name:
        return FALSE
    return {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)]}


def describe_chart(chart: Chart, title: str) -> str:
    """Describes a chart in words, which screen readers read in place of the picture.

    Args:
        chart: The chart.
        title: The title of the chart.
    """
    ends = ", ".join(f"{line.name} ends at {format_last(line.values)}" for line in chart.lines)
    return f"{title}. {ends}. The table below has all values."


def format_last(values: Sequence[float]) -> str:
    """Returns the last value that is a number.

    Args:
        values: The values of a line.

    Example:
        >>> format_last((1.0, math.nan)), format_last((math.inf,))
        ('1', 'no value')
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "no value"
    return f"{known[-1]:.4g}"


def thin_chart(chart: Chart, most: int) -> Chart:
    """Keeps evenly spaced points of a chart, the last point among them.

    Args:
        chart: The chart.
        most: The largest number of points before the last.

    Example:
        >>> long = Chart(across="round", points=tuple(range(1000)), lines=())
        >>> len(thin_chart(long, 100).points) <= 101, thin_chart(long, 100).points[-1]
        (True, 999)
    """
    if len(chart.points) <= most:
        return chart
    step = math.ceil(len(chart.points) / most)
    # The last point shows the present state of a run.
    kept = sorted({*range(0, len(chart.points), step), len(chart.points) - 1})
    lines = tuple(
        Line(name=line.name, values=tuple(line.values[at] for at in kept)) for line in chart.lines
    )
    return Chart(across=chart.across, points=tuple(chart.points[at] for at in kept), lines=lines)
