"""Draws the page Runs: trainings side by side, while they are under way. It changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import streamlit as st

from sordino.explorer import charts, watched_folder, watching
from sordino.explorer.background import worker
from sordino.explorer.page_style import build_table, escape_html, escape_markdown, format_number
from sordino.explorer.results import format_epsilon
from sordino.explorer.watching import MOST_RUNS, RunStatus, SpentPrivacy
from sordino.report.number_formats import format_percent

# Seconds between two looks.
EVERY = 1.0
# The largest number of runs in the list.
LISTED = 50


def draw_page() -> None:
    """Draws the page."""
    st.title("Runs", anchor=False)
    # A folder of thousands of runs must not be read at every look.
    names = watching.list_runs(watched_folder.watcher.root)[:LISTED]
    if not names:
        root = watched_folder.watcher.root.resolve()
        st.info(escape_markdown(f"There are no runs in {root}. Start one in a terminal:"))
        st.code("sordino train", language=None)
        return
    state = st.session_state
    # A control loses its value while another page is shown, so the value is kept separately. It is
    # set only if necessary, since the visitor may have changed it meanwhile.
    known = state.get("watched", state.get("kept", names[:1]))
    if "watched" not in state or not set(known) <= set(names):
        state.watched = [name for name in known if name in names]
    chosen = st.multiselect(
        f"Runs to watch and compare, {MOST_RUNS} at most",
        sorted(names),
        key="watched",
        max_selections=MOST_RUNS,
    )
    state.kept = chosen
    show_live(tuple(chosen))
    # The list is closed once a run is chosen, or it would push the curves off the page.
    with st.expander(f"List of runs: {len(names)}", expanded=len(chosen) == 0):
        st.html(build_runs_table([watched_folder.watcher.look(name) for name in names], {}))


@st.fragment(run_every=EVERY)
def show_live(chosen: tuple[str, ...]) -> None:
    """Shows what changes during a run.

    Args:
        chosen: The names of the runs that are watched.
    """
    seen = [watched_folder.watcher.look(name) for name in chosen]
    if not seen:
        st.caption("Choose a run to watch.")
        return
    paid = {run.name: find_spent(run) for run in seen}
    show_first_run(seen, paid)
    st.html(build_runs_table(seen, paid))
    # The headline names the fault of the first run.
    for run in seen[1:]:
        if run.problem:
            st.warning(escape_markdown(f"{run.name} {run.problem}."))
    for run in seen:
        if run.left_out:
            st.caption(escape_markdown(f"{run.name}: {run.left_out}"))
    for note in list_notes(seen, paid):
        st.caption(escape_markdown(note))
    show_reports(seen)
    for column, metric in zip(st.columns(2, gap="large"), watching.WATCHED, strict=True):
        chart = watching.compare_runs(seen, metric)
        if chart is not None:
            with column:
                title = watching.title_scores(seen, metric)
                charts.show_chart(chart, title=title, key=metric, up=metric)
    show_plan(seen)


def find_spent(run: RunStatus) -> SpentPrivacy | None:
    """Returns what a run has spent; None while that is not known.

    Args:
        run: A run that is watched.
    """
    # A damaged ledger has no price.
    if run.problem:
        return None
    folder = watched_folder.watcher.root / run.name
    state = st.session_state
    asked = state.setdefault("asked", {})
    prices = state.setdefault("prices", {})
    if run.name not in asked:
        # Size and status make a new question of a ledger that has grown, or a run that has ended.
        size = find_file_size(folder / "ledger.jsonl")
        asked[run.name] = worker.request(watching.price_folder, folder, size, run.status)
    # The next price is requested once the last one is there: rounds may be faster than prices.
    if asked[run.name].done():
        prices[run.name] = asked.pop(run.name).result()
    known: SpentPrivacy | None = prices.get(run.name)
    return known


def find_file_size(path: Path) -> int:
    """Returns the bytes of a file; 0 if it does not exist.

    Args:
        path: The file.
    """
    try:
        return path.stat().st_size
    except OSError:
        return 0


def show_first_run(seen: Sequence[RunStatus], paid: dict[str, SpentPrivacy | None]) -> None:
    """Shows the first run in one line.

    Args:
        seen: The runs that are watched.
        paid: What each run has spent, by name; None while that is not known.
    """
    run = seen[0]
    if run.problem or run.protocol is None:
        line = f"{escape_html(run.name)} {escape_html(run.problem)}."
        st.html(f'<p class="answer" role="status">{line}</p>')
        return
    line = f"{escape_html(run.name)}: round {len(run.rounds):,} of {run.protocol.rounds:,}"
    score = run.last("accuracy")
    if not math.isnan(score):
        line += f", accuracy {format_percent(score)}"
    known = paid[run.name]
    if known is not None and not known.problem:
        line += f', <span class="epsilon">ε = {format_epsilon(known.epsilon)}</span> spent'
    if known is not None and known.condition:
        line += f" ({escape_html(known.condition)})"
    st.html(
        f'<p class="answer" role="status">{line}.</p>'
        f'<p class="under">{escape_html(run.what)}; {escape_html(run.state)}.</p>'
    )


def list_notes(seen: Sequence[RunStatus], paid: dict[str, SpentPrivacy | None]) -> list[str]:
    """Lists the notes that must be read with the epsilons, each with the runs that it is about.

    Args:
        seen: The runs that are watched.
        paid: What each run has spent, by name; None while that is not known.
    """
    about: dict[str, list[str]] = {}
    for run in seen:
        known = paid[run.name]
        if known is None:
            continue
        for note in known.notes:
            about.setdefault(note, []).append(run.name)
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def build_runs_table(seen: Sequence[RunStatus], paid: dict[str, SpentPrivacy | None]) -> str:
    """Builds the table of runs, with a row per run.

    Args:
        seen: The runs.
        paid: What each run has spent, by name; empty for a table without prices.
    """
    head = ["run", "state", "round", "accuracy", "loss"]
    label = "All runs"
    if paid:
        head.append("ε spent")
        label = "Watched runs"
    rows = []
    for run in seen:
        planned = 0
        if run.protocol is not None:
            planned = run.protocol.rounds
        accuracy = ""
        if not math.isnan(run.last("accuracy")):
            accuracy = format_percent(run.last("accuracy"))
        row = [
            escape_html(run.name),
            escape_html(run.state),
            f"{len(run.rounds):,} / {planned:,}",
            accuracy,
            format_number(run.last("loss")),
        ]
        if paid:
            row.append(escape_html(describe_spent(paid.get(run.name))))
        rows.append(row)
    return build_table(head, rows, numbers=range(2, len(head)), label=label)


def describe_spent(known: SpentPrivacy | None) -> str:
    """Says what a run has spent, for its row of the table.

    Args:
        known: What the run has spent; None while that is not known.
    """
    if known is None:
        return ""
    if known.problem:
        return known.problem
    if known.condition:
        return f"{format_epsilon(known.epsilon)} ({known.view}, as vouched)"
    return f"{format_epsilon(known.epsilon)} ({known.view})"


def show_reports(seen: Sequence[RunStatus]) -> None:
    """Shows links to the reports that exist.

    Args:
        seen: The runs that are watched.
    """
    with_report = [run for run in seen if run.report]
    for run in with_report:
        st.link_button(
            f"Open the report of {escape_markdown(run.name)}", f"/report/{quote(run.name)}"
        )
    if not with_report:
        st.caption("A run that has a report is linked here. sordino report RUN writes one.")


def show_plan(seen: Sequence[RunStatus]) -> None:
    """Shows the epsilon of the first run's plan, round by round, with its budget.

    Args:
        seen: The runs that are watched.
    """
    run = seen[0]
    if run.problem or run.protocol is None or run.sizes is None:
        return
    # The question is the same at every look, and the worker keeps its answer.
    future = worker.request(watching.trace_plan, run.protocol, run.sizes)
    now = None
    if run.under_way:
        now = len(run.rounds)
    if not future.done():
        st.caption("Privacy against rounds: being computed …")
    elif future.exception() is None:
        title = f"Privacy spent against rounds, {run.name}"
        charts.show_chart(
            future.result(),
            title=title,
            key="plan",
            up="epsilon",
            now=now,
        )
