"""What each kind of noise costs in the model's dimension, and the bounds of protocols whose noise is not Gaussian (THEORY B1, B2).

An upload is a vector of d coordinates with independent noise on each. What a release costs is the largest sum of one-coordinate
divergences over all shifts of the clipped norm, never the one-coordinate divergence itself. Divergences of rounds add up; a public draw
(who takes part, when a record is first used) averages moments e^((a-1) D), since the draw has the same law on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.privacy import laplace
from sordino.privacy.certify import Bound, Question
from sordino.privacy.curves import NOTHING
from sordino.privacy.guarantee import rounded_up
from sordino.privacy.renyi import ORDERS, RenyiCurve
from sordino.privacy.sizes import size_of
from sordino.privacy.staircase import Staircase as StaircaseDensity
from sordino.privacy.uploads import UploadPrices
from sordino.protocol import Custom, FixedSize, Gaussian, InvalidValue, Laplace, Noise, Poisson, Protocol, Staircase, UserError, View


@dataclass(frozen=True, kw_only=True)
class NoisePrice:
    """One kind of noise, as a release of a vector whose norm moves by at most some shift sees it.

    Attributes:
        divergence: largest divergence of an order over all shifts of at most this norm.
        pure: the epsilon that holds with delta = 0 for such a shift; infinite where there is none.
        reason: where the divergence comes from.
        vouched: what the user stands for.
    """

    divergence: Callable[[float, float], float]
    pure: Callable[[float], float]
    reason: str
    vouched: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def price_of(noise: Noise, norm: str, dimension: int | None) -> NoisePrice:
    """The price of a noise on vectors whose `norm` ("l1" or "l2") is clipped.

    Raises:
        UserError: the price depends on the dimension, and that is not known.

    Example:
        >>> price = price_of(Laplace(scale=1.0), "l2", 10)
        >>> round(price.divergence(2.0, 1.0), 10), round(price.pure(1.0), 6)
        (0.8775779679, 3.162278)
    """
    return _PRICES[type(noise)](noise, norm, dimension)


def _gaussian(noise: Gaussian, norm: str, dimension: int | None) -> NoisePrice:
    return NoisePrice(
        divergence=lambda order, shift: order * shift**2 / (2 * noise.sigma**2),
        pure=lambda shift: math.inf if shift > 0 else 0.0,
        reason="Gaussian noise costs a s^2/(2 sigma^2) in every dimension",
    )


def _laplace(noise: Laplace, norm: str, dimension: int | None) -> NoisePrice:
    if norm == "l1":
        return NoisePrice(
            divergence=lambda order, shift: laplace.divergence(order, shift, noise.scale),
            pure=lambda shift: shift / noise.scale,
            reason="Laplace noise under an l1 clip is worst where one coordinate moves alone (THEORY B2)",
        )
    size = known(dimension)
    return NoisePrice(
        divergence=lambda order, shift: laplace.divergence_l2(order, shift, noise.scale, size),
        pure=lambda shift: shift * math.sqrt(size) / noise.scale,
        reason=f"Laplace noise under an l2 clip is worst where all {size} coordinates move alike (THEORY B2)",
    )


def _staircase(noise: Staircase, norm: str, dimension: int | None) -> NoisePrice:
    size, density = known(dimension), StaircaseDensity(step=noise.step, width=noise.width, nu=noise.falls_at)
    spread = density.divergence_l1 if norm == "l1" else density.divergence_l2

    def divergence(order: float, shift: float) -> float:
        if shift > noise.width:
            allowed = f"at least {rounded_up(shift, 6)}, the distance an upload can move: beyond the width the worst case is not known"
            raise InvalidValue("noise.width", noise.width, allowed)
        return spread(order, shift, size) if shift > 0 else 0.0

    return NoisePrice(
        divergence=divergence,
        pure=lambda shift: size * noise.step if shift > 0 else 0.0,
        reason=f"staircase noise is worst where all {size} coordinates move alike, in either norm (THEORY B2)",
    )


def _custom(noise: Custom, norm: str, dimension: int | None) -> NoisePrice:
    from sordino.privacy.custom import tested_noise, worst_divergence

    size = known(dimension)
    tested = tested_noise(noise.factory, noise.scale)
    return NoisePrice(
        divergence=lambda order, shift: worst_divergence(tested, order, shift, norm, size),
        pure=lambda shift: math.inf if shift > 0 else 0.0,
        reason=f"the worst of all ways in which {size} coordinates can share the shift, by the concave majorant of the given divergence",
        vouched=tested.vouched,
    )


_PRICES: dict[type, Callable[[Any, str, int | None], NoisePrice]] = {
    Gaussian: _gaussian,
    Laplace: _laplace,
    Staircase: _staircase,
    Custom: _custom,
}


def known(dimension: int | None) -> int:
    """The number of parameters, which must be known where the price of a noise depends on it."""
    if dimension is None:
        raise UserError(
            "model.parameters is missing: what this noise costs depends on the number of parameters. "
            "Add it to the file; training and `sordino check` hold it against the model."
        )
    return dimension


def amplitude(noise: Noise) -> float:
    """Expected magnitude E|X| of the noise on one coordinate: udp-fl's Lemmas 4, 5 and Theorem 3, corrected (THEORY B4).

    Example:
        >>> round(amplitude(Gaussian(sigma=1.0)), 6), amplitude(Laplace(scale=2.0)), round(amplitude(Staircase(step=1, width=1)), 6)
        (0.797885, 2.0, 0.959517)
    """
    return _moments(noise)[0]


def deviation(noise: Noise) -> float:
    """Standard deviation of the noise on one coordinate.

    Example:
        >>> round(deviation(Laplace(scale=1.0)), 6)
        1.414214
    """
    return math.sqrt(_moments(noise)[1])


def _moments(noise: Noise) -> tuple[float, float]:
    """E|X| and E X^2."""
    if isinstance(noise, Gaussian):
        return noise.sigma * math.sqrt(2 / math.pi), noise.sigma**2
    if isinstance(noise, Laplace):
        return noise.scale, 2 * noise.scale**2
    if isinstance(noise, Staircase):
        return StaircaseDensity(step=noise.step, width=noise.width, nu=noise.falls_at).moments()
    from sordino.privacy.custom import tested_noise

    return tested_noise(noise.factory, noise.scale).moments


def silent(noise: Noise) -> bool:
    """Whether there is no noise at all."""
    return isinstance(noise, (Gaussian, Laplace)) and size_of(noise) == 0


def clip_norm(protocol: Protocol) -> str:
    """The norm in which uploads move by a bounded distance."""
    return getattr(protocol.local, "clip_norm", "l2")


def dimension_of(protocol: Protocol) -> int | None:
    """The number of parameters, where the protocol says it."""
    return protocol.model.parameters if protocol.model is not None else None


@lru_cache(maxsize=1 << 14)
def release_values(noise: Noise, norm: str, dimension: int | None, shift: float) -> np.ndarray:
    """Divergences of one release at all `ORDERS`."""
    price = price_of(noise, norm, dimension)
    return np.array([price.divergence(order, shift) for order in ORDERS])


def release_curve(noise: Noise, norm: str, dimension: int | None, shift: float) -> RenyiCurve:
    """The curve of one release of a vector that moves by at most `shift`.

    Example:
        >>> round(release_curve(Laplace(scale=1.0), "l1", None, 1.0).epsilon(1e-9), 3)
        1.0
    """
    return RenyiCurve(orders=ORDERS, values=tuple(release_values(noise, norm, dimension, shift).tolist()))


def averaged(values: list[np.ndarray], masses: list[float]) -> np.ndarray:
    """Divergences of a public mixture: the moments e^((a-1) D) average; what is left of the mass is no shift at all.

    Example:
        >>> averaged([np.zeros(len(ORDERS))], [0.5]).max()
        np.float64(0.0)
    """
    orders = np.array(ORDERS)
    rest = max(0.0, 1.0 - sum(masses))
    with np.errstate(divide="ignore"):
        logs = [np.log(rest) + np.zeros(len(orders))] + [
            np.log(mass) + (orders - 1) * value for mass, value in zip(masses, values, strict=True)
        ]
    return np.maximum(np.logaddexp.reduce(np.array(logs), axis=0), 0.0) / (orders - 1)


def taking_part(protocol: Protocol) -> float:
    """Probability that a client takes part in a round."""
    rule = protocol.participation
    if isinstance(rule, Poisson):
        return rule.rate
    return rule.size / protocol.clients if isinstance(rule, FixedSize) else 1.0


def renyi_bounds(question: Question, prices: UploadPrices, counts: np.ndarray) -> Iterator[Bound]:
    """Uploads with noise of any kind, against who sees every upload; all other views are post-processing of that."""
    protocol, norm, dimension = question.protocol, clip_norm(question.protocol), dimension_of(question.protocol)
    if silent(protocol.noise) and prices.shifts.max() > 0:
        yield Bound(curve=NOTHING, method="no noise", lines=("Without noise nothing hides a client's contribution.",))
        return
    price = price_of(protocol.noise, norm, dimension)
    largest = rounded_up(float(prices.shifts.max()))
    lines = (f"{prices.reason}; the largest here is {largest}.", seen_as(question), f"One release: {price.reason}.")
    part = taking_part(protocol)
    drawn = "" if part == 1 else f" A client takes part with probability {part:.3g}, visibly: moments average (A10)."

    def values(shift: float) -> np.ndarray:
        return release_values(protocol.noise, norm, dimension, float(shift))

    one = [averaged([values(shift)], [part]) for shift in prices.shifts]
    how = f"Rényi divergences add up over {counts.sum()} rounds.{drawn}"
    yield Bound(curve=added(one, counts), method="Rényi composition", lines=(*lines, how), vouched=price.vouched)
    if prices.first_used is not None and question.records is not None:
        from sordino.privacy.participation import first_use

        batch = protocol.local.batch or 1
        use = (part * first_use(batch=batch, records=question.records, steps=protocol.local.steps)).tolist()
        rows = [averaged([values(shift) for shift in row], use) for row in prices.first_used]
        how = f"A step draws {batch} of {question.records} records: moments average over the first use (A11).{drawn}"
        yield Bound(curve=added(rows, counts), method="first-hit mixture", lines=(*lines, how), vouched=price.vouched)
    if price.vouched:
        yield Bound(curve=NOTHING, method="no claim", lines=("Without what is vouched for, nothing is known about this noise.",))


def seen_as(question: Question) -> str:
    """The view in words, and that other noise than Gaussian has no better bound for the mean."""
    seen = f"The adversary sees {question.view.sees}."
    if question.view == View.SERVER:
        return seen
    return seen + " That is computed from the uploads: the server's bound holds, and no other is known for this noise."


def added(rounds: list[np.ndarray], counts: np.ndarray) -> RenyiCurve:
    """The composition of rounds, each so many times."""
    return RenyiCurve(orders=ORDERS, values=tuple(np.dot(counts, np.array(rounds)).tolist()))
