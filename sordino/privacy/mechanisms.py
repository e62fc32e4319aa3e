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
from sordino.privacy.uploads import UploadPrices, largest_move, nearly_equal
from sordino.protocol import (
    Custom,
    FixedSize,
    Gaussian,
    InvalidValue,
    Laplace,
    Noise,
    Poisson,
    Protocol,
    Staircase,
    UserError,
    View,
)

_ORDERS = np.array(ORDERS)
_AT_ONCE = 1 << 21  # divergences that are worked out at a time


@dataclass(frozen=True, kw_only=True)
class NoisePrice:
    """One kind of noise, as a release of a vector whose norm moves by at most some shift sees it.

    Attributes:
        divergence: largest divergence of an order over all shifts of at most this norm.
        table: the same at many norms and at all `ORDERS`, a norm a row.
        pure: the epsilon that holds with delta = 0 for such a shift; infinite where there is none.
        reason: where the divergence comes from.
        vouched: what the user stands for.
    """

    divergence: Callable[[float, float], float]
    table: Callable[[np.ndarray], np.ndarray]
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
        table=lambda shifts: np.multiply.outer(shifts**2 / (2 * noise.sigma**2), _ORDERS),
        pure=lambda shift: math.inf if shift > 0 else 0.0,
        reason="Gaussian noise costs a s^2/(2 sigma^2) in every dimension",
    )


def _laplace(noise: Laplace, norm: str, dimension: int | None) -> NoisePrice:
    if norm == "l1":
        return NoisePrice(
            divergence=lambda order, shift: laplace.divergence(order, shift, noise.scale),
            table=lambda shifts: laplace.divergences(_ORDERS, shifts[:, None] / noise.scale),
            pure=lambda shift: shift / noise.scale,
            reason="Laplace noise under an l1 clip is worst where one coordinate moves alone (THEORY B2)",
        )
    size = known(dimension)
    return NoisePrice(
        divergence=lambda order, shift: laplace.divergence_l2(order, shift, noise.scale, size),
        table=lambda shifts: (
            size * laplace.divergences(_ORDERS, shifts[:, None] / math.sqrt(size) / noise.scale)
        ),
        pure=lambda shift: shift * math.sqrt(size) / noise.scale,
        reason=f"Laplace noise under an l2 clip is worst where all {size} coordinates move alike (THEORY B2)",
    )


def _staircase(noise: Staircase, norm: str, dimension: int | None) -> NoisePrice:
    size, density = (
        known(dimension),
        StaircaseDensity(step=noise.step, width=noise.width, nu=noise.falls_at),
    )
    spread, share = (
        (density.divergence_l1, size) if norm == "l1" else (density.divergence_l2, math.sqrt(size))
    )

    def refuse_beyond(shift: float) -> None:
        if shift > noise.width:
            allowed = f"at least {rounded_up(shift, 6)}, the distance an upload can move: beyond the width the worst case is not known"
            raise InvalidValue("noise.width", noise.width, allowed)

    def divergence(order: float, shift: float) -> float:
        refuse_beyond(shift)
        return spread(order, shift, size) if shift > 0 else 0.0

    def table(shifts: np.ndarray) -> np.ndarray:
        refuse_beyond(float(shifts.max(initial=0.0)))
        return size * density.divergences(_ORDERS, shifts[:, None] / share)

    return NoisePrice(
        divergence=divergence,
        table=table,
        pure=lambda shift: size * noise.step if shift > 0 else 0.0,
        reason=f"staircase noise is worst where all {size} coordinates move alike, in either norm (THEORY B2)",
    )


