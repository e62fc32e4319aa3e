"""What a single entry allows: numbers, words, labels, lists of them, or nothing at all.

A check is the only place that knows the values allowed. `entries.py` declares fields with it and
adds the checks of whole tables.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from sordino.protocol.errors import InvalidValue
from sordino.protocol.spelling import one_of, suggest_spelling

# Of a number other than 0: squares of ratios of any two stay within what float64 can hold.
SMALLEST = 1e-60
LARGEST = 1e60
MOST = 2**63 - 1  # what TOML can hold


class Check:
    """What an entry allows."""

    @property
    def values_allowed(self) -> str:
        """The allowed values, in words."""
        raise TypeError(f"{type(self).__name__} does not say what it allows")

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns a value in its normal form.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: The value is not allowed.
        """
        raise TypeError(f"{type(self).__name__} does not say what it accepts")

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of what TOML holds; by default the same thing.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            InvalidValue: The value is not allowed.
        """
        return self.accept_value(key, raw)

    def encode_value(self, value: Any) -> Any:
        """Returns what TOML holds for a value.

        Args:
            value: In its normal form.
        """
        return value

    def build_schema(self) -> dict[str, Any]:
        """Returns this check as JSON schema."""
        return {}


@dataclass(frozen=True)
class Number(Check):
    """A finite real number in an interval."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None

    def accept_value(self, key: str, value: Any) -> float:
        """Returns the number as a float.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is not a finite number of the interval.
        """
        # In Python true is a number; in a protocol it is a mistake.
        # Numbers of numpy count, which are not Python floats.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InvalidValue(key, value, self.values_allowed)
        try:
            number = float(value)
        # A whole number of TOML may be larger than any float.
        except OverflowError:
            raise InvalidValue(key, value, self.values_allowed) from None
        inside = (
            math.isfinite(number)
            and (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )
        if not inside:
            raise InvalidValue(key, value, self.values_allowed)
        # Prices divide and square such numbers; an overflow there would price noise as none.
        if number != 0 and not SMALLEST <= abs(number) <= LARGEST:
            raise InvalidValue(
                key, value, f"{self.values_allowed}, of a size from {SMALLEST:g} to {LARGEST:g}"
            )
        return number

    @property
    def values_allowed(self) -> str:
        limits = [
            (self.above, "above"),
            (self.at_least, "of at least"),
            (self.at_most, "at most"),
            (self.below, "below"),
        ]
        named = [f"{word} {limit:g}" for limit, word in limits if limit is not None]
        if not named:
            return "a finite number"
        return f"a finite number {' and '.join(named)}"

    def build_schema(self) -> dict[str, Any]:
        limits = {
            "exclusiveMinimum": self.above,
            "minimum": self.at_least,
            "maximum": self.at_most,
            "exclusiveMaximum": self.below,
        }
        return {"type": "number", **{k: v for k, v in limits.items() if v is not None}}


@dataclass(frozen=True)
class Integer(Check):
    """A whole number of at least `at_least`."""

    at_least: int
    at_most: int = MOST

    def accept_value(self, key: str, value: Any) -> int:
        """Returns the whole number.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is not whole, or out of range.
        """
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidValue(key, value, self.values_allowed)
        # Whole numbers of numpy become Python's, which every file format can hold.
        number = int(value)
        if not self.at_least <= number <= self.at_most:
            raise InvalidValue(key, value, self.values_allowed)
        return number

    @property
    def values_allowed(self) -> str:
        # The limit of the file format is no limit of the entry, and is not worth a word.
        if self.at_most < MOST:
            return f"a whole number from {self.at_least:,} to {self.at_most:,}"
        return f"a whole number of at least {self.at_least}"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.at_least}


@dataclass(frozen=True)
class Flag(Check):
    """true or false."""

    def accept_value(self, key: str, value: Any) -> bool:
        """Returns the truth value.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is neither true nor false.
        """
        if not isinstance(value, bool):
            raise InvalidValue(key, value, self.values_allowed)
        return value

    @property
    def values_allowed(self) -> str:
        return "true or false"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


# Categories of Unicode that move the cursor of a terminal, and classes of characters that reorder
# what stands around them, so that a line would not be read as it was written.
CONTROLS = frozenset({"Cc", "Zl", "Zp"})
REORDERING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def is_control(character: str) -> bool:
    r"""Returns whether a character changes how a terminal shows others.

    Args:
        character: The character.

    Example:
        >>> [is_control(one) for one in ("a", "\x1b", "\u202e")]
        [False, True, True]
    """
    category = unicodedata.category(character)
    return category in CONTROLS or unicodedata.bidirectional(character) in REORDERING


