"""How one entry of a protocol is checked, read from TOML, written back and described to editors.

Every field of a protocol value is declared once, as `name: type = entry(check, "what it means")`.
The check is the only place that knows the values allowed; the constructor, the file reader, the
file writer and the JSON schema all ask it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar

from sordino.protocol.errors import InvalidValue, UserError

# Of a number other than 0: squares of ratios of any two stay within what float64 can hold.
SMALLEST = 1e-60
LARGEST = 1e60
MOST = 2**63 - 1  # what TOML can hold


def entry(check: Check, doc: str, default: Any = MISSING) -> Any:
    """Declares a dataclass field.

    Args:
        check: what the field allows.
        doc: its meaning in one line.
        default: its value where it is left out.
    """
    return dataclasses.field(default=default, metadata={"check": check, "doc": doc})


def file_key(name: str) -> str:
    """Returns the name of a field in the file, where words are joined by dashes.

    Args:
        name: the field's name in Python.
    """
    return name.rstrip("_").replace("_", "-")


class Check:
    """What an entry allows."""

    @property
    def values_allowed(self) -> str:
        """The allowed values, in words."""
        raise TypeError(f"{type(self).__name__} does not say what it allows")

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns a value in its normal form.

        Args:
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: the value is not allowed.
        """
        raise TypeError(f"{type(self).__name__} does not say what it accepts")

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of what TOML holds; by default the same thing.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.

        Raises:
            InvalidValue: the value is not allowed.
        """
        return self.accept_value(key, raw)

    def encode_value(self, value: Any) -> Any:
        """Returns what TOML holds for a value.

        Args:
            value: in its normal form.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is no finite number of the interval.
        """
        # In Python true is a number; in a protocol it is a mistake.
        # Numbers of numpy count, which are no floats of Python.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is not whole, or out of range.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is neither true nor false.
        """
        if not isinstance(value, bool):
            raise InvalidValue(key, value, self.values_allowed)
        return value

    @property
    def values_allowed(self) -> str:
        return "true or false"

    def build_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Check):
    """A non-empty string without control characters."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the string.

        Args:
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is no string, is empty, or has control characters.
        """
        if (
            not isinstance(value, str)
            or not value.strip()
            # Control characters in a name would move the cursor of the terminal that prints it.
            or any(ord(c) < 32 or ord(c) == 127 for c in value)
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is none of the options; the nearest one is suggested.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: there are fewer than two classes, too many, or a name stands twice.
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
            value: in its normal form.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: there is none, or one stands twice.
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
            value: in its normal form.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: there is none, or one is not a whole number of at least 1.
        """
        if not isinstance(value, (list, tuple)) or len(value) == 0:
            raise InvalidValue(key, value, self.values_allowed)
        one = Integer(at_least=1)
        return tuple(one.accept_value(key, count) for count in value)

    def encode_value(self, value: Any) -> Any:
        """Returns a list of numbers.

        Args:
            value: in its normal form.
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
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: the other check does not allow it.
        """
        return None if value is None else self.check.accept_value(key, value)

    @property
    def values_allowed(self) -> str:
        return self.check.values_allowed

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of an entry that is there; one that is left out is never decoded.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.
        """
        return self.check.decode_value(key, raw)

    def encode_value(self, value: Any) -> Any:
        """Returns what TOML holds for a value; None is never encoded.

        Args:
            value: in its normal form.
        """
        return self.check.encode_value(value)

    def build_schema(self) -> dict[str, Any]:
        return self.check.build_schema()


@dataclass(frozen=True, kw_only=True)
class Value:
    """Base of every part of a protocol: frozen, keyword-only, checked when it is made."""

    tag: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)).items():
            # The value is frozen for everybody else; here it gets the normal form of what was
            # given.
            object.__setattr__(self, name, check.accept_value(file_key(name), getattr(self, name)))


def checks_of(kind: type[Value]) -> dict[str, Check]:
    """Returns the check of every field, in the order of declaration.

    Args:
        kind: a type of value.
    """
    # The declaration is the only list of fields: a second one would go out of date.
    return {f.name: f.metadata["check"] for f in fields(kind)}


def refuse_changed_parts(value: Value) -> None:
    """Refuses a value that holds a part which its constructor would not have taken.

    Nothing can be promised about such a part: it is another kind than those that are priced.

    Args:
        value: the value, of which nested parts are looked at too.

    Raises:
        InvalidValue: names the part and the kinds that are allowed.
    """
    for name, check in checks_of(type(value)).items():
        held = getattr(value, name)
        check.accept_value(file_key(name), held)
        if isinstance(held, Value):
            refuse_changed_parts(held)


