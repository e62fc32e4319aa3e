"""Noise of the user's own making: what a factory must give, how its claim is tested, and what it costs in many dimensions.

A factory is called with the scale and returns an object with

    uniforms               how many uniform numbers make one value of noise
    sample(uniforms)       (..., uniforms) numbers in (0, 1) to (...) independent values of noise
    divergence(order, shifts)   an array: Rényi divergence of one coordinate moved by each shift, in both directions, nondecreasing

or, in place of `divergence`, `losses(shift)`: a dp_accounting privacy-loss distribution of one coordinate, good for one parameter only.

The claim is tested before it is used: every value must depend on its own uniforms and on nothing else, so that values are independent and
repeat; and a histogram of them, moved and not moved, must not be farther apart than claimed. That finds noise that is too small for
its claim; it proves nothing, so every guarantee lists the claim as vouched for.
"""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.privacy.histogram import shown
from sordino.privacy.losses import LossCurve
from sordino.protocol.errors import UserError

SAMPLES = 500_000
AGAIN = 1000  # values that are drawn again
FALSE_ALARM = 1e-6  # of the whole test, for a claim that is true
TESTED_ORDERS = (1.25, 2.0, 4.0, 8.0, 32.0)
TESTED_SHIFTS = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)  # in units of the median magnitude
PARTS = (4, 64, 1024)  # into which a tested shift is cut
CELLS = 256  # of the density that an attack uses
GRID_RATIO = 1.02


@dataclass(frozen=True, kw_only=True, eq=False)
class CustomNoise:
    """A noise that passed its test.

    Attributes:
        sample: (..., uniforms) numbers in (0, 1) to (...) values.
        uniforms: how many uniform numbers make one value.
        divergences: order and shifts to one-coordinate divergences.
        scalar: whether the claim is a privacy-loss distribution, good for one parameter only.
        moments: measured E|X| and E X^2.
        density: places, and the logarithm of the density there, as measured.
        vouched: what the user stands for.
    """

    sample: Callable[[np.ndarray], np.ndarray]
    uniforms: int
    divergences: Callable[[float, np.ndarray], np.ndarray]
    scalar: bool
    moments: tuple[float, float]
    density: tuple[np.ndarray, np.ndarray]
    vouched: tuple[str, ...]


@lru_cache(maxsize=16)
def tested_noise(factory: str, scale: float) -> CustomNoise:
    """The noise of a factory, tested.

    Raises:
        UserError: there is no such factory, it gives something else than noise, or its noise is smaller than it claims.

    Example:
        >>> noise = tested_noise("sordino.privacy.custom:logistic", 1.0)
        >>> round(noise.moments[0], 1)
        1.4
    """
    return tested(built(factory, scale), factory)


def built(factory: str, scale: float) -> Any:
    """What a factory gives."""
    module, _, name = factory.partition(":")
    try:
        maker = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(f"noise.mechanism = {factory!r}: {error}.") from None
    except AttributeError:
        raise UserError(f"noise.mechanism = {factory!r}: {module} has no {name}.") from None
    with theirs(factory):
        made = maker(scale)
    if (
        not callable(getattr(made, "sample", None))
        or not isinstance(getattr(made, "uniforms", None), int)
        or made.uniforms < 1
    ):
        raise UserError(
            f"noise.mechanism = {factory!r}: expected an object with `uniforms`, `sample` and `divergence` or `losses`."
        )
    if not callable(getattr(made, "divergence", None)) and not callable(
        getattr(made, "losses", None)
    ):
        raise UserError(
            f"noise.mechanism = {factory!r}: expected `divergence(order, shifts)` or `losses(shift)`: nothing prices it."
        )
    return made


