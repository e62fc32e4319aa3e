"""Writes the page of the Python interface: every public name, its signature or fields, its docstring."""

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
from sordino.protocol.noise_kinds import LEFT_OUT

HEAD = """# From Python

Everything that `import sordino` offers. Generated from the docstrings, whose examples run as tests.
Values of a protocol are frozen, take keywords only, and are checked when they are made;
[the protocol file](file.md) has the same keys.
"""
SECTIONS = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example):\n", re.MULTILINE)


def page() -> str:
    """Returns the whole page.

    Example:
        >>> "## certify" in page()
        True
    """
    named = {name: getattr(sordino, name) for name in sordino.__all__}
    # The package of that name is documented by the function that it calls.
    named["audit"] = audit
    groups: dict[str, list[str]] = {
        "Functions": [],
        "Results and data": [],
        "Values of a protocol": [],
        "Errors": [],
    }
    for name, one in named.items():
        groups[choose_group(one)].append(name)
    parts = [HEAD]
    for title, names in groups.items():
        parts += [f"## {title}", *(section(name, named[name]) for name in names)]
    return "\n\n".join(parts) + "\n"


def choose_group(one: Any) -> str:
    """Returns the part of the page that a public name belongs to.

    Args:
        one: what has the name.
    """
    if not isinstance(one, type):
        return "Functions"
    if issubclass(one, Exception):
        return "Errors"
    if issubclass(one, Value):
        return "Values of a protocol"
    return "Results and data"


def section(name: str, one: Any) -> str:
    """Returns the section of a public name: how it is called, what it is, what it has.

    Args:
        name: the name.
        one: what has it.
    """
    if not isinstance(one, type):
        call = f"```text\n{signature(name, one)}\n```"
        return f"### {name}\n\n{call}\n\n{format_docstring(one)}"
    details = member_table(one)
    if issubclass(one, Value):
        details = field_table(one)
    return f"### {name}\n\n{format_docstring(one)}\n\n{details}"


def signature(name: str, function: Any) -> str:
    """Returns how a function is called, a line for every argument.

    Args:
        name: of the function.
        function: the function.

    Example:
        >>> print(signature("code", code))
        code(
            text: str,
        ) -> str
    """
    lines = []
    stars = 0
    called = inspect.signature(function)
    for parameter in called.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and stars == 0:
            lines.append("*")
        stars += parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        line = f"{parameter.name}: {parameter.annotation}"
        if callable(parameter.default) and parameter.default is not parameter.empty:
            line += " = ..."
        elif parameter.default is not parameter.empty:
            line += f" = {parameter.default!r}"
        lines.append(line)
    listed = "".join(f"    {line},\n" for line in lines)
    return f"{name}(\n{listed}) -> {called.return_annotation}"


def format_docstring(one: Any) -> str:
    """Returns a docstring of Google's style as Markdown.

    Args:
        one: what has it.
    """
    lead, *rest = SECTIONS.split(inspect.getdoc(one) or "")
    parts = [lead.strip()]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        body = textwrap.dedent(body).strip()
        if title == "Example":
            parts.append(f"```pycon\n{remove_options(body)}\n```")
        else:
            items = re.split(r"\n(?=\S)", body)
            parts.append(
                f"*{title}*\n\n" + "\n".join(f"- {' '.join(item.split())}" for item in items)
            )
    return "\n\n".join(parts)


def remove_options(example: str) -> str:
    """Returns an example without the comments that speak to doctest.

    Args:
        example: of a docstring.

    Example:
        >>> remove_options(">>> train(protocol)  # doctest: +SKIP")
        '>>> train(protocol)'
    """
    return re.sub(r"\s+# doctest:.*", "", example)


def field_table(kind: type[Value]) -> str:
    """Returns the fields of a value, with what they allow.

    Args:
        kind: of values.
    """
    rows = []
    for f in fields(kind):
        default = "must be given"
        if f.default is LEFT_OUT:
            default = ""
        elif f.default is not MISSING:
            default = code(repr(f.default))
        rows.append((code(f.name), f.metadata["doc"], f.metadata["check"].values_allowed, default))
    if not rows:
        return ""
    return table(["field", "meaning", "allowed", "left out"], rows)


def member_table(kind: type) -> str:
    """Returns public methods and properties, a line each.

    Args:
        kind: a class.
    """
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        found |= {name: one for name, one in vars(base).items() if not name.startswith("_")}
    rows = []
    for name, one in sorted(found.items()):
        if isinstance(one, property):
            rows.append((code(name), first_line(one)))
        elif isinstance(one, (classmethod, staticmethod)) or inspect.isfunction(one):
            rows.append((code(f"{name}()"), first_line(one)))
    if not rows:
        return ""
    return table(["", ""], rows)
