"""Defines the command line: its commands, and how each ends.

Each command is a module next to this one. Rooms that need torch are imported inside the commands,
so that `sordino --version` and `sordino check` answer at once.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import click
import typer

from sordino.cli.attack_command import attack
from sordino.cli.audit_command import audit
from sordino.cli.calibrate_command import calibrate
from sordino.cli.certify_command import certify
from sordino.cli.check_claim_command import check_claim
from sordino.cli.console import INTERRUPTED, abandon_full_output, escape_unprintable, messages
from sordino.cli.data_command import app as data
from sordino.cli.file_commands import check, new
from sordino.cli.flower_command import app as flower
from sordino.cli.papers_command import app as papers
from sordino.cli.report_command import report
from sordino.cli.sweep_command import sweep
from sordino.cli.train_command import evaluate, resume, train
from sordino.cli.ui_command import ui
from sordino.cli.verify_command import verify
from sordino.protocol import SordinoError, UserError

app = typer.Typer(
    help="Differentially private federated learning whose promises are checked.",
    no_args_is_help=True,
    # Completion would write to the user's shell files.
    add_completion=False,
    # Errors are printed by `run_command`, in one sentence.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

COMMANDS = (
    train,
    resume,
    sweep,
    certify,
    calibrate,
    audit,
    attack,
    evaluate,
    report,
    verify,
    check_claim,
    new,
    check,
    ui,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(papers, name="papers")
app.add_typer(flower, name="flower")
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("sordino"))
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Runs a command line.

    Args:
        arguments: What was typed after `sordino`.

    Returns:
        The exit code: 0 done, 1 unexpected, 2 bad input, 3 refused by the budget, 4 a guarantee is
        contradicted or something was changed, 130 stopped by Ctrl-C.

    Raises:
        OSError: Something other than a file or standard output failed.
    """
    try:
        # Output that does not fit on a disk fails when it is flushed.
        code = run_command(arguments)
        # What cannot be written shows here, not while Python ends.
        sys.stdout.flush()
        return code
    except OSError as error:
        # An error about a file has its name, and is not about standard output.
        if error.filename is not None:
            messages.print(
                f"sordino: {error.filename} cannot be used: {error.strerror}. "
                "Check the name, the permissions and the space on the disk.",
                soft_wrap=True,
            )
            return UserError.exit_code
        if not abandon_full_output():
            raise
        # The reader of a pipe has seen enough.
        if isinstance(error, BrokenPipeError):
            return 1
        messages.print(
            f"sordino: standard output cannot be written to: {error.strerror}. "
            "Make room, or send it elsewhere.",
            soft_wrap=True,
        )
        return UserError.exit_code


def run_command(arguments: list[str]) -> int:
    """Runs a command line, and prints the errors that are meant for users.

    Args:
        arguments: What was typed after `sordino`.

    Returns:
        The exit code.
    """
    try:
        # Otherwise click itself would print errors and end the process.
        code = app(args=arguments, standalone_mode=False, prog_name="sordino")
        if isinstance(code, int):
            return code
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        messages.print("sordino: stopped. Nothing was written.")
        return INTERRUPTED
    except MemoryError as error:
        messages.print(
            f"sordino: there is not enough memory for this. {error}", markup=False, soft_wrap=True
        )
        return UserError.exit_code
    except SordinoError as error:
        # Codes of colours would end up in files and pipes.
        style = None
        if messages.is_terminal:
            style = "red"
        messages.print(f"sordino: {error}", style=style, markup=False, soft_wrap=True)
        return error.exit_code


def main() -> None:
    """Runs the `sordino` command."""
    # A request to end is treated as Ctrl-C is: the run can be resumed.
    signal.signal(signal.SIGTERM, interrupt)
    escape_unprintable()
    sys.exit(run(sys.argv[1:]))


def interrupt(number: int, frame: object) -> None:
    """Does what Ctrl-C does, also where SIGINT is ignored, as in a script's background jobs.

    Args:
        number: The number of the signal.
        frame: The frame that was interrupted.

    Raises:
        KeyboardInterrupt: Always.
    """
    raise KeyboardInterrupt