@dataclass(frozen=True)
class Text(Check):
    """A non-empty string without control characters."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the string.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is not a string, is empty, or has control characters.
        """
        if (
            not isinstance(value, str)
            or not value.strip()
            or any(is_control(character) for character in value)
        ):
            raise InvalidValue(key, value, self.values_allowed)
        return value

    @property
    def values_allowed(self) -> str:
        return "a non-empty string on one line"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Choice(Check):
    """One of a few words."""

    options: tuple[str, ...]

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the word.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is none of the options; the nearest one is suggested.
        """
        if not isinstance(value, str) or value not in self.options:
            raise InvalidValue(
                key, value, self.values_allowed, suggest_spelling(value, self.options)
            )
        return value

    @property
    def values_allowed(self) -> str:
        return one_of(self.options)

    def build_schema(self) -> dict[str, Any]:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Labels(Check):
    """The classes of a task: how many there are, numbered from 0, or their names in order."""

    most: int = 100_000

    def accept_value(self, key: str, value: Any) -> int | tuple[str, ...]:
        """Returns the number of classes, or their names.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: There are fewer than two classes, too many, or a name appears twice.
        """
        if isinstance(value, (list, tuple)):
            # Names fix the order of the classes, so that it is never taken from private records.
            return self._accept_names(key, value)
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= self.most:
            raise InvalidValue(key, value, self.values_allowed)
        return value

    def _accept_names(self, key: str, names: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
        for name in names:
            # "yes " and "yes" would be two classes that nobody can tell apart in a table.
            if not isinstance(name, str) or name != name.strip():
                raise InvalidValue(key, name, "names of classes in quotes, without spaces around")
            Text().accept_value(key, name)
        repeated = [name for place, name in enumerate(names) if name in names[:place]]
        if repeated:
            raise InvalidValue(key, repeated[0], "every class once")
        if not 2 <= len(names) <= self.most:
            raise InvalidValue(key, list(names), self.values_allowed)
        return tuple(names)

    def encode_value(self, value: Any) -> Any:
        """Returns a number, or a list of names.

        Args:
            value: In its normal form.
        """
        return list(value) if isinstance(value, tuple) else value

    @property
    def values_allowed(self) -> str:
        return 'a whole number of at least 2, or two or more names in order, as ["no", "yes"]'

    def build_schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2}
        return {"anyOf": [{"type": "integer", "minimum": 2}, {**names, "uniqueItems": True}]}


@dataclass(frozen=True)
class Names(Check):
    """Names in order, each once, such as those of columns."""

    def accept_value(self, key: str, value: Any) -> tuple[str, ...]:
        """Returns the names.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: There is none, or one appears twice.
        """
        if not isinstance(value, (list, tuple)) or len(value) == 0:
            raise InvalidValue(key, value, self.values_allowed)
        for name in value:
            Text().accept_value(key, name)
        # A column that is read twice would count twice in every gradient.
        repeated = [name for place, name in enumerate(value) if name in value[:place]]
        if repeated:
            raise InvalidValue(key, repeated[0], "every name once")
        return tuple(value)

    def encode_value(self, value: Any) -> Any:
        """Returns a list of names.

        Args:
            value: In its normal form.
        """
        return list(value)

    @property
    def values_allowed(self) -> str:
        return 'one or more names in order, as ["age", "weight"]'

    def build_schema(self) -> dict[str, Any]:
        name = {"type": "string", "minLength": 1}
        return {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}


@dataclass(frozen=True)
class Counts(Check):
    """Whole numbers of at least 1 in order, such as the records of every client."""

    def accept_value(self, key: str, value: Any) -> tuple[int, ...]:
        """Returns the numbers.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: There is none, or one is not a whole number of at least 1.
        """
        if not isinstance(value, (list, tuple)) or len(value) == 0:
            raise InvalidValue(key, value, self.values_allowed)
        one = Integer(at_least=1)
        return tuple(one.accept_value(key, count) for count in value)

    def encode_value(self, value: Any) -> Any:
        """Returns a list of numbers.

        Args:
            value: In its normal form.
        """
        return list(value)

    @property
    def values_allowed(self) -> str:
        return "one or more whole numbers of at least 1 in order, as [120, 80]"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": Integer(at_least=1).build_schema(), "minItems": 1}


@dataclass(frozen=True)
class Maybe(Check):
    """Another check, or nothing at all: the key may be left out of the file."""

    check: Check

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns None, or the value as the other check accepts it.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: The other check does not allow it.
        """
        return None if value is None else self.check.accept_value(key, value)

    @property
    def values_allowed(self) -> str:
        return self.check.values_allowed

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of an entry that is there; one that is left out is never decoded.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.
        """
        return self.check.decode_value(key, raw)

    def encode_value(self, value: Any) -> Any:
        """Returns what TOML holds for a value; None is never encoded.

        Args:
            value: In its normal form.
        """
        return self.check.encode_value(value)

    def build_schema(self) -> dict[str, Any]:
        return self.check.build_schema()
