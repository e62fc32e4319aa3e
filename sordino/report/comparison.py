"""Compares several runs on one page.

The page shows what each run guarantees against the same adversary, how well it learned, in which
settings the runs differ, and what all of them reveal together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.store.run import Run
from sordino.privacy.curves.gaussian_curve import compose_curves
from sordino.privacy.guarantee import MEANINGFUL, format_delta
from sordino.protocol import UserError, View, dumps
from sordino.protocol.documents import flatten_tables
from sordino.protocol.file import parse_toml
from sordino.report.comparison_figures import draw_comparison, format_marked_epsilon
from sordino.report.number_formats import (
    MISSING,
    format_cases_of_100,
    format_lower_bound,
    format_measurement,
    format_percent,
    state_epsilon,
)
from sordino.report.page import ADJACENCY_WORDS, render_page
from sordino.report.run_prices import Headline, choose_run_headline, list_views
from sordino.report.run_summary import (
    RunSummary,
    find_last_scores,
    find_own_scores,
    summarize_run,
    summary_document,
)

MOST_RUNS = 24
# Rows in the table of settings that differ.
MOST_DIFFERENCES = 60


def summarize_runs(
    sources: Sequence[str | Path], on_run: Callable[[int, int], None] = lambda done, of: None
) -> list[RunSummary]:
    """Summarizes several runs, all in the same view, unit and delta.

    Args:
        sources: The folders of the runs.
        on_run: Called before each run, with the number of runs done and the number of all.

    Returns:
        A summary for each run, in their order.

    Raises:
        UserError: Fewer than two runs, too many, or one of them is damaged.
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
        runs: What was trained.

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
        summaries: Summaries of the runs, all with the same headline.
    """
    view, unit, delta = summaries[0].headline
    names = distinct_names([summary.name for summary in summaries])
    _, together = price_together(summaries)
    return render_page(
        "comparison.html",
        comparison_document(summaries),
        count=len(summaries),
        who=view.adversary,
        asked=f"view {view}, unit {unit}, δ = {format_delta(delta)}",
        # A headline must not be broken at "ε =".
        lead=describe_extremes(summaries, names).replace("ε = ", "ε\u00a0=\u00a0"),
        columns=name_columns(summaries),
        rows=[
            run_row(summary, name, own=have_own_scores(summaries))
            for summary, name in zip(summaries, names, strict=True)
        ],
        budgets=describe_budgets(summaries, names),
        figures=draw_comparison(summaries, names),
        together=together,
        conditions=list_conditions(summaries, names),
        remarks=list_remarks(summaries, names),
        differences=list_differences(summaries),
        names=names,
        folders=[str(summary.run.folder) for summary in summaries],
        adjacencies=describe_adjacencies(summaries, names),
    )


def comparison_document(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """Returns what the machine-readable block of the page holds.

    Args:
        summaries: Summaries of the runs.
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
        names: Names of the runs.

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
        summaries: Summaries of the runs.
        names: Names of the runs.

    Returns:
        One or two sentences.
    """
    epsilons = [summary.main.epsilon(summary.headline.delta) for summary in summaries]
    private = int(np.argmin(epsilons))
    if epsilons[private] > MEANINGFUL:
        text = "None of the runs has a meaningful limit."
    else:
        bound = state_epsilon(epsilons[private])
        text = f"The most private is {names[private]}, with {bound} at most"
        # A bound without its condition would be quoted without it.
        text += _end_with_condition(summaries[private])
    scores = [find_last_scores(summary.run)["accuracy"] for summary in summaries]
    if not all(math.isnan(score) for score in scores):
        best = int(np.nanargmax(scores))
        score = format_percent(scores[best])
        text += (
            f" The most accurate is {names[best]}, with {score} and {state_epsilon(epsilons[best])}"
        )
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
        summaries: Summaries of the runs.
    """
    return tuple(dict.fromkeys(text for summary in summaries for text in summary.main.assumptions))


