"""Which noise hides a client's contribution: Gaussian, Laplace, staircase, or a user's.

Price, sampler and density of a kind are in `sordino.mechanisms`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

from sordino.protocol.entries import Tagged, Value, decode_table, encode_table, entry
from sordino.protocol.errors import InvalidValue, UserError
from sordino.protocol.grids import MOST_DIGITS
from sordino.protocol.value_checks import Check, Choice, Flag, Integer, Maybe, Number

PLACES = ("client", "server", "both")
FACTORY = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
WHERE = "who adds the noise: every client to its upload, the server to the mean, or both"
ONE_SIZE = "no such key together with sigma: a sigma, or for noisy-sgd and dp-sgd a multiplier"
FALLING = (
    "no such key: noise that falls with the steps is aggregation = { mean = { mixing = { kind = "
    '"decay", rate = 1.0, factor = 0.99, every = "round" } } }, or another schedule'
)
ARITHMETICS = ("integers", "floats")
SECURE = "noise from the operating system's entropy, never repeatable"
# The sigma of a value that is made without one. No other NaN is this object, so it cannot be
# given by mistake.
LEFT_OUT = float("nan")


@dataclass(frozen=True)
class Deviation(Number):
    """A standard deviation, which may be left out in favour of another size of the noise."""

    def accept_value(self, key: str, value: Any) -> float:
        """Returns the number, or `LEFT_OUT`.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value; None is the same as nothing.

        Raises:
            InvalidValue: It is not a finite number of the interval.
        """
        if value is None or value is LEFT_OUT:
            return LEFT_OUT
        return super().accept_value(key, value)


@dataclass(frozen=True, kw_only=True)
class NoiseKind(Value):
    """Base of every kind of noise, with the answers of noise that has only an absolute size.

    Attributes:
        normal: Whether sums of it are such noise again, so that bounds count the noise of several
            clients.
    """

    normal: ClassVar[bool] = False

    @property
    def multiplier(self) -> float | None:
        """Its size in units of how far a sum moves; None where the size is absolute."""
        return None

    @property
    def arithmetic(self) -> str | None:
        """The arithmetic that the file asks of it, "integers" or "floats"; None if it does not."""
        return None

    @property
    def digits(self) -> int | None:
        """How fine its grid of integers is; None where the file leaves that open."""
        return None

    @property
    def client_sigma(self) -> float:
        """Standard deviation of each client's normal noise on its upload, or 0."""
        return 0.0

    @property
    def mean_sigma(self) -> float:
        """Standard deviation of the server's normal noise on the mean, or 0."""
        return 0.0

    def find_server_part(self) -> Noise | None:
        """Returns the noise that the server adds to the mean; None where it adds none."""
        return None

    def fit_unit(self, unit: float) -> Noise:
        """Returns the noise on a sum, its size absolute.

        Args:
            unit: Standard deviation for a multiplier of 1; noise without one stays as it is.
        """
        return cast("Noise", self)

    def set_multiplier(self, multiplier: float) -> Noise:
        """Returns the noise with another multiplier; noise without one stays as it is.

        Args:
            multiplier: The new one.
        """
        return cast("Noise", self)

    def set_arithmetic(self, arithmetic: str) -> Noise:
        """Returns the noise with its arithmetic spelled out; only normal noise has a choice.

        Args:
            arithmetic: "integers" or "floats".
        """
        return cast("Noise", self)


