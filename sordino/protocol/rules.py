"""What a client does in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Choice, Integer, Maybe, Number, Tagged, Value, entry
from sordino.protocol.errors import InvalidValue
from sordino.protocol.noisy_sgd import DRAWS, DRAWS_DOC, NoisySgd
from sordino.protocol.schedules import SCHEDULES, Schedule


@dataclass(frozen=True, kw_only=True)
class FedAvg(Value):
    """K steps of gradient descent from the global model, each step's minibatch gradient clipped to norm V (convergent-dp Eq. 2).

    Example:
        >>> from sordino.protocol import Constant
        >>> FedAvg(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1)).clip
        1.0
    """

    tag: ClassVar[str] = "fedavg"
    steps: int = entry(Integer(at_least=1), "K: local steps in a round")
    batch: int = entry(
        Integer(at_least=1),
        "B: distinct records of the client that every step draws, fresh and independent",
    )
    clip: float = entry(
        Number(above=0), "V: largest norm of a step's gradient, or of the whole update"
    )
    schedule: Schedule = entry(Tagged(SCHEDULES, "kind"), "learning rate of every step")
    clip_norm: str = entry(Choice(("l2", "l1")), "which norm is clipped", "l2")
    clip_target: str = entry(
        Choice(("step", "update")),
        "what is clipped: every step's gradient, or the round's whole update",
        "step",
    )
    minibatches: str = entry(Choice(DRAWS), DRAWS_DOC, "secret")


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Like `FedAvg`, with a pull of strength alpha back to the global model in every step (convergent-dp Eq. 4).

    Example:
        >>> from sordino.protocol import Constant
        >>> FedProx(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1), proximal=0.1).proximal
        0.1
    """

    tag: ClassVar[str] = "fedprox"
    proximal: float = entry(Number(at_least=0), "alpha: strength of the pull to the global model")


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Like `FedAvg`, every clipped step corrected by control variates, which the server computes from the noisy uploads.

    Example:
        >>> from sordino.protocol import Constant
        >>> Scaffold(steps=5, batch=32, clip=1, schedule=Constant(rate=0.1)).tag
        'scaffold'
    """

    tag: ClassVar[str] = "scaffold"


@dataclass(frozen=True, kw_only=True)
class Bezier(FedAvg):
    """Like `FedAvg` with steps of 1/L, and what is sent is a random point of a Bezier curve back to the global model (udp-fl Eq. 6).

    The protocol says L in `assumptions.smoothness`. The clip alone bounds what an upload reveals, whatever L is.

    Example:
        >>> from sordino.protocol import Constant
        >>> Bezier(steps=1, batch=32, clip=1, schedule=Constant(rate=0.1)).tag
        'bezier'
    """

    tag: ClassVar[str] = "bezier"


@dataclass(frozen=True, kw_only=True)
class ClippedGlm(Value):
    """Logistic regression on two classes, every example's gradient clipped to norm V, every condition of THEORY A9 enforced.

    Clipping the gradient of one example of a linear model gives the gradient of another convex loss, so local training contracts
    and the privacy of the final model converges as rounds grow. Features with their bias coordinate are scaled into a ball, weight
    decay stands outside the clip, batches are the same in every round.

    Example:
        >>> from sordino.protocol import Constant
        >>> rule = ClippedGlm(steps=5, clip=1, schedule=Constant(rate=0.5), weight_decay=0.1)
        >>> rule.feature_norm, rule.batches
        (1.0, 'full')
    """

    tag: ClassVar[str] = "clipped-glm"
    steps: int = entry(
        Integer(at_least=1),
        "K: local steps in a round; with cyclic batches a multiple of their number",
    )
    clip: float = entry(Number(above=0), "V: largest norm of an example's gradient")
    schedule: Schedule = entry(Tagged(SCHEDULES, "kind"), "learning rate of every step")
    weight_decay: float = entry(
        Number(at_least=0), "lambda: pull of every coordinate to zero, outside the clip"
    )
    feature_norm: float = entry(
        Number(above=0),
        "X: features, with a bias coordinate of 1, are scaled to at most this norm",
        1.0,
    )
    batches: str = entry(
        Choice(("full", "cyclic")),
        "full: all records in every step; cyclic: fixed batches in turn",
        "full",
    )
    batch: int | None = entry(
        Maybe(Integer(at_least=1)),
        "B: records of a cyclic batch; must divide the client's records",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.batch is None) != (self.batches == "full"):
            given = "no" if self.batch is None else "a"
            raise InvalidValue(
                "batches",
                self.batches,
                f'"full" without a batch, or "cyclic" with one; there is {given} batch',
            )


LocalRule = FedAvg | FedProx | Scaffold | Bezier | ClippedGlm | NoisySgd
