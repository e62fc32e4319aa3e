"""Gaussian noise: in every dimension a shift costs the same, and sums of it are Gaussian again."""

from __future__ import annotations

import math

import numpy as np

from sordino.mechanisms.mechanism import MECHANISMS, Mechanism, NoisePrice
from sordino.mechanisms.noise_law import Law, normal_law
from sordino.protocol import Gaussian, Noise
from sordino.randomness import Stream


@MECHANISMS.register(Gaussian)
class GaussianMechanism(Mechanism[Gaussian]):
    """Normal noise on every coordinate.

    Example:
        >>> mechanism = GaussianMechanism(Gaussian(sigma=1.0))
        >>> round(mechanism.amplitude, 6), mechanism.resize(3.0).sigma
        (0.797885, 3.0)
    """

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns the price of normal noise, which depends on neither norm nor dimension.

        Args:
            norm: Which norm of the vector is clipped, "l1" or "l2".
            dimension: Number of coordinates, where it is known.
        """
        doubled_variance = 2 * self.noise.sigma**2

        def find_divergence(order: float, shift: float) -> float:
            """Returns the largest divergence over moves of at most a norm.

            Args:
                order: Order of the divergence.
                shift: The largest norm of the move.
            """
            # Normal noise looks the same in every direction, so only the length of the move counts
            # (docs/theory.md#a8).
            return order * shift**2 / doubled_variance

        def tabulate(shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
            """Returns the divergences of all pairs, a shift a row.

            Args:
                shifts: Norms of moves.
                orders: Orders of the divergences.
            """
            divergences: np.ndarray = np.multiply.outer(shifts**2 / doubled_variance, orders)
            return divergences

        return NoisePrice(
            divergence=find_divergence,
            table=tabulate,
            # The privacy loss of normal noise is unbounded: there is no epsilon without a delta.
            pure=lambda shift: math.inf if shift > 0 else 0.0,
            reason="Gaussian noise costs a s^2/(2 sigma^2) in every dimension",
        )

    def draw(self, stream: Stream, trainings: int, count: int) -> np.ndarray:
        """Returns independent values of noise; equal calls give equal values.

        Args:
            stream: The place in the keystream that the values are made of.
            trainings: Number of rows, one for each training side by side.
            count: Number of values in a row.
        """
        return self.noise.sigma * stream.normal_rows(trainings, count)

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of one coordinate's noise at each value.

        Args:
            values: Values of one coordinate's noise.
        """
        sigma = self.noise.sigma
        return -np.square(values / sigma) / 2 - math.log(sigma * math.sqrt(2 * math.pi))

    @property
    def law(self) -> Law:
        return normal_law(self.noise.sigma)

    @property
    def moments(self) -> tuple[float, float]:
        return self.noise.sigma * math.sqrt(2 / math.pi), self.noise.sigma**2

    @property
    def size_entry(self) -> str:
        # The rule noisy-sgd has its noise in the steps, where a multiplier says how much.
        return "sigma" if self.noise.multiplier is None else "multiplier"

    @classmethod
    def of_parameter(cls, value: float, *, reach: float, secure: bool) -> Noise:
        """Returns normal noise; its size does not depend on the reach.

        Args:
            value: The size that its entry is to say.
            reach: How far an upload can move.
            secure: Whether the noise comes from the operating system's entropy.
        """
        return Gaussian(sigma=value, secure=secure)
