"""Reads how many records clients have, where a price depends on it."""

from __future__ import annotations

from typing import Annotated

import typer

from sordino.cli.console import messages, results
from sordino.protocol import Protocol

LooksAtData = Annotated[
    bool,
    typer.Option("--data", help="Read the data to learn how many records every client has."),
]
UNSTATED_SIZES = (
    "The file does not say how many records clients have, so the worst case counts. A run knows, "
    "and its bound may be smaller; --data reads the data beforehand, and data.records (one size) "
    "or data.sizes (a list) states it in the file."
)


def read_sizes(protocol: Protocol, read_data: bool) -> tuple[int, ...] | None:
    """Returns the number of records of every client, from the data.

    Args:
        protocol: The federation.
        read_data: Whether the data may be read.

    Returns:
        The numbers; None if the data may not be read.
    """
    if not read_data:
        return None
    # Imported here: pricing needs no torch, and most calls do not read data.
    from sordino.federation.setup import prepare

    with messages.status("reading the data"):
        return tuple(prepare(protocol).sizes.tolist())


def print_unstated_sizes(protocol: Protocol, unit: str, sizes: tuple[int, ...] | None) -> None:
    """Says that a bound might be smaller, where only the clients' sizes are missing for it.

    Args:
        protocol: The federation.
        unit: "record" or "client".
        sizes: The number of records of every client, where it is known.
    """
    from sordino.report.price_tables import depends_on_unstated_sizes

    if sizes is None and depends_on_unstated_sizes(protocol, unit):
        results.print(UNSTATED_SIZES, soft_wrap=True)
