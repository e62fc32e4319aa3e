"""Whether clients keep models of their own, and which helper model each is given in a round (PriFedSync, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Maybe, Number, Value, entry

PULL = "left out: training starts from the helper; given: it starts from the own model, every step pulled to the helper so strongly"


@dataclass(frozen=True, kw_only=True)
class Nobody(Value):
    """Nobody keeps a model: every participant starts from the global one, and the server has all there is.

    Example:
        >>> Nobody().tag
        'none'
    """

    tag: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class Identity(Value):
    """The helper is the global model; a client keeps what it makes of it.

    Example:
        >>> Identity(pull=0.1).pull
        0.1
    """

    tag: ClassVar[str] = "identity"
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)


@dataclass(frozen=True, kw_only=True)
class Interpolate(Value):
    """The helper lies between the client's own model and the global one: (1 - alpha) w_i + alpha w_global (PriFedSync Eq. 2.1).

    Example:
        >>> Interpolate(alpha=0.1).pull is None
        True
    """

    tag: ClassVar[str] = "interpolate"
    alpha: float = entry(Number(above=0, at_most=1), "share of the global model in the helper")
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)


@dataclass(frozen=True, kw_only=True)
class Attention(Value):
    """The helper is a mean of what clients last uploaded, those near the client's own upload weighing more (Huang et al. 2021).

    The server makes it, from uploads alone: own x (own upload) + (1 - own) x (others, weighted by softmax of sharpness x cosine).

    Example:
        >>> Attention(own=0.5).sharpness
        10.0
    """

    tag: ClassVar[str] = "attention"
    own: float = entry(
        Number(at_least=0, at_most=1), "share of the client's own upload in the helper"
    )
    sharpness: float = entry(
        Number(at_least=0), "how much the nearest weigh more; 0: all the same", 10.0
    )
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)


Personalization = Nobody | Identity | Interpolate | Attention
