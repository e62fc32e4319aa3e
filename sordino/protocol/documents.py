"""Values as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any


def to_json_value(value: Any) -> Any:
    """Returns values that JSON can hold: infinity is the string "inf", the unknown is null.

    Args:
        value: Value of any shape.

    Example:
        >>> to_json_value({"mu": float("inf"), "loss": float("nan"), "views": ("server",)})
        {'mu': 'inf', 'loss': None, 'views': ['server']}
    """
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    # Scalars of numpy and torch, neither of which this room imports.
    if hasattr(value, "item"):
        return to_json_value(value.item())
    # JSON has no infinity, and an infinite bound must not look like a missing one.
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        return "inf" if value > 0 else "-inf"
    return value


def flatten_tables(value: Any, path: str = "") -> dict[str, str]:
    """Returns nested tables as one, with dotted keys.

    Args:
        value: The tables.
        path: The key that they are under.

    Example:
        >>> flatten_tables({"noise": {"sigma": 0.1}, "seed": 7})
        {'noise.sigma': '0.1', 'seed': '7'}
    """
    if isinstance(value, dict):
        return {
            key: text
            for name, inner in value.items()
            for key, text in flatten_tables(inner, f"{path}.{name}" if path else str(name)).items()
        }
    if isinstance(value, list):
        # A list of all clients' sizes would fill a whole table cell.
        return {path: f"{len(value)} entries"} if len(str(value)) > 60 else {path: str(value)}
    return {path: str(value)}
