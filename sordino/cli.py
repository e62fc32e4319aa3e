"""The command line: which commands there are, and how each ends. A command stands in `ui/`, in the module of its name.

Rooms that need torch are imported inside the commands, so that `sordino --version` and `sordino check` answer at once.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import click
import typer

from sordino.protocol import SordinoError, UserError
from sordino.ui.attack import attack
from sordino.ui.audit import audit
from sordino.ui.certify import calibrate, certify
from sordino.ui.check_claim import check_claim
from sordino.ui.console import INTERRUPTED, forgive, given_up, messages
from sordino.ui.files import check, new
from sordino.ui.flower import app as flower
from sordino.ui.papers import app as papers
from sordino.ui.report import report
from sordino.ui.serve import ui
from sordino.ui.train import evaluate, resume, train
from sordino.ui.verify import verify

app = typer.Typer(
    help="Differentially private federated learning whose promises are checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

COMMANDS = (
    train,
    resume,
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


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("sordino"))
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code: 0 done, 1 unexpected, 2 bad input, 4 something was changed, 130 stopped by Ctrl-C."""
    try:
        code = answered(arguments)
        sys.stdout.flush()  # what cannot be written is said here, not while Python ends
        return code
    except OSError as error:
        if error.filename is not None or not given_up():
            raise
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            return 1
        messages.print(
            f"sordino: standard output cannot be written to: {error.strerror}. Make room, or send it elsewhere.",
            soft_wrap=True,
        )
        return UserError.exit_code


def answered(arguments: list[str]) -> int:
    """Run a command line; what goes wrong by intent is said."""
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="sordino")
        return code if isinstance(code, int) else 0
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
        messages.print(
            f"sordino: {error}",
            style="red" if messages.is_terminal else None,
            markup=False,
            soft_wrap=True,
        )
        return error.exit_code


def main() -> None:
    """The `sordino` command. A request to end (SIGTERM) is treated as Ctrl-C is: the run can be resumed."""
    signal.signal(signal.SIGTERM, interrupt)
    forgive()
    sys.exit(run(sys.argv[1:]))


def interrupt(number: int, frame: object) -> None:
    """Do what Ctrl-C does, also where SIGINT itself is ignored: scripts start what they leave in the background like that."""
    raise KeyboardInterrupt
