"""Draws the controls of the page Explore: a slider or a field for a number, a choice for a word."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import streamlit as st

from sordino.explorer.setting import ADVERSARIES, Setting
from sordino.protocol.entries import checks_of
from sordino.protocol.value_checks import Check, Choice, Flag, Integer, Number
from sordino.protocol.views import UNIT_IN_WORDS

CHECKS = checks_of(Setting)
WORDS = {f.name: f.metadata["doc"] for f in fields(Setting)}
NICE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
NAMES = {
    "everyone": "everyone",
    "poisson": "each with a probability",
    "fixed": "a fixed number",
    "fedavg": "Noisy-FedAvg",
    "fedprox": "Noisy-FedProx",
    "noisy-sgd": "noisy SGD (PriFedSync)",
    "dp-sgd": "DP-SGD: one lot of all clients",
    "constant": "constant",
    "cyclic": "cyclic: falls within a round",
    "stage-wise": "stage-wise: falls from round to round",
    "continuous": "continuous: falls with every step",
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "staircase": "staircase",
    "client": "every client, to its upload",
    "server": "the server, to the mean",
    "record": "one record",
}
# The entries that each kind of participation adds.
PARTICIPATION_ENTRIES = {"everyone": (), "poisson": ("share",), "fixed": ("size",)}
NOISE_WORDS = {
    "sigma": "Noise: standard deviation on each coordinate, sigma",
    "multiplier": "Noise: multiplier on each step's sum of gradients",
    "scale": "Noise: mean magnitude on each coordinate",
    "step": "Noise: privacy loss of one stair; less is more noise",
}


@cache
def list_stops(check: Check, value: float) -> list[float]:
    """Lists the stops of a slider: ten in every decade, the ends, and the current value.

    Args:
        check: The check of the entry.
        value: The current value of the entry.

    Example:
        >>> list_stops(Integer(1, 50), 7)[:9]
        [1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    low, high, whole = find_limits(check)
    # A logarithmic slider cannot begin at zero.
    smallest = max(low, high * 1e-12)
    decades = range(math.floor(math.log10(smallest)), math.ceil(math.log10(high)) + 1)
    stops = {float(f"{nice * 10.0**decade:.3g}") for decade in decades for nice in NICE}
    inside = {stop for stop in stops if low <= stop <= high} | {low, high, value}
    # Fractions of clients or rounds are not stops.
    if whole:
        return sorted({int(stop) for stop in inside if float(stop).is_integer()})
    return sorted(float(stop) for stop in inside)


def find_limits(check: Check) -> tuple[float, float, bool]:
    """Returns the smallest and the largest value, and whether values are whole numbers.

    Args:
        check: The check of the entry.

    Raises:
        TypeError: The entry is not a number with limits.
    """
    if isinstance(check, Integer):
        return check.at_least, check.at_most, True
    if not isinstance(check, Number) or check.at_most is None:
        raise TypeError("a control of a number needs limits")
    # Without a lower limit, the slider begins three decades below the upper one.
    low = check.at_most / 1000
    if check.at_least is not None:
        low = check.at_least
    return low, check.at_most, False


def draw_control(
    setting: Setting,
    name: str,
    generation: int,
    *,
    typed: bool,
    label: str | None = None,
) -> Any:
    """Draws the control of one entry.

    Args:
        setting: The present position of the controls.
        name: The name of the entry.
        generation: Part of the key of the control; a new number resets the control.
        typed: Whether a number is typed, and not chosen by a slider.
        label: The label of the control; None for the description of the entry.

    Returns:
        The value of the control.
    """
    check = CHECKS[name]
    value = getattr(setting, name)
    words = label or WORDS[name]
    # A slider and a field of the same entry are two controls. Streamlit keeps the value of a key,
    # so controls get new keys when the search for noise has changed their values.
    kind = "typed" if typed else "slid"
    key = f"{name}.{generation}.{kind}"
    if isinstance(check, Choice):
        names = name_options(setting, name)
        return st.selectbox(
            words,
            check.options,
            index=check.options.index(value),
            format_func=lambda word: names.get(word, word),
            key=key,
        )
    if isinstance(check, Flag):
        return st.checkbox(words, value=value, key=key)
    low, high, whole = find_limits(check)
    # A target is typed in any case: people know the number.
    if typed or name == "target":
        step, form = (1, None) if whole else (None, "%g")
        return st.number_input(
            words,
            min_value=low,
            max_value=high,
            value=value,
            step=step,
            format=form,
            key=key,
        )
    return st.select_slider(
        words,
        # Stops that changed with the value would move the slider under the user's hand.
        options=list_stops(check, remember_value(key, value)),
        value=value,
        format_func=format_stop,
        key=key,
    )


def name_options(setting: Setting, name: str) -> dict[str, str]:
    """Returns the options of a choice in words.

    Args:
        setting: The present position of the controls.
        name: The name of the entry.
    """
    if name == "adversary":
        return {word: replace(setting, adversary=word).view.adversary for word in ADVERSARIES}
    if name == "unit":
        return UNIT_IN_WORDS
    return NAMES


def remember_value(key: str, value: float) -> float:
    """Returns the value that a slider was made with, so that its stops stay while it moves.

    Args:
        key: The key of the slider.
        value: The current value.
    """
    first = st.session_state.setdefault(f"made.{key}", value)
    if isinstance(value, int):
        return int(first)
    return float(first)


def format_stop(value: float) -> str:
    """Returns the label of a stop of a slider.

    Args:
        value: The stop.

    Example:
        >>> format_stop(100_000), format_stop(0.16), format_stop(1e-06)
        ('100,000', '0.16', '1e-06')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}"


def draw_controls(setting: Setting, generation: int) -> dict[str, Any]:
    """Draws every control that matters for a setting.

    Args:
        setting: The present position of the controls.
        generation: Part of the keys of the controls; a new number resets them.

    Returns:
        The values of the controls, by the names of the entries.
    """
    said: dict[str, Any] = {}
    # Sliders are quick, and fields exact.
    typed = st.toggle("Type numbers instead of sliding", key="typed")

    def put(*names: str, **labels: str | None) -> None:
        for name in names:
            said[name] = draw_control(
                setting, name, generation, typed=typed, label=labels.get(name)
            )

    st.header("Federation", anchor=False)
    put("clients", "rounds", "participation")
    put(*PARTICIPATION_ENTRIES[said["participation"]])
    st.header("Noise", anchor=False)
    mechanism = setting.mechanism
    # The noise of DP-SGD is Gaussian, and may be the server's. That of noisy SGD is in the clients'
    # steps.
    if setting.rule == "dp-sgd":
        put("where")
    else:
        put("mechanism")
        mechanism = said["mechanism"]
        if mechanism == "staircase":
            put("width")
        elif setting.rule != "noisy-sgd":
            put("where")
    put("noise", noise=NOISE_WORDS[replace(setting, mechanism=mechanism).noise_name])
    st.header("Local work", anchor=False)
    put("rule")
    if said["rule"] == "dp-sgd":
        # With another rule, another kind of noise may have been chosen before.
        said["mechanism"] = "gaussian"
    else:
        put("steps")
    put("batch", "records", "clip", "schedule", "rate")
    if said["rule"] == "fedprox":
        put("proximal")
    with st.expander("Dimension, assumptions, delta"):
        put("dimension", "smoothness", "delta")
    return said
