"""Noise from the keystream: every kind of noise that a protocol names, drawn for one training or for many side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sordino.federation.randomness import Purpose, Stream, unit_interval
from sordino.privacy.mechanisms import deviation, silent
from sordino.protocol import Custom, Gaussian, Laplace, Noise, Protocol, Staircase

if TYPE_CHECKING:
    from sordino.federation.setup import Setup


DENSITY_VALUES, DENSITY_CELLS = 1_000_000, 400  # by which the density of a factory's noise is known


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
        return staircase_values(words_of(stream, trainings, count, 2), noise.step, noise.width, noise.falls_at)
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
        within = np.where(place < upper, nu * (place / upper), nu + (1 - nu) * ((place - upper) / (1 - upper)))
    return signed(words[..., 0], width * (widths + within))


def custom_values(noise: Custom, stream: Stream, trainings: int, count: int) -> np.ndarray:
    """Values of a factory's sampler, on uniforms of our own."""
    from sordino.privacy.custom import tested_noise

    made = tested_noise(noise.factory, noise.scale)
    return np.asarray(made.sample(unit_interval(words_of(stream, trainings, count, made.uniforms))), dtype=float)


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
        return math.log(density.height) - noise.step * np.floor(np.abs(values) / noise.width + 1 - noise.falls_at)
    return sampled_density(noise.factory, noise.scale)(values)


@lru_cache(maxsize=4)
def sampled_density(factory: str, scale: float) -> Callable[[np.ndarray], np.ndarray]:
    """The log-density of a factory's noise as its own values show it: between quantiles, and with exponential tails beyond the last ones.

    An attack may weigh what it sees by a density that is not exact; it then finds less, and nothing that is not there.

    Example:
        >>> near = sampled_density("sordino.privacy.custom:logistic", 1.0)(np.array([0.0, 2.0]))
        >>> bool(abs(near[0] - near[1] - 0.868) < 0.1)  # exactly 2 log cosh 1
        True
    """
    from sordino.privacy.custom import tested_noise

    made = tested_noise(factory, scale)
    generator = np.random.Generator(np.random.Philox(key=[6, 6]))
    values = np.sort(np.asarray(made.sample(generator.random((DENSITY_VALUES, made.uniforms)) * (1 - 2.0**-52) + 2.0**-53), dtype=float))
    cuts = np.quantile(values, np.linspace(0, 1, DENSITY_CELLS + 1)[1:-1])
    cuts = np.unique(cuts)
    heights = -np.log(np.diff(cuts)) + np.log(np.diff(np.searchsorted(values, cuts)) / len(values))
    centres = (cuts[1:] + cuts[:-1]) / 2
    tails = [np.mean(cuts[0] - values[values < cuts[0]]), np.mean(values[values > cuts[-1]] - cuts[-1])]

    def log_density_at(x: np.ndarray) -> np.ndarray:
        below, above = np.minimum(x - centres[0], 0.0) / tails[0], np.maximum(x - centres[-1], 0.0) / tails[1]
        return np.interp(x, centres, heights) + below - above

    return log_density_at
