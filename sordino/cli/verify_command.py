"""The command `sordino verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sordino.cli.arguments import Json
from sordino.cli.console import messages, print_json, results
from sordino.cli.option_checks import refuse_with
from sordino.protocol import UserError
from sordino.protocol.errors import Changed

if TYPE_CHECKING:
    from sordino.report.verification import Verification

COLOURS = {"whole": "green", "changed": "red", "not checked": "yellow"}


def verify(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FILE|FINGERPRINT", help="The key that must have signed the run."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign the run with this key, if it is whole."),
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            "--new-key", metavar="FILE", help="Make a key: FILE, private to you, and FILE.pub."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check all of a run's folder that can be checked. Exit code 4 if anything was changed."""
    # A key is made without any run.
    if new_key is not None:
        refuse_with("--new-key", key=key, sign=sign)
        make_key(new_key, run, json)
        return
    if run is None:
        raise UserError("which run? Give the folder of a run, or --new-key FILE to make a key.")
    from sordino.federation.store.signatures import read_fingerprint, read_private_key, sign_run
    from sordino.report.verification import verify as verified

    # Keys are read before the checks: a wrong path should not cost minutes.
    wanted = None
    if key is not None:
        wanted = read_fingerprint(key)
    private = None
    if sign is not None:
        private = read_private_key(sign)
    with messages.status("checking"):
        found = verified(run, key=wanted)
        # A changed run is never signed: the signature would vouch for the change.
        if private is not None and found.whole:
            sign_run(run, private)
            # Checked again, so that the answer includes the new signature.
            found = verified(run, key=wanted)
    if json:
        print_json(found.as_document())
    else:
        show_verification(found)
    # After the table, so that all findings are seen and not only the first.
    if not found.whole:
        raise Changed(f"{run} is not what was written. {found.changed[0].said}")


def make_key(path: Path, run: Path | None, json: bool) -> None:
    """Makes a key and says how it is used.

    Args:
        path: The file of the private key.
        run: The run that was given; there must be none.
        json: Print one JSON document and nothing else.

    Raises:
        UserError: A run was given, or the file exists already.
    """
    from sordino.federation.store.signatures import write_new_key

    if run is not None:
        raise UserError(f"--new-key makes a key and checks no run: leave out {run}.")
    fingerprint = write_new_key(path)
    if json:
        print_json({"key": str(path), "public": f"{path}.pub", "fingerprint": fingerprint})
        return
    results.print(
        f"Wrote {path}, which signs and is for you alone, and {path}.pub, for those who check.\n"
        f"Fingerprint: {fingerprint}",
        soft_wrap=True,
    )


def show_verification(found: Verification) -> None:
    """Prints the table of checks, and a line that counts them.

    Args:
        found: The checks and their results.
    """
    table = Table()
    table.add_column("checked")
    table.add_column("result")
    table.add_column("", overflow="fold")
    for check in found.checks:
        table.add_row(check.subject, Text(check.result, COLOURS[check.result]), Text(check.said))
    results.print(table)
    whole = sum(check.result == "whole" for check in found.checks)
    left = sum(check.result == "not checked" for check in found.checks)
    verdict = "Changed"
    if found.whole:
        verdict = "Whole"
    results.print(
        f"{verdict}: {whole} checks passed, {len(found.changed)} failed, {left} could not be made.",
        soft_wrap=True,
    )
