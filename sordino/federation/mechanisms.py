"""Noise from the keystream: every kind of noise that a protocol names, drawn for one training or for many side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sordino.federation.randomness import Purpose, Stream, unit_interval
from sordino.privacy.mechanisms import deviation, silent
from sordino.protocol import Custom, Gaussian, Laplace, Noise, Protocol, Staircase

if TYPE_CHECKING:
    from sordino.federation.setup import Setup


def drawn(noise: Noise, stream: Stream, trainings: int, count: int) -> np.ndarray:
    """Independent values of noise, one training a row; equal calls give equal draws.

    Example:
        >>> from sordino.federation.randomness import Key, Purpose
        >>> stream = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE)
        >>> drawn(Laplace(scale=1.0), stream, 2, 3).shape
        (2, 3)
    """
    if isinstance(noise, Gaussian):
        return noise.sigma * stream.normals_of(trainings, count)
    if isinstance(noise, Laplace):
        return noise.scale * laplace_values(words_of(stream, trainings, count, 1)[..., 0])
    if isinstance(noise, Staircase):
        return staircase_values(
            words_of(stream, trainings, count, 2), noise.step, noise.width, noise.falls_at
        )
    return custom_values(noise, stream, trainings, count)


def server_noise(setup: Setup, *, round: int, trainings: range) -> np.ndarray | None:
    """What the server adds to the mean of a round, one training a row; None where it adds nothing."""
    noise = setup.protocol.noise
    if noise.where == "client":
        return None
    if isinstance(noise, Gaussian) and noise.where == "both":
        noise = replace(noise, where="server", sigma=noise.server_sigma or 0.0, server_sigma=None)
    if silent(noise):
        return None
    stream = setup.noise_key.stream(Purpose.SERVER_NOISE, training=trainings.start, round=round)
    return drawn(noise, stream, len(trainings), setup.initial_weights().size)


def mean_deviation(protocol: Protocol, uploads: int) -> float:
    """Standard deviation of all the noise in the mean of so many uploads."""
    noise = protocol.noise
    if noise.where == "server":
        return deviation(noise)
    joint = deviation(noise) / math.sqrt(uploads)
    return math.hypot(joint, noise.server_sigma or 0.0) if isinstance(noise, Gaussian) else joint


def words_of(stream: Stream, trainings: int, count: int, each: int) -> np.ndarray:
    """So many words for each value: (trainings, count, each)."""
    return stream.words(count * each, trainings).reshape(trainings, count, each)


def signed(words: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Magnitudes with the sign of each word's lowest bit, which `unit_interval` leaves unread."""
    return np.where(words & np.uint64(1), -magnitudes, magnitudes)


def laplace_values(words: np.ndarray) -> np.ndarray:
    """Laplace values of scale 1: an exponential magnitude, up to 36.7, and a fair sign."""
    return signed(words, -np.log(unit_interval(words)))


def staircase_values(words: np.ndarray, step: float, width: float, nu: float) -> np.ndarray:
    """Staircase values from pairs of words: a geometric number of widths from 0 on, then a place in the upper or the lower stair.

    |X| / width = G + nu U with probability nu / (nu + (1 - nu) e^-step), else G + nu + (1 - nu) U; P(G >= k) = e^(-k step)
    (Geng and Viswanath 2015, Alg. 1). One uniform gives both the stair and the place in it.
    """
    widths = np.floor(-np.log(unit_interval(words[..., 0])) / step)
    place = unit_interval(words[..., 1])
    upper = nu / (nu + (1 - nu) * math.exp(-step))
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.where(
            place < upper, nu * (place / upper), nu + (1 - nu) * ((place - upper) / (1 - upper))
        )
    return signed(words[..., 0], width * (widths + within))


def custom_values(noise: Custom, stream: Stream, trainings: int, count: int) -> np.ndarray:
    """Values of a factory's sampler, on uniforms of our own."""
    from sordino.privacy.custom import tested_noise

    made = tested_noise(noise.factory, noise.scale)
    return np.asarray(
        made.sample(unit_interval(words_of(stream, trainings, count, made.uniforms))), dtype=float
    )


def log_density(noise: Noise, values: np.ndarray) -> np.ndarray:
    """The logarithm of the density of one coordinate's noise at each value, for who must weigh what it sees.

    Example:
        >>> log_density(Laplace(scale=0.5), np.array([0.5, 1.0])).tolist()
        [-1.0, -2.0]
    """
    if isinstance(noise, Gaussian):
        return -np.square(values / noise.sigma) / 2 - math.log(noise.sigma * math.sqrt(2 * math.pi))
    if isinstance(noise, Laplace):
        return -np.abs(values) / noise.scale - math.log(2 * noise.scale)
    if isinstance(noise, Staircase):
        from sordino.privacy.staircase import Staircase as StaircaseDensity

        density = StaircaseDensity(step=noise.step, width=noise.width, nu=noise.falls_at)
        return math.log(density.height) - noise.step * np.floor(
            np.abs(values) / noise.width + 1 - noise.falls_at
        )
    from sordino.privacy.custom import tested_noise

    return np.interp(
        values, *tested_noise(noise.factory, noise.scale).density
    )  # measured: good enough for an attack
