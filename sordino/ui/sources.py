"""Where a command finds its protocol: in a file, or among the examples that ship with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sordino.protocol import Protocol, UserError, loads, overridden, read

EXAMPLE = "digits"


def protocol_from(file: Path | None, sets: list[str] | None) -> Protocol:
    """The protocol of a file, or of the built-in example, with overrides."""
    return (
        read(file, sets or [])
        if file is not None
        else overridden(loads(example_text(EXAMPLE)), sets or [])
    )


def example_text(name: str) -> str:
    """A protocol file that ships with the package."""
    folder = files("sordino") / "examples"
    known = sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )
    if name not in known:
        raise UserError(
            f"--from {name!r}: there is no such example. There are: {', '.join(known)}."
        )
    return (folder / f"{name}.toml").read_text(encoding="utf-8")
