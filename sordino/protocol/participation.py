"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Integer, Number, Value, entry


@dataclass(frozen=True, kw_only=True)
class Everyone(Value):
    """Every client takes part in every round.

    Example:
        >>> Everyone().expected(clients=50)
        50.0
    """

    tag: ClassVar[str] = "everyone"

    def expected(self, *, clients: int) -> float:
        """Expected number of participants of a round."""
        return float(clients)


@dataclass(frozen=True, kw_only=True)
class Poisson(Value):
    """Each client takes part in a round with probability `rate`, independently; an empty round is not redrawn.

    Example:
        >>> Poisson(rate=0.5).expected(clients=50)
        25.0
    """

    tag: ClassVar[str] = "poisson"
    rate: float = entry(
        Number(above=0, at_most=1), "probability that a client takes part in a round"
    )

    def expected(self, *, clients: int) -> float:
        """Expected number of participants of a round."""
        return self.rate * clients


@dataclass(frozen=True, kw_only=True)
class FixedSize(Value):
    """`size` distinct clients, drawn anew and uniformly in every round.

    Example:
        >>> FixedSize(size=10).expected(clients=50)
        10.0
    """

    tag: ClassVar[str] = "fixed"
    size: int = entry(Integer(at_least=1), "number of clients that take part in a round")

    def expected(self, *, clients: int) -> float:
        """Expected number of participants of a round."""
        return float(self.size)


Participation = Everyone | Poisson | FixedSize
