"""How one entry of a protocol is checked, read from TOML, written back and described to editors.

Every field of a protocol value is declared once, as `name: type = entry(check, "what it means")`. The check is the only place
that knows what is allowed; the constructor, the file reader, the file writer and the JSON schema all ask it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from sordino.protocol.errors import InvalidValue, UserError

SMALLEST, LARGEST = (
    1e-60,
    1e60,
)  # of a number other than 0: squares of ratios of any two stay within what float64 can hold
MOST = 2**63 - 1  # what TOML can hold


def entry(check: Check, doc: str, default: Any = MISSING) -> Any:
    """Declare a dataclass field with its check and its one-line meaning."""
    return dataclasses.field(default=default, metadata={"check": check, "doc": doc})


def file_key(name: str) -> str:
    """The spelling of a field in the file: words are joined by dashes there."""
    return name.rstrip("_").replace("_", "-")


class Check:
    """What an entry allows, `allowed` in words. `accept` returns the value in its normal form or raises `InvalidValue`."""

    @property
    def allowed(self) -> str:
        raise TypeError(f"{type(self).__name__} does not say what it allows")

    def accept(self, key: str, value: Any) -> Any:
        raise TypeError(f"{type(self).__name__} does not say what it accepts")

    def decode(self, key: str, raw: Any) -> Any:
        """From what TOML holds to the value; by default the same thing."""
        return self.accept(key, raw)

    def encode(self, value: Any) -> Any:
        """From the value to what TOML holds."""
        return value

    def schema(self) -> dict[str, Any]:
        """This check as JSON schema."""
        return {}


@dataclass(frozen=True)
class Number(Check):
    """A finite real number in an interval."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None

    def accept(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidValue(key, value, self.allowed)
        try:
            number = float(value)
        except OverflowError:
            raise InvalidValue(key, value, self.allowed) from None
        inside = (
            math.isfinite(number)
            and (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )
        if not inside:
            raise InvalidValue(key, value, self.allowed)
        if number != 0 and not SMALLEST <= abs(number) <= LARGEST:
            raise InvalidValue(
                key, value, f"{self.allowed}, of a size from {SMALLEST:g} to {LARGEST:g}"
            )
        return number

    @property
    def allowed(self) -> str:
        limits = [
            (self.above, "above"),
            (self.at_least, "of at least"),
            (self.at_most, "at most"),
            (self.below, "below"),
        ]
        named = [f"{word} {limit:g}" for limit, word in limits if limit is not None]
        return "a finite number" + (" " + " and ".join(named) if named else "")

    def schema(self) -> dict[str, Any]:
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

    def accept(self, key: str, value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not self.at_least <= value <= self.at_most
        ):
            raise InvalidValue(key, value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        limited = self.at_most < MOST
        return (
            f"a whole number from {self.at_least:,} to {self.at_most:,}"
            if limited
            else f"a whole number of at least {self.at_least}"
        )

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.at_least}


@dataclass(frozen=True)
class Flag(Check):
    """true or false."""

    def accept(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValue(key, value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        return "true or false"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Check):
    """A non-empty string without control characters."""

    def accept(self, key: str, value: Any) -> str:
        if (
            not isinstance(value, str)
            or not value.strip()
            or any(ord(c) < 32 or ord(c) == 127 for c in value)
        ):
            raise InvalidValue(key, value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        return "a non-empty string on one line"

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Choice(Check):
    """One of a few words."""

    options: tuple[str, ...]

    def accept(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise InvalidValue(key, value, self.allowed, nearest(value, self.options))
        return value

    @property
    def allowed(self) -> str:
        return one_of(self.options)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.options)}


@dataclass(frozen=True)
class Labels(Check):
    """The classes of a task: how many there are, numbered from 0, or their names in order."""

    most: int = 100_000

    def accept(self, key: str, value: Any) -> int | tuple[str, ...]:
        if isinstance(value, (list, tuple)):
            return self._named(key, value)
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= self.most:
            raise InvalidValue(key, value, self.allowed)
        return value

    def _named(self, key: str, names: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
        for name in names:
            if not isinstance(name, str) or name != name.strip():
                raise InvalidValue(key, name, "names of classes in quotes, without spaces around")
            Text().accept(key, name)
        repeated = [name for place, name in enumerate(names) if name in names[:place]]
        if repeated:
            raise InvalidValue(key, repeated[0], "every class once")
        if not 2 <= len(names) <= self.most:
            raise InvalidValue(key, list(names), self.allowed)
        return tuple(names)

    def encode(self, value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    @property
    def allowed(self) -> str:
        return 'a whole number of at least 2, or two or more names in order, as ["no", "yes"]'

    def schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2}
        return {"anyOf": [{"type": "integer", "minimum": 2}, {**names, "uniqueItems": True}]}


@dataclass(frozen=True)
class Names(Check):
    """Names in order, each once, such as those of columns."""

    def accept(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or len(value) == 0:
            raise InvalidValue(key, value, self.allowed)
        for name in value:
            Text().accept(key, name)
        repeated = [name for place, name in enumerate(value) if name in value[:place]]
        if repeated:
            raise InvalidValue(key, repeated[0], "every name once")
        return tuple(value)

    def encode(self, value: Any) -> Any:
        return list(value)

    @property
    def allowed(self) -> str:
        return 'one or more names in order, as ["age", "weight"]'

    def schema(self) -> dict[str, Any]:
        name = {"type": "string", "minLength": 1}
        return {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}


@dataclass(frozen=True)
class Maybe(Check):
    """Another check, or nothing at all: the key may be left out of the file."""

    check: Check

    def accept(self, key: str, value: Any) -> Any:
        return None if value is None else self.check.accept(key, value)

    @property
    def allowed(self) -> str:
        return self.check.allowed

    def decode(self, key: str, raw: Any) -> Any:
        return self.check.decode(key, raw)

    def encode(self, value: Any) -> Any:
        return self.check.encode(value)

    def schema(self) -> dict[str, Any]:
        return self.check.schema()


@dataclass(frozen=True, kw_only=True)
class Value:
    """Base of every part of a protocol: frozen, keyword-only, checked when it is made."""

    tag: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)).items():
            object.__setattr__(self, name, check.accept(file_key(name), getattr(self, name)))


def checks_of(kind: type[Value]) -> dict[str, Check]:
    """The check of every field, in the order of declaration."""
    return {f.name: f.metadata["check"] for f in fields(kind)}


def decode_table(kind: type[Value], table: Any, path: str) -> Any:
    """Make a value of `kind` from a TOML table; `path` is where the table stands in the file."""
    if not isinstance(table, Mapping):
        raise InvalidValue(path, table, "a table")
    names = {file_key(f.name): f for f in fields(kind)}
    refuse_unknown(table, names, path)
    given = {}
    for key, f in names.items():
        if key in table:
            given[f.name] = f.metadata["check"].decode(f"{path}.{key}", table[key])
        elif f.default is MISSING:
            raise UserError(f"{path}.{key} is missing: {f.metadata['doc']}.")
    try:
        return kind(**given)
    except InvalidValue as error:
        raise error.under(path) from None


def encode_table(value: Value) -> dict[str, Any]:
    """The TOML table of a value; entries that are None are left out."""
    pairs = ((name, check, getattr(value, name)) for name, check in checks_of(type(value)).items())
    return {file_key(name): check.encode(held) for name, check, held in pairs if held is not None}


def table_schema(kind: type[Value]) -> dict[str, Any]:
    """JSON schema of the table of a value."""
    described = {
        file_key(f.name): {**f.metadata["check"].schema(), "description": f.metadata["doc"]}
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
    """One of several kinds, written as `"tag"`, `{ tag = value }` or `{ tag = { key = value } }`."""

    kinds: tuple[type[Value], ...]

    def accept(self, key: str, value: Any) -> Any:
        if not isinstance(value, self.kinds):
            raise InvalidValue(
                key, value, "one of " + ", ".join(kind.__name__ for kind in self.kinds)
            )
        return value

    @property
    def allowed(self) -> str:
        return " or ".join(self.spelling(kind) for kind in self.kinds)

    def decode(self, key: str, raw: Any) -> Any:
        tag, inner = (
            (raw, {})
            if isinstance(raw, str)
            else next(iter(raw.items()))
            if self._is_single(raw)
            else (None, None)
        )
        by_tag = {kind.tag: kind for kind in self.kinds}
        if not isinstance(tag, str) or tag not in by_tag:
            raise InvalidValue(key, raw, self.allowed, nearest(tag, by_tag))
        kind = by_tag[tag]
        short = self._short(kind)
        if not isinstance(inner, Mapping) and short is not None:
            inner = {file_key(short): inner}
        return decode_table(kind, inner, f"{key}.{tag}")

    def encode(self, value: Any) -> Any:
        table = encode_table(value)
        if all(f.default == getattr(value, f.name) for f in fields(value)):
            return value.tag
        short = self._short(type(value))
        others = [f for f in fields(value) if f.name != short]
        if short is not None and all(f.default == getattr(value, f.name) for f in others):
            return {value.tag: table[file_key(short)]}
        return {value.tag: table}

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [form for kind in self.kinds for form in self._forms(kind)]}

    @staticmethod
    def _is_single(raw: Any) -> bool:
        return isinstance(raw, Mapping) and len(raw) == 1

    @staticmethod
    def _short(kind: type[Value]) -> str | None:
        """The field that `{ tag = value }` gives: the only one, or the only one that must be given."""
        own = fields(kind)
        candidates = own if len(own) == 1 else [f for f in own if f.default is MISSING]
        return candidates[0].name if len(candidates) == 1 else None

    @staticmethod
    def spelling(kind: type[Value]) -> str:
        needed = [f for f in fields(kind) if f.default is MISSING]
        return f"{{ {kind.tag} = ... }}" if needed else f'"{kind.tag}"'

    @staticmethod
    def _forms(kind: type[Value]) -> Iterable[dict[str, Any]]:
        own = fields(kind)
        if all(f.default is not MISSING for f in own):
            yield {"const": kind.tag}
        inner = [table_schema(kind)] if own else []
        inner += [f.metadata["check"].schema() for f in own if f.name == Named._short(kind)]
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
    def allowed(self) -> str:
        return f"a table with {self.tag_key} = {one_of([kind.tag for kind in self.kinds])}"

    def decode(self, key: str, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise InvalidValue(key, raw, self.allowed)
        by_tag = {kind.tag: kind for kind in self.kinds}
        if self.tag_key not in raw:
            raise UserError(f"{key}.{self.tag_key} is missing: {one_of(by_tag)}.")
        tag = Choice(tuple(by_tag)).accept(f"{key}.{self.tag_key}", raw[self.tag_key])
        rest = {k: v for k, v in raw.items() if k != self.tag_key}
        return decode_table(by_tag[tag], rest, key)

    def encode(self, value: Any) -> Any:
        return {self.tag_key: value.tag, **encode_table(value)}

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [self._form(kind) for kind in self.kinds]}

    def _form(self, kind: type[Value]) -> dict[str, Any]:
        table = table_schema(kind)
        table["properties"] = {self.tag_key: {"const": kind.tag}, **table["properties"]}
        table["required"] = [self.tag_key, *table["required"]]
        return table


@dataclass(frozen=True)
class Table(Check):
    """Exactly one kind of value, written as a table."""

    kind: type[Value]

    def accept(self, key: str, value: Any) -> Any:
        if not isinstance(value, self.kind):
            raise InvalidValue(key, value, f"a {self.kind.__name__}")
        return value

    @property
    def allowed(self) -> str:
        return "a table"

    def decode(self, key: str, raw: Any) -> Any:
        return decode_table(self.kind, raw, key)

    def encode(self, value: Any) -> Any:
        return encode_table(value)

    def schema(self) -> dict[str, Any]:
        return table_schema(self.kind)


@dataclass(frozen=True)
class Many(Check):
    """Any number of values of one kind, written as an array of tables."""

    kind: type[Value]

    def accept(self, key: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(one, self.kind) for one in value
        ):
            raise InvalidValue(key, value, f"a sequence of {self.kind.__name__}")
        return tuple(value)

    @property
    def allowed(self) -> str:
        return "an array of tables"

    def decode(self, key: str, raw: Any) -> Any:
        if not isinstance(raw, list):
            raise InvalidValue(key, raw, f"an array of tables: [[{key}]]")
        return tuple(decode_table(self.kind, table, key) for table in raw)

    def encode(self, value: Any) -> Any:
        return [encode_table(one) for one in value]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": table_schema(self.kind)}


def one_of(options: Iterable[str]) -> str:
    """`"a", "b" or "c"`."""
    quoted = [f'"{option}"' for option in options]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def nearest(given: Any, options: Iterable[str]) -> str:
    """A hint at the nearest spelling, or nothing."""
    close = difflib.get_close_matches(given, list(options), n=1) if isinstance(given, str) else []
    return f'Did you mean "{close[0]}"?' if close else ""


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Raise for the first key that is not known, naming the nearest one that is."""
    known = list(known)
    for key in table:
        if key not in known:
            where = f"{path}.{key}" if path else key
            hint = nearest(key, known)
            allowed = f"allowed here: {', '.join(known)}" if known else "no key is allowed here"
            raise UserError(f"unknown key {where}. {hint + ' ' if hint else ''}({allowed})")
