"""How figures look: one palette, one size of type, SVG that stands in the page, follows its light or dark colours, and can be read aloud.

Figures are drawn in the colours of the light page. In the SVG each colour becomes the variable of that name, so that the page decides.
Text stays text: it can be selected, found, and is set in the page's own type.
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

# Each name is a variable in templates/style.css, with a light and a dark value. Hues after Okabe and Ito, apart for every kind of eye.
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
WIDTH, HEIGHT = (
    4.5,
    3.1,
)  # inches: type of 9 points is 10 pixels high on a phone, and two figures stand side by side on a desk
MOST_POINTS = 200  # of a line
MOST_ROWS = 24  # of a table


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as a page has it: its drawing, what it shows in words, and its numbers as a table."""

    name: str
    title: str
    description: str
    svg: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def figure(height: float = HEIGHT, *, rows: int = 1, width: float = WIDTH) -> tuple[Figure, Any]:
    """An empty figure of the page's size, and its axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    drawn.patch.set_alpha(0)
    axes = drawn.subplots(rows, 1, sharex=rows > 1)
    for one in np.atleast_1d(axes):
        calm(one)
    return drawn, axes


def calm(axes: Axes) -> None:
    """Axes that stay in the background."""
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(COLOURS["line"])
    axes.tick_params(which="both", colors=COLOURS["muted"], labelsize=9, length=3)
    axes.grid(color=COLOURS["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=COLOURS["muted"], fontsize=9.5)


def within_meaning(epsilons: Sequence[float]) -> np.ndarray:
    """Returns epsilons as they are drawn: those that limit nothing stand at the largest that means something.

    Example:
        >>> within_meaning([7.9, 234.0, float("inf")]).tolist()
        [7.9, 100.0, 100.0]
    """
    return np.minimum(np.asarray(epsilons, dtype=float), MEANINGFUL)


def epsilon_label(text: str, epsilons: Sequence[float]) -> str:
    """Returns the label of an axis of epsilons, which says if some of them limit nothing.

    Example:
        >>> epsilon_label("ε", [1.0, 234.0]), epsilon_label("ε", [1.0])
        ('ε (from 100 on: no meaningful limit)', 'ε')
    """
    if max(epsilons, default=0.0) <= MEANINGFUL:
        return text
    return f"{text} (from {MEANINGFUL:g} on: no meaningful limit)"


def whole_numbers(axes: Axes) -> None:
    """Whole numbers along the bottom, such as rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def legend(axes: Axes, **options: Any) -> None:
    """A legend without a box."""
    axes.legend(frameon=False, fontsize=9, labelcolor=COLOURS["ink"], **options)


def style(place: int) -> dict[str, str]:
    """Colour and dashes of one of several lines."""
    return {
        "color": COLOURS[SERIES[place % len(SERIES)]],
        "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
    }


def thinned(length: int, most: int) -> np.ndarray:
    """Some of the places of a long sequence, the first and the last among them, at even distances.

    Example:
        >>> thinned(5, 10).tolist(), thinned(1000, 3).tolist()
        ([0, 1, 2, 3, 4], [0, 500, 999])
    """
    return (
        np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))
        if length > 0
        else np.arange(0)
    )


def some(rows: Sequence[tuple[str, ...]], most: int = MOST_ROWS) -> list[tuple[str, ...]]:
    """Rows for a table that people read."""
    return [rows[place] for place in thinned(len(rows), most).tolist()]


def picture(
    drawn: Figure,
    *,
    name: str,
    title: str,
    description: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
) -> Picture:
    """A figure made ready for the page."""
    svg = inline(drawn, name=name, title=title, description=description)
    return Picture(
        name=name, title=title, description=description, svg=svg, columns=columns, rows=rows
    )


def inline(drawn: Figure, *, name: str, title: str, description: str) -> str:
    """The SVG of a figure: its ids begin with its name, its colours are the page's, a title and a description come first."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in drawn.findobj(Text):
        text.set_parse_math(False)  # a dollar in a name is a dollar
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(
            written,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = written.getvalue()
    box, body = re.search(r'viewBox="([^"]+)"', svg), svg[svg.index("<g ") :]
    body = re.sub(r"<[^>]+>", lambda tag: slim(tag[0], name), body)
    label = f'role="img" aria-labelledby="{name}-title {name}-desc"'
    head = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1] if box else ""}" {label}>'
    return f'{head}<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>{body}'


def slim(tag: str, name: str) -> str:
    """A tag of an SVG in the page's colours, without what the page has no use for: ids of groups, names of typefaces, a third digit."""
    if tag.startswith("<g "):
        tag = re.sub(r'\sid="[^"]*"', "", tag)
    tag = re.sub(r'(\sid="|href="#|url\(#)', lambda found: found[1] + name + "-", tag)
    tag = re.sub(r"font-family: [^;\"]*; |\stransform=\"rotate\(-0 [^\"]*\"", "", tag)
    tag = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag)
    for variable, colour in COLOURS.items():
        tag = tag.replace(colour, f"var(--{variable})")
    return re.sub(r"\s+", " ", tag)


def label(text: str, most: int = 40) -> str:
    """A name of the user's as a label in a figure: not too long, and shown even if it begins with an underscore."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "\u200b" + short if short.startswith("_") else short
