"""The protocol as a TOML file: reading, writing, overriding keys, and a JSON schema."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from sordino.protocol.arithmetic import read_as_kept
from sordino.protocol.entries import encode_table, file_key, refuse_changed_parts
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.spelling import refuse_unknown
from sordino.protocol.values import Protocol

# Fields of `Protocol` that share the table [federation]. Every other field has its own table,
# and the seed is by itself.
FEDERATION = (
    "clients",
    "rounds",
    "participation",
    "channel",
    "aggregation",
    "server",
    "personalization",
    "missing",
    "penalty",
)
# What functions take for a protocol.
ProtocolSource = Protocol | str | Path | Mapping[str, Any]
TABLES = ("federation", "local", "noise", "privacy", "assumptions", "data", "model")


def loads(text: str) -> Protocol:
    """Returns the protocol that TOML text describes.

    Args:
        text: Text of a protocol file.

    Raises:
        UserError: Names the key, the value given and the values allowed.

    Example:
        >>> loads(dumps(protocol)) == protocol  # doctest: +SKIP
        True
    """
    return decode_protocol(parse_toml(text))


def loads_kept(text: str) -> Protocol:
    """Returns the protocol that a run, a client or a request has written down.

    Args:
        text: Text of the file; one of an earlier version means what it meant then.
    """
    return read_as_kept(loads(text))


def dumps(protocol: Protocol) -> str:
    """Returns a protocol as complete TOML text, with every default.

    Args:
        protocol: The federation, as its file describes it.

    Example:
        >>> print(dumps(protocol))  # doctest: +SKIP
        [federation]
        clients = 50
        ...
    """
    encoded = encode_table(protocol)
    # Before the first table: after one, TOML would read the seed as an entry of that table.
    seed = [f"seed = {encoded.pop('seed')}\n"] if "seed" in encoded else []
    federation = {name: encoded.pop(name) for name in FEDERATION}
    # At the end: there may be as many of them as the federation has clients.
    clients = [toml_table("[client]", table) for table in encoded.pop("client")]
    # A description of many columns would be one endless line.
    columns = encoded.get("data", {}).get("columns")
    if isinstance(columns, Mapping):
        del encoded["data"]["columns"]
        encoded = _insert_after("data", encoded, "data.columns", columns)
    tables = [
        toml_table(name, table)
        for name, table in {"federation": federation, **encoded}.items()
        if table
    ]
    return "\n".join(seed + tables + clients)


def _insert_after(
    name: str, tables: Mapping[str, Any], new_name: str, table: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns tables with one more behind the one of a name."""
    found = {}
    for key, value in tables.items():
        found[key] = value
        if key == name:
            found[new_name] = table
    return found


