"""How the server joins the uploads of a round into the next global model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sordino.protocol import Aggregation, Mean, Median


def aggregate(
    rule: Aggregation,
    current: np.ndarray,
    uploads: Iterable[np.ndarray],
    weights: np.ndarray,
    *,
    expected: float | None = None,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """The next global model.

    Sums are taken in float64 in the order given, so equal uploads in equal order give equal bits. A mean reads one upload at a time;
    a median must hold them all. Without uploads the model stays as it is.

    Args:
        rule: the protocol's aggregation.
        current: the present global model; or a table, with one training a row.
        uploads: one such array per participant.
        weights: one positive number per participant, of any sum; or one per participant and row, zero where it did not take part in
            that training. A median ignores them.
        expected: how many uploads are expected, where the mean has a fixed denominator; then an empty round is a round like any other.
        noise: what the server adds to the mean, before anything is rounded.

    Example:
        >>> from sordino.protocol import Mean
        >>> aggregate(Mean(mixing=0.5), np.zeros(2, np.float32), [np.ones(2), 3 * np.ones(2)], np.ones(2))
        array([1., 1.], dtype=float32)
    """
    fixed = isinstance(rule, Mean) and rule.denominator == "fixed" and expected is not None
    if len(weights) == 0 and not fixed:
        return current
    if isinstance(rule, Median):
        return coordinate_median(list(uploads)).astype(current.dtype)
    if not isinstance(rule, Mean):
        raise TypeError(f"no way to join uploads by {type(rule).__name__}")
    total = np.zeros(current.shape, dtype=np.float64)
    for upload, weight in zip(uploads, weights, strict=True):
        with np.errstate(
            invalid="ignore"
        ):  # infinities of both signs: the caller notices that the model diverged
            total += (
                upload
                if np.ndim(weight) == 0 and weight == 1
                else np.multiply(upload, weight, dtype=np.float64)
            )
    shares = weights.sum(axis=0)
    if fixed:
        total = current + (total - shares * current.astype(np.float64)) / expected
        shares = np.ones_like(shares)
    else:
        total /= np.where(shares > 0, shares, 1.0)
    if noise is not None:
        total += noise
    if rule.mixing != 1.0:
        total = (1.0 - rule.mixing) * current.astype(np.float64) + rule.mixing * total
    return np.where(shares > 0, total, current).astype(current.dtype)


def coordinate_median(uploads: list[np.ndarray], block: int = 1 << 16) -> np.ndarray:
    """Median of every coordinate, a block of coordinates at a time so that the sorted copy stays small."""
    size = uploads[0].shape[-1]
    parts = [
        np.median(np.stack([u[..., start : start + block] for u in uploads]), axis=0)
        for start in range(0, size, block)
    ]
    return np.concatenate(parts, axis=-1)


def projected(weights: np.ndarray, centre: np.ndarray, diameter: float) -> np.ndarray:
    """The nearest model in the ball of this diameter around `centre`, a hair inside so that rounding cannot leave it.

    Example:
        >>> projected(np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32), 2.0).round(4).tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    move = weights.astype(np.float64) - centre
    distance, radius = np.linalg.norm(move, axis=-1, keepdims=True), diameter / 2 * (1 - 1e-6)
    # Rounding moves every coordinate by half a unit in its last place; a ball that is smaller than that holds its centre alone.
    rounding = np.finfo(weights.dtype).eps * (
        np.linalg.norm(centre.astype(np.float64), axis=-1, keepdims=True) + radius
    )
    inside = np.maximum(radius - rounding, 0.0)
    return np.where(
        distance <= radius,
        weights,
        (centre + move * (inside / np.maximum(distance, radius))).astype(weights.dtype),
    )


def upload_weights(rule: Aggregation, sizes: np.ndarray) -> np.ndarray:
    """The weight of each participant's upload, from its number of records.

    Example:
        >>> from sordino.protocol import Mean
        >>> upload_weights(Mean(weights="records"), np.array([10, 30]))
        array([10., 30.])
    """
    by_records = isinstance(rule, Mean) and rule.weights == "records"
    return sizes.astype(np.float64) if by_records else np.ones(len(sizes))
