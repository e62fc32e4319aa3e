"""Whether clients keep models, and which helper model each is given (PriFedSync, section 2).

Every kind says whether clients keep models (`keeps_models`), whether the server makes helpers of
single uploads (`of_uploads`), and which share the client's personal model, as it kept it, has in
the helper (`own_share`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Value, entry
from sordino.protocol.value_checks import Maybe, Number

# One sentence for three kinds, which the documentation prints.
PULL = (
    "left out: training starts from the helper; given: it starts from the personal model, "
    "every step pulled to the helper so strongly"
)


@dataclass(frozen=True, kw_only=True)
class NoPersonalization(Value):
    """Nobody keeps a model: every participant starts from the global one.

    Example:
        >>> NoPersonalization().tag
        'none'
    """

    tag: ClassVar[str] = "none"
    keeps_models: ClassVar[bool] = False
    of_uploads: ClassVar[bool] = False
    own_share: ClassVar[float] = 0.0
    pull: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Identity(Value):
    """The helper is the global model; a client keeps what it makes of it.

    Example:
        >>> Identity(pull=0.1).pull
        0.1
    """

    tag: ClassVar[str] = "identity"
    keeps_models: ClassVar[bool] = True
    of_uploads: ClassVar[bool] = False
    own_share: ClassVar[float] = 0.0
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)


@dataclass(frozen=True, kw_only=True)
class Interpolate(Value):
    """The helper lies between the client's personal model and the global one (PriFedSync Eq. 2.1).

    It is (1 - alpha) w_i + alpha w_global.

    Example:
        >>> Interpolate(alpha=0.1).pull is None
        True
    """

    tag: ClassVar[str] = "interpolate"
    keeps_models: ClassVar[bool] = True
    of_uploads: ClassVar[bool] = False
    alpha: float = entry(Number(above=0, at_most=1), "share of the global model in the helper")
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)

    @property
    def own_share(self) -> float:
        """Share of the client's personal model in the helper."""
        # What a client kept has no noise in it: its share carries the data on (docs/theory.md#c4).
        return 1 - self.alpha


@dataclass(frozen=True, kw_only=True)
class Attention(Value):
    """The helper is a mean of the clients' last uploads (Huang et al. 2021).

    Uploads near the client's own weigh more.

    The server makes it, from uploads alone: own x (own upload) + (1 - own) x (others, weighted by
    softmax of sharpness x cosine).

    Example:
        >>> Attention(own=0.5).sharpness
        10.0
    """

    tag: ClassVar[str] = "attention"
    keeps_models: ClassVar[bool] = True
    # Helpers of noisy uploads are post-processing and cost nothing more.
    of_uploads: ClassVar[bool] = True
    own_share: ClassVar[float] = 0.0
    own: float = entry(
        Number(at_least=0, at_most=1), "share of the client's own upload in the helper"
    )
    sharpness: float = entry(
        Number(at_least=0), "how much the nearest weigh more; 0: all the same", 10.0
    )
    pull: float | None = entry(Maybe(Number(above=0)), PULL, None)


Personalization = NoPersonalization | Identity | Interpolate | Attention
