"""Figures that show several runs together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sordino.privacy.guarantee import format_delta
from sordino.report.drawing import (
    MOST_POINTS,
    Picture,
    add_legend,
    cap_epsilons,
    finish_picture,
    label_epsilons,
    line_style,
    new_figure,
    select_rows,
    shorten_label,
    spread_indices,
    use_whole_numbers,
)
from sordino.report.number_formats import (
    format_measurement,
    format_percent,
    format_upper_bound,
    state_epsilon,
)
from sordino.report.phrasing import describe_test_records
from sordino.report.run_summary import (
    ALPHAS,
    FIVE_PERCENT,
    RunSummary,
    find_last_scores,
    select_scored_rounds,
)

# The x and y coordinates of lines, by the names of runs.
Lines = dict[str, tuple[np.ndarray, np.ndarray]]

# Shapes differ as well as colours, so that the picture can be read without colours.
MARKERS = "osD^vPX*"


def format_marked_epsilon(summary: RunSummary, epsilon: float) -> str:
    """Returns an epsilon for people, marked where it rests on a vouched assumption.

    Args:
        summary: Summary of the run.
        epsilon: The bound.
    """
    text = format_upper_bound(epsilon)
    if summary.main.condition:
        text += " (vouched)"
    return text


def draw_comparison(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[Picture]:
    """Draws the figures that compare runs.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.

    Returns:
        Those that have something to show.
    """
    pictures = (
        draw_scores_by_epsilon(summaries, names),
        draw_scores_by_round(summaries, names),
        draw_epsilons_by_round(summaries, names),
        draw_all_tradeoffs(summaries, names),
    )
    return [picture for picture in pictures if picture is not None]


def choose_metric(summaries: Sequence[RunSummary]) -> str:
    """Returns what runs are compared by: accuracy, or loss where no run has an accuracy.

    Args:
        summaries: Summaries of the runs.
    """
    for summary in summaries:
        if not math.isnan(find_last_scores(summary.run)["accuracy"]):
            return "accuracy"
    return "loss"


def draw_scores_by_epsilon(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws accuracy, or loss, against epsilon: what privacy costs.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.

    Returns:
        None where no run has both a finite epsilon and a score.
    """
    delta = summaries[0].headline.delta
    metric = choose_metric(summaries)
    label = "loss"
    scale = 1.0
    format_score: Callable[[float], str] = format_measurement
    if metric == "accuracy":
        label = "accuracy, %"
        scale = 100.0
        format_score = format_percent
    epsilons = [summary.main.epsilon(delta) for summary in summaries]
    scores = [find_last_scores(summary.run)[metric] for summary in summaries]
    # Runs without a finite bound stay in the table below.
    drawn = [
        index
        for index in range(len(summaries))
        if math.isfinite(epsilons[index]) and not math.isnan(scores[index])
    ]
    if not drawn:
        return None
    figure, axes = new_figure()
    for index in drawn:
        axes.plot(
            cap_epsilons([epsilons[index]]),
            scale * scores[index],
            marker=MARKERS[index % len(MARKERS)],
            markersize=7,
            color=line_style(index)["color"],
            linestyle="none",
            label=shorten_label(names[index], 24),
        )
    bounds = f"ε at δ = {format_delta(delta)}, at most"
    axes.set(xlabel=label_epsilons(bounds, epsilons), ylabel=label)
    axes.margins(0.12)
    add_legend(axes)
    rows = []
    points = []
    for summary, name, epsilon, score in zip(summaries, names, epsilons, scores, strict=True):
        rows.append((name, format_marked_epsilon(summary, epsilon), format_score(score)))
        points.append(f"{name}: {state_epsilon(epsilon)}, {format_score(score)}")
    return finish_picture(
        figure,
        name="accuracy",
        title="What privacy cost",
        description="; ".join(points) + ".",
        columns=("run", "ε, at most", metric),
        rows=rows,
    )