def _custom(noise: Custom, norm: str, dimension: int | None) -> NoisePrice:
    from sordino.privacy.custom import tested_noise, worst_divergence

    size = known(dimension)
    tested = tested_noise(noise.factory, noise.scale)

    def divergence(order: float, shift: float) -> float:
        return worst_divergence(tested, order, shift, norm, size)

    return NoisePrice(
        divergence=divergence,
        table=lambda shifts: np.array(
            [[divergence(order, shift) for order in ORDERS] for shift in shifts.tolist()]
        ),
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


def release_curve(noise: Noise, norm: str, dimension: int | None, shift: float) -> RenyiCurve:
    """The curve of one release of a vector that moves by at most `shift`.

    Example:
        >>> round(release_curve(Laplace(scale=1.0), "l1", None, 1.0).epsilon(1e-9), 3)
        1.0
    """
    return releases_curve(
        noise, norm, dimension, np.array([[shift]]), np.ones(1), np.ones(1, dtype=np.int64)
    )


def refuse_unpriced(protocol: Protocol) -> None:
    """Refuse noise about which nothing can be promised: a staircase narrower than an upload moves, noise that is less than it claims.

    Example:
        >>> from sordino.protocol import Constant, FedAvg
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> refuse_unpriced(Protocol(clients=2, rounds=1, local=local, noise=Laplace(scale=1.0)))
    """
    if isinstance(protocol.noise, (Custom, Staircase)):
        release_curve(
            protocol.noise, clip_norm(protocol), dimension_of(protocol), largest_move(protocol)
        )


def releases_curve(
    noise: Noise,
    norm: str,
    dimension: int | None,
    shifts: np.ndarray,
    masses: np.ndarray,
    counts: np.ndarray,
) -> RenyiCurve:
    """The composition of rounds, one a row of `shifts` and each so many times: in a round one of its shifts happens, visibly, or none.

    Example:
        >>> often = releases_curve(Laplace(scale=1.0), "l1", None, np.array([[1.0]]), np.array([0.5]), np.array([3]))
        >>> round(often.rdp(2.0), 6) == round(3 * math.log(0.5 + 0.5 * math.exp(laplace.divergence(2.0, 1.0, 1.0))), 6)
        True
    """
    return _composed(
        noise,
        norm,
        dimension,
        shifts.tobytes(),
        shifts.shape,
        masses.tobytes(),
        counts.astype(np.int64).tobytes(),
    )


@lru_cache(maxsize=64)  # all views ask for the same
def _composed(
    noise: Noise,
    norm: str,
    dimension: int | None,
    shifts: bytes,
    shape: tuple[int, int],
    masses: bytes,
    counts: bytes,
) -> RenyiCurve:
    price, chances = price_of(noise, norm, dimension), np.frombuffer(masses)
    rows, often = nearly_equal(
        np.frombuffer(shifts).reshape(shape), np.frombuffer(counts, dtype=np.int64)
    )
    total = np.zeros(len(ORDERS))
    for some in np.array_split(np.arange(len(rows)), max(1, rows.size * len(ORDERS) // _AT_ONCE)):
        values = price.table(rows[some].ravel()).reshape(len(some), chances.size, len(ORDERS))
        total += often[some] @ averaged(values, chances)
    return RenyiCurve(orders=ORDERS, values=tuple(total.tolist()))


def averaged(values: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Divergences of public mixtures: the moments e^((a-1) D) average; what is left of the mass is no shift at all.

    Example:
        >>> averaged(np.zeros((7, 1, len(ORDERS))), np.array([0.5])).shape == (7, len(ORDERS))
        True
    """
    with np.errstate(divide="ignore"):
        rest, logs = np.log(max(0.0, 1.0 - float(masses.sum()))), np.log(masses)
    moments = np.logaddexp.reduce(logs[:, None] + (_ORDERS - 1) * values, axis=1)
    return np.asarray(np.maximum(np.logaddexp(rest, moments), 0.0) / (_ORDERS - 1))


def taking_part(protocol: Protocol) -> float:
    """Probability that a client takes part in a round."""
    rule = protocol.participation
    if isinstance(rule, Poisson):
        return rule.rate
    return rule.size / protocol.clients if isinstance(rule, FixedSize) else 1.0


def renyi_bounds(question: Question, prices: UploadPrices, counts: np.ndarray) -> Iterator[Bound]:
    """Uploads with noise of any kind, against who sees every upload; all other views are post-processing of that."""
    protocol, norm, dimension = (
        question.protocol,
        clip_norm(question.protocol),
        dimension_of(question.protocol),
    )
    if silent(protocol.noise) and prices.shifts.max() > 0:
        yield Bound(
            curve=NOTHING,
            method="no noise",
            lines=("Without noise nothing hides a client's contribution.",),
        )
        return
    price = price_of(protocol.noise, norm, dimension)
    largest = rounded_up(float(prices.shifts.max()))
    lines = (
        f"{prices.reason}; the largest here is {largest}.",
        seen_as(question),
        f"One release: {price.reason}.",
    )
    part = taking_part(protocol)
    drawn = (
        ""
        if part == 1
        else f" A client takes part with probability {part:.3g}, visibly: moments average (A10)."
    )

    certain = releases_curve(
        protocol.noise, norm, dimension, prices.shifts[:, None], np.array([part]), counts
    )
    how = f"Rényi divergences add up over {counts.sum()} rounds.{drawn}"
    yield Bound(
        curve=certain, method="Rényi composition", lines=(*lines, how), vouched=price.vouched
    )
    if prices.first_used is not None and question.records is not None:
        from sordino.privacy.participation import first_use

        batch = protocol.local.batch or 1
        use = part * first_use(batch=batch, records=question.records, steps=protocol.local.steps)
        curve = releases_curve(protocol.noise, norm, dimension, prices.first_used, use, counts)
        how = f"A step draws {batch} of {question.records} records: moments average over the first use (A11).{drawn}"
        yield Bound(
            curve=curve, method="first-hit mixture", lines=(*lines, how), vouched=price.vouched
        )
    if price.vouched:
        yield Bound(
            curve=NOTHING,
            method="no claim",
            lines=("Without what is vouched for, nothing is known about this noise.",),
        )


def seen_as(question: Question) -> str:
    """The view in words, and that other noise than Gaussian has no better bound for the mean."""
    seen = f"The adversary sees {question.view.sees}."
    if question.view == View.SERVER:
        return seen
    return (
        seen
        + " That is computed from the uploads: the server's bound holds, and no other is known for this noise."
    )
