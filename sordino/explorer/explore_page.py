"""Draws the page Explore: controls, and next to them what each adversary learns at most."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sordino.explorer import charts, controls, results
from sordino.explorer.background import Call, Requester, stop_if_unwanted, wait_for, worker
from sordino.explorer.page_style import build_table, escape_html, escape_markdown, format_verdict
from sordino.explorer.results import Chart, PublishedBound, ViewPrice, format_epsilon
from sordino.explorer.setting import Setting, read_query
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, format_delta, round_up
from sordino.protocol import SordinoError, View, all_views, dumps
from sordino.protocol.views import ANY_UNIT_IN_WORDS

# Seconds that a page waits for an answer before it shows what it has.
PATIENCE = 0.15


def draw_page() -> None:
    """Draws the page."""
    state = st.session_state
    # The address is read once; after that, it follows the controls.
    if "setting" not in state:
        state.setting, state.refused = read_query(st.query_params.to_dict())
        state.generation = 0
    st.title("What does a federation promise?", anchor=False)
    top = st.container()
    first, second = st.columns(2, gap="large")
    left, right = st.columns([2, 3], gap="large")
    # Controls are drawn first, so that they can be moved while prices are computed.
    with left:
        said = controls.draw_controls(state.setting, state.generation)
    for column, name in ((first, "adversary"), (second, "unit")):
        with column:
            said[name] = controls.draw_control(state.setting, name, state.generation, typed=False)
    try:
        setting = replace(state.setting, **said)
        # Values that do not go together are refused here.
        setting.protocol  # noqa: B018
    except SordinoError as error:
        top.error(escape_markdown(str(error)))
        return
    state.setting = setting
    # Written only if it differs: each change of the address draws the page again.
    if st.query_params.to_dict() != setting.query:
        st.query_params.from_dict(setting.query)
    show_refusals(top)
    try:
        with right:
            show_answers(setting, top)
    except SordinoError as error:
        # For example, nothing is proved about this rule with this noise.
        top.error(escape_markdown(str(error)))


def show_refusals(top: DeltaGenerator) -> None:
    """Says which parts of the address were not used.

    Args:
        top: The place for messages.
    """
    refused = st.session_state.get("refused", [])
    if refused:
        top.warning(escape_markdown("Not everything in the address was used. " + " ".join(refused)))


def show_answers(setting: Setting, top: DeltaGenerator) -> None:
    """Shows the headline, the table, the charts, the noise for a target, and the file.

    Args:
        setting: The position of the controls.
        top: The place for the headline.
    """
    views = all_views(setting.clients)
    # The view of the headline is the most urgent.
    ordered = sorted(views, key=lambda view: view != setting.view)
    calls: list[Call] = [(results.price_view, setting, view) for view in ordered]
    calls.append((results.trace_rounds, setting, setting.view))
    calls.append((trace_all_tradeoffs, setting))
    # Requests for positions that the controls have left are abandoned.
    requester = st.session_state.setdefault("requester", Requester())
    futures = worker.replace_requests(requester, calls)
    # Most prices are there at once, and waiting a moment avoids drawing the page twice.
    wait_for(futures[: len(ordered)], PATIENCE)
    # The page is drawn from the answers that are there now. Those that come while it is drawn count
    # as new, and are drawn next.
    there = [future.done() for future in futures]
    prices = {
        view: future.result()
        for view, future, done in zip(ordered, futures, there, strict=False)
        if done
    }
    printed = results.find_published(setting)
    show_headline(top, setting, prices.get(setting.view))
    st.header("Every adversary", anchor=False)
    st.html(build_views_table(setting, views, prices, printed))
    show_notes(setting, [prices[view] for view in views if view in prices])
    explain_published(printed)
    show_noise_search(setting)
    show_protocol(setting)
    st.header("Curves", anchor=False)
    draw_chart(
        futures[-2] if there[-2] else None,
        title=f"Epsilon against rounds, view {setting.view}",
        key="rounds",
        up=f"epsilon at delta = {format_delta(setting.delta)}",
        log_x=True,
    )
    draw_chart(
        futures[-1] if there[-1] else None,
        title="What any test can reach",
        key="tests",
        up="false negatives, at least",
    )
    if not all(there):
        draw_again_when_more_is_there(futures, sum(there))


def trace_all_tradeoffs(setting: Setting) -> Chart:
    """Traces the trade-off curves of all views.

    Args:
        setting: The position of the controls.
    """
    prices = []
    # Prices that the table shows are cached, so only missing ones take time.
    for view in all_views(setting.clients):
        stop_if_unwanted()
        prices.append(results.price_view(setting, view))
    return results.trace_tradeoffs(prices, setting.delta)


@st.fragment(run_every=0.4)
def draw_again_when_more_is_there(futures: Sequence[Future[Any]], drawn: int) -> None:
    """Draws the page again as soon as there are more answers.

    Args:
        futures: The answers to come.
        drawn: The number of answers on the page.
    """
    if sum(future.done() for future in futures) > drawn:
        st.rerun()


def state_limit_html(epsilon: float) -> str:
    """Returns how much is learned, as a part of a sentence in HTML.

    Args:
        epsilon: An upper bound.
    """
    if math.isinf(epsilon):
        return "anything: no finite ε holds"
    # A number would be read as a promise.
    if epsilon > MEANINGFUL:
        return f"without a meaningful limit (ε above {MEANINGFUL:g})"
    return f'at most <span class="epsilon">ε = {format_epsilon(epsilon)}</span>'


def show_headline(top: DeltaGenerator, setting: Setting, price: ViewPrice | None) -> None:
    """Shows the answer in one line.

    Args:
        top: The place for it.
        setting: The position of the controls.
        price: The price of the chosen view; None while it is being computed.
    """
    if price is None:
        known = results.find_quick_epsilon(setting, setting.view)
        # A valid bound is shown at once, even if a smaller one follows.
        claim = "…"
        if known is not None:
            claim = state_limit_html(known)
        more = "By plain composition. A smaller bound is being computed."
    else:
        claim = state_limit_html(price.epsilon)
        more = describe_bound(price.guarantee, setting.delta)
    sees = escape_html(setting.view.sees)
    about = escape_html(ANY_UNIT_IN_WORDS[setting.unit])
    with top:
        st.html(
            '<p class="answer" role="status" data-testid="answer">'
            f"An adversary who sees {sees} learns {claim} about {about}.</p>"
            f'<p class="under">{escape_html(more)}</p>'
        )


def describe_bound(guarantee: Guarantee, delta: float) -> str:
    """Says at which delta a bound is shown, and by which method and assumptions it holds.

    Args:
        guarantee: The bound.
        delta: Where epsilon is shown.
    """
    text = f"At delta = {format_delta(delta)}"
    if guarantee.mu is not None and guarantee.rho is not None:
        text += f", mu = {round_up(guarantee.mu)}, rho = {round_up(guarantee.rho)}"
        text += guarantee.closeness
    text += f"; {guarantee.adjacency}; by {guarantee.method}."
    if guarantee.assumptions:
        text += f" Holds if, as you vouch, {' and '.join(guarantee.assumptions)}."
    return text


def build_views_table(
    setting: Setting,
    views: Sequence[View],
    prices: dict[View, ViewPrice],
    printed: Sequence[PublishedBound],
) -> str:
    """Builds the table of adversaries: epsilons certified, composed and printed.

    Args:
        setting: The position of the controls.
        views: The views, with a row each.
        prices: The prices that are there, by view.
        printed: The bounds that papers printed for the last model.
    """
    head = ["adversary", "ε certified"]
    # Columns that would be empty are left out: the table is next to the controls.
    gaussian = any(price.guarantee.mu is not None for price in prices.values())
    if gaussian:
        head += ["mu", "rho"]
    head.append("ε composed")
    if printed:
        head.append("ε printed")
    head.append("method")
    rows = []
    for view in views:
        cells = price_cells(setting, view, prices.get(view))
        # The papers' theorems are about the last model.
        cells["ε printed"] = "–"
        if view == View.FINAL:
            cells["ε printed"] = "<br>".join(format_published(one) for one in printed)
        rows.append([cells[name] for name in head])
    chosen = None
    if setting.view in views:
        chosen = list(views).index(setting.view)
    return build_table(
        head,
        rows,
        numbers=range(1, len(head) - 1),
        chosen=chosen,
        label="Every adversary",
        caption=f"Upper bounds at delta = {format_delta(setting.delta)}",
    )


def price_cells(setting: Setting, view: View, price: ViewPrice | None) -> dict[str, str]:
    """Returns the cells of a view in the table of adversaries, by column, as HTML.

    Args:
        setting: The position of the controls.
        view: The adversary.
        price: The price of the view; None while it is being computed.
    """
    cells = {"adversary": name_view(view)}
    if price is None:
        known = results.find_quick_epsilon(setting, view)
        cells |= dict.fromkeys(("ε certified", "mu", "rho", "ε composed"), "…")
        cells["method"] = "being computed"
        if known is not None:
            cells["ε composed"] = format_epsilon(known)
        return cells
    method = price.guarantee.method
    if price.guarantee.assumptions:
        method += " (vouched)"
    return cells | {
        "ε certified": f"<strong>{format_epsilon(price.epsilon)}</strong>",
        "mu": format_parameter(price.guarantee.mu),
        "rho": format_parameter(price.guarantee.rho),
        "ε composed": format_epsilon(price.plain),
        "method": escape_html(method),
    }


def format_parameter(value: float | None) -> str:
    """Returns mu or rho rounded up; a dash where the curve is not Gaussian.

    Args:
        value: The parameter of the curve; None where it has none.
    """
    if value is None:
        return "–"
    return round_up(value)


def name_view(view: View) -> str:
    """Returns the name of a view and what it sees, as HTML.

    Args:
        view: The adversary.
    """
    sees = escape_html(view.sees)
    return f'<strong>{escape_html(str(view))}</strong><br><span class="small">{sees}</span>'


def format_published(one: PublishedBound) -> str:
    """Returns a printed epsilon as HTML; struck through, with the reason, where it does not hold.

    Args:
        one: The bound that a paper printed.
    """
    epsilon = format_epsilon(one.epsilon)
    # An unsound number must never be read as a bound.
    if one.false:
        why = escape_html(f"{one.claim} is unsound. {one.reason}")
        return f'<del class="false" title="{why}" tabindex="0">{epsilon}</del>'
    words = escape_html(f"{one.claim}, {one.verdict}")
    return f'<span title="{words}">{epsilon}</span>'


def show_notes(setting: Setting, prices: Sequence[ViewPrice]) -> None:
    """Shows the notes that must be read with the numbers.

    Args:
        setting: The position of the controls.
        prices: The prices that are there.
    """
    from sordino.report.price_tables import notes

    if prices:
        for note in notes(setting.protocol, [price.guarantee for price in prices], setting.delta):
            st.caption(escape_markdown(note))


def explain_published(printed: Sequence[PublishedBound]) -> None:
    """Says why a printed bound is struck through, or under which condition it holds.

    Args:
        printed: The bounds that papers printed.
    """
    for one in printed:
        with st.expander(f"What {one.claim} printed: mu = {round_up(one.mu)}, {one.verdict}"):
            st.html(
                f"<p>{format_verdict(one.verdict)}. {escape_html(one.reason)}</p>"
                f"<p>Instead: {escape_html(one.instead)}.</p>"
            )


def show_noise_search(setting: Setting) -> None:
    """Shows a field and a button that finds the smallest noise for an epsilon.

    Args:
        setting: The position of the controls.
    """
    state = st.session_state
    st.header("Find the noise for an epsilon", anchor=False)
    first, second = st.columns([2, 1], vertical_alignment="bottom")
    with first:
        target = controls.draw_control(
            setting, "target", state.generation, typed=True, label=f"Epsilon, view {setting.view}"
        )
    # The setting holds the target, so that it is in the address.
    state.setting = wanted = replace(setting, target=target)
    if second.button("Find the noise", type="primary", width="stretch"):
        place = st.empty()
        began = time.monotonic()
        future = worker.request(results.meet_target, wanted)
        # A search may take seconds, and must show that it is running.
        while not wait_for([future], 0.2):
            seconds = time.monotonic() - began
            place.caption(
                f"Searching for the noise, {seconds:.0f} s. Some bounds take seconds to compute."
            )
        accept_noise(future, place)
    elif "found" in state and state.found[0] == wanted:
        # The message stays until a control is moved, however often the page is drawn again.
        st.success(escape_markdown(state.found[1]))


def accept_noise(future: Future[Any], place: DeltaGenerator) -> None:
    """Sets the noise that was found, or says why there is none.

    Args:
        future: The answer of the search.
        place: The place for messages.
    """
    state = st.session_state
    try:
        found, reached = future.result()
    except SordinoError as error:
        place.error(escape_markdown(str(error)))
        return
    state.setting = found
    state.generation += 1
    message = (
        f"noise.{found.noise_name} = {found.noise!r} reaches epsilon = {format_epsilon(reached)}, "
        f"never above {found.target:g}."
    )
    state.found = (found, message)
    st.rerun()


def show_protocol(setting: Setting) -> None:
    """Shows the protocol file, to copy or to download.

    Args:
        setting: The position of the controls.
    """
    with st.expander("The protocol file, and an address to share"):
        said = {}
        first, second = st.columns(2)
        generation = st.session_state.generation
        with first:
            said["data"] = controls.draw_control(setting, "data", generation, typed=False)
        with second:
            said["model"] = controls.draw_control(setting, "model", generation, typed=False)
        said["budget"] = controls.draw_control(setting, "budget", generation, typed=False)
        st.session_state.setting = chosen = replace(st.session_state.setting, **said)
        text = dumps(chosen.protocol)
        st.code(text, language=None)
        if chosen.protocol.model is not None and chosen.protocol.model.parameters is not None:
            st.caption(
                "The price of this noise depends on the dimension: "
                "training refuses a file whose model has another one."
            )
        st.caption("Address of this setting: copy it from the browser.")
    st.download_button(
        "Download federation.toml",
        text,
        file_name="federation.toml",
        mime="application/toml",
        on_click="ignore",
    )
    st.caption("Then: sordino check federation.toml, sordino train federation.toml")


def draw_chart(future: Future[Any] | None, *, title: str, **options: Any) -> None:
    """Draws a chart and its table, or says that it is being computed.

    Args:
        future: The chart; None while it is being computed.
        title: The title of the chart.
        **options: Options of `show_chart`.
    """
    if future is None:
        st.caption(f"{title}: being computed …")
    elif future.exception() is None:
        charts.show_chart(future.result(), title=title, **options)
