"""Plots of what attacks got: values against rounds and noise, grids of originals and reconstructions, curves of detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.attacks.game import Row, Scored

SHOWN = 8  # images in a row of a grid
LINES = ("-", "--", ":", "-.")
LEAST_RATE = 1e-3  # where curves of detection begin
NOTHING = "grey"


def draw_rows(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """One line of panels per metric: against rounds, and beside it, where there are several, against noise at the last round."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    metrics = list(dict.fromkeys(row.metric for row in rows))
    noises = sorted({row.noise for row in rows})
    wide = 2 if len(noises) > 1 else 1
    figure = Figure(figsize=(1 + 4.5 * wide, 0.6 + 3.2 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), wide, squeeze=False)
    for line, metric in zip(panels, metrics, strict=True):
        chosen = [row for row in rows if row.metric == metric]
        draw_over_rounds(line[0], chosen, noises)
        line[0].set(xlabel="rounds behind it", ylabel=f"{metric} ({chosen[0].better} leaks more)")
        line[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        if wide == 2:
            draw_over_noise(line[1], chosen, noises)
            line[1].set(xlabel="noise", ylabel=f"{metric} at the last round")
    panels[0, 0].legend(fontsize="small")
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.savefig(path, dpi=120)


def draw_over_rounds(axes: Any, rows: Sequence[Row], noises: list[float]) -> None:
    """A colour per noise, a line style per method; what a trivial attacker gets in grey, what a paper prints as stars."""
    for colour, noise in enumerate(noises):
        for style, (method, line) in enumerate(
            by_method(row for row in rows if row.noise == noise)
        ):
            named = ", ".join(word for word in (method, f"noise {noise:g}") if word)
            axes.plot(
                [row.round for row in line], [row.value for row in line],
                color=f"C{colour}", linestyle=LINES[style % len(LINES)], marker=".", label=named,
            )  # fmt: skip
            stars = [row for row in line if row.printed is not None]
            axes.plot(
                [row.round for row in stars],
                [row.printed for row in stars],
                color=f"C{colour}",
                marker="*",
                linestyle="",
            )
    trivial = sorted({(row.round, row.baseline) for row in rows})
    axes.plot(
        *zip(*trivial, strict=True),
        color=NOTHING,
        linestyle="-",
        linewidth=0.8,
        label="sees nothing of the run",
    )


def draw_over_noise(axes: Any, rows: Sequence[Row], noises: list[float]) -> None:
    """Values at the last round; noises at even distances, since zero is among them."""
    final = max(row.round for row in rows)
    last = [row for row in rows if row.round == final]
    for style, (_, line) in enumerate(by_method(last)):
        ordered = sorted(line, key=lambda row: row.noise)
        places = [noises.index(row.noise) for row in ordered]
        axes.plot(
            places,
            [row.value for row in ordered],
            color="C0",
            linestyle=LINES[style % len(LINES)],
            marker="o",
        )
    axes.axhline(float(np.mean([row.baseline for row in last])), color=NOTHING, linewidth=0.8)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])


def by_method(rows: Any) -> list[tuple[str, list[Row]]]:
    """Rows of each method, in the order of its first row."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.method, []).append(row)
    return list(found.items())


def draw_pictures(cases: Sequence[tuple[float, Sequence[tuple[int, Scored]]]], path: Path) -> None:
    """Originals, and below them what was reconstructed at each noise, for the first and the last round; nothing where there are none."""
    from matplotlib.figure import Figure

    blocks = [block for round in ends(cases) for block in picture_rows(cases, round)]
    if not blocks:
        return
    figure = Figure(figsize=(2 + 1.1 * SHOWN, 0.4 + 1.2 * len(blocks)), layout="constrained")
    panels = figure.subplots(len(blocks), SHOWN, squeeze=False)
    for line, (label, images) in zip(panels, blocks, strict=True):
        for axes, image in zip(line, images[:SHOWN], strict=False):
            axes.imshow(
                np.clip(image.transpose(1, 2, 0), 0, 1).squeeze(), cmap="gray", vmin=0, vmax=1
            )
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_frame_on(False)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.savefig(path, dpi=120)


def ends(cases: Sequence[tuple[float, Sequence[tuple[int, Scored]]]]) -> list[int]:
    """The first and the last round that have pictures."""
    rounds = [round for _, results in cases for round, result in results if result.pictures]
    return sorted({min(rounds), max(rounds)}) if rounds else []


def picture_rows(
    cases: Sequence[tuple[float, Sequence[tuple[int, Scored]]]], round: int
) -> list[tuple[str, np.ndarray]]:
    """The originals of a round, and per noise their reconstructions, each under its name."""
    found: list[tuple[str, np.ndarray]] = []
    for noise, results in sorted(cases, key=lambda case: case[0]):
        pictures = [result.pictures for t, result in results if t == round and result.pictures]
        if not pictures:
            continue
        if not found:
            found.append(
                (
                    f"round {round}\noriginals",
                    np.concatenate([one["originals"] for one in pictures]),
                )
            )
        names = [name for name in pictures[0] if name != "originals"]
        found += [
            (f"noise {noise:g}\n{name}".strip(), np.concatenate([one[name] for one in pictures]))
            for name in names
        ]
    return found


def draw_curves(
    cases: Sequence[tuple[float, Sequence[tuple[int, Scored]]]], path: Path, *, title: str
) -> None:
    """True against false positive rates on log axes after the last round, a panel per noise; nothing where nothing is detected."""
    from matplotlib.figure import Figure

    ordered = sorted(cases, key=lambda case: case[0])
    last = [
        (noise, max(results, key=lambda entry: entry[0])[1].curves)
        for noise, results in ordered
        if results
    ]
    drawn = [(noise, curves) for noise, curves in last if curves]
    if not drawn:
        return
    figure = Figure(figsize=(0.8 + 4.2 * len(drawn), 4.4), layout="constrained")
    for axes, (noise, curves) in zip(
        figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True
    ):
        for method, (false, true) in curves.items():
            axes.plot(
                np.maximum(false, LEAST_RATE),
                np.maximum(true, LEAST_RATE),
                drawstyle="steps-post",
                label=method,
            )
        axes.plot(
            [LEAST_RATE, 1],
            [LEAST_RATE, 1],
            color=NOTHING,
            linewidth=0.8,
            label="sees nothing of the run",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(LEAST_RATE, 1),
            ylim=(LEAST_RATE, 1.05),
            title=f"noise {noise:g}",
        )
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(fontsize="small", loc="lower right")
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.savefig(path, dpi=120)
