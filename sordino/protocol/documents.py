"""Values as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Values that JSON can hold: infinity is the string "inf", what is not known is null.

    Example:
        >>> plain({"mu": float("inf"), "loss": float("nan"), "views": ("server",)})
        {'mu': 'inf', 'loss': None, 'views': ['server']}
    """
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """Nested tables as one, with dotted keys.

    Example:
        >>> flattened({"noise": {"sigma": 0.1}, "seed": 7})
        {'noise.sigma': '0.1', 'seed': '7'}
    """
    if isinstance(value, dict):
        return {
            key: text
            for name, inner in value.items()
            for key, text in flattened(inner, f"{path}.{name}" if path else str(name)).items()
        }
    if isinstance(value, list):
        return {path: f"{len(value)} entries"} if len(str(value)) > 60 else {path: str(value)}
    return {path: str(value)}
