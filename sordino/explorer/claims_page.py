"""Draws the page Claims: statements of papers, verdicts, and counterexamples that run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from sordino.explorer import charts
from sordino.explorer.measuring import MEASURABLE, ClaimMeasurement, Look
from sordino.explorer.page_style import (
    MARKS,
    build_table,
    escape_html,
    escape_markdown,
    format_verdict,
)
from sordino.explorer.results import Chart, Line
from sordino.papers.catalogue import all_claims
from sordino.papers.claims import PublishedClaim, Verdict, check
from sordino.protocol import SordinoError

PAPERS = {
    "all papers": "",
    "convergent-dp": "convergent/",
    "udp-fl": "udp-fl/",
    "prifedsync": "prifedsync/",
}
# Seconds between two looks at a counterexample.
EVERY = 0.7
# The federation of a counterexample: large enough to refute a claim, and soon trained.
ROUNDS = 100
CLIENTS = 5
MOST_ROUNDS = 1000


def draw_page() -> None:
    """Draws the page."""
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
    # The first claim shown should be one that can be tried.
    measurable = [index for index, claim in enumerate(shown) if claim.name in MEASURABLE]
    first_measurable = measurable[0] if measurable else 0
    chosen = st.selectbox(
        "Claim",
        shown,
        index=first_measurable,
        format_func=lambda claim: f"{MARKS[claim.verdict]} {claim.name}",
    )
    left, right = st.columns([1, 1], gap="large")
    with left:
        show_claim(chosen)
    with right:
        show_counterexample(chosen)
    st.header(f"{len(shown)} claims", anchor=False)
    st.html(build_claims_table(shown, chosen))


def show_claim(claim: PublishedClaim) -> None:
    """Shows the statement of a claim, the verdict, the reason, and what holds instead.

    Args:
        claim: The claim that was chosen.
    """
    st.header(claim.name, anchor=False)
    rows = [
        ("where", claim.where),
        ("says", claim.statement),
        ("condition", claim.condition),
        ("why", claim.reason),
        ("instead", claim.sound_replacement),
    ]
    try:
        # An example may be refused at its default parameters; the claim is shown all the same.
        found = check(claim)
        rows.insert(2, ("example", found.explanation))
    except SordinoError as error:
        rows.insert(2, ("example", str(error)))
    # Claims quote formulas with < and >.
    cells = [[escape_html(word), escape_html(text)] for word, text in rows]
    st.html(build_table(["verdict", format_verdict(claim.verdict)], cells, label=claim.name))


def show_counterexample(claim: PublishedClaim) -> None:
    """Shows a button that measures a claim by training, and the results.

    Args:
        claim: The claim that was chosen.
    """
    st.header("Measure it", anchor=False)
    if claim.name not in MEASURABLE:
        st.caption(
            "This claim is a formula, checked by computing: there is nothing to train. "
            "These claims can be measured:"
        )
        st.caption(escape_markdown(", ".join(MEASURABLE)))
        return
    st.caption(
        "Trains the federation of the claim on two data sets that differ in one record, many "
        "times, and tells them apart as well as possible."
    )
    rounds = int(
        st.number_input(f"Rounds of each training, with {CLIENTS} clients", 1, MOST_ROUNDS, ROUNDS)
    )
    state = st.session_state
    # Each claim has a measurement, which continues while other claims are shown.
    key = f"measuring.{claim.name}"
    started: ClaimMeasurement | None = state.get(key)
    running = started is not None and not started.over
    first, second = st.columns(2)
    # The results of two processes for one claim would be mixed in one chart.
    if first.button("Run the counterexample", type="primary", disabled=running, width="stretch"):
        try:
            state[key] = ClaimMeasurement(claim.name, rounds=rounds, clients=CLIENTS)
            st.rerun()
        except SordinoError as error:
            st.warning(escape_markdown(str(error)))
    if second.button("Stop", disabled=not running, width="stretch") and started is not None:
        started.stop()
    if started is None:
        found = check(claim, rounds=rounds, clients=CLIENTS)
        st.caption(
            f"With these numbers, published: mu at most {found.published:.4g}. "
            f"Exact, by computing: {found.exact:.4g}."
        )
        return
    # With the parameters of the measurement: the field may have been changed meanwhile.
    found = check(claim, **started.parameters)
    if started.over:
        show_progress(found, started)
    else:
        show_measurement(found, started)


@st.fragment(run_every=EVERY)
def show_measurement(found: Verdict, measuring: ClaimMeasurement) -> None:
    """Shows a measurement while it runs, and draws the whole page again when it has ended.

    Args:
        found: The verdict on the claim.
        measuring: The measurement.
    """
    show_progress(found, measuring)
    # The whole page, since its buttons change too.
    if measuring.over:
        st.rerun()


def show_progress(found: Verdict, measuring: ClaimMeasurement) -> None:
    """Shows the results so far, in a sentence and a chart.

    Args:
        found: The verdict on the claim.
        measuring: The measurement.
    """
    looks = list(measuring.looks)
    st.html(f'<p class="answer" role="status">{describe_outcome(found, looks, measuring)}</p>')
    if looks:
        charts.show_chart(
            chart_bounds(found, looks),
            title="Measured lower bound on mu",
            key=f"mu.{found.claim.name}",
            up="mu",
        )


def describe_outcome(found: Verdict, looks: Sequence[Look], measuring: ClaimMeasurement) -> str:
    """Describes the state of a measurement.

    Args:
        found: The verdict on the claim.
        looks: The looks so far.
        measuring: The measurement.

    Returns:
        A sentence, as HTML.
    """
    if measuring.problem:
        return escape_html(f"The counterexample ended early: {measuring.problem}.")
    if not looks:
        return "Starting …"
    last = looks[-1]
    numbers = f"measured mu ≥ {last.mu_lower:.3g}, published mu ≤ {found.published:.3g}"
    if last.verdict:
        name = escape_html(found.claim.name)
        word = escape_html(last.verdict)
        return f'{name}: <span class="epsilon">{word}</span>; {escape_html(numbers)}.'
    done = f"{last.trainings:,} of {last.planned:,} trainings on each side"
    return f"{done}: {escape_html(numbers)}."


def chart_bounds(found: Verdict, looks: Sequence[Look]) -> Chart:
    """Returns a chart of the measured bound with the published line and the exact value.

    Args:
        found: The verdict on the claim.
        looks: The looks so far.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> found = check(find("convergent/theorem-3a"))
        >>> chart = chart_bounds(found, [Look(trainings=10, planned=20, mu_lower=0.5)])
        >>> [line.name for line in chart.lines]
        ['measured, at least', 'published, unsound', 'exact']
    """
    points = tuple(look.trainings for look in looks)
    lines = [Line(name="measured, at least", values=tuple(look.mu_lower for look in looks))]
    constants = {f"published, {found.verdict}": found.published, "exact": found.exact}
    for name, value in constants.items():
        # An infinite bound has no line, and must not stretch the axis.
        if not math.isfinite(value):
            value = math.nan
        lines.append(Line(name=name, values=(value,) * len(points)))
    return Chart(across="trainings on each side", points=points, lines=tuple(lines))


def build_claims_table(claims: Sequence[PublishedClaim], chosen: PublishedClaim) -> str:
    """Builds the table of claims, with a row per claim.

    Args:
        claims: The claims.
        chosen: The claim whose row is marked.
    """
    rows = [
        [escape_html(claim.name), format_verdict(claim.verdict), escape_html(claim.statement)]
        for claim in claims
    ]
    return build_table(
        ["claim", "verdict", "says"],
        rows,
        chosen=list(claims).index(chosen),
        label="Published claims",
    )
