"""The figures of a report, each with what it shows in words and its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.guarantee import MEANINGFUL, Guarantee
from sordino.protocol import View
from sordino.report.drawing import (
    COLOURS,
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
from sordino.report.evidence import Plot
from sordino.report.formats import at_least, at_most, measure, percent
from sordino.report.promises import client_view
from sordino.report.story import ALPHAS, FIVE, Story, scored_rounds
from sordino.report.words import scored_on, who

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TONES = 5  # of the partition picture
MOST_DRAWN = 120  # clients in it


def figures(story: Story) -> dict[str, Picture | None]:
    """All figures by name; None where there is nothing to show."""
    return {
        "views": views_figure(story),
        "tradeoff": tradeoff_figure(story),
        "spent": spent_figure(story),
        "learning": learning_figure(story),
        "clients": clients_figure(story),
        "partition": partition_figure(story),
        "attacks": attacks_figure(story),
    }


def views_figure(story: Story) -> Picture:
    """Epsilon of every view, about a record and about a client, and what audits measured."""
    from matplotlib.ticker import LogLocator

    _, unit, delta = story.headline
    views = [guarantee.view for guarantee in story.guarantees[unit]]
    every = [one.epsilon(delta) for found in story.guarantees.values() for one in found]
    drawn, axes = figure(1.6 + 0.34 * len(views))
    for kind, marker, colour in (("record", "o", "blue"), ("client", "D", "purple")):
        found = {guarantee.view: guarantee.epsilon(delta) for guarantee in story.guarantees[kind]}
        places = [place for place, view in enumerate(views) if view in found]
        values = within_meaning([found[views[place]] for place in places])
        axes.scatter(
            values,
            places,
            marker=marker,
            color=COLOURS[colour],
            s=36,
            zorder=3,
            label=f"one {kind}: at most",
        )
    names = [str(view) for view in views]
    lower = [
        (audit.epsilon_lower, audit)
        for audit in story.audits
        if audit.view in names and audit.epsilon_lower is not None
    ]
    for more, colour, words in (
        (False, "orange", "measured: at least"),
        (True, "muted", "measured by who is given more than the view"),
    ):
        shown = [
            (min(epsilon, MEANINGFUL), names.index(audit.view))
            for epsilon, audit in lower
            if epsilon > 0 and (audit.given != "") == more
        ]
        if shown:
            axes.scatter(
                *zip(*shown, strict=True),
                marker="|",
                s=110,
                linewidths=2,
                color=COLOURS[colour],
                zorder=4,
                label=words,
            )
    budget = story.run.protocol.privacy.budget
    if budget is not None:
        axes.axvline(
            min(budget.epsilon, MEANINGFUL),
            color=COLOURS["muted"],
            linestyle="--",
            linewidth=1,
            label=f"budget {budget.epsilon:g} ({budget.view})",
        )
    if max(every) > MEANINGFUL:
        lowest = min(0.5 * MEANINGFUL, float(axes.dataLim.minposx))
        axes.set_xlim(0.8 * lowest, 1.2 * MEANINGFUL)
    axes.set(
        xscale="log",
        xlabel=epsilon_label(f"ε at δ = {delta:g}, smaller is more private", every),
        ylim=(len(views) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(views)), names)
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if narrow(axes.get_xlim()) else (1.0,), numticks=7)
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    legend(
        axes,
        loc="lower center",
        bbox_to_anchor=(0.45, 1.0),
        ncols=2,
        borderaxespad=0.2,
        handletextpad=0.3,
        columnspacing=1.2,
    )
    rows = [
        (str(view), who(view), *epsilons_of(story, view), measured_text(story, view))
        for view in views
    ]
    least, most = (
        choose(story.guarantees[unit], key=lambda one: one.epsilon(delta)) for choose in (min, max)
    )
    return picture(
        drawn,
        name="views",
        title="Who could learn how much",
        description=spread(unit, least, most, delta),
        columns=("view", "who", "ε, one record", "ε, one client", "measured, at least"),
        rows=rows,
    )


def spread(unit: str, least: Guarantee, most: Guarantee, delta: float) -> str:
    """From whom the least is learned, and from whom the most."""
    low, high = at_most(least.epsilon(delta)), at_most(most.epsilon(delta))
    if low == high:
        return f"About one {unit}, at most ε = {low} is learned in every view."
    return f"About one {unit}, the least is learned in the view {least.view}, at most ε = {low}; the most in the view {most.view}, {high}."


def narrow(limits: tuple[float, float]) -> bool:
    """Whether a logarithmic axis spans so little that powers of ten alone would leave it bare."""
    return limits[1] < 100 * limits[0]


def epsilons_of(story: Story, view: View) -> tuple[str, str]:
    """Returns the epsilons of a view about a record and about a client, for people; marked where something was vouched for."""

    def shown(unit: str) -> str:
        for guarantee in story.guarantees[unit]:
            if guarantee.view == view:
                mark = " (vouched)" if guarantee.condition else ""
                return at_most(guarantee.epsilon(story.headline[2])) + mark
        return at_most(None)

    return shown("record"), shown("client")


def measured_text(story: Story, view: View) -> str:
    """What was measured in a view, of the headline's unit."""
    found = story.audits_in(view, story.headline[1])
    return at_least(found[0].epsilon_lower) if found else "–"


