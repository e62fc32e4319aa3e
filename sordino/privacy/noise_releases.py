"""Curves of releases under any kind of noise, in the model's dimension (docs/theory.md#b1, #b2).

An upload is a vector of d coordinates with independent noise on each. What a release costs is the
largest sum of one-coordinate divergences over all shifts of the clipped norm, never the
one-coordinate divergence itself. Divergences of rounds add up; a public draw (participants, or when
a record is first used) averages moments e^((a-1) D), since the draw has the same law on both sides.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sordino.mechanisms import NoisePrice, mechanism_of
from sordino.privacy.curves.renyi import ORDERS, RenyiCurve
from sordino.privacy.similar_rounds import join_similar_rounds
from sordino.privacy.upload_sensitivity import largest_move
from sordino.protocol import Noise, Protocol, noisy_steps_of

_ORDERS = np.array(ORDERS)
_AT_ONCE = 1 << 21  # divergences that are computed at a time


@lru_cache(maxsize=64)
def price_of(noise: Noise, norm: str, dimension: int | None) -> NoisePrice:
    """Returns the price of a noise on vectors; see `Mechanism.price`.

    Args:
        noise: The noise on every coordinate.
        norm: The norm that is clipped, "l1" or "l2".
        dimension: The number of coordinates, where known.

    Raises:
        UserError: The price depends on the dimension, and that is not known.

    Example:
        >>> from sordino.protocol import Laplace
        >>> price = price_of(Laplace(scale=1.0), "l2", 10)
        >>> round(price.divergence(2.0, 1.0), 10), round(price.pure(1.0), 6)
        (0.8775779679, 3.162278)
    """
    return mechanism_of(noise).price(norm, dimension)


def dimension_of(protocol: Protocol) -> int | None:
    """Returns the number of parameters, where the protocol says it.

    Args:
        protocol: The federation that is priced.
    """
    return protocol.model.parameters if protocol.model is not None else None


def release_curve(
    noise: Noise,
    norm: str,
    dimension: int | None,
    shift: float,
) -> RenyiCurve:
    """Returns the curve of one release of a vector.

    Args:
        noise: The noise on every coordinate.
        norm: The norm that is clipped, "l1" or "l2".
        dimension: The number of coordinates, where known.
        shift: How far the vector moves at most.

    Example:
        >>> from sordino.protocol import Laplace
        >>> round(release_curve(Laplace(scale=1.0), "l1", None, 1.0).epsilon(1e-9), 3)
        1.0
    """
    certain = np.ones(1)
    once = np.ones(1, dtype=np.int64)
    return releases_curve(noise, norm, dimension, np.array([[shift]]), certain, once)


def refuse_unpriced(protocol: Protocol) -> None:
    """Refuses noise about which nothing can be promised.

    Examples are a staircase narrower than an upload moves, and noise that is less than it claims.

    Args:
        protocol: The federation that is priced.

    Raises:
        UserError: Says why the noise is refused.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Laplace
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> refuse_unpriced(Protocol(clients=2, rounds=1, local=local, noise=Laplace(scale=1.0)))
    """
    # Pricing a release may take seconds, and for most noise it cannot fail.
    if mechanism_of(protocol.noise).always_priced:
        return
    noise = protocol.noise
    if protocol.release.in_steps:
        noise = noisy_steps_of(protocol).sum_noise
    release_curve(
        noise,
        protocol.release.clip_norm,
        dimension_of(protocol),
        largest_move(protocol),
    )


def releases_curve(
    noise: Noise,
    norm: str,
    dimension: int | None,
    shifts: np.ndarray,
    masses: np.ndarray,
    counts: np.ndarray,
) -> RenyiCurve:
    """Returns the composition of rounds, in each of which one of several shifts happens, visibly.

    Args:
        noise: The noise on every coordinate.
        norm: The norm that is clipped, "l1" or "l2".
        dimension: The number of coordinates, where known.
        shifts: How far the vector moves, one row per round and one column per possible shift.
        masses: The probability of each column; with the rest nothing moves.
        counts: How often each round occurs.

    Example:
        >>> import math
        >>> from sordino.mechanisms.laplace_noise import laplace_divergence
        >>> from sordino.protocol import Laplace
        >>> shifts, masses, counts = np.array([[1.0]]), np.array([0.5]), np.array([3])
        >>> often = releases_curve(Laplace(scale=1.0), "l1", None, shifts, masses, counts)
        >>> moment = math.exp(laplace_divergence(2.0, 1.0, 1.0))
        >>> round(often.rdp(2.0) - 3 * math.log(0.5 + 0.5 * moment), 9)
        0.0
    """
    # As bytes, since arrays cannot be looked up in a cache.
    return _compose_releases(
        noise,
        norm,
        dimension,
        shifts.tobytes(),
        shifts.shape,
        masses.tobytes(),
        counts.astype(np.int64).tobytes(),
    )


@lru_cache(maxsize=64)  # all views ask for the same
def _compose_releases(
    noise: Noise,
    norm: str,
    dimension: int | None,
    shifts: bytes,
    shape: tuple[int, int],
    masses: bytes,
    counts: bytes,
) -> RenyiCurve:
    price = price_of(noise, norm, dimension)
    chances = np.frombuffer(masses)
    rows, often = join_similar_rounds(
        np.frombuffer(shifts).reshape(shape), np.frombuffer(counts, dtype=np.int64)
    )
    total = np.zeros(len(ORDERS))
    pieces = max(1, rows.size * len(ORDERS) // _AT_ONCE)
    for some in np.array_split(np.arange(len(rows)), pieces):
        values = price.table(rows[some].ravel(), _ORDERS).reshape(
            len(some), chances.size, len(ORDERS)
        )
        total += often[some] @ average_moments(values, chances)
    return RenyiCurve(orders=ORDERS, values=tuple(total.tolist()))


def average_moments(
    values: np.ndarray, masses: np.ndarray, orders: np.ndarray = _ORDERS
) -> np.ndarray:
    """Returns divergences of public mixtures, whose moments e^((a-1) D) average.

    Args:
        values: The divergences, an array with the axes round, shift and order.
        masses: The probability of each shift; with the rest nothing moves.
        orders: The orders of the divergences.

    Example:
        >>> values = np.zeros((7, 1, len(ORDERS)))
        >>> average_moments(values, np.array([0.5])).shape == (7, len(ORDERS))
        True
    """
    with np.errstate(divide="ignore"):
        rest = np.log(max(0.0, 1.0 - float(masses.sum())))
        logs = np.log(masses)
    # Who takes part, and with which shift, is seen: the moments of a public mixture average
    # (docs/theory.md#a10).
    moments = np.logaddexp.reduce(logs[:, None] + (orders - 1) * values, axis=1)
    return np.asarray(np.maximum(np.logaddexp(rest, moments), 0.0) / (orders - 1))
