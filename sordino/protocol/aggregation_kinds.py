"""How the server joins the uploads of a round.

Every kind says whether it `averages`: whether clients' noise adds up in it. Only for a mean is it
known how far one upload moves it. It says whether the law of its result is known, so that a game
can be played with it (`known_law`), and its name at the beginning of a sentence (`in_words`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Value, entry
from sordino.protocol.errors import InvalidValue
from sordino.protocol.schedules import NumberOrSchedule, Schedule
from sordino.protocol.value_checks import SMALLEST, Choice, Integer, Number, Text


@dataclass(frozen=True, kw_only=True)
class Mean(Value):
    """The server moves by `mixing` from its model to the mean of the uploads.

    Example:
        >>> Mean(mixing=0.5).weights
        'equal'
    """

    tag: ClassVar[str] = "mean"
    in_words: ClassVar[str] = "A mean"
    known_law: ClassVar[bool] = True
    # In a mean the clients' noise adds up, which hides a client among the others
    # (docs/theory.md#a8).
    averages: ClassVar[bool] = True
    public: ClassVar[None] = None
    # A mixing scales shift and noise equally, so the price of a round does not depend on it
    # (docs/theory.md#a8). One that falls makes the noise in the model fall with the steps
    # (docs/theory.md#a34).
    mixing: float | Schedule = entry(
        NumberOrSchedule(above=0, at_most=1),
        "b: new model = (1 - b) old model + b mean of the uploads; "
        "a schedule, whose steps are rounds, makes steps and noise fall together",
        1.0,
    )
    weights: str = entry(
        Choice(("equal", "records", "noise")),
        "weight of an upload: equal, the client's number of records, or one over the variance of "
        "its noise",
        "equal",
    )
    denominator: str = entry(
        Choice(("participants", "fixed")),
        "the sum of updates is divided by who took part, or by how many are expected",
        "participants",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # A fixed denominator is a public constant, and the weight of a random set of clients is
        # none.
        if self.denominator == "fixed" and self.weights != "equal":
            raise InvalidValue(
                "denominator",
                self.denominator,
                'weights = "equal" with it: the sum of weights changes with who takes part',
            )

    @property
    def weighs_records(self) -> bool:
        """Whether an upload weighs as many records as its client has."""
        return self.weights == "records"

    @property
    def weighs_noise(self) -> bool:
        """Whether an upload weighs the less the larger its client's noise is."""
        return self.weights == "noise"

    @property
    def fixed_denominator(self) -> bool:
        """Whether the sum of updates is divided by a public constant."""
        return self.denominator == "fixed"


@dataclass(frozen=True, kw_only=True)
class Median(Value):
    """The coordinate-wise median of the uploads; between the two middle ones for an even number.

    Example:
        >>> Median().tag
        'median'
    """

    tag: ClassVar[str] = "median"
    in_words: ClassVar[str] = "A median"
    known_law: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    public: ClassVar[None] = None
    mixing: ClassVar[float] = 1.0
    weighs_records: ClassVar[bool] = False
    weighs_noise: ClassVar[bool] = False
    fixed_denominator: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class ModeConnectivity(Value):
    """Uploads are joined two by two by the bend of a path of low loss (udp-fl, Alg. 1, 2).

    The bend is trained on public records of the server.

    Example:
        >>> ModeConnectivity(public="digits").curve
        'chain'
    """

    tag: ClassVar[str] = "mode-connectivity"
    in_words: ClassVar[str] = "Mode connectivity"
    known_law: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    mixing: ClassVar[float] = 1.0
    weighs_records: ClassVar[bool] = False
    weighs_noise: ClassVar[bool] = False
    fixed_denominator: ClassVar[bool] = False
    # Public by the user's word: nothing here could tell it from the clients' records.
    public: str = entry(
        Text(),
        "public data that the server trains the bend on: a known data set, or a path; "
        "never the clients' own",
    )
    curve: str = entry(
        Choice(("chain", "bezier")),
        "the path: a polygonal chain, or a quadratic Bezier curve",
        "chain",
    )
    steps: int = entry(Integer(at_least=0), "gradient steps on each bend", 20)
    batch: int = entry(Integer(at_least=1), "public records in a step", 64)
    rate: float = entry(Number(above=0), "learning rate of a step", 0.1)


Aggregation = Mean | Median | ModeConnectivity


def find_mixing(rule: Aggregation, round_index: int) -> float:
    """Returns how far the server moves to what it joined in a round.

    Args:
        rule: How uploads are joined.
        round_index: The round, from 0.

    Example:
        >>> from sordino.protocol.schedules import StageWise
        >>> find_mixing(Mean(mixing=0.5), 7), find_mixing(Mean(mixing=StageWise(rate=1.0)), 3)
        (0.5, 0.25)
    """
    if isinstance(rule.mixing, float):
        return rule.mixing
    # A model that no longer moved at all would divide noise by zero.
    return max(SMALLEST, rule.mixing.at(round=round_index, step=0, steps=1))
