"""The page Claims: what the papers stated, the verdict on each, and counterexamples that run at a press."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from sordino.papers.catalogue import all_claims
from sordino.papers.claims import Claim, Verdict, check
from sordino.protocol import SordinoError
from sordino.ui.explorer import charts
from sordino.ui.explorer.answers import Chart, Line
from sordino.ui.explorer.look import MARKS, escaped, plain_markdown, table, verdict
from sordino.ui.explorer.measuring import MEASURABLE, Look, Measuring

PAPERS = {
    "all papers": "",
    "convergent-dp": "convergent/",
    "udp-fl": "udp-fl/",
    "prifedsync": "prifedsync/",
}
EVERY = 0.7  # seconds between two looks at a counterexample
ROUNDS, CLIENTS = 100, 5  # of a counterexample: enough to refute, and soon over
MOST_ROUNDS = 1000


def page() -> None:
    """Draw the page."""
    st.title("What the papers claimed, and what holds", anchor=False)
    claims = all_claims()
    false = sum(claim.verdict == "unsound" for claim in claims)
    st.html(
        f'<p class="answer">{false} of {len(claims)} published claims are false as printed.</p>'
    )
    first, second = st.columns(2)
    paper = first.selectbox("Paper", PAPERS)
    word = second.selectbox("Verdict", ("any", *MARKS))
    shown = [
        claim
        for claim in claims
        if claim.name.startswith(PAPERS[paper]) and word in ("any", claim.verdict)
    ]
    if not shown:
        st.info("No claim of this paper has this verdict.")
        return
    first_measurable = next(
        (index for index, claim in enumerate(shown) if claim.name in MEASURABLE), 0
    )
    chosen = st.selectbox(
        "Claim",
        shown,
        index=first_measurable,
        format_func=lambda claim: f"{MARKS[claim.verdict]} {claim.name}",
    )
    left, right = st.columns([1, 1], gap="large")
    with left:
        one_claim(chosen)
    with right:
        counterexample(chosen)
    st.header(f"{len(shown)} claims", anchor=False)
    st.html(claims_table(shown, chosen))


def one_claim(claim: Claim) -> None:
    """What it says, the verdict, why, and what to use instead."""
    st.header(claim.name, anchor=False)
    rows = [
        ("where", claim.where),
        ("says", claim.statement),
        ("condition", claim.condition),
        ("why", claim.reason),
        ("instead", claim.sound_replacement),
    ]
    try:
        found = check(claim)
        rows.insert(2, ("example", found.explanation))
    except SordinoError as error:
        rows.insert(2, ("example", str(error)))
    cells = [[escaped(word), escaped(text)] for word, text in rows]
    st.html(table(["verdict", verdict(claim.verdict)], cells, label=claim.name))


def counterexample(claim: Claim) -> None:
    """A button that trains what the claim speaks about many times, and the picture of what comes out."""
    st.header("Measure it", anchor=False)
    if claim.name not in MEASURABLE:
        st.caption(
            "This claim is a formula, checked by computing: there is nothing to train. Measured can be:"
        )
        st.caption(plain_markdown(", ".join(MEASURABLE)))
        return
    st.caption(
        "Trains the federation that it speaks about, on two data sets that differ in one record, and tells them apart as well as it can."
    )
    rounds = int(
        st.number_input(f"Rounds of each training, with {CLIENTS} clients", 1, MOST_ROUNDS, ROUNDS)
    )
    found = check(claim, rounds=rounds, clients=CLIENTS)
    state, key = st.session_state, f"measuring.{claim.name}"
    started = state.get(key)
    first, second = st.columns(2)
    if first.button(
        "Run the counterexample",
        type="primary",
        disabled=started is not None and not started.over,
        width="stretch",
    ):
        try:
            state[key] = Measuring(claim.name, rounds=rounds, clients=CLIENTS)
            st.rerun()
        except SordinoError as error:
            st.warning(plain_markdown(str(error)))
    if (
        second.button("Stop", disabled=started is None or started.over, width="stretch")
        and started is not None
    ):
        started.stop()
    if started is not None:
        shown = check(claim, **started.parameters)
        (finished if started.over else live)(shown, started)
    else:
        st.caption(
            f"With these numbers, published: mu at most {found.published:.4g}. Exact, by computing: {found.exact:.4g}."
        )


@st.fragment(run_every=EVERY)
def live(found: Verdict, measuring: Measuring) -> None:
    """The picture while it goes on; when it is over the whole page is drawn anew."""
    finished(found, measuring)
    if measuring.over:
        st.rerun()


def finished(found: Verdict, measuring: Measuring) -> None:
    """What is known so far, in a line and a picture."""
    looks = list(measuring.looks)
    st.html(f'<p class="answer" role="status">{outcome(found, looks, measuring)}</p>')
    if looks:
        charts.draw(
            bound_chart(found, looks),
            title="Measured lower bound on mu",
            key=f"mu.{found.claim.name}",
            up="mu",
        )


def outcome(found: Verdict, looks: Sequence[Look], measuring: Measuring) -> str:
    """Where it stands, in a sentence."""
    if measuring.problem:
        return escaped(f"The counterexample ended early: {measuring.problem}.")
    if not looks:
        return "Starting …"
    last = looks[-1]
    numbers = f"measured mu ≥ {last.mu_lower:.3g}, published mu ≤ {found.published:.3g}"
    if last.verdict:
        return f'{escaped(found.claim.name)}: <span class="epsilon">{escaped(last.verdict)}</span>; {escaped(numbers)}.'
    return f"{last.trainings:,} of {last.planned:,} trainings on each side: {escaped(numbers)}."


def bound_chart(found: Verdict, looks: Sequence[Look]) -> Chart:
    """The measured bound beside the published line and the exact value.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> found = check(find("convergent/theorem-3a"))
        >>> chart = bound_chart(found, [Look(trainings=10, planned=20, mu_lower=0.5)])
        >>> [line.name for line in chart.lines]
        ['measured, at least', 'published, unsound', 'exact']
    """
    points = tuple(look.trainings for look in looks)
    flat = {f"published, {found.verdict}": found.published, "exact": found.exact}
    lines = [Line(name="measured, at least", values=tuple(look.mu_lower for look in looks))]
    lines += [
        Line(name=name, values=(value if math.isfinite(value) else math.nan,) * len(points))
        for name, value in flat.items()
    ]
    return Chart(across="trainings on each side", points=points, lines=tuple(lines))


def claims_table(claims: Sequence[Claim], chosen: Claim) -> str:
    """One row per claim."""
    rows = [
        [escaped(claim.name), verdict(claim.verdict), escaped(claim.statement)] for claim in claims
    ]
    return table(
        ["claim", "verdict", "says"],
        rows,
        chosen=list(claims).index(chosen),
        label="Published claims",
    )
