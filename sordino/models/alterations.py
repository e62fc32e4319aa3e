"""Finds what makes a module compute something else than its type says."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def describe_alteration(module: nn.Module) -> str | None:
    """Returns what alters a module, in words; None where it computes what its type says.

    Args:
        module: The module; its submodules are not looked at.

    Example:
        >>> layer = nn.ReLU()
        >>> describe_alteration(layer) is None
        True
        >>> handle = layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
        >>> describe_alteration(layer)
        'a hook'
    """
    if _has_any_global_hook():
        return "a hook that is registered for all modules"
    for attribute, value in vars(module).items():
        # Hooks for state dictionaries do not change what is computed.
        if attribute.endswith("_hooks") and "state_dict" not in attribute and value:
            return "a hook"
    if "forward" in vars(module):
        return "its own forward"
    return None
