"""Which noise hides a client's contribution: Gaussian, Laplace, staircase, or of the user's own making."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.protocol.entries import (
    Check,
    Choice,
    Flag,
    Maybe,
    Number,
    Tagged,
    Value,
    decode_table,
    encode_table,
    entry,
)
from sordino.protocol.errors import InvalidValue, UserError

PLACES = ("client", "server", "both")
FACTORY = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
WHERE = "who adds the noise: every client to its upload, the server to the mean, or both"
SECURE = "noise from the operating system's entropy, never repeatable"


@dataclass(frozen=True, kw_only=True)
class Gaussian(Value):
    """Normal noise of standard deviation `sigma` on every coordinate of every upload, or of their mean.

    The rule noisy-sgd has its noise in every step instead: there a `multiplier` is given, and no sigma.

    Example:
        >>> Gaussian(sigma=0.1).secure
        False
    """

    tag: ClassVar[str] = "gaussian"
    where: str = entry(Choice(PLACES), WHERE, "client")
    # None where there is a multiplier; whoever reads it as a number has looked at the rule before.
    sigma: float = entry(
        Maybe(Number(at_least=0)),
        "standard deviation on each coordinate of an upload; of the mean, where the server adds it",
        None,
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.server_sigma is None) != (self.where != "both"):
            given = "no" if self.server_sigma is None else "a"
            raise InvalidValue(
                "where",
                self.where,
                f'"both" with a server-sigma, or another without; there is {given} server-sigma',
            )
        if self.sigma is None and self.multiplier is None:
            raise UserError(
                "noise.sigma is missing: standard deviation on each coordinate of an upload (noisy-sgd: noise.multiplier)."
            )
        if self.sigma is not None and self.multiplier is not None:
            raise InvalidValue(
                "multiplier",
                self.multiplier,
                "no such key beside sigma: a sigma, or for noisy-sgd a multiplier",
            )


@dataclass(frozen=True, kw_only=True)
class Laplace(Value):
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
    scale: float = entry(Number(at_least=0), "mean magnitude on each coordinate")
    secure: bool = entry(Flag(), SECURE, False)


@dataclass(frozen=True, kw_only=True)
class Staircase(Value):
    """Staircase noise on every coordinate: the density falls by e^-step once in every `width`, at nu of it (Geng, Viswanath 2015).

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
        return self.nu if self.nu is not None else 1 / (1 + math.exp(self.step / 2))


@dataclass(frozen=True)
class FactoryName(Check):
    """`package.module:factory`."""

    def accept(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or FACTORY.match(value) is None:
            raise InvalidValue(key, value, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        return '"package.module:factory"'

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": FACTORY.pattern}


@dataclass(frozen=True, kw_only=True)
class Custom(Value):
    """Noise of the user's own making: `factory(scale)` gives its sampler and its Rényi divergence (see `sordino.privacy.custom`).

    Example:
        >>> Custom(factory="mine.noise:logistic", scale=0.5).factory
        'mine.noise:logistic'
    """

    tag: ClassVar[str] = "custom"
    factory: str = entry(FactoryName(), "package.module:factory, called with the scale")
    where: str = entry(Choice(("client",)), "who adds the noise", "client")
    scale: float = entry(Number(above=0), "size of the noise, handed to the factory", 1.0)
    secure: bool = entry(Flag(), SECURE, False)


Noise = Gaussian | Laplace | Staircase | Custom


@dataclass(frozen=True)
class Mechanisms(Tagged):
    """A kind of noise by its name; a name with a colon is that of a factory."""

    tag_key: str = "mechanism"

    def decode(self, key: str, raw: Any) -> Any:
        named = raw.get(self.tag_key) if isinstance(raw, Mapping) else None
        if not isinstance(named, str) or ":" not in named:
            return super().decode(key, raw)
        rest = {k: v for k, v in raw.items() if k != self.tag_key}
        if "factory" in rest:
            raise InvalidValue(
                f"{key}.factory",
                rest["factory"],
                f"no such key: {self.tag_key} names the factory already",
            )
        FactoryName().accept(f"{key}.{self.tag_key}", named)
        return decode_table(Custom, {"factory": named, **rest}, key)

    def encode(self, value: Any) -> Any:
        table = encode_table(value)
        name = table.pop("factory") if isinstance(value, Custom) else value.tag
        return {self.tag_key: name, **table}

    def _form(self, kind: type[Value]) -> dict[str, Any]:
        form = super()._form(kind)
        if kind is Custom:
            form["properties"][self.tag_key] = form["properties"].pop("factory")
            form["required"].remove("factory")
        return form
