"""Learning rates of local step k in round t.

There are the four schedules of convergent-dp (Section 4 and Appendix E), and decay by a factor, as
in PriFedSync and in most practice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.protocol.entries import Tagged, Value, entry
from sordino.protocol.value_checks import Integer, Number


@dataclass(frozen=True, kw_only=True)
class Schedule(Value):
    """A learning rate that depends on the round and the local step only, never on data."""

    repeats: ClassVar[bool] = False  # whether every round has the same rates
    rate: float = entry(Number(above=0), "mu: the rate of the very first step")

    def at(self, *, round: int, step: int, steps: int) -> float:
        """Returns the rate of a local step.

        Args:
            round: The round's number, from 0.
            step: The step's number, from 0.
            steps: Number of local steps in a round.
        """
        # Rates that depended on data would have to be priced; these cost nothing.
        return self.rate / self._find_divisor(round, step, steps)

    def rates(self, *, round: int, steps: int) -> tuple[float, ...]:
        """Returns the rates of all local steps of a round.

        Args:
            round: The round's number, from 0.
            steps: Number of local steps in a round.
        """
        return tuple(self.at(round=round, step=step, steps=steps) for step in range(steps))

    def _find_divisor(self, round: int, step: int, steps: int) -> float:
        raise TypeError("use Constant, Cyclic, StageWise or Continuous")


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """mu in every step.

    Example:
        >>> Constant(rate=0.5).rates(round=3, steps=2)
        (0.5, 0.5)
    """

    tag: ClassVar[str] = "constant"
    repeats: ClassVar[bool] = True

    def _find_divisor(self, round: int, step: int, steps: int) -> float:
        return 1


@dataclass(frozen=True, kw_only=True)
class Cyclic(Schedule):
    """mu / (k + 1): falls within a round and starts again in the next.

    Example:
        >>> Cyclic(rate=0.5).rates(round=3, steps=2)
        (0.5, 0.25)
    """

    tag: ClassVar[str] = "cyclic"
    repeats: ClassVar[bool] = True

    def _find_divisor(self, round: int, step: int, steps: int) -> float:
        return step + 1


@dataclass(frozen=True, kw_only=True)
class StageWise(Schedule):
    """mu / (t + 1)^p: the same within a round, falling from round to round.

    With p above 1/2 the squares of all rates have a finite sum, and so has the price in every view,
    for every model (docs/theory.md#a33).

    Example:
        >>> StageWise(rate=0.5).rates(round=1, steps=2)
        (0.25, 0.25)
        >>> StageWise(rate=0.5, power=0.75).rates(round=15, steps=1)
        (0.0625,)
    """

    tag: ClassVar[str] = "stage-wise"
    power: float = entry(Number(above=0.5, at_most=1), "p: how fast the rate falls", 1.0)

    def _find_divisor(self, round: int, step: int, steps: int) -> float:
        # With p = 1 the schedule of docs/theory.md#a4.
        divisor: float = (round + 1) ** self.power
        return divisor


@dataclass(frozen=True, kw_only=True)
class Continuous(Schedule):
    """mu / (tK + k + 1): falls with every step.

    Example:
        >>> Continuous(rate=0.6).rates(round=1, steps=2)
        (0.19999999999999998, 0.15)
    """

    tag: ClassVar[str] = "continuous"

    def _find_divisor(self, round: int, step: int, steps: int) -> float:
        # The number of the step over all rounds (docs/theory.md#a5).
        return round * steps + step + 1


@dataclass(frozen=True)
class StepsOrRound(Integer):
    """A whole number of steps, or the word round."""

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the number or the word.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is neither.
        """
        return value if value == "round" else super().accept_value(key, value)

    @property
    def values_allowed(self) -> str:
        return f'{super().values_allowed}, or "round"'

    def build_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().build_schema(), {"const": "round"}]}


@dataclass(frozen=True, kw_only=True)
class Decay(Schedule):
    """Falls by `factor` once in every `every` local steps, or from round to round.

    PriFedSync (4.2) has 0.99 every 10 epochs, an epoch being records / batch steps. With every =
    "round" the rate is mu f^t: what practice calls stage-wise.

    Example:
        >>> Decay(rate=0.4, factor=0.5, every=3).rates(round=1, steps=2)
        (0.4, 0.2)
        >>> Decay(rate=0.4, factor=0.5, every="round").rates(round=2, steps=2)
        (0.1, 0.1)
    """

    tag: ClassVar[str] = "decay"
    factor: float = entry(Number(above=0, at_most=1), "what the rate is multiplied by")
    every: int | str = entry(
        StepsOrRound(at_least=1), 'local steps between two falls, over the rounds; or "round"'
    )

    def at(self, *, round: int, step: int, steps: int) -> float:
        """Returns the rate of a local step; one too small for a number is 0.

        Args:
            round: The round's number, from 0.
            step: The step's number, from 0.
            steps: Number of local steps in a round.
        """
        falls = round
        if isinstance(self.every, int):
            falls = (round * steps + step) // self.every
        return self.rate * self.factor**falls


SCHEDULES: tuple[type[Schedule], ...] = (Constant, Cyclic, StageWise, Continuous, Decay)


@dataclass(frozen=True)
class NumberOrSchedule(Number):
    """A number of an interval, or a schedule whose first value lies in it."""

    def accept_value(self, key: str, value: Any) -> Any:
        """Returns the number or the schedule.

        Args:
            key: Key of the entry, for the message of an error.
            value: The given value.

        Raises:
            InvalidValue: It is neither, or begins outside the interval.
        """
        if type(value) not in SCHEDULES:
            return super().accept_value(key, value)
        super().accept_value(f"{key}.rate", value.rate)
        return value

    def decode_value(self, key: str, raw: Any) -> Any:
        """Returns the value of a number or of a schedule's table.

        Args:
            key: Key of the entry, for the message of an error.
            raw: What TOML holds.

        Raises:
            InvalidValue: The value is not allowed.
        """
        value = raw
        if isinstance(raw, Mapping):
            value = Tagged(SCHEDULES, "kind").decode_value(key, raw)
        return self.accept_value(key, value)

    def encode_value(self, value: Any) -> Any:
        """Returns a number, or a schedule's table.

        Args:
            value: In its normal form.
        """
        if type(value) in SCHEDULES:
            return Tagged(SCHEDULES, "kind").encode_value(value)
        return value

    @property
    def values_allowed(self) -> str:
        return (
            f"{super().values_allowed}, or a schedule, {Tagged(SCHEDULES, 'kind').values_allowed}"
        )

    def build_schema(self) -> dict[str, Any]:
        return {"anyOf": [super().build_schema(), Tagged(SCHEDULES, "kind").build_schema()]}