def decode_table(kind: type[Value], table: Any, path: str) -> Any:
    """Returns the value that a TOML table describes.

    Args:
        kind: of the value.
        table: of the file.
        path: where the table stands in the file.

    Raises:
        UserError: names the key, the value given and the values allowed.
    """
    if not isinstance(table, Mapping):
        raise InvalidValue(path, table, "a table")
    names = {file_key(f.name): f for f in fields(kind)}
    # A misspelt key would otherwise leave its default in force, and the price with it.
    refuse_unknown(table, names, path)
    given = {}
    for key, f in names.items():
        if key in table:
            given[f.name] = f.metadata["check"].decode_value(f"{path}.{key}", table[key])
        elif f.default is MISSING:
            raise UserError(f"{path}.{key} is missing: {f.metadata['doc']}.")
    try:
        return kind(**given)
    # A value does not know where it stands in the file; the message has to name the whole key.
    except InvalidValue as error:
        raise error.place_under(path) from None


def encode_table(value: Value) -> dict[str, Any]:
    """Returns the TOML table of a value; entries that are None are left out.

    Args:
        value: the value.
    """
    table = {}
    for name, check in checks_of(type(value)).items():
        held = getattr(value, name)
        # TOML has no null: a key that is left out reads back as None.
        if held is not None:
            table[file_key(name)] = check.encode_value(held)
    return table


