"""Writes the page of all commands, options and exit codes, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from docsite.markdown import code, escape_tags, first_line, table
from sordino.cli.main import app

# One of its errors ends a command, and is found among the subclasses.
from sordino.privacy import spending  # noqa: F401
from sordino.protocol import SordinoError

HEAD = """# The command line

Generated from the commands themselves; `sordino COMMAND --help` prints the same.
"""


def page() -> str:
    """Returns the whole page.

    Example:
        >>> "--keep-uploads" in page()
        True
    """
    commands = [
        section(path, command)
        for path, command in all_commands(typer.main.get_command(app), ("sordino",))
    ]
    return "\n\n".join([HEAD, *commands, "## Exit codes", exit_code_table()]) + "\n"


def all_commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields every command that does something, with the words that call it.

    Args:
        command: a command, or a group of them.
        path: the words that call it.
    """
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from all_commands(inner, (*path, name))


def section(path: tuple[str, ...], command: click.Command) -> str:
    """Returns the section of a command: how it is called, what it does, what it takes.

    Args:
        path: the words that call it.
        command: the command.
    """
    usage = " ".join([*path, *command.collect_usage_pieces(click.Context(command))])
    meaning = " ".join((command.help or "").split())
    parts = [f"## {' '.join(path)}", f"    {usage}", meaning]
    rows = [
        parameter_row(parameter)
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
    ]
    if rows:
        parts.append(table(["argument or option", "meaning", "by default"], rows))
    return "\n\n".join(parts)


def parameter_row(parameter: click.Parameter) -> tuple[str, str, str]:
    """Returns an argument or an option as a row: spelling, meaning, default.

    Args:
        parameter: of a command.
    """
    meaning = escape_tags(getattr(parameter, "help", None) or "")
    default = ""
    is_flag = getattr(parameter, "is_flag", False)
    if parameter.default not in (None, ()) and not is_flag:
        default = code(str(parameter.default))
    return spell_parameter(parameter), meaning, default


def spell_parameter(parameter: click.Parameter) -> str:
    """Returns how a parameter is written: its names, and the value that it takes.

    Args:
        parameter: of a command.
    """
    value = parameter.make_metavar(click.Context(click.Command("x"))).removesuffix(" RANGE")
    if isinstance(parameter, click.Argument):
        return code(value)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if getattr(parameter, "is_flag", False):
        return code(names)
    return code(f"{names} {value}")


def exit_code_table() -> str:
    """Returns the table of exit codes: done, what the errors say of themselves, stopped.

    Example:
        >>> "| 4 |" in exit_code_table()
        True
    """
    meanings: dict[int, list[str]] = {0: ["Done."]}
    for error in (SordinoError, *list_descendants(SordinoError)):
        if "exit_code" in vars(error):
            meanings.setdefault(error.exit_code, []).append(first_line(error))
    return table(
        ["code", "meaning"],
        [(str(number), " ".join(meanings[number])) for number in sorted(meanings)],
    )


def list_descendants(kind: type[SordinoError]) -> Iterator[type[SordinoError]]:
    """Yields every kind of error below one.

    Args:
        kind: of errors.
    """
    for inner in kind.__subclasses__():
        yield inner
        yield from list_descendants(inner)
