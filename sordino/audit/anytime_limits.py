"""Limits of an error rate that hold at every moment of a count, so one may look and stop at will.

A bettor who knows the rate p is offered a fair bet against it: that it is a rate drawn from a beta
law around what a first batch showed. What the bet has made of one coin, the likelihood ratio of the
mixture to p, is a martingale if p is true, and reaches 1/miss at any time with probability at most
`miss` (Ville). All rates against which it has made less are the confidence sequence
(docs/theory.md#a35).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln, xlog1py, xlogy

# What the bet counts in addition to the first batch: half an error of either kind.
HALF = 0.5
# As many trainings of the first batch are believed at most, since they chose the test that does
# best on them.
BELIEVED = 1000
# The smallest distance of a limit from 0 and 1 that is told apart from them.
EDGE = 1e-15


@dataclass(frozen=True, kw_only=True)
class AnytimeLimit:
    """Limits error rates at all times at once, by a bet on what a first batch showed.

    Attributes:
        batch: Trainings of the first batch on each side. They choose the test and are not counted.

    Example:
        >>> limit = AnytimeLimit(batch=1000)
        >>> high, low = limit(70, 1000, 0.025, 0.07), limit.low(70, 1000, 0.025, 0.07)
        >>> round(float(high), 4), round(float(low), 4)
        (0.0952, 0.0494)
    """

    batch: int

    def __call__(
        self, errors: np.ndarray | float, trials: int, miss: float, seen: np.ndarray | float
    ) -> np.ndarray:
        """Returns an upper limit of an error rate, whenever it is asked for.

        Args:
            errors: How many errors were counted so far.
            trials: In how many trials.
            miss: The probability with which the limit may ever be too low.
            seen: The rate of errors in the first batch. A wrong one costs power and nothing else.
        """
        one = np.vectorize(self._high, otypes=[float])
        return np.asarray(one(errors, trials, miss, seen))

    def low(
        self, errors: np.ndarray | float, trials: int, miss: float, seen: np.ndarray | float
    ) -> np.ndarray:
        """Returns a lower limit of an error rate, whenever it is asked for.

        Args:
            errors: How many errors were counted so far.
            trials: In how many trials.
            miss: The probability with which the limit may ever be too high.
            seen: The rate of errors in the first batch.
        """
        one = np.vectorize(self._low, otypes=[float])
        return np.asarray(one(errors, trials, miss, seen))

    def _high(self, errors: float, trials: int, miss: float, seen: float) -> float:
        if errors >= trials:
            return 1.0
        gain = self._excess(errors, trials, miss, seen)
        low = max(errors / trials, EDGE)
        high = 1 - EDGE
        if gain(high) <= 0:
            return 1.0
        return float(brentq(gain, low, high, xtol=EDGE))

    def _low(self, errors: float, trials: int, miss: float, seen: float) -> float:
        if errors <= 0:
            return 0.0
        gain = self._excess(errors, trials, miss, seen)
        high = min(errors / trials, 1 - EDGE)
        if gain(EDGE) <= 0:
            return 0.0
        return float(brentq(gain, EDGE, high, xtol=EDGE))

    def _excess(
        self, errors: float, trials: int, miss: float, seen: float
    ) -> Callable[[float], float]:
        """Returns by how much the bet against a rate is beyond 1/miss, in logarithms.

        It falls up to the rate that was counted, where it is negative, and rises from there on.
        """
        believed = min(self.batch, BELIEVED)
        wrong = HALF + seen * believed
        right = HALF + (1 - seen) * believed
        made = betaln(wrong + errors, right + trials - errors) - betaln(wrong, right)

        def excess(rate: float) -> float:
            fair = xlogy(errors, rate) + xlog1py(trials - errors, -rate)
            return float(made - fair + math.log(miss))

        return excess
