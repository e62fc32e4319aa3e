"""The page Runs: trainings as they go, side by side. It only reads; a training never waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import streamlit as st

from sordino.report.formats import percent
from sordino.ui.explorer import charts, place, watching
from sordino.ui.explorer.answers import in_words
from sordino.ui.explorer.background import desk
from sordino.ui.explorer.look import escaped, number, plain_markdown, table
from sordino.ui.explorer.watching import MOST_RUNS, Seen, Spent

EVERY = 1.0  # seconds between two looks
LISTED = 50  # runs in the list


def page() -> None:
    """Draw the page."""
    st.title("Runs", anchor=False)
    names = watching.found(place.watch.root)[:LISTED]
    if not names:
        st.info(
            plain_markdown(
                f"There are no runs in {place.watch.root.resolve()}. Start one in a terminal:"
            )
        )
        st.code("sordino train", language=None)
        return
    state = st.session_state
    # A control forgets while another page is shown: what it said is kept beside it. It is set only if it must: a reader may be faster.
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
    live(tuple(chosen))
    with st.expander(f"List of runs: {len(names)}", expanded=len(chosen) == 0):
        st.html(runs_table([place.watch.look(name) for name in names], {}))


@st.fragment(run_every=EVERY)
def live(chosen: tuple[str, ...]) -> None:
    """What changes while a run goes on."""
    seen = [place.watch.look(name) for name in chosen]
    if not seen:
        st.caption("Choose a run to watch.")
        return
    paid = {run.name: last_spent(run) for run in seen}
    answer(seen, paid)
    st.html(runs_table(seen, paid))
    for run in seen[1:]:  # what is wrong with the first is said above
        if run.problem:
            st.warning(plain_markdown(f"{run.name} {run.problem}."))
    for run in seen:
        if run.left_out:
            st.caption(plain_markdown(f"{run.name}: {run.left_out}"))
    for note in noted(seen, paid):
        st.caption(plain_markdown(note))
    reports(seen)
    for column, metric in zip(st.columns(2, gap="large"), watching.WATCHED, strict=True):
        chart = watching.compared(seen, metric)
        if chart is not None:
            with column:
                title = watching.scored_title(seen, metric)
                charts.draw(chart, title=title, key=metric, up=metric)
    budgets(seen)


def last_spent(run: Seen) -> Spent | None:
    """What a run has spent as far as it is known. The next price is asked for once the last one is there: a run may be faster."""
    if run.problem:
        return None
    folder, state = place.watch.root / run.name, st.session_state
    asked, prices = state.setdefault("asked", {}), state.setdefault("prices", {})
    if run.name not in asked:
        asked[run.name] = desk.ask(watching.spent, folder, size_of(folder / "ledger.jsonl"))
    if asked[run.name].done():
        prices[run.name] = asked.pop(run.name).result()
    known: Spent | None = prices.get(run.name)
    return known


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def answer(seen: Sequence[Seen], paid: dict[str, Spent | None]) -> None:
    """The first run in one line."""
    run = seen[0]
    if run.problem or run.protocol is None:
        st.html(f'<p class="answer" role="status">{escaped(run.name)} {escaped(run.problem)}.</p>')
        return
    score = run.last("accuracy")
    scored = "" if math.isnan(score) else f", accuracy {percent(score)}"
    known = paid[run.name]
    cost = (
        ""
        if known is None or known.problem
        else f', <span class="epsilon">ε = {in_words(known.epsilon)}</span> spent'
    )
    if known is not None and known.condition:
        cost += f" ({escaped(known.condition)})"
    done = len(run.rounds)
    st.html(
        f'<p class="answer" role="status">{escaped(run.name)}: round {done:,} of {run.protocol.rounds:,}{scored}{cost}.</p>'
        f'<p class="under">{escaped(run.what)}; {escaped(run.state)}.</p>'
    )


def noted(seen: Sequence[Seen], paid: dict[str, Spent | None]) -> list[str]:
    """Returns what must be read with the epsilons, each note once, with the runs that it is about."""
    about: dict[str, list[str]] = {}
    for run in seen:
        known = paid[run.name]
        for note in known.notes if known is not None else ():
            about.setdefault(note, []).append(run.name)
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def runs_table(seen: Sequence[Seen], paid: dict[str, Spent | None]) -> str:
    """One row per run."""
    rows = []
    for run in seen:
        known = paid.get(run.name)
        planned = run.protocol.rounds if run.protocol is not None else 0
        accuracy = run.last("accuracy")
        vouched = ", as vouched" if known is not None and known.condition else ""
        spent = (
            ""
            if known is None
            else (known.problem or f"{in_words(known.epsilon)} ({known.view}{vouched})")
        )
        figures = [
            f"{len(run.rounds):,} / {planned:,}",
            "" if math.isnan(accuracy) else percent(accuracy),
            number(run.last("loss")),
        ]
        rows.append(
            [escaped(run.name), escaped(run.state), *figures, *([escaped(spent)] if paid else [])]
        )
    head = ["run", "state", "round", "accuracy", "loss", *(["ε spent"] if paid else [])]
    return table(
        head, rows, numbers=range(2, len(head)), label="Watched runs" if paid else "All runs"
    )


def reports(seen: Sequence[Seen]) -> None:
    """Links to the reports that there are."""
    with_report = [run for run in seen if run.report]
    for run in with_report:
        st.link_button(
            f"Open the report of {plain_markdown(run.name)}", f"/report/{quote(run.name)}"
        )
    if not with_report:
        st.caption("A run that has a report is linked here. sordino report RUN writes one.")


def budgets(seen: Sequence[Seen]) -> None:
    """What the plan of the first run costs, round by round, beside its budget."""
    run = seen[0]
    if run.problem or run.protocol is None or run.sizes is None:
        return
    future = desk.ask(watching.plan, run.protocol, run.sizes)
    if not future.done():
        st.caption("Privacy against rounds: being worked out …")
    elif future.exception() is None:
        title = f"Privacy spent against rounds, {run.name}"
        charts.draw(
            future.result(),
            title=title,
            key="plan",
            up="epsilon",
            now=len(run.rounds) if run.under_way else None,
        )
