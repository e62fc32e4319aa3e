"""Limits of an error rate that hold at every moment of a count, so that one may stop at will.

A gambler bets against a rate p, at odds that are fair if p is true, that the rate was drawn from a
beta law around the rate of a first batch. The gambler's wealth, from a stake of 1, is the
likelihood ratio of that mixture to p. It is a martingale if p is true, and ever reaches 1/miss with
probability at most `miss` (Ville). The rates against which it is smaller are the confidence
sequence (docs/theory.md#a35).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln, xlog1py, xlogy

# Added to the first batch's errors of either kind, as in a Jeffreys prior.
HALF = 0.5
# The most trainings of the first batch that count in the beta law: they chose the test that does
# best on them, so their rates look better than they are.
BELIEVED = 1000
# The smallest distance from 0 and 1 at which a limit is searched for.
EDGE = 1e-15


@dataclass(frozen=True, kw_only=True)
class AnytimeLimit:
    """Limits error rates at all times at once, by a bet on the rates of a first batch.

    Attributes:
        batch: The number of trainings of the first batch on each side, which choose the test and
            are not counted.

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
        """Returns an upper limit of an error rate that holds at every moment.

        Args:
            errors: The number of errors so far.
            trials: The number of trials so far.
            miss: The probability with which the limit may ever be too low.
            seen: The error rate of the first batch. If it is off, limits are wider and still hold.
        """
        one = np.vectorize(self._high, otypes=[float])
        return np.asarray(one(errors, trials, miss, seen))

    def low(
        self, errors: np.ndarray | float, trials: int, miss: float, seen: np.ndarray | float
    ) -> np.ndarray:
        """Returns a lower limit of an error rate that holds at every moment.

        Args:
            errors: The number of errors so far.
            trials: The number of trials so far.
            miss: The probability with which the limit may ever be too high.
            seen: The error rate of the first batch.
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
        """Returns the function of a rate that says how far the wealth is beyond 1/miss, as a log.

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
