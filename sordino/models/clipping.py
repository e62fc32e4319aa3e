"""The arithmetic of clipping: how long a gradient may be, and how its excess is scaled away."""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.protocol import UserError

# Clipping aims at this fraction of the clip. What is left is room for rounding: a vector that is
# stored in float32, or a sum in float64 (docs/theory.md#c7), then stays within what is priced.
# The compiled kernel has the same number, which is compared when the kernel is loaded.
CLIP_FRACTION = 1.0 - 1e-6

# The longest gradient of an example that is clipped, in clips. The factor clip / norm is then a
# normal number of float32, at least 2^-126, and rounded by a relative 2^-24 at most.
LONGEST_IN_CLIPS = 2.0**100

# The order p of each norm that a protocol may name.
NORM_ORDERS = {"l2": 2, "l1": 1}

# Sums of clipped gradients of more examples are refused: docs/theory.md#c7 does not cover their
# rounding.
MOST_EXAMPLES = 2**22
# The same for a sum that is one product of matrices, whose order of additions is not ours.
MOST_IN_ONE_PRODUCT = 2**16


def find_clippable(norms: Tensor, clip: float) -> Tensor:
    """Returns which gradients can be clipped precisely; the others count as zero.

    A gradient that is not finite cannot, nor can one so long that float32 has no precise number
    to scale it by.

    Args:
        norms: The norm of every gradient.
        clip: The largest norm that a gradient may have afterwards.

    Returns:
        A tensor of booleans, one for every norm.

    Example:
        >>> find_clippable(torch.tensor([1e20, 1e35, torch.inf]), 1.0)
        tensor([ True, False, False])
    """
    return torch.isfinite(norms) & (norms <= clip * LONGEST_IN_CLIPS)


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Returns the factors that scale gradients down to a norm of at most `clip`.

    Args:
        norms: The norm of every gradient.
        clip: The largest norm that a gradient may have afterwards.

    Returns:
        One factor for every norm, at most 1.

    Example:
        >>> clip_factors(torch.tensor([0.0, 0.5, 4.0]), 1.0).round(decimals=3)
        tensor([1.0000, 1.0000, 0.2500])
    """
    # A norm of zero gives infinity, and so a factor of 1.
    return (clip * CLIP_FRACTION / norms).clamp(max=1.0)


def check_example_count(count: int, most: int) -> None:
    """Refuses a batch whose sum of clipped gradients could be rounded by more than is priced.

    Args:
        count: The examples of the batch.
        most: The largest number for which the sum is proved to be precise.

    Raises:
        UserError: There are more examples.
    """
    if count > most:
        raise UserError(
            f"a batch has {count:,} examples whose gradients are clipped one by one; their sum "
            f"is proved to be precise for at most {most:,} (docs/theory.md#c7): take "
            "smaller batches"
        )


class CompensatedSum:
    """A sum of vectors in float64 whose rounding does not grow with their number.

    What every addition loses is found exactly (Knuth's TwoSum) and added at the end:
    docs/theory.md#c7 rests on it. The compiled kernel does the same.

    Args:
        like: A vector of the length, and on the device, of the sum.

    Example:
        >>> total = CompensatedSum(torch.zeros(1))
        >>> for value in (1.0, 1e-17, 1e-17, -1.0):
        ...     total.add(torch.tensor([value], dtype=torch.float64))
        >>> total.value().item()
        2e-17
    """

    def __init__(self, like: Tensor) -> None:
        self._total = torch.zeros_like(like, dtype=torch.float64)
        self._lost: Tensor | None = None
        self._parts = 0

    def add(self, part: Tensor) -> None:
        """Adds a vector.

        Args:
            part: The vector, which must not be changed afterwards.
        """
        self._parts += 1
        # A batch that fits one part costs no more than a plain sum.
        if self._parts == 1:
            self._total = part
            return
        if self._lost is None:
            self._lost = torch.zeros_like(self._total)
        # Exactly: old total + part = new total + what is lost.
        total = self._total + part
        added = total - self._total
        self._lost += (self._total - (total - added)) + (part - added)
        self._total = total

    def value(self) -> Tensor:
        """Returns the sum of all vectors."""
        if self._lost is None:
            return self._total
        return self._total + self._lost
