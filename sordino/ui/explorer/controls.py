"""The controls of the page Explore: a slider or a field for every number of a setting, a choice for every word."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import streamlit as st

from sordino.protocol.entries import Check, Choice, Flag, Integer, Number, checks_of
from sordino.ui.explorer.setting import Setting

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
ADVERSARY_NAMES = {
    "server": "the server, who sees every upload",
    "rounds": "who sees every round's model",
    "participant": "one curious participant",
    "coalition": "all clients but one, together",
    "final": "who sees the last model only",
}
UNIT_NAMES = {"record": "one record", "client": "all records of a client"}
NOISE_WORDS = {
    "sigma": "Noise: standard deviation on each coordinate, sigma",
    "multiplier": "Noise: multiplier on each step's sum of gradients",
    "scale": "Noise: mean magnitude on each coordinate",
    "step": "Noise: privacy loss of one stair; less is more noise",
}


@cache
def grid(check: Check, value: float) -> list[float]:
    """The stops of a slider: ten to a decade, the ends, and the value that it stands at.

    Example:
        >>> grid(Integer(1, 50), 7)[:9]
        [1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    low, high, whole = limits(check)
    smallest = max(low, high * 1e-12)
    decades = range(math.floor(math.log10(smallest)), math.ceil(math.log10(high)) + 1)
    stops = {float(f"{nice * 10.0**decade:.3g}") for decade in decades for nice in NICE}
    inside = {stop for stop in stops if low <= stop <= high} | {low, high, value}
    return (
        sorted({int(stop) for stop in inside if float(stop).is_integer()})
        if whole
        else sorted(float(stop) for stop in inside)
    )


def limits(check: Check) -> tuple[float, float, bool]:
    """Smallest and largest value, and whether it is a whole number."""
    if isinstance(check, Integer):
        return check.at_least, check.at_most, True
    if not isinstance(check, Number) or check.at_most is None:
        raise TypeError("a control of a number needs limits")
    return (
        check.at_least if check.at_least is not None else check.at_most / 1000,
        check.at_most,
        False,
    )


def drawn(
    setting: Setting, name: str, generation: int, *, typed: bool, label: str | None = None
) -> Any:
    """Draw the control of one entry and return what it says. A new generation makes it forget what it said."""
    check, value, words = CHECKS[name], getattr(setting, name), label or WORDS[name]
    key = f"{name}.{generation}.{'typed' if typed else 'slid'}"
    if isinstance(check, Choice):
        names = {"adversary": ADVERSARY_NAMES, "unit": UNIT_NAMES}.get(name, NAMES)
        return st.selectbox(
            words,
            check.options,
            index=check.options.index(value),
            format_func=lambda word: names.get(word, word),
            key=key,
        )
    if isinstance(check, Flag):
        return st.checkbox(words, value=value, key=key)
    low, high, whole = limits(check)
    if typed or name == "target":
        step = 1 if whole else None
        shown = None if whole else "%g"
        return st.number_input(
            words, min_value=low, max_value=high, value=value, step=step, format=shown, key=key
        )
    return st.select_slider(
        words, options=grid(check, value_at(key, value)), value=value, format_func=short, key=key
    )


def value_at(key: str, value: float) -> float:
    """The value that a slider was made at, so that its stops stay where they are while it moves."""
    return (
        float(st.session_state.setdefault(f"made.{key}", value))
        if not isinstance(value, int)
        else st.session_state.setdefault(f"made.{key}", value)
    )


def short(value: float) -> str:
    """A stop of a slider in few letters.

    Example:
        >>> short(100_000), short(0.16), short(1e-06)
        ('100,000', '0.16', '1e-06')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def all_drawn(setting: Setting, generation: int) -> dict[str, Any]:
    """Draw every control that matters for this setting, and return what they say."""
    said: dict[str, Any] = {}
    typed = st.toggle("Type numbers instead of sliding", key="typed")

    def put(*names: str, **labels: str | None) -> None:
        for name in names:
            said[name] = drawn(setting, name, generation, typed=typed, label=labels.get(name))

    st.header("Federation", anchor=False)
    put("clients", "rounds", "participation")
    put(*{"poisson": ("share",), "fixed": ("size",)}.get(said["participation"], ()))
    st.header("Noise", anchor=False)
    if setting.rule != "noisy-sgd":  # whose noise is Gaussian, in the clients' steps
        put("mechanism")
        put("width" if said["mechanism"] == "staircase" else "where")
    put(
        "noise",
        noise=NOISE_WORDS[
            replace(setting, mechanism=said.get("mechanism", setting.mechanism)).noise_name
        ],
    )
    st.header("Local work", anchor=False)
    put("rule", "steps", "batch", "records", "clip", "schedule", "rate")
    if said["rule"] == "fedprox":
        put("proximal")
    with st.expander("Dimension, assumptions, delta"):
        put("dimension", "smoothness", "delta")
    return said
