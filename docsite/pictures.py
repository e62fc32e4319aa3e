"""The pictures of docs/concepts.md, from the numbers that the library itself certifies: `python -m docsite.pictures` draws them anew.

They are SVG that stands alone: text stays text, colours follow the reader's machine, light or dark, and a description can be read aloud.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.cli.protocol_sources import EXAMPLE, example_text
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.guarantee import round_up
from sordino.protocol import ClippedGlm, Constant, Data, Gaussian, Protocol, View, loads
from sordino.report.drawing import COLOURS, add_legend, line_style, quieten_axes, render_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
DELTA = 1e-5
ROUNDS = (1, 3, 10, 30, 100, 300, 600)
CONVERGING = Protocol(
    clients=5,
    rounds=600,
    local=ClippedGlm(
        steps=10, clip=1.0, schedule=Constant(rate=0.45), weight_decay=0.003, feature_norm=4.0
    ),
    noise=Gaussian(sigma=1.0),
    data=Data(name="breast-cancer", records=90),
)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture: what it shows in words, with its numbers, and how it is drawn."""

    title: str
    description: str
    draw: Callable[[], Figure]


def all_drawings() -> dict[str, Drawing]:
    """Every picture by its name."""
    demo = loads(example_text(EXAMPLE))
    return {
        "views": views(demo),
        "neighbours": neighbours(demo),
        "trade-off": tradeoff(),
        "rounds": rounds(demo),
    }


def epsilon(protocol: Protocol, view: View | str, unit: str = "record") -> str:
    """The certified epsilon, rounded up."""
    return round_up(certify(protocol, view, unit, delta=DELTA).epsilon(DELTA))


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A sheet to draw a scheme on, in tenths of an inch."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(width, height))
    axes = sheet.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10 * width), ylim=(0, 10 * height))
    axes.axis("off")
    return sheet, axes


def boxed(axes: Axes, x: float, y: float, text: str, width: float = 15, height: float = 6) -> None:
    """A box with words."""
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=1"
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle=shape,
            facecolor=COLOURS["wash"],
            edgecolor=COLOURS["muted"],
        )
    )
    axes.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color=COLOURS["ink"],
    )


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0
) -> None:
    """An arrow."""
    how = {
        "arrowstyle": "->",
        "color": COLOURS["muted"],
        "linewidth": 1.2,
        "connectionstyle": f"arc3,rad={bend}",
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=how)


def views(demo: Protocol) -> Drawing:
    """Who sees what of a federation, and what that is worth in the built-in example."""
    bounds = {view: epsilon(demo, view) for view in ("server", "rounds", "coalition:1", "final")}

    def draw() -> Figure:
        sheet, axes = canvas(7.2, 3.6)
        for place, name in enumerate(("client 1", "client 2", f"client {demo.clients}")):
            boxed(axes, 1, 23 - 10 * place, f"{name}\nclips, adds noise", 17)
            arrow(axes, (18.5, 26 - 10 * place), (33, 17.5 - place))
        boxed(axes, 33.5, 13.5, "server\nmean of uploads", 15)
        boxed(axes, 54.5, 13.5, "last model\npublished", 15)
        arrow(axes, (49, 16.5), (54, 16.5))
        arrow(axes, (41, 13), (10, 2.6), bend=-0.2)
        sees = [
            (30, 26, "server", "blue", "every upload"),
            (43, 6.5, "rounds", "orange", "every round's model"),
            (1, 33, "coalition:1", "purple", "that, and its own noise"),
            (54.5, 24.5, "final", "green", "the last model"),
        ]
        for x, y, view, colour, what in sees:
            axes.text(x, y, f"{view}: {what}", fontsize=9, color=COLOURS[colour], weight="bold")
            axes.text(x, y - 2.2, f"ε at most {bounds[view]}", fontsize=9, color=COLOURS[colour])
        return sheet

    listed = ", ".join(f"{view} ε at most {bound}" for view, bound in bounds.items())
    return Drawing(
        title="Who sees what",
        description=f"Clients send noisy uploads to the server, which sends every round's model back, and the last one is published. "
        f"In the built-in example, about one record, at delta 1e-5: {listed}.",
        draw=draw,
    )


def neighbours(demo: Protocol) -> Drawing:
    """What may differ between two data sets that must not be told apart."""
    record, client = epsilon(demo, "rounds", "record"), epsilon(demo, "rounds", "client")
    panels = {
        f"unit record, replace-one\nε at most {record}": {(1, 2): "D"},
        f"unit client, replace-one\nε at most {client}": {(1, column): "D" for column in range(5)},
        "unit record, add-or-remove\n(noisy-sgd, Poisson batches)": {(1, 2): ""},
    }

    def draw() -> Figure:
        sheet, axes = canvas(7.2, 2.9)
        for place, (words, changed) in enumerate(panels.items()):
            left = 2 + 23.5 * place
            axes.text(left, 25.5, words, fontsize=9, color=COLOURS["ink"], va="center")
            for row in range(3):
                axes.text(
                    left,
                    18 - 6 * row,
                    f"client {row + 1}",
                    fontsize=8.5,
                    color=COLOURS["muted"],
                    va="center",
                )
                for column in range(5):
                    mark = changed.get((row, column), "o")
                    colour, hollow = (
                        (COLOURS["orange"], mark == "")
                        if (row, column) in changed
                        else (COLOURS["blue"], False)
                    )
                    face = "none" if hollow else colour
                    spot = (left + 8.5 + 2.6 * column, 18 - 6 * row)
                    axes.plot(
                        *spot,
                        marker=mark or "o",
                        markersize=8,
                        markerfacecolor=face,
                        markeredgecolor=colour,
                        linestyle="none",
                    )
        return sheet

    return Drawing(
        title="What is hidden",
        description=f"Three pairs of neighbouring data sets: one record is replaced (ε at most {record} in the built-in example, view "
        f"rounds), all records of one client are (ε at most {client}), or one record is there or not.",
        draw=draw,
    )


