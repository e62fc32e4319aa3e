"""Holds the divergence that a user's noise claims against values of its sampler.

A histogram of values bounds the divergence from below. A claim below that bound is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sordino.mechanisms.histogram import find_bin_limits
from sordino.protocol.errors import UserError

# Values of the noise that a claim is held against, and how many of them are drawn again.
SAMPLES = 500_000
REDRAWN = 1000
FALSE_ALARM = 1e-6  # of the whole test, for a claim that is true
TESTED_ORDERS = (1.25, 2.0, 4.0, 8.0, 32.0)
TESTED_SHIFTS = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)  # in units of the median magnitude
PARTS = (4, 64, 1024)  # into which a tested shift is cut

Divergences = Callable[[float, np.ndarray], np.ndarray]


def draw_samples(made: Any, who: str) -> np.ndarray:
    """Returns values of a sampler, after some were drawn twice and came out the same.

    Args:
        made: The noise that the factory gave.
        who: The noise in words, for messages.

    Raises:
        UserError: The values are too few, not finite, or depend on their neighbours.
    """
    generator = np.random.Generator(np.random.Philox(key=[5, 5]))
    uniforms = generator.random((SAMPLES, made.uniforms)) * (1 - 2.0**-52) + 2.0**-53
    values = np.asarray(made.sample(uniforms), dtype=float)
    if values.shape != (SAMPLES,) or not np.isfinite(values).all():
        raise UserError(
            f"{who}: sample() gave {values.shape} values for {SAMPLES}, or some that are not "
            "finite."
        )
    # Again among other neighbours and in another shape.
    some = uniforms[1 : REDRAWN + 1].reshape(2, REDRAWN // 2, made.uniforms)
    again = np.asarray(made.sample(some), dtype=float)
    if not np.allclose(again.ravel(), values[1 : REDRAWN + 1], rtol=1e-6, atol=0):
        raise UserError(
            f"{who}: sample() gave other values for the same uniforms. A value must depend only on "
            "its own uniforms."
        )
    return values


def refuse_contradicted(
    values: np.ndarray,
    divergences: Divergences,
    middle: float,
    who: str,
) -> None:
    """Refuses a claim that values contradict, at a shift itself or at a part of it.

    Args:
        values: Values of the noise.
        divergences: The claim.
        middle: The median magnitude of the values.
        who: The noise in words.

    Raises:
        UserError: Names the shift, the claim and the observation.
    """
    for factor in TESTED_SHIFTS:
        shift = middle * factor
        limits = find_bin_limits(values, shift, FALSE_ALARM / len(TESTED_SHIFTS))
        for order in TESTED_ORDERS:
            _refuse_smaller_claim(divergences, order, shift, limits.divergence(order), who)
        # The steps of a shift cut into k parts are alike, so the total variation V of the whole is
        # at most k times that of a part, and the part diverges by at least 2 (V/k)^2 at every
        # order (Pinsker).
        for parts in PARTS:
            least = 2 * (limits.total_variation / parts) ** 2
            for order in TESTED_ORDERS:
                _refuse_smaller_claim(divergences, order, shift / parts, least, who)


def _refuse_smaller_claim(
    divergences: Divergences,
    order: float,
    shift: float,
    least: float,
    who: str,
) -> None:
    claimed = float(np.asarray(divergences(order, np.array([shift])))[0])
    if not claimed >= least:
        raise UserError(
            f"{who}: it claims a divergence of {claimed:.4g} at order {order:g} for a shift of "
            f"{shift:.4g}, and {SAMPLES} of its values show at least {least:.4g}. Its noise is "
            "smaller than it claims."
        )
