"""Writes the page of the protocol file: every key with the values that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from docsite.markdown import code, first_line, table
from sordino.protocol import Protocol
from sordino.protocol.column_kinds import COLUMN_KINDS, Columns
from sordino.protocol.entries import Many, Named, Table, Tagged, Value, file_key
from sordino.protocol.file import FEDERATION, toml_value
from sordino.protocol.noise_kinds import LEFT_OUT
from sordino.protocol.value_checks import Check, Maybe

HEAD = """# The protocol file

Generated from the declarations that read the file, so this page and the reader always agree.
`sordino new` writes a commented file to start from, `sordino check FILE` says what is wrong with
one, and [sordino.schema.json](../sordino.schema.json) (`sordino check --schema`) lets an editor
check while you type. Keys of a Python value have underscores where the file has dashes.
"""


def page() -> str:
    """Returns the whole page.

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
        key_table(alone),
        "## [federation]",
        key_table(shared),
        *list_choices(shared, "federation"),
    ]
    for f in whole.values():
        title = f"[{f.name}]"
        if isinstance(f.metadata["check"], Many):
            # A table that may stand several times.
            title = f"[{title}]"
        parts += [f"## {title}", sentence(f.metadata["doc"])]
        parts += list_contents(required_check(f.metadata["check"]), f.name)
    return "\n\n".join(parts) + "\n"


def list_contents(check: Check, path: str) -> Iterator[str]:
    """Yields what stands below a key: the keys of a table, or every kind of table that it may be.

    Args:
        check: of the key.
        path: to the key, with dots.
    """
    if isinstance(check, (Table, Many)):
        yield key_table(fields(check.kind))
        yield from list_choices(fields(check.kind), path)
    elif isinstance(check, Columns):
        yield from describe_columns(path)
    elif isinstance(check, Named):
        for kind in check.kinds:
            yield describe_kind(check, kind, path)
        unique = {f.name: f for kind in check.kinds for f in fields(kind)}
        yield from list_choices(list(unique.values()), path)


def list_choices(entries: Sequence[Field[Any]], path: str) -> Iterator[str]:
    """Yields a section for every key that is a table or one of several kinds.

    Args:
        entries: keys of a table.
        path: to the table, with dots.
    """
    for f in entries:
        check = required_check(f.metadata["check"])
        if isinstance(check, (Columns, Table, Named)):
            below = f"{path}.{file_key(f.name)}"
            yield f"### {below}"
            yield from list_contents(check, below)


def describe_kind(check: Named, kind: type[Value], path: str) -> str:
    """Returns one of several kinds: how it is written, what it is, its keys.

    Args:
        check: of the key.
        kind: one of its kinds.
        path: to the key, with dots.
    """
    written = f"{path.rpartition('.')[2]} = {check.spell_kind(kind)}"
    if isinstance(check, Tagged):
        written = f'{check.tag_key} = "{kind.tag}"'
    text = f"**{code(written)}**. {first_line(kind)}"
    if fields(kind):
        text += f"\n\n{key_table(fields(kind))}"
    return text


def describe_columns(path: str) -> Iterator[str]:
    """Yields what the columns of a table may be, each an entry of the table at a path.

    Args:
        path: to the table, with dots.
    """
    yield f"A table {code(f'[{path}]')} has an entry for every column of the data: its kind."
    for tag, kind in COLUMN_KINDS.items():
        written = f'NAME = {{ kind = "{tag}" }}'
        text = f"**{code(written)}**. {first_line(kind)}"
        # The name of a column is its key.
        entries = [f for f in fields(kind) if f.name != "name"]
        if entries:
            text += f"\n\n{key_table(entries)}"
        yield text


def key_table(entries: Sequence[Field[Any]]) -> str:
    """Returns the keys of a table of the file.

    Args:
        entries: the keys.
    """
    rows = [
        (
            code(file_key(f.name)),
            f.metadata["doc"],
            f.metadata["check"].values_allowed,
            by_default(f),
        )
        for f in entries
    ]
    return table(["key", "meaning", "allowed", "left out"], rows)


def by_default(f: Field[Any]) -> str:
    """Returns what holds where a key is left out.

    Args:
        f: the key.
    """
    if f.default is MISSING:
        return "must be given"
    if f.default is None or f.default is LEFT_OUT:
        return ""
    written = required_check(f.metadata["check"]).encode_value(f.default)
    if written in ("", {}, []):
        return ""
    return code(toml_value(written))


def required_check(check: Check) -> Check:
    """Returns a check without the freedom to leave the key out.

    Args:
        check: of a key.
    """
    if isinstance(check, Maybe):
        return check.check
    return check


def sentence(text: str) -> str:
    """Returns words as a sentence.

    Args:
        text: the words.
    """
    return f"{text[0].upper()}{text[1:]}."
