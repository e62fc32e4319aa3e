"""Says which shape public features have, from the shape of a record alone.

`sordino check` answers without torch and without reading a record.
"""

from __future__ import annotations

from collections.abc import Mapping

from sordino.protocol import UserError

Shape = tuple[int, ...]
# Both built-in transforms keep one value of every channel for 4 by 4 pixels.
STRIDE = 4
SMALLEST_SIDE = 8
# Orders 0, 1 and 2 of 2 scales and 8 directions: 1 + 2 * 8 + 8 * 8.
SCATTERING_CHANNELS = 81
# 64 filters, each in both signs.
RANDOM_CHANNELS = 128
# The shapes of the named sets of images, published with them.
IMAGE_SHAPES: Mapping[str, Shape] = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "pneumoniamnist": (1, 28, 28),
    "utkface": (3, 32, 32),
    "utkface-race": (3, 32, 32),
    "utkface-age": (3, 32, 32),
}


def find_feature_shape(features: str, record: Shape) -> Shape:
    """Returns the shape of one record's built-in features.

    Args:
        features: "scattering" or "random-filters".
        record: The shape of the record itself.

    Raises:
        UserError: The record is not an image, or too small.

    Example:
        >>> find_feature_shape("scattering", (1, 28, 28))
        (81, 7, 7)
    """
    if len(record) != 3 or min(record[1:]) < SMALLEST_SIDE:
        raise UserError(
            f"data.features = {features!r}: these records have the shape {record}; it needs images "
            f"(channels, height, width) of at least {SMALLEST_SIDE} by {SMALLEST_SIDE} pixels. "
            "Leave the key out, or name package.module:factory."
        )
    channels, height, width = record
    kept = RANDOM_CHANNELS
    if features == "scattering":
        # Colours are transformed one by one.
        kept = SCATTERING_CHANNELS * channels
    return kept, height // STRIDE, width // STRIDE
