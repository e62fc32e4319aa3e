"""What noise of integers hides, as the normal noise that hides as much (docs/theory.md#a12).

Rounding moves uploads a little further apart, and discrete noise of parameter s hides what normal
noise of sqrt(s^2 - r^2) does. With both, every bound for normal noise holds unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.mechanisms.discrete_gaussian import bound_total_variation
from sordino.protocol import Protocol, noisy_upload_of
from sordino.protocol.grids import FINENESS, MOST_DIGITS, ROUNDING_WIDTH

# A number of parameters that no model has, for the distance of the sampler from its law.
MOST_PARAMETERS = 10**12


@dataclass(frozen=True, kw_only=True)
class PricedNoise:
    """The noise on one upload, as prices count it.

    Attributes:
        sigma: The standard deviation of normal noise that hides as much.
        rounding: How much further apart rounding moves two uploads, at most.
        reason: Where the rounding comes from; empty where there is none.
    """

    sigma: float
    rounding: float = 0.0
    reason: str = ""


def price_noise(protocol: Protocol) -> PricedNoise:
    """Returns the clients' noise as prices count it.

    Args:
        protocol: A protocol with normal noise on uploads.

    Raises:
        UserError: The price depends on the number of parameters, which the protocol does not say.
    """
    release = noisy_upload_of(protocol)
    sigma = release.client_sigma
    # Without noise there is nothing to price, whatever the grid.
    if not release.integers or sigma == 0:
        return PricedNoise(sigma=sigma)
    stated = protocol.model is not None and protocol.model.parameters is not None
    if not stated and release.secure_sum is None and _leaves_grid_open(protocol):
        # Such a grid is chosen so that rounding is at most this share of the noise, and then the
        # noise has a parameter of at least its inverse.
        lost = ROUNDING_WIDTH * FINENESS
        return PricedNoise(
            sigma=sigma * math.sqrt(1 - lost**2),
            rounding=FINENESS * sigma,
            reason=f" + {FINENESS:g} sigma by rounding (docs/theory.md#a12)",
        )
    grid = protocol.grid
    if grid is None or protocol.model is None or protocol.model.parameters is None:
        raise ValueError("uploads of integers have a grid")
    return PricedNoise(
        sigma=grid.priced_sigma,
        rounding=grid.rounding_move(protocol.model.parameters + release.counts),
        reason=" + sqrt(d)/g by rounding (docs/theory.md#a12)",
    )


def bound_sampler_distance(protocol: Protocol, rounds: int) -> float:
    """Returns how far all noise of some rounds is from its law, in total variation.

    Args:
        protocol: The federation that is priced.
        rounds: The number of rounds that are run.

    Returns:
        The distance; 0 where noise is of floating-point numbers.
    """
    if not protocol.release.integers:
        return 0.0
    parameters = MOST_PARAMETERS
    digits = MOST_DIGITS
    if protocol.model is not None and protocol.model.parameters is not None:
        parameters = protocol.model.parameters + protocol.release.counts
        digits = protocol.grid.digits if protocol.grid is not None else MOST_DIGITS
    return bound_total_variation(digits, float(parameters) * protocol.clients * rounds)


def _leaves_grid_open(protocol: Protocol) -> bool:
    return getattr(protocol.noise, "digits", None) is None
