"""Finds the protocol of a command: in a file, or among the examples that ship with the package."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from sordino.protocol import Gaussian, Protocol, UserError, loads, override_keys, read_protocol

EXAMPLE = "digits-local"
# Through importlib, since an installed package may be in an archive.
EXAMPLES = files("sordino") / "examples"


def protocol_from(file: Path | None, sets: list[str] | None) -> Protocol:
    """Returns the protocol of a file, or of the built-in example, with overrides.

    Args:
        file: The protocol file; None for the built-in example.
        sets: Overrides, such as "noise.sigma=0.5".

    Raises:
        UserError: The file or an override is not valid.
    """
    if file is not None:
        refuse_example_name(file)
        return read_protocol(file, sets or [])
    # Read as a file is, so that an override is checked in the same way.
    return override_keys(loads(example_text(EXAMPLE)), sets or [])


def refuse_example_name(file: Path) -> None:
    """Refuses the name of an example where a file is expected.

    Args:
        file: The path that was given.

    Raises:
        UserError: There is an example of this name, and no file.
    """
    name = file.name.removesuffix(".toml")
    if not file.exists() and name in list_examples():
        raise UserError(
            f"there is no file {str(file)!r}, but an example of that name: "
            f"`sordino new {name}.toml --from {name}` writes it."
        )


def count_priced_parameters(protocol: Protocol) -> Protocol:
    """Returns a protocol that says how many parameters its model has, where the price needs it.

    Args:
        protocol: The federation that the command is about.

    Raises:
        UserError: Its model cannot be built.
    """
    stated = protocol.model is not None and protocol.model.parameters is not None
    # Of Laplace and staircase noise, also of single clients, the price depends on their number.
    mechanisms = {budget.mechanism for budget in protocol.client} - {None, Gaussian.tag}
    needed = protocol.release.secure_sum is not None or bool(mechanisms)
    if stated or not needed:
        return protocol
    # Imported here: only a model that has to be built needs torch, which takes seconds to load.
    from sordino.federation.setup import with_parameter_count

    return with_parameter_count(protocol)


def example_text(name: str) -> str:
    """Returns a protocol file that ships with the package.

    Args:
        name: Name of the example.

    Raises:
        UserError: There is no such example.
    """
    known = list_examples()
    if name not in known:
        raise UserError(
            f"--from {name!r}: there is no such example. There are: {', '.join(known)}."
        )
    return (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")


def list_examples() -> list[str]:
    """Returns the names of the protocol files that ship with the package."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in EXAMPLES.iterdir()
        if entry.name.endswith(".toml")
    )


def describe_example(name: str) -> str:
    """Returns the first sentence of an example's comment.

    Args:
        name: Name of the example.
    """
    comment = []
    for line in example_text(name).splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    # "et al. 2018" ends no sentence.
    first = re.split(r"\.\s+(?=[A-Z`])", " ".join(comment))[0]
    return first.removesuffix(".") + "."
