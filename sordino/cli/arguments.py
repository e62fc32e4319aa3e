"""Declares and reads the arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.protocol import UserError

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PROTOCOL.toml]", help="Protocol file; without it, the built-in example."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as noise.sigma=0.5."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Unit = Annotated[str, typer.Option(help="What is hidden: record or client.")]
VIEWS_HELP = "server, server:k, rounds, coalition:k, final, weak or strong."
Workers = Annotated[int | None, typer.Option(help="Worker processes; by default one per core.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="SINK", help="Send metrics to tensorboard or mlflow:URI too; repeatable."
    ),
]
Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="KEY",
        help="Ed25519 key that signs the run; `sordino verify --new-key` makes one.",
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        "--superlink", metavar="HOST:PORT", help="Where the machines meet, for --engine flower."
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Authority that signed the SuperLink's certificate."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS: for tests on one machine.")]
Patience = Annotated[
    float, typer.Option(help="Seconds that clients are given to connect, for --engine flower.")
]
Deadline = Annotated[
    float,
    typer.Option(help="Seconds that clients are given to answer in a round, for --engine flower."),
]
WithoutNoise = Annotated[
    bool,
    typer.Option(
        "--without-noise",
        help="Train the same without noise, to compare: not private, kept below private/.",
    ),
]


def read_numbers(option: str, text: str | None) -> list[float] | None:
    """Reads the numbers of an option.

    Args:
        option: The option, for the message.
        text: Numbers separated by commas; None where the option was not given.

    Returns:
        The numbers; None where the option was not given.

    Raises:
        UserError: Something is not a number.
    """
    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text!r}: expected numbers separated by commas.") from None
