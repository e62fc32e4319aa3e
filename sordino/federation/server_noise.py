"""The noise that the server adds to the mean of a round, and how much noise is in a mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sordino.mechanisms import mechanism_of
from sordino.protocol import Protocol
from sordino.randomness import Purpose

if TYPE_CHECKING:
    from sordino.federation.setup import Setup


def draw_server_noise(setup: Setup, *, round_index: int, trainings: range) -> np.ndarray | None:
    """Returns what the server adds to the mean of a round.

    Args:
        setup: Setup of the federation.
        round_index: The round's number.
        trainings: The trainings that are run side by side.

    Returns:
        A row of noise for each training; None where the server adds nothing.
    """
    noise = setup.protocol.release.server_noise
    if noise is None or mechanism_of(noise).silent:
        return None
    stream = setup.noise_key.stream(
        Purpose.SERVER_NOISE, training=trainings.start, round_index=round_index
    )
    return mechanism_of(noise).draw(stream, len(trainings), setup.initial_weights().size)


def mean_deviation(protocol: Protocol, uploads: int) -> float:
    """Returns the standard deviation of all the noise in a mean of uploads.

    Args:
        protocol: The federation whose rounds are played.
        uploads: How many uploads are joined.
    """
    release = protocol.release
    of_clients = 0.0
    # Noise in steps goes through optimizers; what is left of it in an upload is not known.
    if release.at_client and not release.in_steps:
        of_clients = mechanism_of(release.noise).deviation / math.sqrt(uploads)
    of_server = 0.0
    if release.server_noise is not None:
        of_server = mechanism_of(release.server_noise).deviation
    return math.hypot(of_clients, of_server)
