"""Staircase noise: its Rényi divergences, moments, and what it really costs in many dimensions (THEORY B1, B2).

The density is y e^(-step N(|x|)), N(r) = number of k >= 0 with (k + nu) width <= r: it falls by e^-step once in every `width`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.privacy import checks
from sordino.privacy.renyi import ORDERS, RenyiCurve
from sordino.protocol.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """Staircase noise on every coordinate: `step` is the privacy loss of a shift by `width`, `nu` where in a width it falls.

    Example:
        >>> round(Staircase(step=1.0, width=1.0, nu=0.3).divergence(2.0, 1.0), 10)
        0.6909206953
    """

    step: float
    width: float
    nu: float

    def __post_init__(self) -> None:
        checks.positive(step=self.step, width=self.width)
        checks.probability(nu=self.nu)

    @classmethod
    def usual(cls, *, step: float, width: float) -> Staircase:
        """With nu = 1 / (1 + e^(step/2)), which has the least expected magnitude (Geng and Viswanath 2015).

        Example:
            >>> round(Staircase.usual(step=1.0, width=1.0).nu, 6)
            0.377541
        """
        checks.positive(step=step, width=width)
        return cls(step=step, width=width, nu=1 / (1 + math.exp(step / 2)))

    @property
    def height(self) -> float:
        """The density y at 0."""
        return -math.expm1(-self.step) / (
            2 * self.width * (self.nu + math.exp(-self.step) * (1 - self.nu))
        )

    def jump_probability(self, shift: float) -> float:
        """Probability pi that the privacy loss of a shift of at most `width` is +step; -step has pi e^-step, 0 the rest.

        pi = y (min(s, 2 nu width) + s / (e^step - 1)) (THEORY B1).

        Example:
            >>> round(Staircase(step=1.0, width=1.0, nu=0.3).jump_probability(1.0), 10)
            0.6700725187
        """
        checks.finite(shift=shift)
        if shift > self.width * (1 + 1e-12):
            raise UserError(
                f"shift = {shift!r}: the three-valued loss holds up to the width {self.width!r}."
            )
        return float(self._jumps(np.array(shift)))

    def _jumps(self, shifts: np.ndarray) -> np.ndarray:
        return self.height * (
            np.minimum(shifts, 2 * self.nu * self.width)
            + shifts * math.exp(-self.step) / -math.expm1(-self.step)
        )

    def divergence(self, order: float, shift: float) -> float:
        """Divergence of one coordinate for any shift: the three-valued loss up to `width`, exact integration beyond.

        Example:
            >>> round(Staircase(step=1.0, width=1.0, nu=0.3).divergence(2.0, 1.5), 10)
            1.4211339085
        """
        checks.order(order)
        checks.finite(shift=shift)
        if shift == 0:
            return 0.0
        if shift > self.width or math.isinf(order):
            return self._integrated(order, shift)
        if order == 1:
            return self.jump_probability(shift) * self.step * -math.expm1(-self.step)
        return float(self.divergences(np.array(order), np.array(shift)))

    def divergences(self, orders: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Divergences of one coordinate at finite orders above 1 and shifts of at most `width`, element by element.

        Example:
            >>> noise = Staircase(step=1.0, width=1.0, nu=0.3)
            >>> noise.divergences(np.array([2.0]), np.array([1.0, 0.0])).round(10).tolist()
            [0.6909206953, 0.0]
        """
        # log(1 + pi (e^((a-1)step) - 1)(1 - e^(-a step)))/(a-1), THEORY B1, with the logarithm of each factor
        growth = (orders - 1) * self.step
        with np.errstate(divide="ignore"):
            jumps = np.log(self._jumps(shifts))
        log_moment = (
            jumps + growth + np.log(-np.expm1(-growth)) + np.log(-np.expm1(-orders * self.step))
        )
        return np.asarray(np.logaddexp(0.0, log_moment) / (orders - 1))

    def divergence_l1(self, order: float, clip: float, dimension: int) -> float:
        """Largest divergence over shifts of l1 norm at most `clip` <= width: an even spread, d D(clip/d) (THEORY B2).

        Example:
            >>> round(Staircase(step=1.0, width=1.0, nu=0.3).divergence_l1(2.0, 1.0, 10), 10)
            1.2508633237
        """
        self._check_clip(clip)
        checks.whole(at_least=1, dimension=dimension)
        return dimension * self.divergence(order, clip / dimension)

    def divergence_l2(self, order: float, clip: float, dimension: int) -> float:
        """Largest divergence over shifts of l2 norm at most `clip` <= width: d D(clip/sqrt(d)), which grows like sqrt(d).

        Example:
            >>> round(Staircase.usual(step=1.0, width=1.0).divergence_l2(2.0, 1.0, 100_000), 6)
            386.562481
        """
        self._check_clip(clip)
        checks.whole(at_least=1, dimension=dimension)
        return dimension * self.divergence(order, clip / math.sqrt(dimension))

    def slope(self, order: float) -> float:
        """kappa = dD/ds at 0: the l2 divergence grows as kappa clip sqrt(d), the l1 one tends to kappa clip (THEORY B2).

        Example:
            >>> round(Staircase.usual(step=1.0, width=1.0).slope(2.0), 10)
            1.22478365
        """
        checks.order(order)
        rate = self.height / -math.expm1(-self.step)  # y (1 + 1/(e^step - 1))
        if order == 1:
            return rate * self.step * -math.expm1(-self.step)
        return (
            rate
            * math.expm1((order - 1) * self.step)
            * -math.expm1(-order * self.step)
            / (order - 1)
        )

    def moments(self) -> tuple[float, float]:
        """E|X| and E X^2.

        Summing by parts, E|X|^p = 2 y width^(p+1) (1 - r)/(p + 1) sum_k r^k (k + nu)^(p+1), r = e^-step.

        Example:
            >>> tuple(round(value, 8) for value in Staircase(step=1.0, width=1.0, nu=0.3).moments())
            (0.96292594, 1.93293365)
        """
        r, gap, nu = math.exp(-self.step), -math.expm1(-self.step), self.nu
        sum1, sum2, sum3 = (
            r / gap**2,
            r * (1 + r) / gap**3,
            r * (1 + 4 * r + r * r) / gap**4,
        )  # sums of r^k k^p
        second = sum2 + 2 * nu * sum1 + nu**2 / gap
        third = sum3 + 3 * nu * sum2 + 3 * nu**2 * sum1 + nu**3 / gap
        return (
            self.height * self.width**2 * gap * second,
            2 / 3 * self.height * self.width**3 * gap * third,
        )

    def epsilon_at_least(
        self, delta: float, *, clip: float, dimension: int, rounds: int = 1
    ) -> float:
        """Exact epsilon of the even spread, an admissible shift: no bound on the noise can promise less (THEORY B2).

        The loss is a sum of d rounds independent three-valued losses, all multiples of `step`; its law is the inverse Fourier
        transform of a power, on a window that the sum leaves with probability below 1e-20.

        Example:
            >>> noise = Staircase.usual(step=1.0, width=1.0)
            >>> round(noise.epsilon_at_least(1e-5, clip=1.0, dimension=1000), 4)
            42.5555
        """
        self._check_clip(clip)
        checks.proper_delta(delta)
        checks.whole(at_least=1, dimension=dimension, rounds=rounds)
        up = self.jump_probability(clip / math.sqrt(dimension))
        losses, masses = _walk(up, up * math.exp(-self.step), dimension * rounds)
        return _smallest_epsilon(losses * self.step, masses, delta)

    def curve_l2(
        self, *, clip: float, dimension: int, orders: tuple[float, ...] = ORDERS
    ) -> RenyiCurve:
        """One release of a vector whose l2 norm moves by at most `clip`.

        Example:
            >>> round(Staircase.usual(step=1.0, width=1.0).curve_l2(clip=1.0, dimension=1).epsilon(1e-9), 2)
            1.0
        """
        return RenyiCurve.of(
            lambda order: self.divergence_l2(order, clip, dimension), orders=orders
        )

    def _check_clip(self, clip: float) -> None:
        checks.finite(clip=clip)
        if clip > self.width * (1 + 1e-12):
            raise UserError(
                f"clip = {clip!r}: the worst shift is only known up to the width {self.width!r} of the staircase (THEORY B2)."
            )

    def _levels(self, distance: np.ndarray) -> np.ndarray:
        """N(|x|): how often the density has fallen."""
        return np.floor(np.abs(distance) / self.width + 1 - self.nu)

    def _integrated(self, order: float, shift: float) -> float:
        """Over the pieces on which both densities are constant; outside [0, shift] one width repeats with weight e^-step."""
        reach = math.ceil(shift / self.width) + 2
        jumps = (
            np.arange(-reach, reach + 1)[:, None] + np.array([self.nu, -self.nu])
        ).ravel() * self.width
        cuts = np.concatenate([jumps, jumps + shift, [-self.width, 0.0, shift, shift + self.width]])
        cuts = np.unique(cuts[(cuts >= -self.width) & (cuts <= shift + self.width)])
        lengths, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2
        own, moved = self._levels(middles), self._levels(middles - shift)
        repeated = np.where(
            (middles < 0) | (middles > shift), -math.log(-math.expm1(-self.step)), 0.0
        )
        losses = self.step * (moved - own)
        if math.isinf(order):
            return float(losses[lengths > 1e-12 * self.width].max())
        logs = np.log(lengths) + math.log(self.height) - self.step * own + repeated
        if order == 1:
            return float(np.dot(np.exp(logs), losses))
        return max(0.0, float(np.logaddexp.reduce(logs + (order - 1) * losses)) / (order - 1))


