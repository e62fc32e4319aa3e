"""How a run is trained and watched: options that travel together."""

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
    """Functions that are called while a run is under way.

    Attributes:
        on_start: Called once, before the first round.
        on_round: Called after every round.
        on_message: Called with further news, such as that a client fell silent.
    """

    on_start: Callable[[Begun, Path], None] = ignore_start
    on_round: Listener = ignore_metrics
    on_message: Callable[[str], None] = ignore_message


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is trained, whatever it trains.

    Attributes:
        evaluate_every: Rounds between two scorings on the test records; 0 for none.
        keep_uploads: Rounds between two whose uploads are kept; 0 for none.
        workers: Processes or threads that train clients; None for one per core.
        device: "cpu", "cuda" or "mps".
        signer: Fingerprint of the key that signs the run when it has ended; empty if none does.
    """

    evaluate_every: int = 0
    keep_uploads: int = 0
    workers: int | None = None
    device: str = "cpu"
    signer: str = ""