@dataclass(frozen=True, kw_only=True)
class Gaussian(NoiseKind):
    """Normal noise on every coordinate of every upload, or of their mean.

    Its standard deviation is `sigma`. The rule noisy-sgd has its noise in every step instead: there
    a `multiplier` is given, and the upload itself gets none.

    Example:
        >>> Gaussian(sigma=0.1).secure, Gaussian(multiplier=1.0).sigma
        (False, 0.0)
    """

    tag: ClassVar[str] = "gaussian"
    normal: ClassVar[bool] = True
    where: str = entry(Choice(PLACES), WHERE, "client")
    # Left out, it is 0 with a multiplier and refused without one; given as 0, it means no noise.
    sigma: float = entry(
        Deviation(at_least=0),
        "standard deviation on each coordinate of an upload; of the mean, where the server adds it",
        LEFT_OUT,
    )
    server_sigma: float | None = entry(
        Maybe(Number(above=0)), "standard deviation on the mean, where both add noise", None
    )
    multiplier: float | None = entry(
        Maybe(Number(at_least=0)),
        "noisy-sgd: noise on a sum of gradients, in units of its change",
        None,
    )
    secure: bool = entry(Flag(), SECURE, False)
    arithmetic: str | None = entry(
        Maybe(Choice(ARITHMETICS)),
        "integers: updates on a grid under discrete noise, which says nothing by its lowest bits; "
        "left out: so with secure = true where uploads can be integers, floats without it; "
        "always so under secure aggregation",
        None,
    )
    digits: int | None = entry(
        Maybe(Integer(at_least=1, at_most=MOST_DIGITS)),
        "integers: how fine the grid is, 8^digits x 8 steps to the noise; left out: as fine as the "
        "model needs",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # A size for noise that nobody adds would look like protection.
        if (self.server_sigma is None) != (self.where != "both"):
            given = "no" if self.server_sigma is None else "a"
            raise InvalidValue(
                "where",
                self.where,
                f'"both" with a server-sigma, or another without; there is {given} server-sigma',
            )
        left_out = self.sigma is LEFT_OUT
        if left_out and self.multiplier is None:
            raise UserError(
                "noise.sigma is missing: standard deviation on each coordinate of an upload "
                "(noisy-sgd, dp-sgd: noise.multiplier)."
            )
        if left_out:
            # The upload itself gets no noise: all of it is in the steps.
            object.__setattr__(self, "sigma", 0.0)
        # Two sizes for one noise: which of them was meant decides the price.
        if self.sigma != 0 and self.multiplier is not None:
            raise InvalidValue("multiplier", self.multiplier, ONE_SIZE)

    @property
    def client_sigma(self) -> float:
        """Standard deviation of each client's noise on its upload, or 0."""
        return 0.0 if self.where == "server" else self.sigma

    @property
    def mean_sigma(self) -> float:
        """Standard deviation of the server's noise on the mean, or 0."""
        if self.where == "server":
            return self.sigma
        # Given only where both add noise.
        return self.server_sigma or 0.0

    def find_server_part(self) -> Noise | None:
        """Returns the noise that the server adds to the mean; None where it adds none."""
        if self.where == "client":
            return None
        return Gaussian(sigma=self.mean_sigma, where="server", secure=self.secure)

    def fit_unit(self, unit: float) -> Noise:
        """Returns the noise on a sum, its size absolute.

        Args:
            unit: Standard deviation for a multiplier of 1.

        Raises:
            UserError: It has no multiplier.
        """
        if self.multiplier is None:
            # `Protocol` refuses this, so no protocol gets here.
            raise UserError("noise.multiplier is missing: the rule has its noise on a sum.")
        return Gaussian(sigma=self.multiplier * unit, secure=self.secure)

    def set_multiplier(self, multiplier: float) -> Noise:
        """Returns the noise with another multiplier.

        Args:
            multiplier: The new one.
        """
        return replace(self, multiplier=multiplier)

    def set_arithmetic(self, arithmetic: str) -> Noise:
        """Returns the noise with its arithmetic spelled out.

        Args:
            arithmetic: "integers" or "floats".
        """
        return replace(self, arithmetic=arithmetic)


@dataclass(frozen=True, kw_only=True)
class Laplace(NoiseKind):
    """Laplace noise of density e^(-|x|/scale)/(2 scale) on every coordinate.

    Example:
        >>> Laplace(scale=0.5).where
        'client'
    """

    tag: ClassVar[str] = "laplace"
    where: str = entry(
        Choice(("client", "server")),
        "who adds the noise: every client to its upload, or the server to the mean",
        "client",
    )
    scale: float = entry(
        Number(at_least=0),
        "mean magnitude on each coordinate of an upload; noisy-sgd: of a step's sum of gradients",
    )
    secure: bool = entry(Flag(), SECURE, False)

    def find_server_part(self) -> Noise | None:
        """Returns the noise that the server adds to the mean; None where it adds none."""
        return self if self.where == "server" else None


@dataclass(frozen=True, kw_only=True)
class Staircase(NoiseKind):
    """Staircase noise on every coordinate (Geng and Viswanath 2015).

    The density falls by e^-step once in every `width`, at nu of it.

    Example:
        >>> noise = Staircase(step=1.0, width=0.5)
        >>> noise.nu is None, round(noise.falls_at, 4)
        (True, 0.3775)
    """

    tag: ClassVar[str] = "staircase"
    where: str = entry(Choice(("client",)), "who adds the noise", "client")
    step: float = entry(
        Number(above=0, at_most=700), "privacy loss of a shift of one coordinate by the width"
    )
    width: float = entry(
        Number(above=0),
        "distance in which the density falls once; at least as large as an upload can move",
    )
    nu: float | None = entry(
        Maybe(Number(at_least=0, at_most=1)),
        "where in a width it falls; left out: 1/(1 + e^(step/2))",
        None,
    )
    secure: bool = entry(Flag(), SECURE, False)

    @property
    def falls_at(self) -> float:
        """nu, or its value of least expected magnitude."""
        # The place of least expected magnitude (docs/theory.md#b3).
        return self.nu if self.nu is not None else 1 / (1 + math.exp(self.step / 2))


@dataclass(frozen=True)
class FactoryName(Check):
    """`package.module:factory`."""

    def accept_value(self, key: str, value: Any) -> str:
        """Returns the name.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It does not name a module and a factory in it.
        """
        if not isinstance(value, str) or FACTORY.match(value) is None:
            raise InvalidValue(key, value, self.values_allowed)
        return value

    @property
    def values_allowed(self) -> str:
        return '"package.module:factory"'

    def build_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": FACTORY.pattern}


@dataclass(frozen=True, kw_only=True)
class Custom(NoiseKind):
    """Noise that a user brings: `factory(scale)` gives its sampler and its Rényi divergence.

    See `sordino.mechanisms.custom_noise`.

    Example:
        >>> Custom(factory="mine.noise:logistic", scale=0.5).factory
        'mine.noise:logistic'
    """

    tag: ClassVar[str] = "custom"
    factory: str = entry(FactoryName(), "package.module:factory, called with the scale")
    where: str = entry(Choice(("client",)), "who adds the noise", "client")
    scale: float = entry(Number(above=0), "size of the noise, passed to the factory", 1.0)
    secure: bool = entry(Flag(), SECURE, False)


Noise = Gaussian | Laplace | Staircase | Custom
OwnMechanism = Literal["gaussian", "laplace", "staircase"]  # what a client's own noise may be


@dataclass(frozen=True)
class Mechanisms(Tagged):
    """A kind of noise by its name; a name with a colon is that of a factory."""

    tag_key: str = "mechanism"

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the noise of a table.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            UserError: No such mechanism, or keys that it does not have.
        """
        named = raw.get(self.tag_key) if isinstance(raw, Mapping) else None
        # Checked on the file, where even a sigma of 0 with a multiplier was written by somebody.
        if named == Gaussian.tag and {"sigma", "multiplier"} <= set(raw):
            raise InvalidValue(f"{key}.multiplier", raw["multiplier"], ONE_SIZE)
        if isinstance(raw, Mapping) and "schedule" in raw:
            raise InvalidValue(f"{key}.schedule", raw["schedule"], FALLING)
        if not isinstance(named, str) or ":" not in named:
            return super().decode_value(key, raw)
        rest = {k: v for k, v in raw.items() if k != self.tag_key}
        # The name would be given twice, and might be two names.
        if "factory" in rest:
            raise InvalidValue(
                f"{key}.factory",
                rest["factory"],
                f"no such key: {self.tag_key} names the factory already",
            )
        FactoryName().accept_value(f"{key}.{self.tag_key}", named)
        return decode_table(Custom, {"factory": named, **rest}, key)

    def encode_value(self, value: Any) -> Any:
        """Returns the table of a noise, with the one key that says its size.

        Args:
            value: A kind of noise.
        """
        table = encode_table(value)
        if "multiplier" in table:
            # It is 0 with a multiplier, and a file with both keys is refused.
            del table["sigma"]
        name = table.pop("factory", value.tag)
        return {self.tag_key: name, **table}

    def _build_form(self, kind: type[Value]) -> dict[str, Any]:
        form = super()._build_form(kind)
        if kind is Custom:
            # In a file the mechanism's name is the factory; there is no second key for it.
            form["properties"][self.tag_key] = form["properties"].pop("factory")
            form["required"].remove("factory")
        return form
