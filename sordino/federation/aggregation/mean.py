"""The mean of uploads, added up one by one, so that memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sordino.federation.aggregation.joining import JOININGS, Incoming, Joining
from sordino.federation.integer_uploads import open_residues
from sordino.federation.server_noise import draw_server_noise
from sordino.protocol import Grid, Mean
from sordino.protocol.aggregation_kinds import find_mixing


def draw_nothing() -> None:
    """Returns None: the server adds no noise."""


class MeanJoining:
    """Adds up uploads. It holds their sum in float64: equal uploads in equal order, equal bits.

    Example:
        >>> joining = MeanJoining(Mean(mixing=0.5), np.zeros(2, np.float32), np.ones(2))
        >>> joining.add(np.ones(2))
        >>> joining.add(3 * np.ones(2))
        >>> joining.finish()
        array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        rule: Mean,
        current: np.ndarray,
        weights: np.ndarray,
        *,
        round_index: int = 0,
        expected: float | None = None,
        draw_noise: Callable[[], np.ndarray | None] = draw_nothing,
    ) -> None:
        """Begins an empty sum.

        Args:
            rule: The mean.
            current: The present global model; or a table, with one training a row.
            weights: See `Incoming`.
            round_index: The round, on which the mixing may depend.
            expected: How many uploads are expected. A mean with a fixed denominator divides by it;
                an empty round is then a round like any other.
            draw_noise: Draws what the server adds to the mean before anything is rounded.
        """
        self._mixing = find_mixing(rule, round_index)
        self._current = current
        self._weights = weights
        # Where participants differ between the trainings of a table, a weight is a column.
        self._scalar = weights.ndim == 1
        self._divisor = expected if rule.fixed_denominator else None
        self._draw_noise = draw_noise
        self._total = np.zeros(current.shape, dtype=np.float64)
        self._count = 0

    def add(self, vector: np.ndarray) -> None:
        """Adds the next upload.

        Args:
            vector: An upload.
        """
        weight = self._weights[self._count]
        self._count += 1
        # Infinities of both signs: a reader of the model notices that it diverged.
        with np.errstate(invalid="ignore"):
            if self._scalar and weight == 1:
                self._total += vector
            else:
                self._total += np.multiply(vector, weight, dtype=np.float64)

    def add_moves(self, moves: np.ndarray) -> None:
        """Adds all uploads at once, by the sum of what they differ from the global model.

        Args:
            moves: The sum of all updates, each with its weight.
        """
        self._count = len(self._weights)
        shares = self._weights.sum(axis=0)
        self._total += shares * self._current.astype(np.float64) + np.where(shares > 0, moves, 0.0)

    def finish(self) -> np.ndarray:
        """Returns the next global model; without uploads it stays as it is.

        Raises:
            ValueError: Fewer uploads came than there are weights.
        """
        if self._count != len(self._weights):
            raise ValueError(f"{self._count} uploads came, and {len(self._weights)} were announced")
        if self._count == 0 and self._divisor is None:
            return self._current
        shares = self._weights.sum(axis=0)
        joined = self._divide_sum(shares)
        noise = self._draw_noise()
        if noise is not None:
            joined += noise
        if self._mixing != 1.0:
            mixing = self._mixing
            joined = (1.0 - mixing) * self._current.astype(np.float64) + mixing * joined
        if self._divisor is None:
            joined = np.where(shares > 0, joined, self._current)
        return joined.astype(self._current.dtype)

    def _divide_sum(self, shares: np.ndarray) -> np.ndarray:
        if self._divisor is None:
            return self._total / np.where(shares > 0, shares, 1.0)
        start = self._current.astype(np.float64)
        return self._current + (self._total - shares * start) / self._divisor


class SumJoining:
    """Joins uploads of which only the sum arrives. It holds the mean that is made of it."""

    def __init__(self, mean: MeanJoining, grid: Grid) -> None:
        """Begins without a sum.

        Args:
            mean: Turns the sum into a model.
            grid: The grid of the uploads.
        """
        self._mean = mean
        self._grid = grid

    def add(self, vector: np.ndarray) -> None:
        """Takes the sum of all uploads.

        Args:
            vector: Their sum as residues.

        Raises:
            WrappedSum: It is larger than updates and noise can be.
        """
        self._mean.add_moves(open_residues(vector, self._grid))

    def finish(self) -> np.ndarray:
        """Returns the next global model."""
        return self._mean.finish()


@JOININGS.register(Mean)
def join_by_mean(rule: Mean, incoming: Incoming) -> Joining:
    """Returns an empty sum for a round's uploads, and the server's noise where it adds some.

    Args:
        rule: The rule, with its settings.
        incoming: The facts about the uploads to come.
    """
    setup = incoming.setup

    def draw_noise() -> np.ndarray | None:
        noise = draw_server_noise(
            setup, round_index=incoming.round_index, trainings=incoming.trainings
        )
        if noise is None:
            return None
        return noise.reshape(incoming.current.shape)

    mean = MeanJoining(
        rule,
        incoming.current,
        incoming.weights,
        round_index=incoming.round_index,
        expected=setup.protocol.participation.count_expected(clients=setup.protocol.clients),
        draw_noise=draw_noise,
    )
    if setup.release.secure_sum is None:
        return mean
    return SumJoining(mean, setup.grid)
