"""Who takes part in a round.

Every kind says whether it `draws` the participants of a round, so that who takes part is random,
and whether their number `varies` from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Value, entry
from sordino.protocol.value_checks import Integer, Number


@dataclass(frozen=True, kw_only=True)
class Everyone(Value):
    """Every client takes part in every round.

    Example:
        >>> Everyone().count_expected(clients=50)
        50.0
    """

    tag: ClassVar[str] = "everyone"
    draws: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    def count_expected(self, *, clients: int) -> float:
        """Returns the expected number of participants of a round.

        Args:
            clients: Number of clients in the federation.
        """
        return float(clients)

    def find_chance(self, *, clients: int) -> float:
        """Returns the probability that a client takes part in a round.

        Args:
            clients: Number of clients in the federation.
        """
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Poisson(Value):
    """Each client takes part in a round with probability `rate`, independently.

    An empty round is not redrawn.

    Example:
        >>> Poisson(rate=0.5).count_expected(clients=50)
        25.0
    """

    tag: ClassVar[str] = "poisson"
    draws: ClassVar[bool] = True
    # A random number of participants hides whether one more took part (docs/theory.md#a10).
    varies: ClassVar[bool] = True
    rate: float = entry(
        Number(above=0, at_most=1), "probability that a client takes part in a round"
    )

    def count_expected(self, *, clients: int) -> float:
        """Returns the expected number of participants of a round.

        Args:
            clients: Number of clients in the federation.
        """
        # A mean with a fixed denominator divides by this public constant; the number of those who
        # came would tell who is there (docs/theory.md#a10).
        return self.rate * clients

    def find_chance(self, *, clients: int) -> float:
        """Returns the probability that a client takes part in a round.

        Args:
            clients: Number of clients in the federation.
        """
        return self.rate


@dataclass(frozen=True, kw_only=True)
class FixedSize(Value):
    """`size` distinct clients, drawn afresh and uniformly in every round.

    Example:
        >>> FixedSize(size=10).count_expected(clients=50)
        10.0
    """

    tag: ClassVar[str] = "fixed"
    draws: ClassVar[bool] = True
    varies: ClassVar[bool] = False
    size: int = entry(Integer(at_least=1), "number of clients that take part in a round")

    def count_expected(self, *, clients: int) -> float:
        """Returns the expected number of participants of a round.

        Args:
            clients: Number of clients in the federation.
        """
        return float(self.size)

    def find_chance(self, *, clients: int) -> float:
        """Returns the probability that a client takes part in a round.

        Args:
            clients: Number of clients in the federation.
        """
        # Draws without replacement are not independent between clients, but each client's chance is
        # the same.
        return self.size / clients


Participation = Everyone | Poisson | FixedSize