def tradeoff_figure(story: Story) -> Picture:
    """The error rates that no test can get below, per view, and those that the audit's tests reached."""
    view, unit, _ = story.headline
    drawn, axes = figure(3.3)
    curves = story.curves
    for place, (names, betas) in enumerate(curves.items()):
        axes.plot(ALPHAS, betas, label=label(names), linewidth=1.8, **style(place))
    axes.plot([0, 1], [1, 0], color=COLOURS["muted"], linestyle=":", linewidth=1, label="guessing")
    points = [(audit, test) for audit in story.audits if audit.unit == unit for test in audit.tests]
    if points:
        reached = np.array([test for _, test in points])
        axes.scatter(
            *reached.T,
            marker="x",
            s=42,
            linewidths=1.8,
            color=COLOURS["ink"],
            zorder=4,
            label="reached in the audit",
        )
    axes.set(
        xlabel="false alarms: share of innocent data sets accused",
        ylabel="misses, at least",
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
    )
    legend(axes, loc="upper right")
    places = thinned(len(ALPHAS), 18).tolist()
    rows = [
        (
            f"{ALPHAS[at]:.2g}",
            *(f"{math.floor(1000 * betas[at]) / 1000:.3f}" for betas in curves.values()),
        )
        for at in places
    ]
    for audit, (alarms, misses) in points:
        rows.append(
            (
                f"{alarms:.2g}",
                f"{misses:.3f} reached in the audit of {audit.view}",
                *[""] * (len(curves) - 1),
            )
        )
    at = next(iter(curves.values()))[FIVE]
    return picture(
        drawn,
        name="tradeoff",
        title="How well anyone can tell",
        description=f"In the view {view}, a test that accuses at most 5 of 100 innocent data sets misses at least {math.floor(100 * at)} "
        "of 100 guilty ones. The dotted line is guessing; the nearer a curve is to it, the less can be told.",
        columns=("false alarms", *(f"misses, {names}" for names in curves)),
        rows=rows,
    )


