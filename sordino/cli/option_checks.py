"""Refuses options that would have no effect: nothing that was typed is ignored."""

from __future__ import annotations

from collections.abc import Mapping

from sordino.protocol import UserError


def refuse_with(option: str, **others: object) -> None:
    """Refuses options that do not go together with another one.

    Args:
        option: The option that was given, such as "--minutes".
        **others: The values of the others by name, underscores for hyphens.

    Raises:
        UserError: One of them was given too.
    """
    for other in _list_given(others):
        raise UserError(f"{other} with {option}: the two do not go together. Omit one of them.")


def refuse_without(option: str, **others: object) -> None:
    """Refuses options that mean something only together with another one.

    Args:
        option: The option that was not given, such as "--one-run".
        **others: The values of the others by name, underscores for hyphens.

    Raises:
        UserError: One of them was given all the same.
    """
    for other in _list_given(others):
        raise UserError(f"{other} without {option}: it has no meaning. Add {option}, or omit it.")


def _list_given(options: Mapping[str, object]) -> list[str]:
    """Returns the options that were given, as they are typed."""
    given = []
    for name, value in options.items():
        # An option that was not given is None, an empty list, or a flag that is off; 0 is a value.
        if value is not None and value is not False and value != []:
            given.append(f"--{name.replace('_', '-')}")
    return given
