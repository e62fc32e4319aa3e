"""Registries hold something for exactly the kinds they name, and refuse the rest in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest

from sordino.protocol import (
    Everyone,
    FixedSize,
    Participation,
    Poisson,
    Registry,
    SordinoError,
    UnknownKind,
)


@dataclass(frozen=True, kw_only=True)
class Often(Poisson):
    """A participation that nobody registered."""


@pytest.fixture
def words() -> Iterator[Registry[str]]:
    found: Registry[str] = Registry("name", "participation", Participation)
    found.register(Everyone)("all of them")
    found.register(Poisson)("by coins")
    yield found
    Registry.all.remove(found)


def test_what_was_registered_is_found_by_value_and_by_type(words: Registry[str]) -> None:
    assert words.of(Poisson(rate=0.5)) == "by coins"
    assert words[Everyone] == "all of them"


def test_an_unregistered_kind_is_refused_by_name(words: Registry[str]) -> None:
    with pytest.raises(UnknownKind, match="no name is known for the participation FixedSize"):
        words.of(FixedSize(size=3))
    assert words.missing == (FixedSize,)


def test_a_subclass_inherits_nothing(words: Registry[str]) -> None:
    with pytest.raises(UnknownKind) as refused:
        words.of(Often(rate=0.5))
    message = str(refused.value)
    assert "participation Often" in message
    assert "known are Everyone, Poisson" in message
    assert "What holds for Poisson need not hold for Often" in message
    assert isinstance(refused.value, SordinoError)
    assert refused.value.exit_code == 2


def test_a_kind_is_registered_once_and_only_where_it_belongs(words: Registry[str]) -> None:
    with pytest.raises(TypeError, match="already"):
        words.register(Poisson)("twice")
    with pytest.raises(TypeError, match="Often is no participation"):
        words.register(Often)("more often")
    assert words.missing == (FixedSize,)


def test_kinds_may_be_words() -> None:
    found: Registry[int] = Registry("number", "channel", Literal["direct", "shuffler"])
    found.register("direct")(1)
    assert found.of("direct") == 1
    assert found.missing == ("shuffler",)
    with pytest.raises(UnknownKind, match='no number is known for the channel "post"'):
        found.of("post")
    Registry.all.remove(found)


def test_what_holds_for_the_others_holds_for_kinds_alone(words: Registry[str]) -> None:
    words.register_others("in another way")
    assert words.of(FixedSize(size=2)) == "in another way"
    assert words.of(Everyone()) == "all of them"
    assert words.missing == ()
    with pytest.raises(UnknownKind, match="What holds for Poisson need not hold for Often"):
        words.of(Often(rate=0.5))
    with pytest.raises(UnknownKind, match="no name is known"):
        words.of(3)
