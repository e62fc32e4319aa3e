"""Noise of the user's own making: what a factory must give, how its claim is tested, and what it costs in many dimensions.

A factory is called with the scale and returns an object with

    uniforms               how many uniform numbers make one value of noise
    sample(uniforms)       (..., uniforms) numbers in (0, 1) to (...) independent values of noise
    divergence(order, shifts)   an array: Rényi divergence of one coordinate moved by each shift, in both directions, nondecreasing

or, in place of `divergence`, `losses(shift)`: a dp_accounting privacy-loss distribution of one coordinate, good for one parameter only.

The claim is tested before it is used: the histogram of what the sampler gives, moved and not moved, must not be farther apart than
claimed (divergences shrink under binning). That finds noise that is too small for its claim; it proves nothing, so every guarantee
lists the claim as vouched for.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import betaincinv

from sordino.privacy.losses import LossCurve
from sordino.protocol.errors import UserError

SAMPLES = 500_000
BINS = 40
FALSE_ALARM = 1e-6  # of the whole test, for a claim that is true
TESTED_ORDERS = (1.25, 2.0, 4.0, 8.0, 32.0)
TESTED_SHIFTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in units of the median magnitude
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
        vouched: what the user stands for.
    """

    sample: Callable[[np.ndarray], np.ndarray]
    uniforms: int
    divergences: Callable[[float, np.ndarray], np.ndarray]
    scalar: bool
    moments: tuple[float, float]
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
        made = getattr(importlib.import_module(module), name)(scale)
    except ImportError as error:
        raise UserError(f"noise.mechanism = {factory!r}: {error}.") from None
    except AttributeError:
        raise UserError(f"noise.mechanism = {factory!r}: {module} has no {name}.") from None
    if not callable(getattr(made, "sample", None)) or not isinstance(getattr(made, "uniforms", None), int) or made.uniforms < 1:
        raise UserError(f"noise.mechanism = {factory!r}: expected an object with `uniforms`, `sample` and `divergence` or `losses`.")
    if not callable(getattr(made, "divergence", None)) and not callable(getattr(made, "losses", None)):
        raise UserError(f"noise.mechanism = {factory!r}: expected `divergence(order, shifts)` or `losses(shift)`: nothing prices it.")
    return made


def tested(made: Any, name: str) -> CustomNoise:
    """Hold the claim of a noise against a histogram of its sampler."""
    scalar = not callable(getattr(made, "divergence", None))
    divergences = _from_losses(made.losses) if scalar else made.divergence
    generator = np.random.Generator(np.random.Philox(key=[5, 5]))
    values = np.asarray(made.sample(generator.random((SAMPLES, made.uniforms)) * (1 - 2.0**-52) + 2.0**-53), dtype=float)
    if values.shape != (SAMPLES,) or not np.isfinite(values).all():
        raise UserError(f"noise.mechanism = {name!r}: sample() gave {values.shape} values for {SAMPLES}, or some that are not finite.")
    middle = float(np.median(np.abs(values)))
    if middle == 0:
        raise UserError(f"noise.mechanism = {name!r}: most of its noise is exactly 0.")
    for shift in (middle * factor for factor in TESTED_SHIFTS):
        for order in TESTED_ORDERS:
            claimed = float(np.asarray(divergences(order, np.array([shift])))[0])
            shown = shown_divergence(values, shift, order)
            if not claimed >= shown:
                raise UserError(
                    f"noise.mechanism = {name!r}: it claims a divergence of {claimed:.4g} at order {order:g} for a shift of {shift:.4g}, "
                    f"and {SAMPLES} of its values show at least {shown:.4g}. Its noise is smaller than it claims."
                )
    vouched = (
        f"the noise of {name} diverges by no more than it says (a histogram of {SAMPLES} values did not contradict it at "
        f"{len(TESTED_SHIFTS)} shifts and {len(TESTED_ORDERS)} orders)",
    )
    moments = float(np.abs(values).mean()), float(np.square(values).mean())
    return CustomNoise(sample=made.sample, uniforms=made.uniforms, divergences=divergences, scalar=scalar, moments=moments, vouched=vouched)


def _from_losses(losses: Callable[[float], Any]) -> Callable[[float, np.ndarray], np.ndarray]:
    def divergences(order: float, shifts: np.ndarray) -> np.ndarray:
        return np.array([LossCurve(distribution=losses(float(shift))).rdp(order) if shift > 0 else 0.0 for shift in np.ravel(shifts)])

    return divergences


def shown_divergence(values: np.ndarray, shift: float, order: float) -> float:
    """A lower confidence limit on the divergence of values and moved values, from one histogram of each; the larger direction.

    Divergences of binned laws are at most those of the laws themselves (van Erven and Harremoës 2014, Thm 9). Each half of the values
    fills one histogram, so that the two are independent; limits of all bins hold together.
    """
    first, second = values[: len(values) // 2], values[len(values) // 2 :] + shift
    cuts = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, BINS + 1)[1:-1])
    counts = [np.bincount(np.searchsorted(cuts, half), minlength=BINS) for half in (first, second)]
    risk = FALSE_ALARM / (2 * 2 * BINS * len(TESTED_SHIFTS) * len(TESTED_ORDERS))
    lows, highs = zip(*(limits(count, len(first), risk) for count in counts), strict=True)
    return max(_moment(lows[1], highs[0], order), _moment(lows[0], highs[1], order))


def limits(counts: np.ndarray, total: int, risk: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's limits of probabilities, each missed with probability at most `risk` on either side."""
    low = np.where(counts > 0, betaincinv(np.maximum(counts, 1), total - counts + 1, risk), 0.0)
    high = np.where(counts < total, betaincinv(counts + 1, np.maximum(total - counts, 1), 1 - risk), 1.0)
    return low, high


def _moment(low: np.ndarray, high: np.ndarray, order: float) -> float:
    """The least divergence of laws p >= low and q <= high.

    sum p^a q^(1-a) is convex in p: mass that the lower limits leave out adds at least a (low/high)^(a-1) wherever it lies.
    """
    with np.errstate(divide="ignore"):
        ratios = (order - 1) * (np.log(low) - np.log(high))
        logs = np.append(np.log(low) + ratios, np.log(order * max(0.0, 1 - low.sum())) + ratios.min())
    return max(0.0, float(np.logaddexp.reduce(logs)) / (order - 1))


def worst_divergence(noise: CustomNoise, order: float, shift: float, norm: str, dimension: int) -> float:
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
        raise UserError("this noise is priced by a privacy-loss distribution of one coordinate: its worst case in many is not known.")
    whole = shift**power
    start = whole / dimension * 1e-8
    ends = start * GRID_RATIO ** np.arange(math.ceil(math.log(whole / start) / math.log(GRID_RATIO)))
    ends = np.append(ends[ends < whole], whole)
    values = np.asarray(noise.divergences(order, ends ** (1 / power)), dtype=float)
    if not np.isfinite(values).all() or (np.diff(values) < -1e-9 * values[1:]).any() or values[0] < 0:
        raise UserError(f"its divergence of order {order:g} is not a nondecreasing, finite function of the shift: nothing can be promised.")
    starts = np.concatenate([[0.0], ends[:-1]])
    return dimension * _concave_above(starts, np.maximum.accumulate(values), whole / dimension)


def _concave_above(starts: np.ndarray, values: np.ndarray, at: float) -> float:
    """The least concave function above a rising staircase that takes `values` from `starts` on, at one point."""
    hull: list[int] = []
    for index in range(len(starts)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (starts[index] - starts[a]) > (values[index] - values[a]) * (starts[b] - starts[a]):
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