def draw_scores_by_round(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws accuracy, or loss, against rounds.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    metric = choose_metric(summaries)
    label = "loss"
    unit = ""
    scale = 1.0
    if metric == "accuracy":
        label = "accuracy, %"
        unit = " in %"
        scale = 100.0
    lines: Lines = {}
    ends = {}
    for summary, name in zip(summaries, names, strict=True):
        # Runs may have been scored after different rounds, so each line has its own points.
        scored = select_scored_rounds(summary.run)
        rounds = summary.run.metrics["round"][scored] + 1
        scores = scale * summary.run.metrics[metric][scored].astype(float)
        lines[name] = (rounds, scores)
        if len(scores) > 0:
            ends[name] = format_measurement(float(scores[-1]))
    records = " or ".join(
        dict.fromkeys(describe_test_records(summary.run) for summary in summaries)
    )
    return draw_lines(
        "learning",
        "What the models learned",
        lines,
        "round",
        label,
        f"{metric.capitalize()}{unit} at the end: {list_values(ends)}. Scored on {records}.",
    )


def draw_epsilons_by_round(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws epsilon against rounds.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    lines: Lines = {}
    ends = {}
    last_epsilons = []
    for summary, name in zip(summaries, names, strict=True):
        spent = summary.spent
        if spent.epsilons and math.isfinite(spent.epsilons[-1]):
            lines[name] = (np.array(spent.rounds), cap_epsilons(spent.epsilons))
            ends[name] = format_marked_epsilon(summary, spent.epsilons[-1])
            last_epsilons.append(spent.epsilons[-1])
    return draw_lines(
        "spent",
        "Privacy spent, round by round",
        lines,
        "rounds charged",
        label_epsilons(f"ε at δ = {format_delta(summaries[0].headline.delta)}", last_epsilons),
        f"ε at the end, at most: {list_values(ends)}.",
    )


def draw_all_tradeoffs(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws the trade-off curves in the common view.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    unit = summaries[0].headline.unit
    lines: Lines = {}
    missed = {}
    for summary, name in zip(summaries, names, strict=True):
        betas = next(iter(summary.curves.values()))
        lines[name] = (ALPHAS, betas)
        # Lower bounds are rounded down.
        missed[name] = str(math.floor(100 * betas[FIVE_PERCENT]))
    return draw_lines(
        "tradeoff",
        "How well any test can tell",
        lines,
        "false alarms",
        "misses, at least",
        f"A test that says in at most 5 of 100 cases that a {unit} was used when it was not misses "
        f"it in at least so many of 100 cases when it was: {list_values(missed)}.",
    )


def list_values(values: dict[str, str]) -> str:
    """Returns names with their values in a line.

    Args:
        values: The values by name, as texts.
    """
    return "; ".join(f"{name} {value}" for name, value in values.items())


def draw_lines(
    name: str,
    title: str,
    lines: Lines,
    x_label: str,
    y_label: str,
    description: str,
) -> Picture | None:
    """Draws one line for every run.

    Args:
        name: The name of the figure, unique in its page.
        title: The title of the figure.
        lines: The x and y coordinates of every line, by the name of the run.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        description: What the figure shows, in words.

    Returns:
        None where no run has a point.
    """
    lines = {run: points for run, points in lines.items() if len(points[0]) > 0}
    if not lines:
        return None
    figure, axes = new_figure()
    rows: list[tuple[str, ...]] = []
    for index, (run, (xs, ys)) in enumerate(lines.items()):
        kept = spread_indices(len(xs), MOST_POINTS)
        style = line_style(index)
        if len(kept) == 1:
            # A line of one point would not be seen.
            style["marker"] = "o"
        axes.plot(xs[kept], ys[kept], linewidth=1.6, label=shorten_label(run, 24), **style)
        for at in spread_indices(len(xs), 8).tolist():
            rows.append((run, format_measurement(float(xs[at])), format_measurement(float(ys[at]))))
    # Scores such as a log-likelihood may be negative; otherwise axes begin at zero.
    lowest = min(float(np.nanmin(ys)) for _, ys in lines.values())
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=min(0.0, lowest))
    if "round" in x_label:
        use_whole_numbers(axes)
    add_legend(axes)
    return finish_picture(
        figure,
        name=name,
        title=title,
        description=description,
        columns=("run", x_label, y_label),
        rows=select_rows(rows, 80),
    )