def spent_figure(story: Story) -> Picture | None:
    """The headline's epsilon against rounds, under the budget."""
    view, unit, delta = story.headline
    rounds, epsilons, budget = (
        story.spent.rounds,
        story.spent.epsilons,
        story.run.protocol.privacy.budget,
    )
    if not rounds or epsilons[0] > MEANINGFUL:
        return None
    drawn, axes = figure()
    axes.plot(
        rounds,
        within_meaning(epsilons),
        marker="o",
        markersize=3.5,
        linewidth=1.8,
        label="spent, at most",
        **style(0),
    )
    if budget is not None:
        axes.axhline(
            min(budget.epsilon, MEANINGFUL),
            color=COLOURS["orange"],
            linestyle="--",
            linewidth=1.4,
            label=f"budget: {budget.epsilon:g}",
        )
    axes.set(
        xlabel="rounds paid for",
        ylabel=epsilon_label(f"ε at δ = {delta:g}", epsilons),
        ylim=(0, 1.12 * max(within_meaning([*epsilons, budget.epsilon if budget else 0.0]))),
    )
    whole_numbers(axes)
    legend(axes)
    kept = f" The budget of {budget.epsilon:g} was not passed." if budget is not None else ""
    return picture(
        drawn,
        name="spent",
        title="Privacy spent, round by round",
        description=f"In the view {view}, about one {unit}: ε = {at_most(epsilons[0])} after round {rounds[0]:,}, {at_most(epsilons[-1])} "
        f"after round {rounds[-1]:,}.{kept}",
        columns=("rounds paid for", "ε, at most"),
        rows=[
            (f"{count:,}", at_most(epsilon))
            for count, epsilon in zip(rounds, epsilons, strict=True)
        ],
    )


def learning_figure(story: Story) -> Picture | None:
    """Accuracy and loss on test records against rounds."""
    metrics, places = story.run.metrics, scored_rounds(story.run)
    if len(places) == 0 or story.withheld.scores:
        return None
    rounds, loss, accuracy = (
        metrics[name][places].astype(float) for name in ("round", "loss", "accuracy")
    )
    classified = bool(np.isfinite(accuracy).any())
    drawn, axes = figure(3.1, rows=2) if classified else figure()
    below = axes[1] if classified else axes
    if classified:
        axes[0].plot(rounds + 1, 100 * accuracy, linewidth=1.8, **style(2))
        axes[0].set(ylabel="accuracy, %")
        axes[0].set_ylim(0, 100)
    below.plot(rounds + 1, loss, linewidth=1.8, **style(1))
    below.set(xlabel="round", ylabel="loss")
    below.set_ylim(bottom=min(0.0, float(loss.min())))
    whole_numbers(below)
    score = f"accuracy {percent(float(accuracy[-1]))}, " if classified else ""
    rows = [
        (f"{int(t) + 1:,}", *([percent(float(right))] if classified else []), measure(float(wrong)))
        for t, right, wrong in zip(rounds, accuracy, loss, strict=True)
    ]
    return picture(
        drawn,
        name="learning",
        title="What the model learned",
        description=f"On {scored_on(story.run)}, after round {int(rounds[-1]) + 1:,}: {score}loss {measure(float(loss[-1]))}.",
        columns=("round", *(["accuracy"] if classified else []), "loss"),
        rows=some(rows),
    )


def clients_figure(story: Story) -> Picture | None:
    """What each client has spent, of its own budget where it has one; nothing to draw where all are alike."""
    rows, view = story.clients, client_view(story.run, story.headline)
    priced = [
        (rank, row, row.epsilon)
        for rank, row in enumerate(rows, 1)
        if row.epsilon is not None and math.isfinite(row.epsilon)
    ]
    if len({epsilon for _, _, epsilon in priced}) < 2 and not any(
        row.budget is not None for row in rows
    ):
        return None
    drawn, axes = figure()
    shown = [priced[place] for place in thinned(len(priced), MOST_POINTS).tolist()]
    places, epsilons = [rank for rank, _, _ in shown], [epsilon for _, _, epsilon in shown]
    axes.plot(
        places,
        within_meaning(epsilons),
        marker="o",
        markersize=4,
        linestyle="none",
        color=COLOURS["blue"],
        label="spent, at most",
    )
    own = [
        (rank, min(row.budget.epsilon, MEANINGFUL))
        for rank, row, _ in shown
        if row.budget is not None
    ]
    if own:
        axes.scatter(
            *zip(*own, strict=True),
            marker="_",
            s=70,
            linewidths=2,
            color=COLOURS["orange"],
            label="its own budget",
        )
    axes.set(
        xlabel="clients, who spent most first",
        ylabel=epsilon_label("ε, given who took part", epsilons),
    )
    axes.set_ylim(bottom=0)
    whole_numbers(axes)
    legend(axes)
    (_, most, highest), (_, least, lowest) = priced[0], priced[-1]
    left = (
        f" {len(rows) - len(priced)} clients were not priced: it would take long."
        if len(priced) < len(rows)
        else ""
    )
    table = [
        (
            str(row.client),
            f"{row.records:,}",
            f"{row.rounds:,}",
            at_most(row.epsilon),
            "–" if row.budget is None else f"{row.budget.epsilon:g}",
        )
        for row in rows
    ]
    return picture(
        drawn,
        name="clients",
        title="What each client has spent",
        description=f"In the view {view}, given who took part: client {most.client} has spent the most, ε = {at_most(highest)} in "
        f"{most.rounds:,} rounds, client {least.client} the least, {at_most(lowest)} in {least.rounds:,}.{left}",
        columns=("client", "records", "rounds", "ε, at most", "own budget"),
        rows=some(table),
    )


