"""Where a room asks for something of a room above it, by name, when it is called.

Imports point downwards. A few calls go the other way: a training that has ended wants its report,
`protocol.to_dp_event` a price, `sordino.audit(...)` the published claims. The package itself, which
is above all rooms, says which function answers (`sordino/__init__.py`).

Example:
    >>> ask_above("read_protocol").__name__
    'read_protocol'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The module that answers to each name. Filled by the package when it is imported.
ANSWERED_BY: dict[str, str] = {}


def ask_above(name: str) -> Any:
    """Returns a function of a room above the one that asks.

    Args:
        name: The name of the function.

    Raises:
        KeyError: Nobody answers to that name.
    """
    return getattr(import_module(ANSWERED_BY[name]), name)
