"""Compares several runs on one page.

It shows what each guarantees against the same adversary, how well each learned, in which settings
they differ, and what all of them reveal together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.store.run import Run
from sordino.privacy.curves.gaussian_curve import compose_curves
from sordino.protocol import UserError, View, dumps
from sordino.protocol.documents import flatten_tables
from sordino.protocol.file import parse_toml
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
    MISSING,
    format_cases_of_100,
    format_lower_bound,
    format_measurement,
    format_percent,
    format_upper_bound,
)
from sordino.report.page import ADJACENCY_WORDS, render_page
from sordino.report.phrasing import describe_test_records, name_adversary
from sordino.report.run_prices import Headline, choose_run_headline, list_views
from sordino.report.run_summary import (
    ALPHAS,
    FIVE_PERCENT,
    RunSummary,
    find_last_scores,
    select_scored_rounds,
    summarize_run,
    summary_document,
)

MOST_RUNS = 24
# Settings that differ, in the table.
MOST_DIFFERENCES = 60
# Shapes differ as well as colours, so that the picture can be read without them.
MARKERS = "osD^vPX*"


def summarize_runs(
    sources: Sequence[str | Path], on_run: Callable[[int, int], None] = lambda done, of: None
) -> list[RunSummary]:
    """Summarizes several runs, all in the same view, unit and delta.

    Args:
        sources: the folders of the runs.
        on_run: called before each run with how many are done, and how many there are.

    Returns:
        A summary for each run, in their order.

    Raises:
        UserError: fewer than two runs, too many, or one of them is damaged.
    """
    if not 2 <= len(sources) <= MOST_RUNS:
        raise UserError(f"{len(sources)} runs: expected 2 to {MOST_RUNS} to compare.")
    runs = [Run.load(source) for source in sources]
    headline = choose_common_headline(runs)
    summaries = []
    for done, run in enumerate(runs):
        on_run(done, len(runs))
        summaries.append(summarize_run(run, headline))
    return summaries


def choose_common_headline(runs: Sequence[Run]) -> Headline:
    """Returns what several runs are summed up in.

    Args:
        runs: what was trained.

    Returns:
        The first run's headline where every run has its view; otherwise that of the server.
    """
    # The first run decides, and the others follow: bounds in different views cannot be compared.
    headline = choose_run_headline(runs[0])
    if all(headline.view in list_views(run) for run in runs):
        return headline
    # Every run has the server's view.
    return headline._replace(view=View.SERVER)


def comparison_page(summaries: Sequence[RunSummary]) -> str:
    """Renders the comparison as one HTML file.

    Args:
        summaries: of the runs, all with the same headline.
    """
    view, unit, delta = summaries[0].headline
    names = distinct_names([summary.name for summary in summaries])
    _, together = price_together(summaries)
    return render_page(
        "comparison.html",
        comparison_document(summaries),
        count=len(summaries),
        who=name_adversary(view),
        asked=f"view {view}, unit {unit}, δ = {delta:g}",
        lead=describe_extremes(summaries, names),
        rows=[run_row(summary, name) for summary, name in zip(summaries, names, strict=True)],
        figures=draw_comparison(summaries, names),
        together=together,
        conditions=list_conditions(summaries, names),
        remarks=list_remarks(summaries, names),
        differences=list_differences(summaries),
        names=names,
        folders=[str(summary.run.folder) for summary in summaries],
        adjacency=ADJACENCY_WORDS[summaries[0].main.adjacency],
    )


def comparison_document(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """Returns what the machine-readable block of the page holds.

    Args:
        summaries: of the runs.
    """
    epsilon, text = price_together(summaries)
    return {
        "report": 1,
        "runs": [summary_document(summary) for summary in summaries],
        "together": {
            "epsilon": epsilon,
            "text": text,
            "assumptions": list(join_assumptions(summaries)),
            "notes": list(join_notes(summaries)),
        },
    }


def distinct_names(names: Sequence[str]) -> list[str]:
    """Returns names that differ: those that occur more than once are numbered.

    Args:
        names: of the runs.

    Example:
        >>> distinct_names(["a", "b", "a"])
        ['a (1)', 'b', 'a (2)']
    """
    distinct = []
    # Folders of two machines often have the same name.
    for index, name in enumerate(names):
        if names.count(name) > 1:
            name = f"{name} ({names[: index + 1].count(name)})"
        distinct.append(name)
    return distinct


def describe_extremes(summaries: Sequence[RunSummary], names: Sequence[str]) -> str:
    """Says which run is the most private, and which the most accurate.

    Args:
        summaries: of the runs.
        names: of the runs.

    Returns:
        One or two sentences.
    """
    epsilons = [summary.main.epsilon(summary.headline.delta) for summary in summaries]
    private = int(np.argmin(epsilons))
    bound = format_upper_bound(epsilons[private])
    text = f"The most private is {names[private]}, with ε = {bound} at most"
    # A bound without its condition would be quoted without it.
    text += _end_with_condition(summaries[private])
    scores = [find_last_scores(summary.run)["accuracy"] for summary in summaries]
    if not all(math.isnan(score) for score in scores):
        best = int(np.nanargmax(scores))
        score = format_percent(scores[best])
        bound = format_upper_bound(epsilons[best])
        text += f" The most accurate is {names[best]}, with {score} at ε = {bound}"
        text += _end_with_condition(summaries[best])
    return text


def _end_with_condition(summary: RunSummary) -> str:
    """Returns the end of a sentence about a bound: what must be true for it to hold."""
    if summary.main.condition:
        return f", {summary.main.condition}."
    return "."


def join_assumptions(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Returns what the users vouched for and the bounds rest on, each once.

    Args:
        summaries: of the runs.
    """
    return tuple(dict.fromkeys(text for summary in summaries for text in summary.main.assumptions))