def join_notes(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Returns what must be said with the guarantees of these runs, each once.

    Args:
        summaries: Summaries of the runs.
    """
    return tuple(dict.fromkeys(note for summary in summaries for note in summary.main.notes))


def list_remarks(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[str]:
    """Lists the notes that must be read with the bounds, each with the runs that it is about.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
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
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    sentences = []
    for summary, name in zip(summaries, names, strict=True):
        if not summary.main.condition:
            continue
        text = f"{name}: the bound holds {summary.main.condition}."
        if summary.main.unconditional is not None:
            free = summary.main.unconditional.epsilon(summary.headline.delta)
            text += f" Without that: {state_epsilon(free)}."
        sentences.append(text)
    return sentences


def describe_adjacencies(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[str]:
    """Says when two data sets are neighbours: once, or run by run where that differs.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    about: dict[str, list[str]] = {}
    for summary, name in zip(summaries, names, strict=True):
        about.setdefault(summary.main.adjacency, []).append(name)
    if len(about) == 1:
        return [ADJACENCY_WORDS[adjacency] for adjacency in about]
    sentences = [f"{', '.join(about[one])}: {ADJACENCY_WORDS[one]}" for one in about]
    return [
        *sentences,
        "Bounds about different neighbours are not on one scale: to replace a unit is to leave one "
        "out and to add another.",
    ]


def have_own_scores(summaries: Sequence[RunSummary]) -> bool:
    """Returns whether clients' personal models were scored in any of the runs.

    Args:
        summaries: Summaries of the runs.
    """
    return any(find_own_scores(summary.run) is not None for summary in summaries)


def name_columns(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Returns the heads of the table of runs.

    Args:
        summaries: Summaries of the runs.
    """
    bound = f"ε in the view {summaries[0].headline.view}, at most"
    scores = ["accuracy"]
    if have_own_scores(summaries):
        scores.append("personal models: mean, worst, spread (not covered)")
    return (
        *("run", bound, "right of 100", "ε measured, at least"),
        *scores,
        *("loss", "rounds", "status"),
    )


def describe_budgets(summaries: Sequence[RunSummary], names: Sequence[str]) -> list[str]:
    """Lists the budgets of the runs, each with the view that it holds in.

    Args:
        summaries: Summaries of the runs.
        names: Names of the runs.
    """
    found = []
    for summary, name in zip(summaries, names, strict=True):
        budget = summary.run.protocol.privacy.budget
        if budget is not None:
            found.append(
                f"{name}: ε = {budget.epsilon:g} at δ = {format_delta(budget.delta)} in the view "
                f"{budget.view}, about one {budget.unit}."
            )
        if summary.run.protocol.client:
            found.append(f"{name}: budgets of its clients, which hold in the view server.")
    return found


def format_own_scores(run: Run) -> str:
    """Returns mean, worst and spread of the accuracies of clients' personal models.

    Args:
        run: What was trained.
    """
    scores = find_own_scores(run)
    if scores is None:
        return MISSING
    mean = format_percent(scores["mean"])
    return f"{mean}, {format_percent(scores['worst'])}, {100 * scores['spread']:.1f} points"


def run_row(summary: RunSummary, name: str, *, own: bool = False) -> tuple[str, ...]:
    """Returns a run as a row of the table.

    Args:
        summary: Summary of the run.
        name: Name of the run.
        own: Whether the table has a column for clients' personal models.
    """
    view, unit, delta = summary.headline
    audits = summary.audits_in(view, unit)
    measured = MISSING
    if audits:
        measured = format_lower_bound(audits[0].epsilon_lower)
    scores = find_last_scores(summary.run)
    accuracies = [MISSING]
    if not math.isnan(scores["accuracy"]):
        accuracies = [format_percent(scores["accuracy"])]
    if own:
        accuracies.append(format_own_scores(summary.run))
    return (
        name,
        format_marked_epsilon(summary, summary.main.epsilon(delta)),
        format_cases_of_100(summary.odds[view]),
        measured,
        *accuracies,
        format_measurement(scores["loss"]),
        f"{len(summary.run.rounds_paid):,}",
        summary.run.status,
    )


def price_together(summaries: Sequence[RunSummary]) -> tuple[float | None, str]:
    """Bounds what an adversary that sees all runs learns about a unit that was in all of them.

    Args:
        summaries: Summaries of the runs.

    Returns:
        Epsilon, or None where nothing can be said; and a sentence.
    """
    _, unit, delta = summaries[0].headline
    # Secure noise is drawn afresh in every run; that of a seed is the same wherever the seed is.
    seeds = [
        summary.run.protocol.seed for summary in summaries if not summary.run.protocol.noise.secure
    ]
    if len(set(seeds)) < len(seeds):
        text = (
            "Two of the runs drew their noise from the same seed, so it cancels in their "
            "difference: together they guarantee nothing."
        )
        return math.inf, text
    # Replacing a record and leaving it out are different questions, and their curves do not
    # compose.
    if len({summary.main.adjacency for summary in summaries}) > 1:
        text = (
            "The runs use different adjacencies, so what they reveal together is not added up here."
        )
        return None, text
    # A record belongs to one client in every run, so replacing it turns each run into a neighbour,
    # and the curves compose.
    epsilon = compose_curves([summary.main.curve for summary in summaries]).epsilon(delta)
    limit = f"at most {state_epsilon(epsilon)}"
    if epsilon > MEANINGFUL:
        limit = "without a meaningful limit"
    text = (
        f"If a {unit} was in all of them, an adversary who sees all runs learns {limit} about it "
        "(composition)"
    )
    vouched = join_assumptions(summaries)
    if vouched:
        text += f", if, as vouched, {' and '.join(vouched)}"
    return epsilon, f"{text}."


def list_differences(summaries: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    """Lists the keys of the protocols that are not the same in all runs.

    Args:
        summaries: Summaries of the runs.

    Returns:
        A row per key: the key, and its value in every run.
    """
    # Compared as they are written in files, so that every key counts.
    protocols = [flatten_tables(parse_toml(dumps(summary.run.protocol))) for summary in summaries]
    keys = dict.fromkeys(key for protocol in protocols for key in protocol)
    rows = []
    for key in keys:
        values = [protocol.get(key, MISSING) for protocol in protocols]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return rows[:MOST_DIFFERENCES]
