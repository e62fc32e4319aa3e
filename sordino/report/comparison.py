"""Several runs side by side: what each promises to the same adversary, what each brought, what differs, what all reveal together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.run import Run
from sordino.privacy.curves import composed
from sordino.protocol import UserError, View, dumps
from sordino.protocol.documents import flattened
from sordino.protocol.file import parse
from sordino.report.drawing import (
    MOST_POINTS,
    Picture,
    epsilon_label,
    figure,
    label,
    legend,
    picture,
    some,
    style,
    thinned,
    whole_numbers,
    within_meaning,
)
from sordino.report.formats import at_least, at_most, measure, of_a_hundred, percent
from sordino.report.page import ADJACENCY, rendered
from sordino.report.promises import Asked, headline_of, views_of
from sordino.report.story import (
    ALPHAS,
    FIVE,
    Story,
    last_scores,
    scored_rounds,
    story_document,
    told,
)
from sordino.report.words import scored_on, who

MOST_RUNS = 24
MARKERS = "osD^vPX*"


def told_alike(
    sources: Sequence[str | Path], on_run: Callable[[int, int], None] = lambda done, of: None
) -> list[Story]:
    """The stories of several runs, all summed up in the same view, unit and delta.

    Raises:
        UserError: fewer than two runs, too many, or one of them is damaged.
    """
    if not 2 <= len(sources) <= MOST_RUNS:
        raise UserError(f"{len(sources)} runs: expected 2 to {MOST_RUNS} to compare.")
    runs = [Run.load(source) for source in sources]
    asked = common_headline(runs)
    stories = []
    for done, run in enumerate(runs):
        on_run(done, len(runs))
        stories.append(told(run, asked))
    return stories


def common_headline(runs: Sequence[Run]) -> Asked:
    """The first run's headline where every run has its view, else the server's."""
    view, unit, delta = headline_of(runs[0])
    return (view if all(view in views_of(run) for run in runs) else View.SERVER), unit, delta


def comparison_page(stories: Sequence[Story]) -> str:
    """The comparison, as one HTML file."""
    view, unit, delta = stories[0].headline
    names = told_apart([story.name for story in stories])
    return rendered(
        "comparison.html",
        comparison_document(stories),
        count=len(stories),
        who=who(view),
        asked=f"view {view}, unit {unit}, δ = {delta:g}",
        lead=lead(stories, names),
        rows=[run_row(story, name) for story, name in zip(stories, names, strict=True)],
        figures=[one for one in (accuracy_figure(stories, names), learning_figure(stories, names), spent_figure(stories, names),
                                 tradeoff_figure(stories, names)) if one is not None],
        together=together(stories)[1],
        conditions=conditions(stories, names),
        remarks=remarks(stories, names),
        differences=differences(stories),
        names=names,
        folders=[str(story.run.folder) for story in stories],
        adjacency=ADJACENCY[stories[0].main.adjacency],
    )  # fmt: skip


def comparison_document(stories: Sequence[Story]) -> dict[str, Any]:
    """What the page's machine-readable block says."""
    epsilon, text = together(stories)
    return {
        "report": 1,
        "runs": [story_document(story) for story in stories],
        "together": {
            "epsilon": epsilon,
            "text": text,
            "assumptions": list(vouched_for(stories)),
            "notes": list(noted_of(stories)),
        },
    }


def told_apart(names: Sequence[str]) -> list[str]:
    """Names that differ: those that occur twice are numbered.

    Example:
        >>> told_apart(["a", "b", "a"])
        ['a (1)', 'b', 'a (2)']
    """
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def lead(stories: Sequence[Story], names: Sequence[str]) -> str:
    """The extremes in a sentence."""
    epsilons = [story.main.epsilon(story.headline[2]) for story in stories]
    scores = [last_scores(story.run)["accuracy"] for story in stories]
    private = int(np.argmin(epsilons))
    text = f"The most private is {names[private]}, with ε = {at_most(epsilons[private])} at most"
    text += f", {stories[private].main.condition}." if stories[private].main.condition else "."
    if not all(math.isnan(score) for score in scores):
        best = int(np.nanargmax(scores))
        text += f" The most accurate is {names[best]}, with {percent(scores[best])} at ε = {at_most(epsilons[best])}"
        text += f", {stories[best].main.condition}." if stories[best].main.condition else "."
    return text


def vouched_for(stories: Sequence[Story]) -> tuple[str, ...]:
    """Returns what the users vouched for and the bounds of these runs rest on, each once."""
    return tuple(dict.fromkeys(text for story in stories for text in story.main.assumptions))


