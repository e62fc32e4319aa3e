"""The commands `sordino new` and `sordino check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.arguments import File, Json, Sets
from sordino.cli.console import print_json, print_message, results
from sordino.cli.protocol_sources import (
    EXAMPLE,
    describe_example,
    example_text,
    list_examples,
    protocol_from,
)
from sordino.protocol import Protocol, UserError, build_schema, dumps
from sordino.protocol.errors import format_command


def new(
    name: Annotated[
        Path, typer.Argument(metavar="[NAME]", help="File to write; .toml is added.")
    ] = Path("federation"),
    example: Annotated[
        str, typer.Option("--from", help=f"Example to start from: {', '.join(list_examples())}.")
    ] = EXAMPLE,
    listed: Annotated[
        bool, typer.Option("--list", help="Show what every example is, and write nothing.")
    ] = False,
) -> None:
    """Write a commented protocol file to start from."""
    if listed:
        print_examples()
        return
    if name.name in ("", ".."):
        raise UserError(
            f"{str(name)!r} is a folder: "
            "give the name of a file to write, as in `sordino new mine`."
        )
    target = name
    if name.suffix != ".toml":
        target = name.with_name(name.name + ".toml")
    text = example_text(example)
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{target} exists already: choose another name, as in `sordino new mine`."
        ) from None
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    results.print(
        f"Wrote {target}. Next: {format_command('check', target)}, "
        f"then {format_command('train', target)}",
        soft_wrap=True,
    )


def print_examples() -> None:
    """Prints every example with the first sentence about it."""
    for name in list_examples():
        results.print(f"{name}: {describe_example(name)}", soft_wrap=True, highlight=False)


def check(
    file: File = None,
    sets: Sets = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw clients and labels (.png, .svg or .pdf)."),
    ] = None,
    show_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the file, for editors.")
    ] = False,
    json: Json = False,
) -> None:
    """Read a protocol file; report its errors, or print it with all defaults."""
    if show_schema:
        print_json(build_schema())
        return
    protocol = protocol_from(file, sets)
    if picture is not None:
        write_partition_picture(protocol, picture)
    if json:
        from sordino.protocol.file import parse_toml

        print_json(parse_toml(dumps(protocol)))
    else:
        print(dumps(protocol), end="")
        if picture is None:
            print_message("This protocol is valid. Its data and model were not read.")
        else:
            print_message(f"This protocol is valid. Picture: {picture}")
        if protocol.data is not None:
            from sordino.data.outline import data_hints

            for hint in data_hints(protocol.data):
                print_message(hint)


def write_partition_picture(protocol: Protocol, picture: Path) -> None:
    """Draws how many records of each label every client has.

    Args:
        protocol: The federation.
        picture: The file to write.

    Raises:
        UserError: The protocol names no data, or the file cannot be written.
    """
    from sordino.data import draw_partition, label_counts, load_data, partition
    from sordino.randomness import Key

    if protocol.data is None:
        raise UserError("data.name is missing: there are no clients to draw.")
    dataset = load_data(protocol.data)
    parts = partition(dataset, protocol.data, protocol.clients, Key.from_seed(protocol.seed or 0))
    draw_partition(label_counts(dataset, parts), dataset.classes, picture)
