"""Flower's SuperLink behind a gate; `sordino flower link` becomes this."""

from __future__ import annotations

import os
import sys
from typing import Any

from sordino.engines.flower.door import allow_many_files, put_door_in_front
from sordino.engines.flower.middleware import Gate
from sordino.protocol import UserError


def put_gate_in_front(*, secured: bool) -> None:
    """Puts the gate in front of every app that Flower makes in this process.

    Raises:
        UserError: The installed version of Flower has no place for it.
    """
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    behind = getattr(extensions, "get_middleware", None)
    if behind is None:
        raise UserError(
            "this version of Flower lets nothing stand in front of its SuperLink, which would be "
            "open to everybody. Install the one that Sordino asks for: pip install 'sordino[flower]'"
        )

    def gate_first() -> tuple[Any, ...]:
        return (Middleware(Gate, secured=secured), *behind())

    vars(extensions)["get_middleware"] = gate_first


def main(arguments: list[str]) -> None:
    """Runs a SuperLink with the arguments of Flower's own command."""
    from flwr.superlink.cli.flower_superlink import flower_superlink

    os.environ["FORWARDED_ALLOW_IPS"] = (
        ""  # nobody says for whom it calls; uvicorn believes 127.0.0.1
    )
    put_gate_in_front(secured="--enable-supernode-auth" in arguments)
    check_gate()
    allow_many_files()
    put_door_in_front()
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def check_gate() -> None:
    """Raises an error unless the gate is the first thing that a call meets.

    Raises:
        UserError: Something else would be met first.
    """
    from flwr.superlink import main as made

    first = made._get_middleware()[0]
    if first.cls is not Gate:
        raise UserError("the gate is not in front of the SuperLink; it is not started.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
