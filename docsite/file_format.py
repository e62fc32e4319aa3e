"""The page of the protocol file: every key with what is allowed, from the declarations that the reader itself asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from docsite.markdown import code, first_line, table
from sordino.protocol import Protocol
from sordino.protocol.entries import Check, Many, Maybe, Named, Table, Tagged, Value, file_key
from sordino.protocol.file import FEDERATION, toml_value

HEAD = """# The protocol file

Written from the declarations that read the file, so what is allowed here is what is allowed there. `sordino new` writes a commented file to
start from, `sordino check FILE` says what is wrong with one, and [sordino.schema.json](../sordino.schema.json) (`sordino check --schema`)
lets an editor check while you type. Keys of a Python value have underscores where the file has dashes.
"""


def page() -> str:
    """The whole page.

    Example:
        >>> "`weight-decay`" in page()
        True
    """
    whole = {f.name: f for f in fields(Protocol)}
    alone = [whole.pop("seed")]
    shared = [whole.pop(name) for name in FEDERATION]
    parts = [
        HEAD,
        "## Above all tables",
        keys(alone),
        "## [federation]",
        keys(shared),
        *choices(shared, "federation"),
    ]
    for f in whole.values():
        parts += [
            f"## {'[[client]]' if isinstance(f.metadata['check'], Many) else f'[{f.name}]'}",
            sentence(f.metadata["doc"]),
        ]
        parts += contents(bare(f.metadata["check"]), f.name)
    return "\n\n".join(parts) + "\n"


def contents(check: Check, path: str) -> Iterator[str]:
    """What stands below a key: the keys of a table, or every kind of table that it may be."""
    if isinstance(check, (Table, Many)):
        yield keys(fields(check.kind))
        yield from choices(fields(check.kind), path)
    elif isinstance(check, Named):
        for kind in check.kinds:
            yield kind_of(check, kind, path)
        unique = {f.name: f for kind in check.kinds for f in fields(kind)}
        yield from choices(list(unique.values()), path)


def choices(entries: Sequence[Field[Any]], path: str) -> Iterator[str]:
    """A section for every key that is a table or one of several kinds of thing."""
    for f in entries:
        check = bare(f.metadata["check"])
        if isinstance(check, (Table, Named)):
            below = f"{path}.{file_key(f.name)}"
            yield f"### {below}"
            yield from contents(check, below)


def kind_of(check: Named, kind: type[Value], path: str) -> str:
    """One of several kinds: how it is written, what it is, its keys."""
    written = (
        f'{check.tag_key} = "{kind.tag}"'
        if isinstance(check, Tagged)
        else f"{path.rpartition('.')[2]} = {check.spelling(kind)}"
    )
    return f"**{code(written)}**. {first_line(kind)}" + (
        f"\n\n{keys(fields(kind))}" if fields(kind) else ""
    )


def keys(entries: Sequence[Field[Any]]) -> str:
    """Keys of a table of the file."""
    rows = [
        (code(file_key(f.name)), f.metadata["doc"], f.metadata["check"].allowed, by_default(f))
        for f in entries
    ]
    return table(["key", "meaning", "allowed", "left out"], rows)


def by_default(f: Field[Any]) -> str:
    """What holds where a key is left out."""
    if f.default is MISSING:
        return "must be given"
    written = "" if f.default is None else bare(f.metadata["check"]).encode(f.default)
    return code(toml_value(written)) if written not in ("", {}, []) else ""


def bare(check: Check) -> Check:
    """A check without the freedom to leave it out."""
    return check.check if isinstance(check, Maybe) else check


def sentence(text: str) -> str:
    """Words as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