@contextmanager
def theirs(name: str) -> Iterator[None]:
    """What goes wrong in the user's own code is the user's to mend: said in one line, with its place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        raise UserError(f"noise.mechanism = {name!r} failed: {said}.") from None


def tested(made: Any, name: str) -> CustomNoise:
    """Hold the claim of a noise against a histogram of its sampler."""
    who, scalar = f"noise.mechanism = {name!r}", not callable(getattr(made, "divergence", None))
    divergences = _from_losses(made.losses) if scalar else made.divergence
    with theirs(name):
        values = sampled(made, who)
        middle = float(np.median(np.abs(values)))
        if middle == 0:
            raise UserError(f"{who}: most of its noise is exactly 0.")
        refuse_contradicted(values, divergences, middle, who)
    vouched = (
        f"the noise of {name} diverges by no more than it says (a histogram of {SAMPLES} values did not contradict it at "
        f"{len(TESTED_SHIFTS)} shifts and {len(TESTED_ORDERS)} orders)",
    )
    return CustomNoise(
        sample=made.sample,
        uniforms=made.uniforms,
        divergences=divergences,
        scalar=scalar,
        moments=(float(np.abs(values).mean()), float(np.square(values).mean())),
        density=measured_density(values),
        vouched=vouched,
    )


def sampled(made: Any, who: str) -> np.ndarray:
    """Values of a sampler, of which some are drawn a second time, beside other neighbours and in another shape."""
    generator = np.random.Generator(np.random.Philox(key=[5, 5]))
    uniforms = generator.random((SAMPLES, made.uniforms)) * (1 - 2.0**-52) + 2.0**-53
    values = np.asarray(made.sample(uniforms), dtype=float)
    if values.shape != (SAMPLES,) or not np.isfinite(values).all():
        raise UserError(
            f"{who}: sample() gave {values.shape} values for {SAMPLES}, or some that are not finite."
        )
    again = np.asarray(
        made.sample(uniforms[1 : AGAIN + 1].reshape(2, AGAIN // 2, made.uniforms)), dtype=float
    )
    if not np.allclose(again.ravel(), values[1 : AGAIN + 1], rtol=1e-6, atol=0):
        raise UserError(
            f"{who}: sample() gave other values for the same uniforms. A value must depend on its own uniforms alone."
        )
    return values


def refuse_contradicted(
    values: np.ndarray,
    divergences: Callable[[float, np.ndarray], np.ndarray],
    middle: float,
    who: str,
) -> None:
    """Refuse a claim that values contradict: at a shift itself, or at a part of it, where values alone would not show enough.

    The steps of a shift cut into k parts are alike, so the total variation V of the whole is at most k times that of a part, and the part
    diverges by at least 2 (V/k)^2 at every order (Pinsker).
    """
    for shift in (middle * factor for factor in TESTED_SHIFTS):
        seen = shown(values, shift, FALSE_ALARM / len(TESTED_SHIFTS))
        least = [(shift, order, seen.divergence(order)) for order in TESTED_ORDERS]
        least += [
            (shift / parts, order, 2 * (seen.total_variation / parts) ** 2)
            for parts in PARTS
            for order in TESTED_ORDERS
        ]
        for move, order, found in least:
            claimed = float(np.asarray(divergences(order, np.array([move])))[0])
            if not claimed >= found:
                raise UserError(
                    f"{who}: it claims a divergence of {claimed:.4g} at order {order:g} for a shift of {move:.4g}, "
                    f"and {SAMPLES} of its values show at least {found:.4g}. Its noise is smaller than it claims."
                )


def measured_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The density in cells of equal mass: their middles, and the logarithm of the density there. It promises nothing: attacks use it."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, CELLS + 1)))
    masses = np.histogram(values, edges)[0] / len(values)
    return (edges[1:] + edges[:-1]) / 2, np.log(
        np.maximum(masses, 1 / len(values)) / np.diff(edges)
    )


def _from_losses(losses: Callable[[float], Any]) -> Callable[[float, np.ndarray], np.ndarray]:
    curve = lru_cache(maxsize=64)(lambda shift: LossCurve.from_distribution(losses(shift)))

    def divergences(order: float, shifts: np.ndarray) -> np.ndarray:
        return np.array(
            [curve(float(shift)).rdp(order) if shift > 0 else 0.0 for shift in np.ravel(shifts)]
        )

    return divergences


def worst_divergence(
    noise: CustomNoise, order: float, shift: float, norm: str, dimension: int
) -> float:
    """Largest sum of one-coordinate divergences over shift vectors of at most this norm.

    With u = |s| (l1) or s^2 (l2), the sum of d values g(u_j) with sum u_j <= c is at most d h(c/d), h any concave function above g
    (Jensen). g does not decrease, so above each cell of a grid it is at most its value at the cell's end.
    """
    if shift == 0:
        return 0.0
    power = 1.0 if norm == "l1" else 2.0
    if dimension == 1:
        return float(np.asarray(noise.divergences(order, np.array([shift])))[0])
    if noise.scalar:
        raise UserError(
            "this noise is priced by a privacy-loss distribution of one coordinate: its worst case in many is not known."
        )
    whole = shift**power
    start = whole / dimension * 1e-8
    ends = start * GRID_RATIO ** np.arange(
        math.ceil(math.log(whole / start) / math.log(GRID_RATIO))
    )
    ends = np.append(ends[ends < whole], whole)
    values = np.asarray(noise.divergences(order, ends ** (1 / power)), dtype=float)
    if (
        not np.isfinite(values).all()
        or (np.diff(values) < -1e-9 * values[1:]).any()
        or values[0] < 0
    ):
        raise UserError(
            f"its divergence of order {order:g} is not a nondecreasing, finite function of the shift: nothing can be promised."
        )
    starts = np.concatenate([[0.0], ends[:-1]])
    return dimension * _concave_above(starts, np.maximum.accumulate(values), whole / dimension)


def _concave_above(starts: np.ndarray, values: np.ndarray, at: float) -> float:
    """The least concave function above a rising staircase that takes `values` from `starts` on, at one point."""
    hull: list[int] = []
    for index in range(len(starts)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (starts[index] - starts[a]) > (
                values[index] - values[a]
            ) * (starts[b] - starts[a]):
                break
            hull.pop()
        hull.append(index)
    return float(np.interp(at, starts[hull], values[hull]))


class logistic:
    """Noise with the logistic density, an example of a factory: two exponential tails around a round top.

    Its log-density has a slope of at most 1/scale, so a shift costs at most shift/scale, and no order costs more.

    Example:
        >>> logistic(2.0).divergence(2.0, np.array([1.0])).tolist()
        [0.5]
    """

    uniforms = 1

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        """By the inverse of the cumulative distribution."""
        return self.scale * (np.log(uniforms[..., 0]) - np.log1p(-uniforms[..., 0]))

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        """The pure bound, which holds at every order."""
        return np.abs(shifts) / self.scale