def tradeoff() -> Drawing:
    """The errors that no test can avoid, and how epsilon is read from them."""
    alphas = np.concatenate([np.geomspace(1e-6, 0.05, 40), np.linspace(0.055, 1, 80)])
    strengths = {0.5: "orange", 1.0: "blue", 3.0: "purple"}
    missed = {mu: int(np.floor(100 * GaussianCurve(mu=mu).beta(0.05))) for mu in strengths}
    read = {delta: GaussianCurve(mu=1.0).epsilon(delta) for delta in (0.1, DELTA)}

    def draw() -> Figure:
        from matplotlib.figure import Figure

        sheet = Figure(figsize=(7.2, 3.3), layout="constrained")
        left, right = sheet.subplots(1, 2)
        for axes in (left, right):
            quieten_axes(axes)
            axes.plot(
                [0, 1],
                [1, 0],
                color=COLOURS["muted"],
                linestyle=":",
                linewidth=1.2,
                label="guessing",
            )
            axes.set(
                xlabel="false alarms",
                ylabel="misses, at least",
                xlim=(-0.02, 1.02),
                ylim=(-0.02, 1.02),
            )
        for mu, colour in strengths.items():
            left.plot(
                alphas,
                [GaussianCurve(mu=mu).beta(alpha) for alpha in alphas],
                color=COLOURS[colour],
                linewidth=1.8,
                label=f"mu = {mu:g}",
            )
            left.plot(
                0.05,
                GaussianCurve(mu=mu).beta(0.05),
                marker="o",
                markersize=5,
                color=COLOURS[colour],
                linestyle="none",
            )
        right.plot(
            alphas,
            [GaussianCurve(mu=1.0).beta(alpha) for alpha in alphas],
            color=COLOURS["blue"],
            linewidth=1.8,
            label="mu = 1",
        )
        for delta, dash in zip(read, ("--", "-."), strict=True):
            floor = np.maximum(
                0,
                np.maximum(
                    1 - delta - np.exp(read[delta]) * alphas,
                    np.exp(-read[delta]) * (1 - delta - alphas),
                ),
            )
            words = f"ε = {round_up(read[delta])} at δ = {delta:g}"
            right.plot(
                alphas, floor, color=COLOURS["green"], linestyle=dash, linewidth=1.4, label=words
            )
        for axes in (left, right):
            add_legend(axes, loc="upper right")
        return sheet

    return Drawing(
        title="What a trade-off curve says",
        description="Left: a test that accuses 5 of 100 innocent data sets misses at least "
        + ", ".join(f"{missed[mu]} of 100 guilty ones at mu = {mu:g}" for mu in strengths)
        + ". Right: one curve, mu = 1, holds every pair at once: "
        + ", ".join(f"ε = {round_up(found)} at δ = {delta:g}" for delta, found in read.items())
        + ". Each pair alone is a floor of straight lines that lies below the curve.",
        draw=draw,
    )


def rounds(demo: Protocol) -> Drawing:
    """Epsilon against rounds: it grows, but for who sees the last model of a training that contracts."""
    lines = {
        "built-in example, rounds": [
            (count, epsilon_of(replace(demo, rounds=count), "rounds")) for count in ROUNDS
        ],
        "clipped-glm, rounds": [
            (count, epsilon_of(replace(CONVERGING, rounds=count), "rounds")) for count in ROUNDS
        ],
        "clipped-glm, final": [
            (count, epsilon_of(replace(CONVERGING, rounds=count), "final")) for count in ROUNDS
        ],
    }

    def draw() -> Figure:
        from matplotlib.figure import Figure

        sheet = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = sheet.subplots()
        quieten_axes(axes)
        for place, (name, points) in enumerate(lines.items()):
            axes.plot(
                *zip(*points, strict=True),
                marker="os^"[place],
                markersize=4.5,
                linewidth=1.8,
                label=name,
                **line_style(place),
            )
        axes.set(xscale="log", xlabel="rounds", ylabel=f"ε at δ = {DELTA:g}, at most")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(bottom=0)
        add_legend(axes, loc="upper left")
        return sheet

    ends = "; ".join(
        f"{name}: {round_up(points[0][1])} after 1, {round_up(points[-1][1])} after {ROUNDS[-1]}"
        for name, points in lines.items()
    )
    return Drawing(
        title="What rounds cost", description=f"Certified ε against rounds. {ends}.", draw=draw
    )


def epsilon_of(protocol: Protocol, view: str) -> float:
    """The certified epsilon as a number."""
    return certify(protocol, view, delta=DELTA).epsilon(DELTA)


def standalone(drawing: Drawing, name: str) -> str:
    """The SVG of a picture as a file of its own, on the report's paper and in its colours."""
    svg = render_svg(
        drawing.draw(), name=name, title=drawing.title, description=drawing.description
    )
    colours = (
        (files("sordino") / "report" / "templates" / "style.css")
        .read_text(encoding="utf-8")
        .partition("* {")[0]
    )
    look = f"<style>{colours}svg {{ background: var(--paper); font-family: var(--text); }}</style>"
    return re.sub(
        r"<svg ([^>]*)>", rf'<svg xmlns="http://www.w3.org/2000/svg" \1>{look}', svg, count=1
    )


def main(folder: Path = FOLDER) -> None:
    """Draw all pictures."""
    folder.mkdir(exist_ok=True)
    for name, drawing in all_drawings().items():
        (folder / f"{name}.svg").write_text(standalone(drawing, name), encoding="utf-8")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