def join_notes(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Returns what must be said with the guarantees of these runs, each once.

    Args:
        summaries: of the runs.
    """
    return tuple(dict.fromkeys(note for summary in summaries for note in summary.main.notes))


def list_remarks(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[str]:
    """Lists the notes that must be read with the bounds, each with the runs that it is about.

    Args:
        summaries: of the runs.
        names: of the runs.
    """
    remarks = []
    for note in join_notes(summaries):
        about = [
            name
            for summary, name in zip(summaries, names, strict=True)
            if note in summary.main.notes
        ]
        remarks.append(f"{', '.join(about)}: {note}")
    return remarks


def list_conditions(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[str]:
    """Lists a sentence for every run whose bound rests on a vouched assumption.

    Args:
        summaries: of the runs.
        names: of the runs.
    """
    sentences = []
    for summary, name in zip(summaries, names, strict=True):
        if not summary.main.condition:
            continue
        text = f"{name}: the bound holds {summary.main.condition}."
        if summary.main.unconditional is not None:
            free = summary.main.unconditional.epsilon(summary.headline.delta)
            text += f" Without that, ε = {format_upper_bound(free)}."
        sentences.append(text)
    return sentences


def format_marked_epsilon(summary: RunSummary, epsilon: float) -> str:
    """Returns an epsilon for people, marked where it rests on a vouched assumption.

    Args:
        summary: of the run.
        epsilon: the bound.
    """
    text = format_upper_bound(epsilon)
    if summary.main.condition:
        text += " (vouched)"
    return text


def run_row(summary: RunSummary, name: str) -> tuple[str, ...]:
    """Returns a run as a row of the table.

    Args:
        summary: of the run.
        name: of the run.
    """
    view, unit, delta = summary.headline
    audits = summary.audits_in(view, unit)
    measured = MISSING
    if audits:
        measured = format_lower_bound(audits[0].epsilon_lower)
    scores = find_last_scores(summary.run)
    accuracy = MISSING
    if not math.isnan(scores["accuracy"]):
        accuracy = format_percent(scores["accuracy"])
    return (
        name,
        format_marked_epsilon(summary, summary.main.epsilon(delta)),
        format_cases_of_100(summary.odds[view]),
        measured,
        accuracy,
        format_measurement(scores["loss"]),
        f"{len(summary.run.rounds_paid):,}",
        summary.run.status,
    )


def price_together(summaries: Sequence[RunSummary]) -> tuple[float | None, str]:
    """Bounds what an adversary that sees all runs learns about a unit that was in all of them.

    Args:
        summaries: of the runs.

    Returns:
        Epsilon, or None where nothing can be said; and a sentence.
    """
    _, unit, delta = summaries[0].headline
    # Replacing a record and leaving it out are different questions, and their curves do not
    # compose.
    if len({summary.main.adjacency for summary in summaries}) > 1:
        text = (
            "The runs use different adjacencies, so what they reveal together is not added up here."
        )
        return None, text
    # Secure noise is drawn afresh in every run.
    seeds = [
        summary.run.protocol.seed for summary in summaries if not summary.run.protocol.noise.secure
    ]
    if len(set(seeds)) < len(seeds):
        text = (
            "Two of the runs drew their noise from the same seed, so it cancels in their "
            "difference: together they guarantee nothing."
        )
        return math.inf, text
    # A record belongs to one client in every run, so replacing it turns each run into a neighbour,
    # and the curves compose.
    epsilon = compose_curves([summary.main.curve for summary in summaries]).epsilon(delta)
    text = (
        f"If a {unit} was in all of them, an adversary who sees all runs learns at most "
        f"ε = {format_upper_bound(epsilon)} about it (composition)"
    )
    vouched = join_assumptions(summaries)
    if vouched:
        text += f", if, as vouched, {' and '.join(vouched)}"
    return epsilon, f"{text}."


def list_differences(summaries: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    """Lists the keys of the protocols that are not the same in all runs.

    Args:
        summaries: of the runs.

    Returns:
        A row per key: the key, and its value in every run.
    """
    # Compared as files have them, so that every key counts, also those of later versions.
    protocols = [flatten_tables(parse_toml(dumps(summary.run.protocol))) for summary in summaries]
    keys = dict.fromkeys(key for protocol in protocols for key in protocol)
    rows = []
    for key in keys:
        values = [protocol.get(key, MISSING) for protocol in protocols]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return rows[:MOST_DIFFERENCES]


def draw_comparison(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[Picture]:
    """Draws the figures that compare runs.

    Args:
        summaries: of the runs.
        names: of the runs.

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
        summaries: of the runs.
    """
    for summary in summaries:
        if not math.isnan(find_last_scores(summary.run)["accuracy"]):
            return "accuracy"
    return "loss"


def draw_scores_by_epsilon(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws accuracy, or loss, against epsilon: what privacy costs.

    Args:
        summaries: of the runs.
        names: of the runs.

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
    axes.set(xlabel=label_epsilons(f"ε at δ = {delta:g}, at most", epsilons), ylabel=label)
    axes.margins(0.12)
    add_legend(axes)
    rows = [
        (name, format_marked_epsilon(summary, epsilon), format_score(score))
        for summary, name, epsilon, score in zip(summaries, names, epsilons, scores, strict=True)
    ]
    return finish_picture(
        figure,
        name="accuracy",
        title="What privacy cost",
        description="; ".join(f"{name}: ε = {bound}, {score}" for name, bound, score in rows) + ".",
        columns=("run", "ε, at most", metric),
        rows=rows,
    )


def draw_scores_by_round(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws accuracy, or loss, against rounds.

    Args:
        summaries: of the runs.
        names: of the runs.
    """
    metric = choose_metric(summaries)
    label = "loss"
    scale = 1.0
    if metric == "accuracy":
        label = "accuracy, %"
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
        f"{label} at the end: {list_values(ends)}. Scored on {records}.",
    )


