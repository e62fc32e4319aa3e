"""The exact law of the cosine of a random direction."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc

from sordino.privacy.curves import checks
from sordino.protocol import UserError


def unused_tail(cosine: ArrayLike, *, dimension: int) -> np.ndarray:
    """Returns the exact probability that an unused random direction has at least this cosine.

    The square of its cosine is Beta(1/2, (d - 1)/2). For large d the probability is that of
    N(0, 1/d), which has the same mean and variance at any d (Andrew et al. 2024, Thm 3.1 and 3.2).

    Args:
        cosine: Numbers from -1 to 1.
        dimension: The number of parameters.

    Raises:
        UserError: A number that is no cosine.

    Example:
        >>> unused_tail([0.0, 0.5], dimension=3).round(12).tolist()  # uniform (Archimedes)
        [0.5, 0.25]
    """
    checks.require_whole(at_least=2, dimension=dimension)
    value = np.asarray(cosine, dtype=float)
    if not (np.abs(value) <= 1).all():
        raise UserError("cosine: expected numbers from -1 to 1.")
    beyond = betainc((dimension - 1) / 2, 0.5, 1 - value**2) / 2
    tails: np.ndarray = np.where(value >= 0, beyond, 1 - beyond)
    return tails
