"""The interface of a kind of noise, and the registry in which kinds are looked up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from sordino.mechanisms.noise_law import Law
from sordino.protocol import InvalidValue, Noise, Registry, UnknownKind
from sordino.randomness import Stream

Kind = TypeVar("Kind", bound=Noise)


@dataclass(frozen=True, kw_only=True)
class NoisePrice:
    """The price of one release of a vector whose norm moves by at most a shift.

    Attributes:
        divergence: Takes an order and a shift; returns the largest Rényi divergence of that order
            over all vectors whose norm is at most the shift.
        table: Takes shifts and orders; returns the same for all of them, a shift a row.
        pure: Takes a shift; returns the epsilon that holds with delta = 0, or infinity.
        reason: Where the divergence comes from, for the derivation of a guarantee.
        vouched: The assumptions that the user vouches for.
        deltas: Takes epsilons and shifts; returns the largest delta over the same vectors, a shift
            a row. None where it is not known which vector is the worst at every epsilon.
    """

    divergence: Callable[[float, float], float]
    table: Callable[[np.ndarray, np.ndarray], np.ndarray]
    pure: Callable[[float], float]
    reason: str
    vouched: tuple[str, ...] = ()
    # Rényi divergences lose a little in the conversion (docs/theory.md#b5); where the worst vector
    # is known for every epsilon (docs/theory.md#b10), nothing has to be lost.
    deltas: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Mechanism(ABC, Generic[Kind]):
    """A noise with everything that is known of its kind.

    Attributes:
        noise: The noise as the protocol describes it.
    """

    noise: Kind

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns what a release of a vector under this noise costs.

        Args:
            norm: Which norm of the vector is clipped, "l1" or "l2".
            dimension: Number of coordinates, where it is known.

        Raises:
            UnknownKind: Nobody has proved a price for this kind of noise.
            UserError: The price depends on the dimension, which is not known.
        """
        raise UnknownKind(
            f"no price is known for {self.noise.tag} noise: nothing can be promised with it."
        )

    @property
    def always_priced(self) -> bool:
        """Whether there is a price whatever the parameters are and however far a vector moves."""
        # A kind without a price of its own is refused before it trains anything.
        return type(self).price is not Mechanism.price

    @abstractmethod
    def draw(self, stream: Stream, trainings: int, count: int) -> np.ndarray:
        """Returns independent values of noise; equal calls give equal values.

        Args:
            stream: The place in the keystream that the values are made of.
            trainings: Number of rows, one for each training side by side.
            count: Number of values in a row.
        """

    @abstractmethod
    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of one coordinate's noise at each value.

        Args:
            values: Values of one coordinate's noise.
        """

    @property
    @abstractmethod
    def law(self) -> Law | None:
        """The law of the noise on one coordinate, by which audits test its residuals.

        None where only the sampler is known, or where the law has no finite standard deviation.
        """

    @property
    @abstractmethod
    def moments(self) -> tuple[float, float]:
        """The expected magnitude E|X| and the second moment E X^2 of one coordinate's noise."""

    @property
    @abstractmethod
    def size_entry(self) -> str:
        """The entry of the file that says how much noise there is."""

    @property
    def size(self) -> float:
        """How much noise there is, as a number of which more never reveals more."""
        return float(getattr(self.noise, self.size_entry))

    @property
    def size_words(self) -> str:
        """What `size` is called."""
        return self.size_entry

    def resize(self, size: float) -> Noise:
        """Returns the same kind of noise with another size.

        Args:
            size: The new one.
        """
        # Typed, since `replace` cannot know which entry says the size.
        changed: dict[str, Any] = {self.size_entry: size}
        return replace(self.noise, **changed)

    @property
    def growing_entry(self) -> str | None:
        """The entry that may be larger than a client has agreed to, since that is more noise."""
        return self.size_entry

    @classmethod
    def of_parameter(cls, value: float, *, reach: float, secure: bool) -> Noise:
        """Returns noise of this kind for a client that names the kind alone.

        Args:
            value: What the entry that says the size is to be.
            reach: How far an upload can move.
            secure: Whether the noise comes from the operating system's entropy.

        Raises:
            UnknownKind: A client cannot have this kind of noise by its name.
        """
        raise UnknownKind("a client names gaussian, laplace or staircase noise.")

    @property
    def parameter(self) -> float:
        """The value of the entry that says the size."""
        return float(getattr(self.noise, self.size_entry))

    @property
    def words(self) -> str:
        """The kind and its parameters, for a report."""
        return f"{self.noise.tag.capitalize()}, {self.size_entry} {self.parameter:g}"

    @property
    def silent(self) -> bool:
        """Whether there is no noise at all."""
        return self.size == 0

    @property
    def amplitude(self) -> float:
        """Expected magnitude of the noise on one coordinate.

        These are Lemmas 4 and 5 and Theorem 3 of udp-fl, corrected (docs/theory.md#b4).
        """
        return self.moments[0]

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on one coordinate."""
        # Noise is centred, so its second moment is its variance.
        return math.sqrt(self.moments[1])


MECHANISMS: Registry[type[Mechanism[Any]]] = Registry("mechanism", "noise", Noise)


def mechanism_of(noise: Noise) -> Mechanism[Any]:
    """Returns a noise with everything that is known of its kind.

    Args:
        noise: As the protocol describes it.

    Raises:
        UnknownKind: Nothing is known of exactly this kind.

    Example:
        >>> from sordino.protocol import Laplace
        >>> mechanism = mechanism_of(Laplace(scale=0.5))
        >>> mechanism.size_entry, mechanism.amplitude, round(mechanism.deviation, 4)
        ('scale', 0.5, 0.7071)
    """
    # By exact type: a subclass may draw otherwise than its base, and would be priced wrongly.
    return MECHANISMS.of(noise)(noise)


def mechanism_of_name(name: str) -> type[Mechanism[Any]]:
    """Returns the mechanism of a kind of noise that is called by its name in the file.

    Args:
        name: Name of the kind, as in the file.

    Raises:
        InvalidValue: There is no such kind of noise.

    Example:
        >>> mechanism_of_name("laplace").of_parameter(2.0, reach=1.0, secure=False).scale
        2.0
    """
    named = {kind.tag: kind for kind in MECHANISMS.kinds}
    if name not in named:
        raise InvalidValue("mechanism", name, f"one of {', '.join(sorted(named))}")
    return MECHANISMS[named[name]]


def check_order(order: float) -> None:
    """Refuses a number that is no Rényi order.

    Args:
        order: The number.

    Raises:
        InvalidValue: The order is below 1.
    """
    # Written this way round, a NaN is refused too.
    if not order >= 1:
        raise InvalidValue("order", order, "a Rényi order of at least 1")


def check_shift(shift: float) -> None:
    """Refuses a shift that is negative, infinite or no number.

    Args:
        shift: The number.

    Raises:
        InvalidValue: Names the shift.
    """
    # An infinite shift would make NaN of a product with a probability of 0.
    if not 0 <= shift < math.inf:
        raise InvalidValue("shift", shift, "a finite number of at least 0")


def check_dimension(dimension: int) -> None:
    """Refuses a number that cannot count coordinates.

    Args:
        dimension: The number.

    Raises:
        InvalidValue: Names the dimension.
    """
    # A fractional dimension would be rounded somewhere, to more or to less privacy.
    if isinstance(dimension, bool) or dimension != int(dimension) or dimension < 1:
        raise InvalidValue("dimension", dimension, "a whole number of at least 1")
