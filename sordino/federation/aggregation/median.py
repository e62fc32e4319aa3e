"""The coordinate-wise median of uploads, which must all be held."""

from __future__ import annotations

import numpy as np

from sordino.federation.aggregation.joining import JOININGS, Incoming
from sordino.protocol import Median


class MedianJoining:
    """Collects uploads. It holds all of them."""

    def __init__(self, current: np.ndarray, weights: np.ndarray) -> None:
        """Begins without uploads.

        Args:
            current: The present global model; or a table, with one training a row.
            weights: See `Incoming`. A median does not weigh: what counts is who took part.
        """
        self._current = current
        self._weights = weights
        self._uploads: list[np.ndarray] = []

    def add(self, vector: np.ndarray) -> None:
        """Takes the next upload.

        Args:
            vector: An upload.
        """
        self._uploads.append(vector)

    def finish(self) -> np.ndarray:
        """Returns the next global model; without uploads it stays as it is."""
        if not self._uploads:
            return self._current
        if self._weights.ndim == 1:
            return coordinate_median(self._uploads).astype(self._current.dtype)
        return np.stack([self._row_median(row) for row in range(len(self._current))])

    def _row_median(self, row: int) -> np.ndarray:
        """Returns the median of one training of a table, over those who took part in it."""
        present = np.flatnonzero(self._weights[:, row, 0])
        if len(present) == 0:
            unchanged: np.ndarray = self._current[row]
            return unchanged
        uploads = [self._uploads[client][row] for client in present]
        return coordinate_median(uploads).astype(self._current.dtype)


def coordinate_median(uploads: list[np.ndarray], block: int = 1 << 16) -> np.ndarray:
    """Returns the median of every coordinate.

    Args:
        uploads: Vectors, or tables of equal shape.
        block: How many coordinates are sorted at a time, so that the sorted copy stays small.
    """
    size = uploads[0].shape[-1]
    parts = []
    for start in range(0, size, block):
        coordinates = [upload[..., start : start + block] for upload in uploads]
        parts.append(np.median(np.stack(coordinates), axis=0))
    return np.concatenate(parts, axis=-1)


@JOININGS.register(Median)
def join_by_median(rule: Median, incoming: Incoming) -> MedianJoining:
    """Returns an empty collection for a round's uploads.

    Args:
        rule: The rule, with its settings.
        incoming: The facts about the uploads to come.
    """
    return MedianJoining(incoming.current, incoming.weights)
