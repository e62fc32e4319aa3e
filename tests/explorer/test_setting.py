"""What the controls say: as a protocol, as an address, and what of an address is refused."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.cli.protocol_sources import protocol_from
from sordino.data.named_sets import KNOWN
from sordino.explorer.setting import DATA, MODELS, Setting, read_query
from sordino.mechanisms import mechanism_of
from sordino.models.named_models import KNOWN as KNOWN_MODELS
from sordino.privacy.certify import certify
from sordino.protocol import Gaussian, Laplace, UserError, View, dumps, loads
from sordino.protocol.entries import checks_of
from sordino.protocol.value_checks import Flag, Integer, Number


def values(check: Any) -> st.SearchStrategy[Any]:
    """Anything that a control allows."""
    if isinstance(check, Integer):
        return st.integers(check.at_least, check.at_most)
    if isinstance(check, Number):
        low = check.at_least if check.at_least is not None else 1e-9
        return st.floats(low, check.at_most, allow_nan=False, allow_subnormal=False)
    return st.booleans() if isinstance(check, Flag) else st.sampled_from(check.options)


ANY = st.fixed_dictionaries(
    {}, optional={name: values(check) for name, check in checks_of(Setting).items()}
)


def made(given: dict[str, Any]) -> Setting | None:
    try:
        return Setting(**given)
    except UserError:
        return None


def test_at_first_it_is_the_built_in_example() -> None:
    example, ours = protocol_from(None, None), Setting().protocol
    for view in ("server", "rounds", "coalition:1", "final"):
        assert certify(ours, view).epsilon(1e-5) == certify(example, view).epsilon(1e-5)
    assert ours.data == example.data
    assert ours.model == example.model


@settings(max_examples=100)
@given(ANY)
def test_an_address_brings_back_the_setting(given: dict[str, Any]) -> None:
    setting = made(given)
    if setting is not None:
        assert read_query(setting.query) == (setting, [])


@settings(max_examples=100)
@given(ANY)
def test_a_file_of_any_setting_is_read_back_or_the_setting_is_refused_in_words(
    given: dict[str, Any],
) -> None:
    setting = made(given)
    if setting is None:
        return
    try:
        protocol = setting.protocol
    except UserError:  # values that do not go together
        return
    assert loads(dumps(protocol)) == protocol
    mechanism = mechanism_of(protocol.noise)
    assert (mechanism.size_entry, mechanism.parameter) == (setting.noise_name, setting.noise)


HOSTILE = st.text(max_size=60) | st.sampled_from(
    [
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "1_000",
        "٣",
        "0x10",
        "1e5",
        " 7 ",
        "<script>alert(1)</script>",
        "![x](http://evil.example/x)",
        "\0",
        "9" * 400,
    ]
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from([f.name for f in fields(Setting)]) | st.text(max_size=8),
        HOSTILE,
        max_size=6,
    )
)
def test_no_address_breaks_anything_or_is_repeated(query: dict[str, str]) -> None:
    setting, refused = read_query(query)
    assert isinstance(setting, Setting)
    for line in refused:
        assert "<script>" not in line
        assert "evil" not in line
    for name, text in query.items():
        told = any(line.startswith(f"{name}:") for line in refused) or any(
            "2,000,000" in line for line in refused
        )
        if name in checks_of(Setting) and not told:
            assert same(getattr(setting, name), text)


def same(value: Any, text: str) -> bool:
    """Whether a text spells a value."""
    return (
        float(text) == value
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else str(value).lower() == text
    )


def test_too_many_steps_are_refused_and_the_rest_is_as_at_first() -> None:
    setting, refused = read_query({"rounds": "100000", "steps": "200"})
    assert setting == Setting()
    assert "2,000,000" in refused[0]


@pytest.mark.parametrize(
    ("given", "view"),
    [
        ({}, View.SERVER),
        ({"adversary": "participant"}, View.coalition(1)),
        ({"adversary": "coalition", "clients": 7}, View.coalition(6)),
        ({"adversary": "coalition", "clients": 1}, View.SERVER),
        ({"adversary": "final", "clients": 1}, View.FINAL),
    ],
)
def test_adversaries_are_views(given: dict[str, Any], view: View) -> None:
    assert Setting(**given).view == view


def test_names_of_data_and_models_are_known() -> None:
    assert set(DATA) <= set(KNOWN)
    assert set(MODELS) <= set(KNOWN_MODELS)


def test_the_dimension_is_written_only_where_it_is_priced() -> None:
    assert Setting(dimension=7).protocol.model.parameters is None
    assert Setting(dimension=7, mechanism="laplace").protocol.model.parameters == 7
    for rule in ("noisy-sgd", "fedprox"):
        setting = Setting(dimension=7, mechanism="laplace", rule=rule)
        assert setting.protocol.model.parameters == 7


def test_an_address_gets_the_noise_that_it_asks_for_in_steps_too() -> None:
    asked = {"rule": "noisy-sgd", "mechanism": "laplace", "noise": "3", "where": "server"}
    setting, refused = read_query(asked)
    assert not refused
    assert setting.protocol.noise == Laplace(scale=3.0)
    assert setting.noise_name == "scale"
    assert Setting(rule="noisy-sgd", noise=3.0).protocol.noise == Gaussian(multiplier=3.0)
    # No price is known of other noise in DP-SGD, so no other one is shown in its place.
    setting, refused = read_query({**asked, "rule": "dp-sgd"})
    assert setting == Setting()
    assert refused == ["mechanism: expected gaussian: DP-SGD has a price for no other noise."]


def test_a_budget_is_written_for_the_adversary_that_is_asked_about() -> None:
    budget = Setting(
        budget=True, target=3.0, adversary="rounds", unit="client"
    ).protocol.privacy.budget
    assert (budget.epsilon, budget.view, budget.unit) == (3.0, "rounds", "client")
