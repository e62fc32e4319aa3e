"""Values that hold how a run is trained, and which functions are called during it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sordino.federation.round_metrics import RoundMetrics, ignore_metrics
from sordino.federation.setup import Begun

Listener = Callable[[RoundMetrics], None]


def ignore_start(begun: Begun, folder: Path) -> None:
    """Does nothing when a run begins.

    Args:
        begun: The run that begins.
        folder: Where it is kept.
    """


def ignore_message(text: str) -> None:
    """Does nothing with a message.

    Args:
        text: The message.
    """


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Holds functions that are called during a run.

    Attributes:
        on_start: Called once, before the first round.
        on_round: Called after every round.
        on_message: Called with other news, such as that a client fell silent.
    """

    on_start: Callable[[Begun, Path], None] = ignore_start
    on_round: Listener = ignore_metrics
    on_message: Callable[[str], None] = ignore_message


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Holds the options of a run that do not depend on its protocol.

    Attributes:
        evaluate_every: The number of rounds from one scoring to the next; 0 for no scoring.
        keep_uploads: The number of rounds from one whose uploads are kept to the next; 0 to keep
            none.
        workers: The number of processes or threads that train clients; None for one per core.
        device: "cpu", "cuda" or "mps".
        signer: The fingerprint of the key that signs the ended run; empty for an unsigned run.
    """

    evaluate_every: int = 0
    keep_uploads: int = 0
    workers: int | None = None
    device: str = "cpu"
    signer: str = ""
