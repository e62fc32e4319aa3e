"""The law that noise is claimed to have, by its tail.

The tail is enough to turn residuals into normal scores without losing digits far out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from sordino.protocol import InvalidValue

# Normal scores are cut here, so that sums stay finite; a normal value is never that far out.
_FARTHEST = 100.0


@dataclass(frozen=True, kw_only=True)
class Law:
    """A continuous law, symmetric around 0.

    Attributes:
        name: The law in words, with its parameters.
        std: Its standard deviation.
        log_tail: Takes an array of r >= 0; returns log P(X > r).

    Example:
        >>> standard = normal_law(1.0)
        >>> standard.cdf(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.1587, 0.5   , 0.8413])
    """

    name: str
    std: float
    log_tail: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise InvalidValue("std", self.std, "a finite number above 0")

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """Returns P(X <= x), elementwise.

        Args:
            x: Values.
        """
        tail = np.exp(self.log_tail(np.abs(x)))
        # The law is symmetric: below 0 the tail is the distribution function itself.
        probabilities: np.ndarray = np.where(np.asarray(x) < 0, tail, 1 - tail)
        return probabilities

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Returns Phi^-1(F(x)), elementwise, which is standard normal if x has this law.

        Args:
            x: Values.

        Example:
            >>> normal_law(1.0).scores(np.array([-2000.0, 0.0, 3.0])).round(2) + 0.0
            array([-100.,    0.,    3.])
        """
        # By the tail on x's own side and in logarithms, so that nothing cancels.
        with np.errstate(over="ignore"):
            log_tails = np.minimum(self.log_tail(np.abs(x)), -math.log(2))
            sizes = -special.ndtri_exp(log_tails)
        signed: np.ndarray = np.copysign(np.clip(sizes, 0.0, _FARTHEST), x)
        return signed


def normal_law(sigma: float) -> Law:
    """Returns the normal law of mean 0.

    Args:
        sigma: Its standard deviation.

    Example:
        >>> normal_law(2.0).scores(np.array([3.0]))
        array([1.5])
    """
    if not 0 < sigma < math.inf:
        raise InvalidValue("sigma", sigma, "a finite number above 0")
    return Law(
        name=f"normal, standard deviation {sigma:g}",
        std=sigma,
        log_tail=lambda r: special.log_ndtr(-r / sigma),
    )


STANDARD_NORMAL = normal_law(1.0)