def _walk(up: float, down: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Law of a sum of `steps` independent steps +1 (mass up), -1 (mass down) or 0."""
    mean, variance = steps * (up - down), steps * (up + down)
    half = (
        math.ceil(10 * math.sqrt(variance + 1)) + 70
    )  # Bernstein: exp(-half^2 / (2 (variance + half/3))) < 1e-20
    low, high = max(-steps, math.floor(mean) - half), min(steps, math.ceil(mean) + half)
    size = 1 << (high - low).bit_length()
    angles = 2 * math.pi * np.arange(size // 2 + 1) / size
    transform = (1 - up - down) + up * np.exp(-1j * angles) + down * np.exp(1j * angles)
    masses = np.fft.irfft(transform**steps * np.exp(1j * angles * low), size)
    return np.arange(low, high + 1), np.maximum(masses[: high - low + 1], 0.0)


def _smallest_epsilon(losses: np.ndarray, masses: np.ndarray, delta: float) -> float:
    """Where sum of mass (1 - e^(epsilon - loss))_+ falls to delta; between two losses it is linear in e^epsilon."""
    order = np.argsort(losses)[::-1]
    losses, masses = losses[order], masses[order]
    mass = np.cumsum(masses)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weight = np.logaddexp.accumulate(np.log(masses) - losses)
        candidates = (
            np.log(mass - delta) - log_weight
        )  # epsilon if exactly the losses so far exceed it
    inside = (mass > delta) & (candidates < losses) & (candidates >= np.append(losses[1:], -np.inf))
    return max(0.0, float(candidates[inside].max())) if inside.any() else 0.0
