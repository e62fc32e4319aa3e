"""Says how rounds are requested from clients, and what counts as an answer."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Message

from sordino.flower.foreign_words import print_safely
from sordino.flower.messages import MalformedMessage
from sordino.flower.signing import Signer

# Flower forgets a request this many seconds after the deadline of its round.
EXTRA_LIFETIME = 60.0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Describes how rounds are requested from clients.

    Attributes:
        training: Name of the training; it stays the same when a run is resumed.
        patience: Seconds that a round waits for participants that were connected before.
        deadline: Seconds that participants have to answer.
        signer: The coordinator's key; None in tests without TLS.
    """

    training: str
    patience: float
    deadline: float
    signer: Signer | None = None


def expect_content(reply: Message | None, deadline: float) -> Message:
    """Returns a reply that is an answer.

    Args:
        reply: What arrived; None where nothing did.
        deadline: Seconds that were waited for it.

    Raises:
        MalformedMessage: There is none; the text says why.
    """
    if reply is None:
        raise MalformedMessage(f"it did not answer within {deadline:g} s")
    if reply.has_error():
        raise MalformedMessage(
            print_safely(reply.error.reason) or f"Flower reports error {reply.error.code}"
        )
    return reply
