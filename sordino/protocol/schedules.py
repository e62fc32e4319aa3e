"""Learning rates of local step k in round t: the four schedules of convergent-dp (Section 4 and Appendix E), and PriFedSync's decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Integer, Number, Value, entry


@dataclass(frozen=True, kw_only=True)
class Schedule(Value):
    """A learning rate that depends on the round and the local step only, never on data."""

    rate: float = entry(Number(above=0), "mu: the rate of the very first step")

    def at(self, *, round: int, step: int, steps: int) -> float:
        """Rate of local step `step` (0 to `steps` - 1) in round `round` (from 0)."""
        return self.rate / self._divisor(round, step, steps)

    def rates(self, *, round: int, steps: int) -> tuple[float, ...]:
        """The rates of all local steps of a round."""
        return tuple(self.at(round=round, step=step, steps=steps) for step in range(steps))

    def _divisor(self, round: int, step: int, steps: int) -> int:
        raise TypeError("use Constant, Cyclic, StageWise or Continuous")


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """mu in every step.

    Example:
        >>> Constant(rate=0.5).rates(round=3, steps=2)
        (0.5, 0.5)
    """

    tag: ClassVar[str] = "constant"

    def _divisor(self, round: int, step: int, steps: int) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class Cyclic(Schedule):
    """mu / (k + 1): falls within a round and starts again in the next.

    Example:
        >>> Cyclic(rate=0.5).rates(round=3, steps=2)
        (0.5, 0.25)
    """

    tag: ClassVar[str] = "cyclic"

    def _divisor(self, round: int, step: int, steps: int) -> int:
        return step + 1


@dataclass(frozen=True, kw_only=True)
class StageWise(Schedule):
    """mu / (t + 1): the same within a round, falling from round to round.

    Example:
        >>> StageWise(rate=0.5).rates(round=1, steps=2)
        (0.25, 0.25)
    """

    tag: ClassVar[str] = "stage-wise"

    def _divisor(self, round: int, step: int, steps: int) -> int:
        return round + 1


@dataclass(frozen=True, kw_only=True)
class Continuous(Schedule):
    """mu / (tK + k + 1): falls with every step.

    Example:
        >>> Continuous(rate=0.6).rates(round=1, steps=2)
        (0.19999999999999998, 0.15)
    """

    tag: ClassVar[str] = "continuous"

    def _divisor(self, round: int, step: int, steps: int) -> int:
        return round * steps + step + 1


@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """Falls by `factor` once every so many local steps (PriFedSync 4.2: by 0.99 every 10 epochs, an epoch being records / batch steps).

    Example:
        >>> Decay(rate=0.4, factor=0.5, every=3).rates(round=1, steps=2)
        (0.4, 0.2)
    """

    tag: ClassVar[str] = "decay"
    factor: float = entry(Number(above=0, at_most=1), "what the rate is multiplied by")
    every: int = entry(Integer(at_least=1), "local steps between two falls, over the rounds")

    def at(self, *, round: int, step: int, steps: int) -> float:
        """See `Schedule.at`; a rate too small for a number is 0."""
        return self.rate * self.factor ** ((round * steps + step) // self.every)


SCHEDULES: tuple[type[Schedule], ...] = (Constant, Cyclic, StageWise, Continuous, Decay)