def noted_of(stories: Sequence[Story]) -> tuple[str, ...]:
    """Returns what must be said with the promises of these runs, each once."""
    return tuple(dict.fromkeys(note for story in stories for note in story.main.notes))


def remarks(stories: Sequence[Story], names: Sequence[str]) -> list[str]:
    """Returns every note that must be read with the bounds, with the names of the runs that it is about."""
    found = []
    for note in noted_of(stories):
        about = [
            name for story, name in zip(stories, names, strict=True) if note in story.main.notes
        ]
        found.append(f"{', '.join(about)}: {note}")
    return found


def conditions(stories: Sequence[Story], names: Sequence[str]) -> list[str]:
    """Returns a sentence for every run whose bound rests on what was vouched for."""
    found = []
    for story, name in zip(stories, names, strict=True):
        if not story.main.condition:
            continue
        text = f"{name}: the bound holds {story.main.condition}."
        if story.main.unconditional is not None:
            free = story.main.unconditional.epsilon(story.headline[2])
            text += f" Without that, ε = {at_most(free)}."
        found.append(text)
    return found


def marked(story: Story, epsilon: float) -> str:
    """Returns an epsilon for people, marked where it rests on what was vouched for."""
    return at_most(epsilon) + (" (vouched)" if story.main.condition else "")


def run_row(story: Story, name: str) -> tuple[str, ...]:
    """A run in a line."""
    view, unit, delta = story.headline
    found, scores = story.audits_in(view, unit), last_scores(story.run)
    return (
        name,
        marked(story, story.main.epsilon(delta)),
        of_a_hundred(story.odds[view]),
        at_least(found[0].epsilon_lower) if found else "–",
        "–" if math.isnan(scores["accuracy"]) else percent(scores["accuracy"]),
        measure(scores["loss"]),
        f"{len(story.run.rounds_paid):,}",
        story.run.status,
    )


def together(stories: Sequence[Story]) -> tuple[float | None, str]:
    """What who sees all the runs learns at most about what was in all of them, and a sentence; None where nothing can be said.

    A record is in one client's hands in every run, so replacing it changes each run to a neighbour, and curves compose.
    """
    _, unit, delta = stories[0].headline
    if len({story.main.adjacency for story in stories}) > 1:
        return (
            None,
            "The runs promise about different neighbours, so what they reveal together is not added up here.",
        )
    seeds = [story.run.protocol.seed for story in stories if not story.run.protocol.noise.secure]
    if len(set(seeds)) < len(seeds):
        text = "Two of the runs drew their noise from the same seed, so it cancels in their difference: together they promise nothing."
        return math.inf, text
    epsilon = composed([story.main.curve for story in stories]).epsilon(delta)
    text = f"If a {unit} was in all of them, who sees them all learns at most ε = {at_most(epsilon)} about it (composition)"
    vouched = vouched_for(stories)
    text += f", if, as vouched, {' and '.join(vouched)}." if vouched else "."
    return epsilon, text


