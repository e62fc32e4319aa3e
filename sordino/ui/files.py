"""`sordino new` and `sordino check`: protocol files, written and read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.protocol import Protocol, UserError, dumps, schema
from sordino.protocol.errors import typed
from sordino.ui.arguments import File, Json, Sets
from sordino.ui.console import messages, print_json, results
from sordino.ui.sources import EXAMPLE, example_text, protocol_from


def new(
    name: Annotated[
        Path, typer.Argument(metavar="[NAME]", help="File to write; .toml is added.")
    ] = Path("federation"),
    example: Annotated[
        str, typer.Option("--from", help="Built-in example to start from.")
    ] = EXAMPLE,
) -> None:
    """Write a commented protocol file to start from."""
    if name.name in ("", ".."):
        raise UserError(
            f"{str(name)!r} is a folder: give the name of a file to write, as in `sordino new mine`."
        )
    target = name if name.suffix == ".toml" else name.with_name(name.name + ".toml")
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
        f"Wrote {target}. Next: {typed('check', target)}, then {typed('train', target)}",
        soft_wrap=True,
    )


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
    """Read a protocol file, say what is wrong with it, or print it complete."""
    if show_schema:
        print_json(schema())
        return
    protocol = protocol_from(file, sets)
    if picture is not None:
        draw(protocol, picture)
    if json:
        from sordino.protocol.file import parse

        print_json(parse(dumps(protocol)))
    else:
        print(dumps(protocol), end="")
        looked = (
            f"Picture: {picture}"
            if picture is not None
            else "Its data and model were not looked at."
        )
        messages.print(f"This protocol is valid. {looked}")
        if protocol.data is not None:
            from sordino.federation.data.outline import data_hints

            for hint in data_hints(protocol.data):
                messages.print(hint, soft_wrap=True)


def draw(protocol: Protocol, picture: Path) -> None:
    """The picture of the partition."""
    from sordino.federation.data import draw_partition, label_counts, load_data, partition
    from sordino.federation.randomness import Key

    if protocol.data is None:
        raise UserError("data.name is missing: there are no clients to draw.")
    dataset = load_data(protocol.data)
    parts = partition(dataset, protocol.data, protocol.clients, Key.from_seed(protocol.seed or 0))
    draw_partition(label_counts(dataset, parts), dataset.classes, picture)
