"""Prices a training that somebody else describes as an event of dp_accounting, in JSON.

An event is a table: `class_name` names a class of dp_accounting, the other keys are its fields, and
fields may be events again, as `DpEvent.to_named_tuple` lays them out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.protocol import UserError

# The names that dp_accounting has for our kinds of neighbouring data sets.
RELATIONS = {"add-or-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}


@dataclass(frozen=True, kw_only=True)
class EventPrice:
    """The price of an event for one kind of neighbouring data sets.

    Attributes:
        adjacency: How neighbouring data sets differ.
        epsilon: The smallest epsilon that an accountant proves; None where none prices the event.
        delta: The delta at which epsilon holds.
        accountant: The accountant that proves it, or the reason why none does.
    """

    adjacency: str
    epsilon: float | None
    delta: float
    accountant: str


def read_event(path: Path) -> Any:
    """Reads an event.

    Args:
        path: Path of the JSON file.

    Raises:
        UserError: The file cannot be read, or holds no event.

    Example:
        >>> read_event(Path("event.json"))  # doctest: +SKIP
        GaussianDpEvent(noise_multiplier=1.0)
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {str(path)!r}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    return decode_event(document)


def decode_event(document: Any) -> Any:
    """Returns the event that nested tables describe.

    Args:
        document: A table with `class_name` and the fields of that class.

    Raises:
        UserError: An unknown class, or fields that it does not have.

    Example:
        >>> decode_event({"class_name": "GaussianDpEvent", "noise_multiplier": 2.0})
        GaussianDpEvent(noise_multiplier=2.0)
    """
    if not isinstance(document, Mapping) or "class_name" not in document:
        raise UserError(
            'an event is a table with "class_name", such as {"class_name": "GaussianDpEvent", '
            f'"noise_multiplier": 1.0}}, but this is {str(document)[:80]!r}.'
        )
    classes = _list_classes()
    name = document["class_name"]
    if name not in classes:
        raise UserError(
            f"class_name = {name!r} is no event of dp_accounting; known are {', '.join(classes)}."
        )
    fields = {}
    for key, value in document.items():
        if key not in ("class_name", "module_name"):
            fields[key] = _decode_field(value)
    try:
        return classes[name](**fields)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}.") from None


def price_event(event: Any, delta: float) -> list[EventPrice]:
    """Returns the smallest epsilon that dp_accounting proves, for both kinds of neighbours.

    Args:
        event: An event of dp_accounting.
        delta: The delta of the guarantee, above 0 and below 1.

    Example:
        >>> event = decode_event({"class_name": "GaussianDpEvent", "noise_multiplier": 2.0})
        >>> [(price.adjacency, round(price.epsilon, 1)) for price in price_event(event, 1e-5)]
        [('add-or-remove', 2.0), ('replace-one', 4.4)]
    """
    return [_price_relation(event, delta, adjacency) for adjacency in RELATIONS]


def _price_relation(event: Any, delta: float, adjacency: str) -> EventPrice:
    """Returns the price for one kind of neighbours."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    relation = dp_accounting.NeighboringRelation[RELATIONS[adjacency]]
    accountants: list[Any] = [PLDAccountant]
    # With a replaced unit the two read a noise multiplier differently: the second one in units of
    # the replacement, which may move a sum twice as far. The first reading is the careful one.
    if adjacency == "add-or-remove":
        accountants.append(RdpAccountant)
    reasons = []
    found: list[tuple[float, str]] = []
    for kind in accountants:
        try:
            accountant = kind(neighboring_relation=relation)
            accountant.compose(event)
            found.append((float(accountant.get_epsilon(delta)), f"dp_accounting {kind.__name__}"))
        # Accountants refuse events, relations and their combinations in many ways.
        except (dp_accounting.UnsupportedEventError, ValueError, NotImplementedError) as error:
            reasons.append(str(error).split("\n")[0][:120])
    if not found:
        return EventPrice(adjacency=adjacency, epsilon=None, delta=delta, accountant=reasons[0])
    epsilon, name = min(found)
    return EventPrice(adjacency=adjacency, epsilon=epsilon, delta=delta, accountant=name)


def _decode_field(value: Any) -> Any:
    """Returns a field: an event, a list of them, or a plain value."""
    if isinstance(value, Mapping) and "class_name" in value:
        return decode_event(value)
    if isinstance(value, list):
        return [_decode_field(one) for one in value]
    return value


def _list_classes() -> dict[str, type]:
    """Returns the events of dp_accounting by name."""
    from dp_accounting import dp_event

    found = {}
    for name, value in vars(dp_event).items():
        # Nothing else is made from a file: a name in it must not choose any class at all.
        if isinstance(value, type) and issubclass(value, dp_event.DpEvent):
            found[name] = value
    return found
