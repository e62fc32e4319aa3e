"""Turns words of the keystream into signed noise, for several samplers."""

from __future__ import annotations

import numpy as np

from sordino.randomness import Stream


def draw_words(
    stream: Stream,
    trainings: int,
    count: int,
    each: int,
) -> np.ndarray:
    """Returns words of the keystream, several for each value of noise.

    Args:
        stream: The place in the keystream.
        trainings: The number of trainings side by side.
        count: The number of values of each training.
        each: The number of words of each value.

    Returns:
        An array of shape (trainings, count, each).
    """
    # A value has the same words whatever else is drawn, so that engines agree bit for bit.
    return stream.words(count * each, trainings).reshape(trainings, count, each)


def give_signs(words: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Returns magnitudes with the sign of each word's lowest bit.

    `uniform_words.unit_interval` leaves that bit unread, so sign and magnitude are independent.

    Args:
        words: Uniform 64-bit words.
        magnitudes: One for each word.
    """
    return np.where(words & np.uint64(1), -magnitudes, magnitudes)
