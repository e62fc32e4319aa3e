"""Draws what attacks found: values against rounds and noise, reconstructions, detection curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.attacks.attack import CaseResult, Row

IMAGES_IN_A_ROW = 8
LINE_STYLES = ("-", "--", ":", "-.")
# Where the axes of detection curves begin, since a logarithmic axis cannot show 0.
SMALLEST_RATE = 1e-3
BASELINE_COLOUR = "grey"
BASELINE_LABEL = "sees nothing of the run"

# For each run its noise, and the round and the result of every case.
Results = Sequence[tuple[float, Sequence[tuple[int, CaseResult]]]]


def draw_rows(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draws one line of panels for each metric: against rounds, and against noise.

    The panel against noise, at the last round, is drawn only where there are several noises.

    Args:
        rows: What was measured.
        path: The file that is written.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    metrics = list(dict.fromkeys(row.metric for row in rows))
    noises = sorted({row.noise for row in rows})
    # With a single noise there is nothing to plot against noise.
    columns = 2 if len(noises) > 1 else 1
    figure = Figure(figsize=(1 + 4.5 * columns, 0.6 + 3.2 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), columns, squeeze=False)
    for line, metric in zip(panels, metrics, strict=True):
        chosen = [row for row in rows if row.metric == metric]
        draw_over_rounds(line[0], chosen, noises)
        line[0].set(xlabel="rounds behind it", ylabel=f"{metric} ({chosen[0].better} leaks more)")
        line[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        if columns == 2:
            draw_over_noise(line[1], chosen, noises)
            line[1].set(xlabel="noise", ylabel=f"{metric} at the last round")
    panels[0, 0].legend(fontsize="small")
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.savefig(path, dpi=120)


def draw_over_rounds(axes: Any, rows: Sequence[Row], noises: list[float]) -> None:
    """Draws values against rounds: a colour for each noise, a line style for each method.

    The baseline is grey, and values that a paper prints are stars.

    Args:
        axes: The panel.
        rows: Rows of one metric.
        noises: All sizes of noise.
    """
    for number, noise in enumerate(noises):
        colour = f"C{number}"
        at_noise = [row for row in rows if row.noise == noise]
        for style, (method, line) in enumerate(group_by_method(at_noise)):
            label = f"noise {noise:g}"
            if method:
                label = f"{method}, {label}"
            axes.plot(
                [row.round for row in line],
                [row.value for row in line],
                color=colour,
                linestyle=LINE_STYLES[style % len(LINE_STYLES)],
                marker=".",
                label=label,
            )
            # Stars are what the paper prints, in the colour of the same noise.
            printed = [row for row in line if row.printed is not None]
            axes.plot(
                [row.round for row in printed],
                [row.printed for row in printed],
                color=colour,
                marker="*",
                linestyle="",
            )
    baselines = sorted({(row.round, row.baseline) for row in rows})
    axes.plot(
        *zip(*baselines, strict=True),
        color=BASELINE_COLOUR,
        linestyle="-",
        linewidth=0.8,
        label=BASELINE_LABEL,
    )


def draw_over_noise(axes: Any, rows: Sequence[Row], noises: list[float]) -> None:
    """Draws values at the last round against noise.

    Noises are spaced evenly, since zero is among them.

    Args:
        axes: The panel.
        rows: Rows of one metric.
        noises: All sizes of noise.
    """
    last_round = max(row.round for row in rows)
    last = [row for row in rows if row.round == last_round]
    for style, (_, line) in enumerate(group_by_method(last)):
        ordered = sorted(line, key=lambda row: row.noise)
        axes.plot(
            # Places, not values, are on the axis: noises differ by decades, and 0 has no logarithm.
            [noises.index(row.noise) for row in ordered],
            [row.value for row in ordered],
            color="C0",
            linestyle=LINE_STYLES[style % len(LINE_STYLES)],
            marker="o",
        )
    baseline = float(np.mean([row.baseline for row in last]))
    axes.axhline(baseline, color=BASELINE_COLOUR, linewidth=0.8)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])


def group_by_method(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Returns the rows of each method, in the order of its first row.

    Args:
        rows: Rows of one metric.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.method, []).append(row)
    return list(groups.items())


def draw_pictures(cases: Results, path: Path) -> None:
    """Draws originals, and below them reconstructions, for the first and the last round.

    Where there are no pictures, nothing is written.

    Args:
        cases: The results of every run.
        path: The file that is written.
    """
    from matplotlib.figure import Figure

    blocks = []
    for round_index in find_end_rounds(cases):
        blocks += collect_picture_rows(cases, round_index)
    if not blocks:
        return
    size = (2 + 1.1 * IMAGES_IN_A_ROW, 0.4 + 1.2 * len(blocks))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(blocks), IMAGES_IN_A_ROW, squeeze=False)
    for line, (label, images) in zip(panels, blocks, strict=True):
        # The last row of images may be shorter than the panels, which then stay empty.
        for axes, image in zip(line, images[:IMAGES_IN_A_ROW], strict=False):
            pixels = np.clip(image.transpose(1, 2, 0), 0, 1).squeeze()
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1)
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_frame_on(False)
        # The label is at the side, since a title over each image would take most of the
        # picture.
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.savefig(path, dpi=120)


def find_end_rounds(cases: Results) -> list[int]:
    """Returns the first and the last round that have pictures.

    Args:
        cases: The results of every run.
    """
    rounds = set()
    for _, results in cases:
        for round_index, result in results:
            if result.pictures:
                rounds.add(round_index)
    if not rounds:
        return []
    return sorted({min(rounds), max(rounds)})


def collect_picture_rows(cases: Results, round_index: int) -> list[tuple[str, np.ndarray]]:
    """Returns the originals of a round, and their reconstructions for each noise.

    Args:
        cases: The results of every run.
        round_index: Number of the round, from 0.

    Returns:
        A label and the images of each row.
    """
    rows: list[tuple[str, np.ndarray]] = []
    for noise, results in sorted(cases, key=lambda case: case[0]):
        pictures = []
        for case_round, result in results:
            if case_round == round_index and result.pictures:
                pictures.append(result.pictures)
        if not pictures:
            continue
        # The originals are the same at every noise.
        if not rows:
            originals = np.concatenate([one["originals"] for one in pictures])
            rows.append((f"round {round_index}\noriginals", originals))
        for name in pictures[0]:
            if name != "originals":
                images = np.concatenate([one[name] for one in pictures])
                rows.append((f"noise {noise:g}\n{name}".strip(), images))
    return rows


def draw_curves(cases: Results, path: Path, *, title: str) -> None:
    """Draws detection curves on log axes after the last round, a panel for each noise.

    Where nothing is detected, nothing is written.

    Args:
        cases: The results of every run.
        path: The file that is written.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure

    panels = []
    for noise, results in sorted(cases, key=lambda case: case[0]):
        if not results:
            continue
        _, last = max(results, key=lambda result: result[0])
        if last.curves:
            panels.append((noise, last.curves))
    if not panels:
        return
    figure = Figure(figsize=(0.8 + 4.2 * len(panels), 4.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (noise, curves) in zip(all_axes, panels, strict=True):
        for method, (false_rates, true_rates) in curves.items():
            axes.plot(
                # The smallest rate is drawn at the edge: below it a finite number of records says
                # nothing.
                np.maximum(false_rates, SMALLEST_RATE),
                np.maximum(true_rates, SMALLEST_RATE),
                drawstyle="steps-post",
                label=method,
            )
        axes.plot(
            [SMALLEST_RATE, 1],
            [SMALLEST_RATE, 1],
            color=BASELINE_COLOUR,
            linewidth=0.8,
            label=BASELINE_LABEL,
        )
        axes.set(xscale="log", yscale="log", title=f"noise {noise:g}")
        axes.set(xlim=(SMALLEST_RATE, 1), ylim=(SMALLEST_RATE, 1.05))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(fontsize="small", loc="lower right")
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.savefig(path, dpi=120)
