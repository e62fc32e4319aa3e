"""Draws figures in one style, as SVG that is embedded in the page.

Figures are drawn in the colours of the light page. In the SVG, every colour is replaced by the CSS
variable of its name, so that the page decides whether it is light or dark. Text stays text: it can
be selected, searched and read aloud, and is set in the page's own typeface.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.privacy.guarantee import MEANINGFUL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Every name is a variable in templates/style.css, with a light and a dark value. The hues follow
# Okabe and Ito: they are distinct for every kind of colour vision.
COLOURS = {
    "ink": "#1d2733",
    "muted": "#56616e",
    "line": "#d7dde4",
    "wash": "#f3f5f8",
    "blue": "#1f69a6",
    "orange": "#bf5700",
    "green": "#17795a",
    "purple": "#8a4d9c",
    "amber": "#997000",
    "teal": "#0f7c8f",
}
SERIES = ("blue", "orange", "green", "purple", "amber", "teal")
DASHES = ("-", "--", ":", "-.")
# Inches: type of 9 points is 10 pixels high on a phone, and two figures fit side by side on a desk.
WIDTH = 4.5
HEIGHT = 3.1
# The largest number of points that are drawn of a line, and of rows in a table.
MOST_POINTS = 200
MOST_ROWS = 24


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Holds a figure as a page shows it.

    Attributes:
        name: The name of the figure, unique in its page; ids in the SVG begin with it.
        title: The title of the figure.
        description: What the figure shows, in words.
        svg: The drawing, as an svg element.
        columns: The column heads of the table of the figure's numbers.
        rows: The rows of that table.
    """

    name: str
    title: str
    description: str
    svg: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def new_figure(
    height: float = HEIGHT, *, rows: int = 1, width: float = WIDTH
) -> tuple[Figure, Any]:
    """Returns an empty figure of the page's size.

    Args:
        height: Height in inches.
        rows: The number of axes, one above the other.
        width: Width in inches.

    Returns:
        The figure and its axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots(rows, 1, sharex=rows > 1)
    for one in np.atleast_1d(axes):
        quieten_axes(one)
    return figure, axes


def quieten_axes(axes: Axes) -> None:
    """Draws axes, ticks and grid in light colours, so that the data stand out.

    Args:
        axes: Axes of any figure.
    """
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(COLOURS["line"])
    axes.tick_params(
        which="both",
        colors=COLOURS["muted"],
        labelsize=9,
        length=3,
    )
    axes.grid(color=COLOURS["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=COLOURS["muted"], fontsize=9.5)


def cap_epsilons(epsilons: Sequence[float]) -> np.ndarray:
    """Returns epsilons as they are drawn: at most the largest that means something.

    Args:
        epsilons: The epsilons, which may be infinite.

    Example:
        >>> cap_epsilons([7.9, 234.0, float("inf")]).tolist()
        [7.9, 100.0, 100.0]
    """
    capped: np.ndarray = np.minimum(np.asarray(epsilons, dtype=float), MEANINGFUL)
    return capped


def label_epsilons(text: str, epsilons: Sequence[float]) -> str:
    """Returns the label of an axis of epsilons, which says where epsilons are without meaning.

    Args:
        text: The label.
        epsilons: The epsilons on the axis.

    Example:
        >>> label_epsilons("ε", [1.0, 234.0]), label_epsilons("ε", [1.0])
        ('ε (from 100 on: no meaningful limit)', 'ε')
    """
    if max(epsilons, default=0.0) <= MEANINGFUL:
        return text
    return f"{text} (from {MEANINGFUL:g} on: no meaningful limit)"


def use_whole_numbers(axes: Axes) -> None:
    """Labels the horizontal axis with whole numbers, such as rounds.

    Args:
        axes: Axes of any figure.
    """
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def add_legend(axes: Axes, **options: Any) -> None:
    """Adds a legend without a box.

    Args:
        axes: Axes of any figure.
        **options: Options of matplotlib's `legend`.
    """
    axes.legend(
        frameon=False,
        fontsize=9,
        labelcolor=COLOURS["ink"],
        **options,
    )


def line_style(index: int) -> dict[str, str]:
    """Returns colour and dashes of one of several lines.

    Args:
        index: The number of the line, from 0.
    """
    return {
        "color": COLOURS[SERIES[index % len(SERIES)]],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
    }


def spread_indices(length: int, most: int) -> np.ndarray:
    """Returns evenly spaced indices of a long sequence, the first and the last among them.

    Args:
        length: The length of the sequence.
        most: The largest number of indices.

    Example:
        >>> spread_indices(5, 10).tolist(), spread_indices(1000, 3).tolist()
        ([0, 1, 2, 3, 4], [0, 500, 999])
    """
    if length == 0:
        return np.arange(0)
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))


def select_rows(rows: Sequence[tuple[str, ...]], most: int = MOST_ROWS) -> list[tuple[str, ...]]:
    """Selects rows for a table that people read.

    Args:
        rows: All rows.
        most: The largest number of rows to keep.
    """
    return [rows[index] for index in spread_indices(len(rows), most).tolist()]


def finish_picture(
    figure: Figure,
    *,
    name: str,
    title: str,
    description: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
) -> Picture:
    """Renders a figure for the page.

    Args:
        figure: The drawing.
        name: The name of the figure, unique in its page.
        title: The title of the figure.
        description: What the figure shows, in words.
        columns: The column heads of the table of its numbers.
        rows: The rows of that table.
    """
    svg = render_svg(figure, name=name, title=title, description=description)
    return Picture(
        name=name,
        title=title,
        description=description,
        svg=svg,
        columns=columns,
        rows=rows,
    )


def render_svg(
    figure: Figure,
    *,
    name: str,
    title: str,
    description: str,
) -> str:
    """Renders a figure as SVG in the page's colours.

    Args:
        figure: The drawing.
        name: The beginning of all ids, so that they are unique in the page.
        title: The title, which a screen reader reads first.
        description: The description, which a screen reader reads after the title.

    Returns:
        An svg element.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # A dollar in a user's name is a dollar, not mathematics.
        text.set_parse_math(False)
    buffer = io.StringIO()
    # Without dates and with a fixed salt, the same figure is the same text every time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = buffer.getvalue()
    box = re.search(r'viewBox="([^"]+)"', svg)
    bounds = box[1] if box else ""
    body = svg[svg.index("<g ") :]
    body = re.sub(r"<[^>]+>", lambda tag: simplify_tag(tag[0], name), body)
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{bounds}" '
        f'role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{body}'
    )


def simplify_tag(tag: str, name: str) -> str:
    """Returns a tag of an SVG in the page's colours.

    Ids of groups, names of typefaces and third decimals are removed: the page has no use for them.

    Args:
        tag: The tag, as matplotlib writes it.
        name: The beginning of all ids.
    """
    if tag.startswith("<g "):
        tag = re.sub(r'\sid="[^"]*"', "", tag)
    tag = re.sub(r'(\sid="|href="#|url\(#)', lambda found: found[1] + name + "-", tag)
    tag = re.sub(r"font-family: [^;\"]*; |\stransform=\"rotate\(-0 [^\"]*\"", "", tag)
    tag = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag)
    for variable, colour in COLOURS.items():
        tag = tag.replace(colour, f"var(--{variable})")
    return re.sub(r"\s+", " ", tag)


def shorten_label(text: str, most: int = 40) -> str:
    """Returns a label for a figure, shortened if it is long.

    Args:
        text: The label, such as the name of a run.
        most: The largest number of characters.
    """
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.startswith("_"):
        # Matplotlib hides labels that begin with an underscore, unless a zero-width space precedes.
        return "\u200b" + text
    return text
