"""What the server makes of the joined update of a round.

It works on what the uploads and their noise have become, so none of the kinds changes a price. Each
says whether the next model is the joined one (`plain`), which bounds on the last model rest on, and
whether two models in a row show the joined update (`invertible`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Value, entry
from sordino.protocol.value_checks import Number

RATE = "learning rate of the server, on the joined update"
BETA1 = "share of the past in the mean of updates"
BETA2 = "share of the past in the mean of squared updates"
TAU = "added to the root of the squares, so that small ones make no long steps"
# At 1 the past would never fade.
SHARE = Number(at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class PlainServer(Value):
    """The joined model is the next global model.

    Example:
        >>> PlainServer().tag
        'none'
    """

    # Bounds on the last model follow w <- phi(w) + noise, which this kind alone is: moments carry a
    # difference past the noise of later rounds (docs/theory.md#a7, #a21).
    tag: ClassVar[str] = "none"
    plain: ClassVar[bool] = True
    invertible: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Value):
    """The model moves by a decaying sum of updates (FedAvgM: Hsu, Qi, Brown 2019).

    Example:
        >>> ServerMomentum(rate=0.5).momentum
        0.9
    """

    # A coordinate moves the further the larger its update is, so two models show the update
    # (docs/theory.md#a21).
    tag: ClassVar[str] = "momentum"
    plain: ClassVar[bool] = False
    invertible: ClassVar[bool] = True
    rate: float = entry(Number(above=0), RATE, 1.0)
    momentum: float = entry(SHARE, "share of the past in the sum of updates", 0.9)


@dataclass(frozen=True, kw_only=True)
class ServerAdam(Value):
    """Adam on the updates, its first rounds corrected (FedAdam: Reddi et al. 2021).

    Example:
        >>> ServerAdam(rate=0.01).beta2
        0.999
    """

    # Different updates may make the same move, so an audit is given the updates themselves, and
    # says that this is more than the view shows (docs/theory.md#a21).
    tag: ClassVar[str] = "adam"
    plain: ClassVar[bool] = False
    invertible: ClassVar[bool] = False
    rate: float = entry(Number(above=0), RATE)
    beta1: float = entry(SHARE, BETA1, 0.9)
    beta2: float = entry(SHARE, BETA2, 0.999)
    tau: float = entry(Number(above=0), TAU, 1e-8)


@dataclass(frozen=True, kw_only=True)
class ServerAdaGrad(Value):
    """AdaGrad on the updates: squares add up and never fade (FedAdagrad: Reddi et al. 2021).

    Example:
        >>> ServerAdaGrad(rate=0.01).tau
        1e-10
    """

    # Squares that only grow leave a move strictly increasing in the update (docs/theory.md#a21).
    tag: ClassVar[str] = "adagrad"
    plain: ClassVar[bool] = False
    invertible: ClassVar[bool] = True
    rate: float = entry(Number(above=0), RATE)
    tau: float = entry(Number(above=0), TAU, 1e-10)


@dataclass(frozen=True, kw_only=True)
class ServerYogi(Value):
    """Like Adam, but squares grow and shrink by steps of one size (FedYogi: Reddi et al. 2021).

    Example:
        >>> ServerYogi(rate=0.01).tau
        0.001
    """

    # As with Adam, models may not show the updates.
    tag: ClassVar[str] = "yogi"
    plain: ClassVar[bool] = False
    invertible: ClassVar[bool] = False
    rate: float = entry(Number(above=0), RATE)
    beta1: float = entry(SHARE, BETA1, 0.9)
    beta2: float = entry(SHARE, BETA2, 0.999)
    tau: float = entry(Number(above=0), TAU, 1e-3)


ServerOptimizer = PlainServer | ServerMomentum | ServerAdam | ServerAdaGrad | ServerYogi