def draw_epsilons_by_round(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws epsilon against rounds.

    Args:
        summaries: of the runs.
        names: of the runs.
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
        label_epsilons(f"ε at δ = {summaries[0].headline.delta:g}", last_epsilons),
        f"ε at the end, at most: {list_values(ends)}.",
    )


def draw_all_tradeoffs(summaries: Sequence[RunSummary], names: Sequence[str]) -> Picture | None:
    """Draws the trade-off curves in the common view.

    Args:
        summaries: of the runs.
        names: of the runs.
    """
    lines: Lines = {}
    missed = {}
    for summary, name in zip(summaries, names, strict=True):
        betas = next(iter(summary.curves.values()))
        lines[name] = (ALPHAS, betas)
        # A lower bound on misses is rounded down.
        missed[name] = str(math.floor(100 * betas[FIVE_PERCENT]))
    return draw_lines(
        "tradeoff",
        "How well any test can tell",
        lines,
        "false alarms",
        "misses, at least",
        "A test that accuses at most 5 of 100 innocent data sets misses, of 100 guilty ones, "
        f"at least: {list_values(missed)}.",
    )


def list_values(values: dict[str, str]) -> str:
    """Returns names with their values in a line.

    Args:
        values: by name.
    """
    return "; ".join(f"{name} {value}" for name, value in values.items())


Lines = dict[str, tuple[np.ndarray, np.ndarray]]


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
        name: unique in the page.
        title: a few words.
        lines: by run, the places along the horizontal axis and the values.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        description: what the figure shows, in words.

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
