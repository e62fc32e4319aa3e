"""The protocol as a TOML file: reading, writing, overriding single keys, and a JSON schema for editors."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from sordino.protocol.entries import encode_table, file_key, refuse_unknown
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.values import Protocol

# Fields of `Protocol` that share the table [federation]; every other field is a table of its own, and the seed stands alone.
FEDERATION = (
    "clients",
    "rounds",
    "participation",
    "channel",
    "aggregation",
    "personalization",
    "missing",
    "penalty",
)
TABLES = ("federation", "local", "noise", "privacy", "assumptions", "data", "model")


def loads(text: str) -> Protocol:
    """Read a protocol from TOML text.

    Raises:
        UserError: names the key, what was given and what is allowed.

    Example:
        >>> loads(dumps(protocol)) == protocol  # doctest: +SKIP
        True
    """
    return decode(parse(text))


def dumps(protocol: Protocol) -> str:
    """Write a protocol as complete TOML text, every default spelled out.

    Example:
        >>> print(dumps(protocol))  # doctest: +SKIP
        [federation]
        clients = 50
        ...
    """
    encoded = encode_table(protocol)
    seed = [f"seed = {encoded.pop('seed')}\n"] if "seed" in encoded else []
    federation = {name: encoded.pop(name) for name in FEDERATION}
    clients = [toml_table("[client]", table) for table in encoded.pop("client")]
    tables = [
        toml_table(name, table)
        for name, table in {"federation": federation, **encoded}.items()
        if table
    ]
    return "\n".join(seed + tables + clients)


def read(path: str | Path, overrides: Iterable[str] = ()) -> Protocol:
    """Read a protocol file, with `KEY=VALUE` overrides applied before it is checked.

    Example:
        >>> read("federation.toml", ["noise.sigma=0.5"])  # doctest: +SKIP
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"there is no file {str(path)!r}. `sordino new` writes one to start from."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} cannot be read as a text file: {error}") from None
    try:
        return decode(with_overrides(parse(text), overrides))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def overridden(protocol: Protocol, overrides: Iterable[str]) -> Protocol:
    """The protocol with single keys changed, each given as `KEY=VALUE`; a value is TOML, or else a string.

    Example:
        >>> overridden(protocol, ["local.clip=2.0", "data.name=mnist"])  # doctest: +SKIP
    """
    return decode(with_overrides(parse(dumps(protocol)), overrides))


def save(protocol: Protocol, path: str | Path) -> None:
    """Write the protocol to a file.

    Example:
        >>> save(protocol, "federation.toml")  # doctest: +SKIP
    """
    Path(path).write_text(dumps(protocol), encoding="utf-8")


def schema() -> dict[str, Any]:
    """JSON schema of the protocol file, for editors that check while one types.

    Example:
        >>> sorted(schema()["properties"])[-3:]
        ['noise', 'privacy', 'seed']
    """
    described = {
        f.name: {**f.metadata["check"].schema(), "description": f.metadata["doc"]}
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


def parse(text: str) -> dict[str, Any]:
    """TOML text as nested dictionaries."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"this is not valid TOML: {error}") from None


def decode(document: Mapping[str, Any]) -> Protocol:
    """Make the protocol of a parsed file."""
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
                given[f.name] = f.metadata["check"].decode(prefix + key, table[key])
            except RecursionError:
                raise InvalidValue(
                    prefix + key, "...", "a value that is not nested so deeply"
                ) from None
        elif f.default is MISSING:
            raise UserError(f"{prefix}{key} is missing: {f.metadata['doc']}.")
    return Protocol(**given)


def with_overrides(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `KEY=VALUE` texts to a parsed file; a word on the way that is not a table becomes one."""
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise UserError(f"--set {override!r}: expected KEY=VALUE, such as noise.sigma=0.5.")
        table = document
        for key in keys[:-1]:
            if not isinstance(table.get(key), dict):
                table[key] = {}
            table = table[key]
        table[keys[-1]] = _override_value(text.strip())
    return document


def _override_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def toml_table(name: str, table: Mapping[str, Any]) -> str:
    """One table in TOML."""
    return "".join(
        [f"[{name}]\n", *(f"{key} = {toml_value(value)}\n" for key, value in table.items())]
    )


def toml_value(value: Any) -> str:
    """One value in TOML: the six shapes that a protocol uses."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings escape as JSON's do
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(inner) for inner in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")
