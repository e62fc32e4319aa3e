"""The page of all commands, options and exit codes, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from docsite.markdown import code, first_line, table, words
from sordino.cli import app
from sordino.privacy import spending  # noqa: F401 - one of its errors ends a command
from sordino.protocol import SordinoError

HEAD = """# The command line

Written from the commands themselves; `sordino COMMAND --help` prints the same.
"""


def page() -> str:
    """The whole page.

    Example:
        >>> "--keep-uploads" in page()
        True
    """
    commands = [
        section(path, command)
        for path, command in all_commands(typer.main.get_command(app), ("sordino",))
    ]
    return "\n\n".join([HEAD, *commands, "## Exit codes", exit_codes()]) + "\n"


def all_commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from all_commands(inner, (*path, name))


def section(path: tuple[str, ...], command: click.Command) -> str:
    """A command: how it is called, what it does, what it takes."""
    usage = " ".join([*path, *command.collect_usage_pieces(click.Context(command))])
    rows = [row for row in map(described, command.params) if row is not None]
    taken = table(["argument or option", "meaning", "by default"], rows) if rows else ""
    return (
        f"## {' '.join(path)}\n\n    {usage}\n\n{' '.join((command.help or '').split())}\n\n{taken}"
    )


def described(parameter: click.Parameter) -> tuple[str, str, str] | None:
    """An argument or an option as a row; nothing for what is hidden."""
    if getattr(parameter, "hidden", False):
        return None
    meaning = words(getattr(parameter, "help", None) or "")
    shown = (
        parameter.default is not None
        and not getattr(parameter, "is_flag", False)
        and parameter.default != ()
    )
    return spelled(parameter), meaning, code(str(parameter.default)) if shown else ""


def spelled(parameter: click.Parameter) -> str:
    """How a parameter is written: its names, and the value that it takes."""
    value = parameter.make_metavar(click.Context(click.Command("x"))).removesuffix(" RANGE")
    if isinstance(parameter, click.Argument):
        return code(value)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return code(names if getattr(parameter, "is_flag", False) else f"{names} {value}")


def exit_codes() -> str:
    """What a command says by its exit code: done, what the errors say of themselves, stopped.

    Example:
        >>> "| 4 |" in exit_codes()
        True
    """
    meanings: dict[int, list[str]] = {0: ["Done."]}
    for error in (SordinoError, *descendants(SordinoError)):
        if "exit_code" in vars(error):
            meanings.setdefault(error.exit_code, []).append(first_line(error))
    return table(
        ["code", "meaning"],
        [(str(number), " ".join(meanings[number])) for number in sorted(meanings)],
    )


def descendants(kind: type[SordinoError]) -> Iterator[type[SordinoError]]:
    """Every kind of error below one."""
    for inner in kind.__subclasses__():
        yield inner
        yield from descendants(inner)
