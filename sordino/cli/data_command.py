"""The commands `sordino data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.arguments import Json
from sordino.cli.console import print_json, print_message
from sordino.protocol import UserError

app = typer.Typer(help="Describe your own tables.", no_args_is_help=True)

LOOKED = (
    "This looked at the records. Limits, categories and classes are public once they are in "
    "a protocol: state what is known beforehand, or describe a public sample or invented "
    "records."
)


@app.callback()
def keep_group() -> None:
    """Describe your own tables."""


@app.command()
def describe(
    file: Annotated[Path, typer.Argument(help="A table, or a folder with a table per client.")],
    label: Annotated[str | None, typer.Option(help="Column with the class.")] = None,
    target: Annotated[str | None, typer.Option(help="Column with a number to predict.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column that assigns records to clients, such as a hospital.")
    ] = None,
    json: Json = False,
) -> None:
    """Propose [data.columns] for a table, from a public sample of it."""
    from sordino.data.table_files import read_text_table, require_table
    from sordino.data.table_proposal import propose_description, write_proposal
    from sordino.protocol.file import parse_toml

    refuse_two_answers(label, target)
    require_table(file)
    proposal = propose_description(read_text_table(file), label=label, target=target, group=group)
    text = write_proposal(proposal)
    if json:
        print_json(parse_toml(text))
    else:
        print(text, end="")
    print_message(LOOKED)


def refuse_two_answers(label: str | None, target: str | None) -> None:
    """Refuses two columns to be learnt.

    Args:
        label: The column with the class, if one was named.
        target: The column with a number to predict, if one was named.

    Raises:
        UserError: Both were named.
    """
    if label is not None and target is not None:
        raise UserError("--label and --target: give one of them, the column that is to be learnt.")
