"""How one entry of a protocol is checked, read from TOML, written back and described to editors.

Every field of a protocol value is declared once, as `name: type = entry(check, "what it means")`.
The check is the only place that knows the values allowed; the constructor, the file reader, the
file writer and the JSON schema all ask it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.spelling import one_of, refuse_unknown, suggest_spelling
from sordino.protocol.value_checks import Check, Choice


def entry(check: Check, doc: str, default: Any = MISSING) -> Any:
    """Declares a dataclass field.

    Args:
        check: What the field allows.
        doc: Its meaning in one line.
        default: Its value where it is left out.
    """
    return dataclasses.field(default=default, metadata={"check": check, "doc": doc})


def file_key(name: str) -> str:
    """Returns the name of a field in the file, where words are joined by dashes.

    Args:
        name: The field's name in Python.
    """
    return name.rstrip("_").replace("_", "-")


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
        kind: A type of value.
    """
    # The declaration is the only list of fields: a second one would go out of date.
    return {f.name: f.metadata["check"] for f in fields(kind)}


def refuse_changed_parts(value: Value) -> None:
    """Refuses a value that holds a part which its constructor would not have taken.

    Nothing can be promised about such a part: it is another kind than those that are priced.

    Args:
        value: The value, of which nested parts are looked at too.

    Raises:
        InvalidValue: Names the part and the kinds that are allowed.
    """
    for name, check in checks_of(type(value)).items():
        held = getattr(value, name)
        check.accept_value(file_key(name), held)
        if isinstance(held, Value):
            refuse_changed_parts(held)


def decode_table(kind: type[Value], table: Any, path: str) -> Any:
    """Returns the value that a TOML table describes.

    Args:
        kind: Kind of the value.
        table: Table of the file.
        path: Where the table is in the file.

    Raises:
        UserError: Names the key, the value given and the values allowed.
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
    # A value does not know where it is in the file; the message has to name the whole key.
    except InvalidValue as error:
        raise error.place_under(path) from None


def encode_table(value: Value) -> dict[str, Any]:
    """Returns the TOML table of a value; entries that are None are left out.

    Args:
        value: The value of the entry.
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
        kind: The type of the value.
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
        kinds: The types of value that are allowed, exactly.
    """

    kinds: tuple[type[Value], ...]

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the value.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is of none of the kinds.
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
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            InvalidValue: No kind has that tag.
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
            value: Value of one of the kinds.
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
            kind: One of the kinds.
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
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            UserError: There is no table, or no such kind.
        """
        if not isinstance(raw, Mapping):
            raise InvalidValue(key, raw, self.values_allowed)
        by_tag = {kind.tag: kind for kind in self.kinds}
        if self.tag_key not in raw:
            raise UserError(f"{key}.{self.tag_key} is missing: {one_of(by_tag)}.")
        tag = Choice(tuple(by_tag)).accept_value(f"{key}.{self.tag_key}", raw[self.tag_key])
        # The tag is not a field of the value, whose type says the same.
        rest = {k: v for k, v in raw.items() if k != self.tag_key}
        return decode_table(by_tag[tag], rest, key)

    def encode_value(self, value: Any) -> Any:
        """Returns the table of a value.

        Args:
            value: Value of one of the kinds.
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
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is of another kind.
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
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.
        """
        return decode_table(self.kind, raw, key)

    def encode_value(self, value: Any) -> Any:
        """Returns the table of a value.

        Args:
            value: Value of the kind.
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
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: One of them is of another kind.
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
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            InvalidValue: It is not an array.
        """
        if not isinstance(raw, list):
            raise InvalidValue(key, raw, f"an array of tables: [[{key}]]")
        return tuple(decode_table(self.kind, table, key) for table in raw)

    def encode_value(self, value: Any) -> Any:
        """Returns an array of tables.

        Args:
            value: The value of the entry.
        """
        return [encode_table(one) for one in value]

    def build_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": table_schema(self.kind)}