def differences(stories: Sequence[Story]) -> list[tuple[str, ...]]:
    """The keys of the protocols that are not the same in all, with their values."""
    flat = [flattened(parse(dumps(story.run.protocol))) for story in stories]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [(key, *(one.get(key, "–") for one in flat)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1][:60]


def accuracy_figure(stories: Sequence[Story], names: Sequence[str]) -> Picture | None:
    """Accuracy, or loss where there is none, against epsilon: what privacy costs."""
    delta = stories[0].headline[2]
    metric = (
        "accuracy"
        if any(not math.isnan(last_scores(story.run)["accuracy"]) for story in stories)
        else "loss"
    )
    points = [(story.main.epsilon(delta), last_scores(story.run)[metric]) for story in stories]
    if not any(math.isfinite(epsilon) and not math.isnan(score) for epsilon, score in points):
        return None
    drawn, axes = figure()
    for place, ((epsilon, score), name) in enumerate(zip(points, names, strict=True)):
        if math.isfinite(epsilon) and not math.isnan(score):
            high = 100 * score if metric == "accuracy" else score
            axes.plot(
                within_meaning([epsilon]),
                high,
                marker=MARKERS[place % len(MARKERS)],
                markersize=7,
                color=style(place)["color"],
                linestyle="none",
                label=label(name, 24),
            )
    axes.set(
        xlabel=epsilon_label(f"ε at δ = {delta:g}, at most", [epsilon for epsilon, _ in points]),
        ylabel="accuracy, %" if metric == "accuracy" else "loss",
    )
    axes.margins(0.12)
    legend(axes)
    shown = percent if metric == "accuracy" else measure
    return picture(
        drawn,
        name="accuracy",
        title="What privacy cost",
        description="; ".join(
            f"{name}: ε = {marked(story, epsilon)}, {shown(score)}"
            for story, name, (epsilon, score) in zip(stories, names, points, strict=True)
        )
        + ".",
        columns=("run", "ε, at most", metric),
        rows=[
            (name, marked(story, epsilon), shown(score))
            for story, name, (epsilon, score) in zip(stories, names, points, strict=True)
        ],
    )


def learning_figure(stories: Sequence[Story], names: Sequence[str]) -> Picture | None:
    """Accuracy, or loss, against rounds."""
    metric = (
        "accuracy"
        if any(not math.isnan(last_scores(story.run)["accuracy"]) for story in stories)
        else "loss"
    )
    scale = 100 if metric == "accuracy" else 1
    lines = {}
    for story, name in zip(stories, names, strict=True):
        places = scored_rounds(story.run)
        lines[name] = (
            story.run.metrics["round"][places] + 1,
            scale * story.run.metrics[metric][places].astype(float),
        )
    axis = "accuracy, %" if metric == "accuracy" else "loss"
    ends = {name: measure(float(ys[-1])) for name, (_, ys) in lines.items() if len(ys) > 0}
    return lines_figure(
        "learning",
        "What the models learned",
        lines,
        "round",
        axis,
        f"{axis} at the end: {listed(ends)}. Scored on {scored_on_of(stories)}.",
    )


def scored_on_of(stories: Sequence[Story]) -> str:
    """Returns the records that these runs were scored on, in words."""
    return " or ".join(dict.fromkeys(scored_on(story.run) for story in stories))


def spent_figure(stories: Sequence[Story], names: Sequence[str]) -> Picture | None:
    """Epsilon against rounds."""
    lines = {
        name: (np.array(story.spent.rounds), within_meaning(story.spent.epsilons))
        for story, name in zip(stories, names, strict=True)
        if story.spent.epsilons and math.isfinite(story.spent.epsilons[-1])
    }
    told = dict(zip(names, stories, strict=True))
    last = {name: told[name].spent.epsilons[-1] for name in lines}
    ends = listed({name: marked(told[name], epsilon) for name, epsilon in last.items()})
    axis = epsilon_label(f"ε at δ = {stories[0].headline[2]:g}", list(last.values()))
    return lines_figure(
        "spent",
        "Privacy spent, round by round",
        lines,
        "rounds paid for",
        axis,
        f"ε at the end, at most: {ends}.",
    )


def tradeoff_figure(stories: Sequence[Story], names: Sequence[str]) -> Picture | None:
    """The trade-off curves in the common view."""
    lines = {
        name: (ALPHAS, next(iter(story.curves.values())))
        for story, name in zip(stories, names, strict=True)
    }
    missed = listed(
        {name: str(math.floor(100 * betas[FIVE])) for name, (_, betas) in lines.items()}
    )
    text = f"Of 100 data sets with the record, a test that accuses 5 of 100 innocent ones misses at least: {missed}."
    return lines_figure(
        "tradeoff", "How well anyone can tell", lines, "false alarms", "misses, at least", text
    )


def listed(values: dict[str, str]) -> str:
    """Names with their values, in a line."""
    return "; ".join(f"{name} {value}" for name, value in values.items())


Lines = dict[str, tuple[np.ndarray, np.ndarray]]


def lines_figure(
    name: str, title: str, lines: Lines, x_label: str, y_label: str, description: str
) -> Picture | None:
    """One line for every run."""
    lines = {run: (xs, ys) for run, (xs, ys) in lines.items() if len(xs) > 0}
    if not lines:
        return None
    drawn, axes = figure()
    rows: list[tuple[str, ...]] = []
    for place, (run, (xs, ys)) in enumerate(lines.items()):
        kept = thinned(len(xs), MOST_POINTS)
        alone = {"marker": "o"} if len(kept) == 1 else {}  # a line of one point would not be seen
        axes.plot(xs[kept], ys[kept], linewidth=1.6, label=label(run, 24), **style(place), **alone)
        rows += [
            (run, measure(float(xs[at])), measure(float(ys[at])))
            for at in thinned(len(xs), 8).tolist()
        ]
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=min(0.0, min(float(np.nanmin(ys)) for _, ys in lines.values())))
    if "round" in x_label:
        whole_numbers(axes)
    legend(axes)
    return picture(
        drawn,
        name=name,
        title=title,
        description=description,
        columns=("run", x_label, y_label),
        rows=some(rows, 80),
    )