def partition_figure(story: Story) -> Picture | None:
    """How many records of each label every client has, darker for more."""
    if story.shares is None:
        return None
    counts, classes = story.shares.counts, story.shares.classes
    chosen = thinned(len(counts), MOST_DRAWN)
    shown = counts[chosen]
    names = [str(name) for name in classes] if classes is not None else ["records"]
    drawn, axes = figure(min(4.6, 1.2 + 0.2 * len(names)) if classes is not None else 2.6)
    if classes is None:
        axes.bar(np.arange(len(shown)), shown[:, 0], width=0.8, color=COLOURS["blue"])
        axes.set(ylabel="training records")
    else:
        draw_cells(axes, shown, names)
    axes.grid(visible=False)
    axes.set(
        xlim=(-0.6, len(shown) - 0.4),
        xlabel="client"
        if len(chosen) == len(counts)
        else f"clients, {len(chosen)} of {len(counts):,}",
    )
    ticks = thinned(len(chosen), 9)
    axes.set_xticks(ticks, [str(chosen[tick]) for tick in ticks])
    totals = counts.sum(axis=1)
    each = (
        f"{totals[0]:,} each"
        if totals.min() == totals.max()
        else f"{totals.min():,} to {totals.max():,} each"
    )
    middle = f"{np.median((counts > 0).sum(axis=1)):g} of {len(names)}"
    held = (
        f" Half of the clients have records of at most {middle} labels."
        if classes is not None
        else ""
    )
    rows = [
        (str(client), *(f"{count:,}" for count in counts[client, :30].tolist()))
        for client in thinned(len(counts), 24).tolist()
    ]
    return picture(
        drawn,
        name="partition",
        title="Who has what",
        description=f"{int(totals.sum()):,} training records of {len(counts):,} clients, {each}.{held}",
        columns=("client", *(label(name, 20) for name in names[:30])),
        rows=rows,
    )


