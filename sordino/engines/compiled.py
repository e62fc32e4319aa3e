"""The native engine as the rest of the package knows it: no other module imports `sordino.native`.

The native engine is a satellite. Engines and audits import it from here, and continue with torch
wherever a `KernelRefusal` says that it cannot do the work.
"""

from __future__ import annotations

from sordino.native.given_losses import make_given_loss_kernel
from sordino.native.kernel import Kernel
from sordino.native.library import choose_instruction_set, fingerprint_library
from sordino.native.native_engine import NativeEngine, kernel_for, pooled_uploads, refuse_protocol
from sordino.native.network_builder import KernelRefusal
from sordino.native.step_rules import RULE_REFUSALS
from sordino.protocol import LocalRule

__all__ = [
    "Kernel",
    "KernelRefusal",
    "NativeEngine",
    "fingerprint_library",
    "is_in_kernel",
    "kernel_for",
    "make_given_loss_kernel",
    "pooled_uploads",
    "refuse_protocol",
]


def is_in_kernel(rule: LocalRule) -> bool:
    """Returns whether there is a compiled kernel that has the steps of a local rule.

    Args:
        rule: The local rule.
    """
    return choose_instruction_set() is not None and RULE_REFUSALS.of(rule) is None
