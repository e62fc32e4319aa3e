"""Laws that noise is claimed to have, by their tails: enough to turn residuals into normal scores without losing digits far out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from sordino.privacy import checks
from sordino.privacy.staircase import Staircase
from sordino.protocol import Gaussian, Laplace, Noise
from sordino.protocol import Staircase as StaircaseNoise

_FARTHEST = (
    100.0  # normal scores are cut here, so that sums stay finite; a normal is never so far out
)


@dataclass(frozen=True, kw_only=True)
class Law:
    """A continuous law, symmetric around 0: `log_tail(r)` is log P(X > r) for arrays of r >= 0.

    Example:
        >>> laplace(1.0).cdf(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.1839, 0.5   , 0.8161])
    """

    name: str
    std: float
    log_tail: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        checks.positive(std=self.std)

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """P(X <= x), elementwise."""
        tail = np.exp(self.log_tail(np.abs(x)))
        return np.where(np.asarray(x) < 0, tail, 1 - tail)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Phi^-1(F(x)), elementwise: standard normals if x has this law. By the tail on x's own side, in logarithms.

        Example:
            >>> laplace(1.0).scores(np.array([-1000.0, 0.0, 1000.0])).round(2) + 0.0
            array([-44.63,   0.  ,  44.63])
        """
        with np.errstate(over="ignore"):
            sizes = -special.ndtri_exp(np.minimum(self.log_tail(np.abs(x)), -math.log(2)))
        return np.copysign(np.clip(sizes, 0.0, _FARTHEST), x)


def gaussian(sigma: float) -> Law:
    """Normal noise of standard deviation `sigma`.

    Example:
        >>> gaussian(2.0).scores(np.array([3.0]))
        array([1.5])
    """
    checks.positive(sigma=sigma)
    return Law(
        name=f"normal, standard deviation {sigma:g}",
        std=sigma,
        log_tail=lambda r: special.log_ndtr(-r / sigma),
    )


def laplace(scale: float) -> Law:
    """Laplace noise: density e^(-|x|/scale) / (2 scale).

    Example:
        >>> round(laplace(1.0).std, 6)
        1.414214
    """
    checks.positive(scale=scale)
    return Law(
        name=f"Laplace, scale {scale:g}",
        std=math.sqrt(2) * scale,
        log_tail=lambda r: -math.log(2) - r / scale,
    )


def staircase(*, step: float, width: float, nu: float) -> Law:
    """Staircase noise, whose density y e^(-step N) falls at (k + nu) width (`privacy.staircase`).

    Example:
        >>> law = staircase(step=1.0, width=1.0, nu=0.3)
        >>> round(law.std**2, 6), law.cdf(np.array([0.0, 1.3])).round(6)
        (1.932934, array([0.5     , 0.878626]))
    """
    noise = Staircase(step=step, width=width, nu=nu)
    beyond = (
        width * math.exp(-step) / -math.expm1(-step)
    )  # all further stairs together, in units of the present one's height

    def log_tail(r: np.ndarray) -> np.ndarray:
        widths = np.minimum(r / width, 1e15)  # beyond that a float64 has no fractions
        stair = np.floor(widths + 1 - nu)
        rest = width * np.clip(stair + nu - widths, 0.0, 1.0)
        return math.log(noise.height) - step * stair + np.log(rest + beyond)

    return Law(
        name=f"staircase, step {step:g}, width {width:g}, nu {nu:g}",
        std=math.sqrt(noise.moments()[1]),
        log_tail=log_tail,
    )


def law_of(noise: Noise) -> Law | None:
    """The law of a protocol's noise on one coordinate of an upload; None where only its sampler is known.

    Example:
        >>> law_of(Laplace(scale=0.5)).name
        'Laplace, scale 0.5'
    """
    if isinstance(noise, Gaussian):
        return gaussian(noise.sigma)
    if isinstance(noise, Laplace):
        return laplace(noise.scale)
    return (
        staircase(step=noise.step, width=noise.width, nu=noise.falls_at)
        if isinstance(noise, StaircaseNoise)
        else None
    )


GAUSSIAN = gaussian(1.0)