def table_schema(kind: type[Value]) -> dict[str, Any]:
    """Returns the JSON schema of the table of a value.

    Args:
        kind: the type of the value.
    """
    described = {
        file_key(f.name): {**f.metadata["check"].build_schema(), "description": f.metadata["doc"]}
        for f in fields(kind)
    }
    required = [file_key(f.name) for f in fields(kind) if f.default is MISSING]
    return {
        "type": "object",
        "properties": described,
        "required": required,
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Named(Check):
    """One of several kinds: `"tag"`, `{ tag = value }` or `{ tag = { key = value } }`.

    Attributes:
        kinds: the types of value that are allowed, exactly.
    """

    kinds: tuple[type[Value], ...]

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the value.

        Args:
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is of none of the kinds.
        """
        # Exactly one of them: about a subclass nothing is known, neither its price nor its steps.
        if type(value) not in self.kinds:
            raise InvalidValue(
                key, value, "one of " + ", ".join(kind.__name__ for kind in self.kinds)
            )
        return value

    @property
    def values_allowed(self) -> str:
        return " or ".join(self.spell_kind(kind) for kind in self.kinds)

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of one of the three spellings.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.

        Raises:
            InvalidValue: no kind has that tag.
        """
        tag: Any = None
        inner: Any = None
        # A bare word is a kind whose entries all have defaults.
        if isinstance(raw, str):
            tag = raw
            inner = {}
        # A table with two tags would leave open which of the kinds is meant.
        elif self._is_single(raw):
            ((tag, inner),) = raw.items()
        by_tag = {kind.tag: kind for kind in self.kinds}
        if not isinstance(tag, str) or tag not in by_tag:
            raise InvalidValue(key, raw, self.values_allowed, suggest_spelling(tag, by_tag))
        kind = by_tag[tag]
        short = self._find_short_field(kind)
        if not isinstance(inner, Mapping) and short is not None:
            inner = {file_key(short): inner}
        return decode_table(kind, inner, f"{key}.{tag}")

    def encode_value(self, value: Any) -> Any:
        """Returns the shortest spelling that says the value completely.

        Args:
            value: of one of the kinds.
        """
        table = encode_table(value)
        # A complete file stays short where nothing differs from the defaults.
        if all(f.default == getattr(value, f.name) for f in fields(value)):
            return value.tag
        short = self._find_short_field(type(value))
        others = [f for f in fields(value) if f.name != short]
        if short is not None and all(f.default == getattr(value, f.name) for f in others):
            return {value.tag: table[file_key(short)]}
        return {value.tag: table}

    def build_schema(self) -> dict[str, Any]:
        return {"anyOf": [form for kind in self.kinds for form in self._list_forms(kind)]}

    @staticmethod
    def _is_single(raw: Any) -> bool:
        return isinstance(raw, Mapping) and len(raw) == 1

    @staticmethod
    def _find_short_field(kind: type[Value]) -> str | None:
        """Returns the field that `{ tag = value }` gives.

        It is the only one, or the only one that must be given.
        """
        candidates = list(fields(kind))
        if len(candidates) > 1:
            candidates = [f for f in candidates if f.default is MISSING]
        return candidates[0].name if len(candidates) == 1 else None

    @staticmethod
    def spell_kind(kind: type[Value]) -> str:
        """Returns how a kind is written, with dots for what must be given.

        Args:
            kind: one of the kinds.
        """
        needed = [f for f in fields(kind) if f.default is MISSING]
        return f"{{ {kind.tag} = ... }}" if needed else f'"{kind.tag}"'

    @staticmethod
    def _list_forms(kind: type[Value]) -> Iterable[dict[str, Any]]:
        own = fields(kind)
        if all(f.default is not MISSING for f in own):
            yield {"const": kind.tag}
        inner = [table_schema(kind)] if own else []
        inner += [
            f.metadata["check"].build_schema()
            for f in own
            if f.name == Named._find_short_field(kind)
        ]
        if inner:
            yield {
                "type": "object",
                "properties": {kind.tag: {"anyOf": inner}},
                "required": [kind.tag],
                "additionalProperties": False,
            }


@dataclass(frozen=True)
class Tagged(Named):
    """One of several kinds, written as a table whose entry `tag_key` names the kind."""

    tag_key: str = "kind"

    @property
    def values_allowed(self) -> str:
        return f"a table with {self.tag_key} = {one_of([kind.tag for kind in self.kinds])}"

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of a table.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.

        Raises:
            UserError: there is no table, or no such kind.
        """
        if not isinstance(raw, Mapping):
            raise InvalidValue(key, raw, self.values_allowed)
        by_tag = {kind.tag: kind for kind in self.kinds}
        if self.tag_key not in raw:
            raise UserError(f"{key}.{self.tag_key} is missing: {one_of(by_tag)}.")
        tag = Choice(tuple(by_tag)).accept_value(f"{key}.{self.tag_key}", raw[self.tag_key])
        # The tag is no field of the value, whose type says the same.
        rest = {k: v for k, v in raw.items() if k != self.tag_key}
        return decode_table(by_tag[tag], rest, key)

    def encode_value(self, value: Any) -> Any:
        """Returns the table of a value.

        Args:
            value: of one of the kinds.
        """
        return {self.tag_key: value.tag, **encode_table(value)}

    def build_schema(self) -> dict[str, Any]:
        return {"oneOf": [self._build_form(kind) for kind in self.kinds]}

    def _build_form(self, kind: type[Value]) -> dict[str, Any]:
        table = table_schema(kind)
        table["properties"] = {self.tag_key: {"const": kind.tag}, **table["properties"]}
        table["required"] = [self.tag_key, *table["required"]]
        return table


@dataclass(frozen=True)
class Table(Check):
    """Exactly one kind of value, written as a table."""

    kind: type[Value]

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the value.

        Args:
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: it is of another kind.
        """
        # A subclass may have fields that a file cannot hold.
        if type(value) is not self.kind:
            raise InvalidValue(key, value, f"a {self.kind.__name__}")
        return value

    @property
    def values_allowed(self) -> str:
        return "a table"

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of a table.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.
        """
        return decode_table(self.kind, raw, key)

    def encode_value(self, value: Any) -> Any:
        """Returns the table of a value.

        Args:
            value: of the kind.
        """
        return encode_table(value)

    def build_schema(self) -> dict[str, Any]:
        return table_schema(self.kind)


@dataclass(frozen=True)
class Many(Check):
    """Any number of values of one kind, written as an array of tables."""

    kind: type[Value]

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the values as a tuple.

        Args:
            key: of the entry, for the message of an error.
            value: what was given.

        Raises:
            InvalidValue: one of them is of another kind.
        """
        if not isinstance(value, (list, tuple)) or not all(type(one) is self.kind for one in value):
            raise InvalidValue(key, value, f"a sequence of {self.kind.__name__}")
        return tuple(value)

    @property
    def values_allowed(self) -> str:
        return "an array of tables"

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the values of an array of tables.

        Args:
            key: of the entry, for the message of an error.
            raw: what TOML holds.

        Raises:
            InvalidValue: it is no array.
        """
        if not isinstance(raw, list):
            raise InvalidValue(key, raw, f"an array of tables: [[{key}]]")
        return tuple(decode_table(self.kind, table, key) for table in raw)

    def encode_value(self, value: Any) -> Any:
        """Returns an array of tables.

        Args:
            value: the values.
        """
        return [encode_table(one) for one in value]

    def build_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": table_schema(self.kind)}


def one_of(options: Iterable[str]) -> str:
    """Returns options in words: `"a", "b" or "c"`.

    Args:
        options: at least one word.
    """
    quoted = [f'"{option}"' for option in options]
    if len(quoted) == 1:
        return quoted[0]
    return ", ".join(quoted[:-1]) + " or " + quoted[-1]


def suggest_spelling(given: Any, options: Iterable[str]) -> str:
    """Returns a hint at the nearest spelling, or nothing.

    Args:
        given: what was written.
        options: the allowed words.
    """
    if not isinstance(given, str):
        return ""
    # More than one suggestion would be a list to choose from, which the message has already.
    close = difflib.get_close_matches(given, list(options), n=1)
    return f'Did you mean "{close[0]}"?' if close else ""


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Refuses the first key that is not known.

    Args:
        table: of the file.
        known: keys that it may have.
        path: where the table stands in the file.

    Raises:
        UserError: names the key, and the nearest one that is known.
    """
    known = list(known)
    for key in table:
        if key not in known:
            where = f"{path}.{key}" if path else key
            hint = suggest_spelling(key, known)
            allowed = f"allowed here: {', '.join(known)}" if known else "no key is allowed here"
            raise UserError(f"unknown key {where}. {hint + ' ' if hint else ''}({allowed})")
