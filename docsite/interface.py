"""The page of the Python interface: every public name, its signature or its fields, its docstring, its example."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from typing import Any

import sordino
from docsite.markdown import code, first_line, table
from sordino.audit.auditing import audit
from sordino.protocol.entries import Value

HEAD = """# From Python

Everything that `import sordino` has. Written from the docstrings, whose examples run as tests. Values of a protocol are frozen, take
keywords only, and are checked when they are made; [the protocol file](file.md) has the same keys.
"""
SECTIONS = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example):\n", re.MULTILINE)


def page() -> str:
    """The whole page.

    Example:
        >>> "## certify" in page()
        True
    """
    named = {name: getattr(sordino, name) for name in sordino.__all__} | {
        "audit": audit
    }  # the function of the room of that name
    groups = {
        "Functions": [name for name, one in named.items() if not isinstance(one, type)],
        "Results and data": [
            name
            for name, one in named.items()
            if isinstance(one, type) and not issubclass(one, (Value, Exception))
        ],
        "Values of a protocol": [
            name for name, one in named.items() if isinstance(one, type) and issubclass(one, Value)
        ],
        "Errors": [
            name
            for name, one in named.items()
            if isinstance(one, type) and issubclass(one, Exception)
        ],
    }
    parts = [HEAD]
    for title, names in groups.items():
        parts += [f"## {title}", *(section(name, named[name]) for name in names)]
    return "\n\n".join(parts) + "\n"


def section(name: str, one: Any) -> str:
    """A public name: how it is called, what it is, what it has."""
    if not isinstance(one, type):
        return f"### {name}\n\n```text\n{signature(name, one)}\n```\n\n{told(one)}"
    return f"### {name}\n\n{told(one)}\n\n{value_fields(one) if issubclass(one, Value) else members(one)}"


def signature(name: str, function: Any) -> str:
    """How a function is called, a line for every argument; those after the star are given by name.

    Example:
        >>> print(signature("code", code))
        code(
            text: str,
        ) -> str
    """
    lines, stars = [], 0
    called = inspect.signature(function)
    for parameter in called.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and stars == 0:
            lines.append("*")
        stars += parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        default = "..." if callable(parameter.default) else repr(parameter.default)
        lines.append(
            f"{parameter.name}: {parameter.annotation}"
            + ("" if parameter.default is parameter.empty else f" = {default}")
        )
    listed = "".join(f"    {line},\n" for line in lines)
    return f"{name}(\n{listed}) -> {called.return_annotation}"


def told(one: Any) -> str:
    """A docstring of Google's style as Markdown."""
    lead, *rest = SECTIONS.split(inspect.getdoc(one) or "")
    parts = [lead.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        body = textwrap.dedent(body).strip()
        if title == "Example":
            parts.append(f"```pycon\n{without_options(body)}\n```")
        else:
            items = re.split(r"\n(?=\S)", body)
            parts.append(
                f"*{title}*\n\n" + "\n".join(f"- {' '.join(item.split())}" for item in items)
            )
    return "\n\n".join(parts)


def without_options(example: str) -> str:
    """An example without the comments that speak to doctest.

    Example:
        >>> without_options(">>> train(protocol)  # doctest: +SKIP")
        '>>> train(protocol)'
    """
    return re.sub(r"\s+# doctest:.*", "", example)


def value_fields(kind: type[Value]) -> str:
    """The fields of a value, with what they allow."""
    rows = [
        (
            code(f.name),
            f.metadata["doc"],
            f.metadata["check"].allowed,
            "must be given" if f.default is MISSING else code(repr(f.default)),
        )
        for f in fields(kind)
    ]
    return table(["field", "meaning", "allowed", "left out"], rows) if rows else ""


def members(kind: type) -> str:
    """Public methods and properties, a line each."""
    found = {
        name: one
        for base in reversed(kind.__mro__[:-1])
        for name, one in vars(base).items()
        if not name.startswith("_")
    }
    rows = [
        (code(name if isinstance(one, property) else f"{name}()"), first_line(one))
        for name, one in sorted(found.items())
        if isinstance(one, (property, classmethod, staticmethod)) or inspect.isfunction(one)
    ]
    return table(["", ""], rows) if rows else ""
