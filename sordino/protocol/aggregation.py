"""How the server joins the uploads of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Choice, Integer, Number, Text, Value, entry
from sordino.protocol.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Mean(Value):
    """The server moves by `mixing` from its model to the mean of the uploads.

    Example:
        >>> Mean(mixing=0.5).weights
        'equal'
    """

    tag: ClassVar[str] = "mean"
    mixing: float = entry(
        Number(above=0, at_most=1), "b: new model = (1 - b) old model + b mean of the uploads", 1.0
    )
    weights: str = entry(
        Choice(("equal", "records")),
        "weight of an upload: equal, or the client's number of records",
        "equal",
    )
    denominator: str = entry(
        Choice(("participants", "fixed")),
        "the sum of updates is divided by who took part, or by how many are expected",
        "participants",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.denominator == "fixed" and self.weights == "records":
            raise InvalidValue(
                "denominator",
                self.denominator,
                'weights = "equal" with it: the sum of records changes with who takes part',
            )


@dataclass(frozen=True, kw_only=True)
class Median(Value):
    """The coordinate-wise median of the uploads; between the two middle ones for an even number.

    Example:
        >>> Median().tag
        'median'
    """

    tag: ClassVar[str] = "median"


@dataclass(frozen=True, kw_only=True)
class ModeConnectivity(Value):
    """Uploads are joined two by two by the bend of a path of low loss, trained on public records of the server (udp-fl, Alg. 1, 2).

    Example:
        >>> ModeConnectivity(public="digits").curve
        'chain'
    """

    tag: ClassVar[str] = "mode-connectivity"
    public: str = entry(
        Text(),
        "public data that the server trains the bend on: a known data set, or a path; never the clients' own",
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