def read_protocol(path: str | Path, overrides: Iterable[str] = ()) -> Protocol:
    """Returns the protocol of a file.

    Args:
        path: Path of the file.
        overrides: Keys that are changed before the file is checked, each as `KEY=VALUE`.

    Raises:
        UserError: There is no such file, or a key has a value that is not allowed.

    Example:
        >>> read_protocol("federation.toml", ["noise.sigma=0.5"])  # doctest: +SKIP
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    # The most frequent mistake of a first day gets the command that mends it.
    except FileNotFoundError:
        raise UserError(
            f"there is no file {str(path)!r}. `sordino new` writes one to start from."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} cannot be read as a text file: {error}") from None
    try:
        return decode_protocol(with_overrides(parse_toml(text), overrides))
    except UserError as error:
        # A command may read several files; the message has to say which of them is wrong.
        raise UserError(f"{path}: {error}") from None


def accept_protocol(source: ProtocolSource) -> Protocol:
    """Returns a protocol, whichever way it was given.

    Args:
        source: A `Protocol`, the path of a file, or nested dictionaries as a file has them.

    Raises:
        UserError: It is nothing of the kind, or has a value that is not allowed.

    Example:
        >>> accept_protocol("federation.toml")  # doctest: +SKIP
    """
    if isinstance(source, Protocol):
        refuse_changed_parts(source)
        return source
    if isinstance(source, (str, Path)):
        return read_protocol(source)
    if isinstance(source, Mapping):
        return decode_protocol(source)
    raise UserError(
        f"a protocol of type {type(source).__name__}: expected is a Protocol, the path of a file, "
        "or a dictionary of its tables."
    )


def override_keys(protocol: Protocol, overrides: Iterable[str]) -> Protocol:
    """Returns the protocol with single keys changed.

    Args:
        protocol: Protocol to start from.
        overrides: Each as `KEY=VALUE`; a value is TOML, or else a string.

    Example:
        >>> override_keys(protocol, ["local.clip=2.0", "data.name=mnist"])  # doctest: +SKIP
    """
    # Through the file format, so that an override is checked as if it were in the file.
    return decode_protocol(with_overrides(parse_toml(dumps(protocol)), overrides))


def save_protocol(protocol: Protocol, path: str | Path) -> None:
    """Writes the protocol to a file.

    Args:
        protocol: The federation, as its file describes it.
        path: Path of the file.

    Example:
        >>> save_protocol(protocol, "federation.toml")  # doctest: +SKIP
    """
    Path(path).write_text(dumps(protocol), encoding="utf-8")


def build_schema() -> dict[str, Any]:
    """Returns the JSON schema of the protocol file, for editors that check while one types.

    Example:
        >>> sorted(build_schema()["properties"])[-3:]
        ['noise', 'privacy', 'seed']
    """
    described = {
        f.name: {**f.metadata["check"].build_schema(), "description": f.metadata["doc"]}
        for f in fields(Protocol)
    }
    needed = {f.name for f in fields(Protocol) if f.default is MISSING}
    federation = {
        "type": "object",
        "properties": {name: described.pop(name) for name in FEDERATION},
        "required": [name for name in FEDERATION if name in needed],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sordino protocol",
        "type": "object",
        "properties": {"seed": described.pop("seed"), "federation": federation, **described},
        "required": ["federation", *(name for name in described if name in needed)],
        "additionalProperties": False,
    }


def parse_toml(text: str) -> dict[str, Any]:
    """Returns TOML text as nested dictionaries.

    Args:
        text: Text of a protocol file.

    Raises:
        UserError: The text is not TOML.
    """
    try:
        return tomllib.loads(text)
    # Brackets nested a thousand times deep exhaust the parser's stack before they are wrong.
    except (ValueError, RecursionError) as error:
        raise UserError(f"this is not valid TOML: {error}") from None


def decode_protocol(document: Mapping[str, Any]) -> Protocol:
    """Returns the protocol of a parsed file.

    Args:
        document: Nested dictionaries, as TOML has them.

    Raises:
        UserError: Names the key, the value given and the values allowed.
    """
    refuse_unknown(document, ("seed", *TABLES, "client"), "")
    for name in TABLES:
        if not isinstance(document.get(name, {}), Mapping):
            raise InvalidValue(name, document[name], f"a table: [{name}]")
    federation = document.get("federation", {})
    refuse_unknown(federation, FEDERATION, "federation")
    places = {
        f.name: (federation, "federation.") if f.name in FEDERATION else (document, "")
        for f in fields(Protocol)
    }
    given = {}
    for f in fields(Protocol):
        table, prefix = places[f.name]
        key = file_key(f.name)
        if key in table:
            try:
                given[f.name] = f.metadata["check"].decode_value(prefix + key, table[key])
            # A value of the file may be nested more deeply than checks can follow.
            except RecursionError:
                raise InvalidValue(
                    prefix + key, "...", "a value that is not nested so deeply"
                ) from None
        elif f.default is MISSING:
            raise UserError(f"{prefix}{key} is missing: {f.metadata['doc']}.")
    return Protocol(**given)


def with_overrides(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Returns a parsed file with `KEY=VALUE` texts applied to it.

    A word on the way that is not a table becomes one.

    Args:
        document: The parsed file, which is changed.
        overrides: The texts.

    Raises:
        UserError: A text without a key or a value.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise UserError(f"--set {override!r}: expected KEY=VALUE, such as noise.sigma=0.5.")
        table = document
        for key in keys[:-1]:
            # `participation="everyone"` is overridden by `participation.poisson=0.5`.
            if not isinstance(table.get(key), dict):
                table[key] = {}
            table = table[key]
        table[keys[-1]] = read_override(text.strip())
    return document


def read_override(text: str) -> Any:
    """Returns the value that a text of the command line denotes.

    Args:
        text: A value of TOML; anything else is a string.

    Example:
        >>> read_override("0.5"), read_override("everyone")
        (0.5, 'everyone')
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # A text with a line break could smuggle in further keys; then it is a string.
    return parsed["value"] if set(parsed) == {"value"} else text


def toml_table(name: str, table: Mapping[str, Any]) -> str:
    """Returns one table in TOML.

    Args:
        name: Name of the table.
        table: Its entries.
    """
    lines = [f"[{name}]\n"]
    for key, value in table.items():
        lines.append(f"{toml_key(key)} = {toml_value(value)}\n")
    return "".join(lines)


def toml_key(key: str) -> str:
    """Returns a key in TOML: as it is, or in quotes, as a column "blood pressure" needs them.

    Args:
        key: Key of a table.
    """
    if re.fullmatch(r"[A-Za-z0-9_-]+", key):
        return key
    return json.dumps(key, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """Returns one value in TOML, of the six shapes that a protocol uses.

    Args:
        value: A truth value, a number, a string, a table or a list.

    Raises:
        TypeError: A value of another shape, which no check encodes.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # TOML's basic strings escape as JSON's do.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        entries = [f"{toml_key(key)} = {toml_value(inner)}" for key, inner in value.items()]
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(inner) for inner in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")