def draw_cells(axes: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    """A cell for every client and label; cells of one tone are one path, so that the drawing stays small."""
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    largest = max(1, int(counts.max()))
    edges = np.ceil(largest * (np.arange(1, TONES + 1) / TONES) ** 2).astype(
        int
    )  # a single record is seen beside thousands
    tones = np.searchsorted(edges, counts)
    handles, low = [], 1
    for tone in range(TONES):
        opacity = 0.18 + 0.82 * tone / (TONES - 1)
        corners = [
            (client - 0.44, place - 0.44)
            for client, place in np.argwhere((counts > 0) & (tones == tone)).tolist()
        ]
        squares = [
            Path([(x, y), (x + 0.88, y), (x + 0.88, y + 0.88), (x, y + 0.88), (x, y)], closed=True)
            for x, y in corners
        ]
        if squares:
            patch = PathPatch(
                Path.make_compound_path(*squares),
                facecolor=COLOURS["blue"],
                alpha=opacity,
                linewidth=0,
            )
            axes.add_patch(patch)
        if low <= edges[tone]:
            words = str(low) if low == edges[tone] else f"{low}–{edges[tone]}"
            handles.append(
                Rectangle(
                    (0, 0), 1, 1, facecolor=COLOURS["blue"], alpha=opacity, linewidth=0, label=words
                )
            )
        low = int(edges[tone]) + 1
    axes.set_ylim(len(names) - 0.5, -0.5)
    ticks = thinned(len(names), 20)
    axes.set_yticks(ticks, [label(names[tick], 16) for tick in ticks])
    legend(
        axes,
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=TONES,
        borderaxespad=0.2,
        handlelength=1.0,
        columnspacing=0.9,
    )


def attacks_figure(story: Story) -> Picture | None:
    """What attacks reached, beside what is reached without seeing anything; each on its own scale, as metrics differ."""
    attacks = story.attacks
    if not attacks:
        return None
    drawn, axes = figure(0.8 + 0.34 * len(attacks[:20]))
    names = [label(f"{attack.name}, {attack.metric}", 34) for attack in attacks[:20]]
    for place, attack in enumerate(attacks[:20]):
        both = [attack.baseline, attack.value]
        if all(math.isfinite(value) for value in both):
            scale = max(abs(value) for value in both) or 1.0
            axes.plot(
                [value / scale for value in both],
                [place, place],
                color=COLOURS["line"],
                linewidth=3,
                zorder=1,
            )
            axes.scatter(
                both[0] / scale,
                place,
                marker="|",
                s=90,
                linewidths=2,
                color=COLOURS["muted"],
                zorder=2,
            )
            axes.scatter(
                both[1] / scale, place, marker="o", s=36, color=COLOURS["orange"], zorder=3
            )
    axes.scatter([], [], marker="|", color=COLOURS["muted"], label="without seeing anything")
    axes.scatter([], [], marker="o", color=COLOURS["orange"], label="the attack")
    axes.set_yticks(range(len(names)), names)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of the larger of the two")
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), 1.05)
    legend(axes, loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=2, borderaxespad=0.2)
    return picture(
        drawn,
        name="attacks",
        title="What attacks reached",
        description="; ".join(
            f"{attack.name}: {attack.metric} {measure(attack.value)}, baseline {measure(attack.baseline)}"
            for attack in attacks
        )
        + ".",
        columns=("attack", "metric", "reached", "baseline", "from"),
        rows=[
            (
                attack.name,
                attack.metric,
                measure(attack.value),
                measure(attack.baseline),
                attack.paper or "–",
            )
            for attack in attacks
        ],
    )


def attack_plots(story: Story) -> list[Picture]:
    """The plots that attacks left."""
    found = [(attack, plot) for attack in story.attacks for plot in attack.plots]
    named = [
        (attack.name.partition(", noise")[0], plot) for attack, plot in found
    ]  # a plot has all noises in it
    return [
        plot_figure(f"attack-plot-{place}", name, plot)
        for place, (name, plot) in enumerate(named[:12])
    ]


def plot_figure(name: str, attack: str, plot: Plot) -> Picture:
    """One plot of an attack."""
    drawn, axes = figure()
    rows: list[tuple[str, ...]] = []
    for place, (line, (xs, ys)) in enumerate(plot.lines.items()):
        kept = thinned(len(xs), MOST_POINTS).tolist()
        alone = {"marker": "o"} if len(kept) == 1 else {}  # a line of one point would not be seen
        axes.plot(
            [xs[at] for at in kept],
            [ys[at] for at in kept],
            label=label(line),
            linewidth=1.6,
            **style(place),
            **alone,
        )
        rows += [(line, measure(xs[at]), measure(ys[at])) for at in thinned(len(xs), 12).tolist()]
    axes.set(xlabel=label(plot.x_label, 60), ylabel=label(plot.y_label, 40))
    if plot.logarithmic:
        axes.set(xscale="log", yscale="log")
    if plot.lines:
        legend(axes)
    title = f"{attack}: {plot.title}"
    description = f"{plot.y_label} against {plot.x_label}; lines: {', '.join(plot.lines)}."
    return picture(
        drawn,
        name=name,
        title=title,
        description=description,
        columns=("line", "x", "y"),
        rows=rows,
    )
