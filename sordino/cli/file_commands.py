"""The commands `sordino new` and `sordino check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.arguments import File, Json, Sets
from sordino.cli.console import print_json, print_message, results
from sordino.cli.data_command import LOOKED, refuse_two_answers
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
        str | None,
        typer.Option(
            "--from", help=f"Example to start from, {EXAMPLE} or: {', '.join(list_examples())}."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Write it for your own table, or a folder with a table per client."),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(help="With --data: a public sample, to propose limits and categories from."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="With --data: the column with the class.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --data: the column with a number to predict.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="With --data: the column that assigns records to clients.")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="With --data: the epsilon for which noise is found.")
    ] = 3.0,
    listed: Annotated[
        bool, typer.Option("--list", help="Describe every example, and write nothing.")
    ] = False,
) -> None:
    """Write a commented protocol file to start from."""
    if listed:
        print_examples()
        return
    target_file = name_protocol_file(name)
    if data is None:
        refuse_without_data(sample=sample, label=label, target=target, group=group)
        write_protocol_file(target_file, example_text(example or EXAMPLE))
        return
    if example is not None:
        raise UserError("--from and --data: give one of them; an example has its own data.")
    from sordino.data.table_protocol import propose_protocol

    refuse_two_answers(label, target)
    text = propose_protocol(
        data, sample or data, label=label, target=target, group=group, epsilon=epsilon
    )
    write_protocol_file(target_file, text)
    if sample is None:
        print_message(f"{LOOKED} --sample FILE names one.")


def name_protocol_file(name: Path) -> Path:
    """Returns the protocol file that a name denotes.

    Args:
        name: As it was typed, with or without .toml.

    Raises:
        UserError: The name is that of a folder, or of a file that exists.
    """
    if name.name in ("", ".."):
        raise UserError(
            f"{str(name)!r} is a folder: "
            "give the name of a file to write, as in `sordino new mine`."
        )
    target = name
    if name.suffix != ".toml":
        target = name.with_name(name.name + ".toml")
    if target.exists():
        raise existing_file(target)
    return target


def existing_file(target: Path) -> UserError:
    """Returns the error for a file that would be overwritten.

    Args:
        target: The file.
    """
    return UserError(f"{target} exists already: choose another name, as in `sordino new mine`.")


def refuse_without_data(**options: object) -> None:
    """Refuses options that describe tables where none are given.

    Args:
        **options: The options by name; None where they were not given.

    Raises:
        UserError: One was given.
    """
    for option, value in options.items():
        if value is not None:
            raise UserError(
                f"--{option} {value}: it describes tables of your own; --data PATH names them."
            )


def write_protocol_file(target: Path, text: str) -> None:
    """Writes a new protocol file and says what comes next.

    Args:
        target: The file, which must not exist.
        text: The text of the protocol.

    Raises:
        UserError: The file exists, or cannot be written.
    """
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise existing_file(target) from None
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
