"""The page Explore: turn the controls, and see at once what each adversary learns at most."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sordino.privacy.guarantee import MEANINGFUL, UNIT_IN_WORDS, rounded_up
from sordino.protocol import SordinoError, View, all_views, dumps
from sordino.ui.explorer import answers, charts, controls
from sordino.ui.explorer.answers import Chart, Priced, Published, in_words
from sordino.ui.explorer.background import Asker, Call, desk, settled, stop_if_unwanted
from sordino.ui.explorer.look import escaped, plain_markdown, table, verdict
from sordino.ui.explorer.setting import Setting, from_query

PATIENCE = 0.15  # seconds that a page waits for an answer before it shows what it has


def page() -> None:
    """Draw the page."""
    state = st.session_state
    if "setting" not in state:
        state.setting, state.refused = from_query(st.query_params.to_dict())
        state.generation = 0
    st.title("What does a federation promise?", anchor=False)
    top, (first, second) = st.container(), st.columns(2, gap="large")
    left, right = st.columns([2, 3], gap="large")
    with left:
        said = controls.all_drawn(state.setting, state.generation)
    for column, name in ((first, "adversary"), (second, "unit")):
        with column:
            said[name] = controls.drawn(state.setting, name, state.generation, typed=False)
    try:
        setting = replace(state.setting, **said)
        setting.protocol  # noqa: B018 - values that do not go together are refused here
    except SordinoError as error:
        top.error(plain_markdown(str(error)))
        return
    state.setting = setting
    if st.query_params.to_dict() != setting.query:
        st.query_params.from_dict(setting.query)
    refusals(top)
    try:
        with right:
            show(setting, top)
    except SordinoError as error:  # nothing can be promised about it, or not with this noise
        top.error(plain_markdown(str(error)))


def refusals(top: DeltaGenerator) -> None:
    """What in the address was not taken."""
    refused = st.session_state.get("refused", [])
    if refused:
        top.warning(plain_markdown("Not all of the address was taken. " + " ".join(refused)))


def show(setting: Setting, top: DeltaGenerator) -> None:
    """Answer, table, charts, noise for a target, file."""
    views = all_views(setting.clients)
    ordered = sorted(
        views, key=lambda view: view != setting.view
    )  # the one that is asked about first
    calls: list[Call] = [(answers.priced, setting, view) for view in ordered]
    calls.append((answers.over_rounds, setting, setting.view))
    calls.append((drawn_tradeoffs, setting))
    # What was asked for at a position that the controls have left is given up.
    asker = st.session_state.setdefault("asker", Asker())
    futures = desk.ask_instead(asker, calls)
    settled(futures[: len(ordered)], PATIENCE)
    # The page is drawn from what is there now: what ends while it is drawn counts as new, and is drawn next.
    there = [future.done() for future in futures]
    prices = {
        view: future.result()
        for view, future, done in zip(ordered, futures, there, strict=False)
        if done
    }
    printed = answers.published(setting)
    headline(top, setting, prices.get(setting.view))
    st.header("Every adversary", anchor=False)
    st.html(views_table(setting, views, prices, printed))
    remarks(setting, [prices[view] for view in views if view in prices])
    published_words(printed)
    noise_finder(setting)
    protocol_file(setting)
    st.header("Curves", anchor=False)
    axes = {"up": f"epsilon at delta = {setting.delta:g}", "log_x": True}
    title = f"Epsilon against rounds, view {setting.view}"
    draw_chart(futures[-2] if there[-2] else None, title=title, key="rounds", **axes)
    axes = {"up": "false negatives, at least"}
    title = "What any test can reach"
    draw_chart(futures[-1] if there[-1] else None, title=title, key="tests", **axes)
    if not all(there):
        draw_again_when_more_is_there(futures, sum(there))


def drawn_tradeoffs(setting: Setting) -> Chart:
    """The trade-off curves of all views; prices that are known are not found again."""
    prices = []
    for view in all_views(setting.clients):
        stop_if_unwanted()
        prices.append(answers.priced(setting, view))
    return answers.tradeoffs(prices, setting.delta)


@st.fragment(run_every=0.4)
def draw_again_when_more_is_there(futures: Sequence[Future[Any]], drawn: int) -> None:
    """Looks every moment, and draws the page anew as soon as more answers are there than were drawn."""
    if sum(future.done() for future in futures) > drawn:
        st.rerun()


def epsilon_claim(epsilon: float) -> str:
    """Returns how much is learned, as a part of a sentence."""
    if math.isinf(epsilon):
        return "anything: no finite ε holds"
    if epsilon > MEANINGFUL:
        return f"without a meaningful limit (ε beyond {MEANINGFUL:g})"
    return f'at most <span class="epsilon">ε = {in_words(epsilon)}</span>'


def headline(top: DeltaGenerator, setting: Setting, price: Priced | None) -> None:
    """The answer in one line."""
    about, sees = UNIT_IN_WORDS[setting.unit], setting.view.sees
    if price is None:
        known = answers.quick(setting, setting.view)
        claim = "…" if known is None else epsilon_claim(known)
        more = "By plain composition. A smaller bound is being worked out."
    else:
        claim = epsilon_claim(price.epsilon)
        mu = f", mu = {rounded_up(price.guarantee.mu)}" if price.guarantee.mu is not None else ""
        vouched = (
            f" Holds if, as you vouch, {' and '.join(price.guarantee.assumptions)}."
            if price.guarantee.assumptions
            else ""
        )
        more = f"At delta = {setting.delta:g}{mu}; {price.guarantee.adjacency}; by {price.guarantee.method}.{vouched}"
    with top:
        st.html(
            f'<p class="answer" role="status" data-testid="answer">Who sees {escaped(sees)}, learns {claim} about {escaped(about)}.</p>'
            f'<p class="under">{escaped(more)}</p>'
        )


def views_table(
    setting: Setting,
    views: Sequence[View],
    prices: dict[View, Priced],
    printed: Sequence[Published],
) -> str:
    """One row per adversary: certified, by plain composition, and as printed."""
    rows = []
    for view in views:
        price = prices.get(view)
        claimed = "<br>".join(struck(one) for one in printed) if view == View.FINAL else ""
        if price is None:
            known = answers.quick(setting, view)
            rows.append(
                [
                    named(view),
                    "…",
                    "…",
                    "…" if known is None else in_words(known),
                    claimed or "–",
                    "being worked out",
                ]
            )
            continue
        mu = rounded_up(price.guarantee.mu) if price.guarantee.mu is not None else "–"
        method = price.guarantee.method + (" (vouched)" if price.guarantee.assumptions else "")
        figures = [
            f"<strong>{in_words(price.epsilon)}</strong>",
            mu,
            in_words(price.plain),
            claimed or "–",
        ]
        rows.append([named(view), *figures, escaped(method)])
    head = ["who sees", "ε certified", "mu", "ε composed", "ε printed", "method"]
    chosen = list(views).index(setting.view) if setting.view in views else None
    return table(
        head,
        rows,
        numbers=(1, 2, 3, 4),
        chosen=chosen,
        label="Every adversary",
        caption=f"At most, at delta = {setting.delta:g}",
    )


def named(view: View) -> str:
    """A view by its name and by what it sees."""
    return (
        f'<strong>{escaped(str(view))}</strong><br><span class="small">{escaped(view.sees)}</span>'
    )


def struck(one: Published) -> str:
    """A printed epsilon; struck through, with the reason, where it does not hold."""
    shown = f"{in_words(one.epsilon)}"
    if one.false:
        why = escaped(f"{one.claim} is unsound. {one.reason}")
        return f'<del class="false" title="{why}" tabindex="0">{shown}</del>'
    return f'<span title="{escaped(f"{one.claim}, {one.verdict}")}">{shown}</span>'


def remarks(setting: Setting, prices: Sequence[Priced]) -> None:
    """What must be read with the numbers."""
    from sordino.ui.prices import notes

    if prices:
        for note in notes(setting.protocol, [price.guarantee for price in prices], setting.delta):
            st.caption(plain_markdown(note))


def published_words(printed: Sequence[Published]) -> None:
    """Why a printed bound is struck through, or under which condition it holds."""
    for one in printed:
        with st.expander(f"What {one.claim} printed: mu = {rounded_up(one.mu)}, {one.verdict}"):
            st.html(
                f"<p>{verdict(one.verdict)}. {escaped(one.reason)}</p><p>Instead: {escaped(one.instead)}.</p>"
            )


def noise_finder(setting: Setting) -> None:
    """The smallest noise for an epsilon, found and set at a press."""
    state = st.session_state
    st.header("Find the noise for an epsilon", anchor=False)
    first, second = st.columns([2, 1], vertical_alignment="bottom")
    with first:
        target = controls.drawn(
            setting, "target", state.generation, typed=True, label=f"Epsilon, view {setting.view}"
        )
    state.setting = wanted = replace(setting, target=target)
    pressed = second.button("Find the noise", type="primary", width="stretch")
    if pressed:
        place, began = st.empty(), time.monotonic()
        future = desk.ask(answers.with_noise_for, wanted)
        while not settled([future], 0.2):
            place.caption(
                f"Searching for the noise, {time.monotonic() - began:.0f} s. Some bounds take seconds to ask."
            )
        accept_noise(future, place)
    elif "found" in state:
        st.success(plain_markdown(state.pop("found")))


def accept_noise(future: Future[Any], place: DeltaGenerator) -> None:
    """Set the noise that was found, or say why there is none."""
    state = st.session_state
    try:
        found, reached = future.result()
    except SordinoError as error:
        place.error(plain_markdown(str(error)))
        return
    state.setting, state.generation = found, state.generation + 1
    state.found = f"noise.{found.noise_name} = {found.noise!r} reaches epsilon = {in_words(reached)}, never above {found.target:g}."
    st.rerun()


def protocol_file(setting: Setting) -> None:
    """The file, to copy or to download, and the address of this setting."""
    with st.expander("The protocol file, and an address to share"):
        said = {}
        first, second = st.columns(2)
        generation = st.session_state.generation
        with first:
            said["data"] = controls.drawn(setting, "data", generation, typed=False)
        with second:
            said["model"] = controls.drawn(setting, "model", generation, typed=False)
        said["budget"] = controls.drawn(setting, "budget", generation, typed=False)
        st.session_state.setting = chosen = replace(st.session_state.setting, **said)
        text = dumps(chosen.protocol)
        st.code(text, language=None)
        if chosen.protocol.model is not None and chosen.protocol.model.parameters is not None:
            st.caption(
                "The price of this noise depends on the dimension: training refuses a file whose model has another one."
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
    """Draws a chart and its table, or keeps a place for them while there is none."""
    if future is None:
        st.caption(f"{title}: being worked out …")
    elif future.exception() is None:
        charts.draw(future.result(), title=title, **options)
