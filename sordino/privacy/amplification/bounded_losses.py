"""Rounds under noise whose privacy loss is bounded, by loss distributions.

Rényi divergences turned into (epsilon, delta) lose 4 to 9 % for Laplace noise. Where the shift that
is worst for every delta is known, the losses themselves are added up instead: for Laplace noise
under an l1 clip, where one coordinate moves alone, and for staircase noise on a single coordinate
(docs/theory.md#b10). In other dimensions the worst shift is proved for Rényi divergences only, and
those are used.

A round is a mixture over when the record is first used. Where nobody sees the batches the draw
amplifies: the proof of docs/theory.md#a14 asks nothing of the noise but its delta curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino.privacy.amplification.loss_grids import convolve_rounds
from sordino.privacy.amplification.subsampling import amplify_epsilons
from sordino.privacy.curves.loss_direction import connect_dots
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.privacy.curves.renyi import RenyiCurve

# Losses of a round above which its noise hides next to nothing.
_LARGEST = 200.0
# Dots of a round, of which there are fewer where many rounds spread the sum over many losses.
_MOST_DOTS = 1000
_FEWEST_DOTS = 64
_LONGEST_SUM = 1 << 17

# Takes epsilons and shifts; returns the largest delta over vectors whose norm is at most the shift,
# a shift a row.
DeltaTable = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundedLossCurve(LossCurve):
    """The composition by loss distributions, next to the Rényi bound of the same rounds.

    Attributes:
        renyi: The Rényi bound, which has finite divergences and is the smaller one at tiny deltas.
    """

    renyi: RenyiCurve

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """See `Curve.deltas`.

        Args:
            epsilons: The epsilons, each of at least 0.
        """
        smaller: np.ndarray = np.minimum(super().deltas(epsilons), self.renyi.deltas(epsilons))
        return smaller

    def epsilon(self, delta: float) -> float:
        """See `Curve.epsilon`.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
        """
        return min(super().epsilon(delta), self.renyi.epsilon(delta))

    def rdp(self, order: float) -> float:
        """See `Curve.rdp`.

        Args:
            order: The order of the Rényi divergence, above 1.
        """
        return self.renyi.rdp(order)


def bounded_loss_curve(
    table: DeltaTable,
    shifts: np.ndarray,
    counts: np.ndarray,
    *,
    largest_loss: float,
    use: np.ndarray,
    hidden: bool,
    probability: float,
    renyi: RenyiCurve,
) -> BoundedLossCurve | None:
    """Returns the composition of rounds under noise with a bounded loss.

    Args:
        table: The noise's delta at epsilons and shifts.
        shifts: How far an upload can move, one row per round and one column per first use.
        counts: How often each round occurs.
        largest_loss: The largest loss of one release with the largest of the shifts.
        use: The probability of each column, given that the client takes part.
        hidden: Whether nobody sees which column it is, nor whether it is any.
        probability: The probability that the client takes part in a round, which may be seen.
        renyi: The Rényi bound of the same rounds.

    Returns:
        The curve, or None where the noise is so weak that it hides next to nothing.

    Example:
        >>> from sordino.mechanisms import mechanism_of
        >>> from sordino.protocol import Laplace
        >>> price = mechanism_of(Laplace(scale=1.0)).price("l1", None)
        >>> renyi = RenyiCurve.from_divergence(lambda order: 10 * price.divergence(order, 1.0))
        >>> curve = bounded_loss_curve(
        ...     price.deltas, np.array([[1.0]]), np.array([10]), largest_loss=1.0, use=np.ones(1),
        ...     hidden=False, probability=1.0, renyi=renyi,
        ... )
        >>> round(curve.epsilon(1e-2), 2), round(renyi.epsilon(1e-2), 2)
        (8.37, 8.82)
    """
    rate = 1.0
    if hidden:
        rate = min(1.0, float(use.sum()))
    if not 0 < largest_loss <= _LARGEST or rate == 0 or probability == 0:
        return None
    furthest = math.log1p(rate * math.expm1(largest_loss))
    rounds = int(counts.sum())
    affordable = _LONGEST_SUM / math.sqrt(rounds)
    number = int(min(max(affordable, _FEWEST_DOTS), _MOST_DOTS))
    # The last dot lies just above the largest loss, where delta is 0.
    interval = furthest / number * (1 + 1e-12)
    dots = np.arange(number + 1)
    losses = dots * interval
    epsilons = amplify_epsilons(losses, rate)
    # What `use` leaves is no shift at all, with no loss: its delta is 0.
    heights = np.array([probability * (use @ table(epsilons, row)) for row in shifts])
    heights = np.clip(heights * (1 + 1e-12), 0.0, 1.0)
    heights = np.minimum.accumulate(heights, axis=1)
    masses, infinite = connect_dots(heights, losses)
    direction = convolve_rounds(dots, masses, infinite, counts, interval)
    return BoundedLossCurve(directions=(direction,), renyi=renyi)
