"""The lines of a ledger: what each kind of entry says, and its text, chained by hash.

A line is one JSON object. Its `chain` covers the line before, so none can be changed, moved or
dropped without a trace.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The first entry: which protocol is being paid for, and whether its noise can be repeated.

    Attributes:
        protocol: SHA-256 of the protocol file.
        generator: The name of the generator of random numbers.
        noise: "seeded" or "fresh".
        sizes, partition, data, facts: SHA-256 of what a run is priced and shown by
            (federation/store/seals.py). None in the ledgers of clients, and in those of runs that
            were started before there were seals.
        scored: SHA-256 of whose records the model is scored on, and how many; None in earlier runs.

    Example:
        >>> Opened(protocol="9f2c", generator="chacha20", noise="seeded").noise
        'seeded'
    """

    protocol: str
    generator: str
    noise: str
    sizes: str | None = None
    partition: str | None = None
    data: str | None = None
    facts: str | None = None
    scored: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a round that is run again releases the same uploads, so that it is paid once.

        Seeded noise can be drawn again. Across machines ("once") every client answers a round
        once, and sends the same bytes again or nothing.
        """
        return self.noise in ("seeded", "once")


@dataclass(frozen=True, kw_only=True)
class RoundCharged:
    """One round was paid for by these clients.

    Attributes:
        round: The number of the round, from 0.
        clients: The clients that take part.
        attempt: How often the round had been paid for before.

    Example:
        >>> RoundCharged(round=0, clients=(0, 1, 2)).attempt
        0
    """

    round: int
    clients: tuple[int, ...]
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Clients of a round that was paid for whose uploads did not come, or could not be used.

    Their noise is not in the model. They stay charged, since what a silent client sent may have
    been seen.

    Attributes:
        round: The number of the round, from 0.
        clients: The clients that contributed nothing.
        reasons: Why the upload of each of them is missing.

    Example:
        >>> Missed(round=0, clients=(2,), reasons=("it did not answer",)).clients
        (2,)
    """

    round: int
    clients: tuple[int, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """What a client was asked for and did not answer, in its own ledger. It cost nothing.

    Attributes:
        round: The number of the round, from 0.
        reason: Why the client refused.

    Example:
        >>> Refused(round=3, reason="round 3 was answered already").round
        3
    """

    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The upload of a round, by its digest, that a client is about to send, in its own ledger.

    A round with such a line is never computed again, whatever becomes of the upload; under masks,
    an attempt at its sum.

    Attributes:
        round: The number of the round, from 0.
        upload: The digest of the upload.
        attempt: The attempt at the round's secure sum; None for an upload without masks.

    Example:
        >>> Answered(round=3, upload="9f2c").round
        3
    """

    round: int
    upload: str
    attempt: int | None = None


@dataclass(frozen=True, kw_only=True)
class KeyGiven:
    """A client is about to give its key for the secure sums of a training, in its own ledger.

    In a training with such a line it gives no other key.

    Attributes:
        training: The digest of the training's name.
        round: Always 0, the first round, since keys come before all rounds.

    Example:
        >>> KeyGiven(training="9f2c").training
        '9f2c'
    """

    training: str
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class SurvivorsConfirmed:
    """A client is about to sign one list of survivors of a secure sum, in its own ledger.

    Attributes:
        round: The number of the round, from 0.
        attempt: The attempt at the round's secure sum.
        survivors: The clients on the list.

    Example:
        >>> SurvivorsConfirmed(round=3, attempt=0, survivors=(0, 1, 4)).survivors
        (0, 1, 4)
    """

    round: int
    attempt: int
    survivors: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SharesGiven:
    """A client is about to give its shares of one secure sum, in its own ledger.

    With `threshold` such answers the sum of these survivors' uploads can be opened, and no other
    sum of that attempt.

    Attributes:
        round: The number of the round, from 0.
        attempt: The attempt at the round's secure sum.
        threshold: The fewest contributions that are ever opened.
        survivors: The clients whose uploads are in the sum.

    Example:
        >>> SharesGiven(round=3, attempt=0, threshold=2, survivors=(0, 1, 4)).survivors
        (0, 1, 4)
    """

    round: int
    attempt: int
    threshold: int
    survivors: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """The last line of a run that has ended: digests of everything that it left behind.

    It is not a charge, and so not one of a ledger's events. A run that was killed between this line
    and its end is ended again, by the same line, or with fresh noise after further charges.

    Attributes:
        status: How the run ended.
        reason: Why the run ended, where a budget ended it.
        rounds: The number of rounds that are in its model.
        protocol, sizes, partition, data, facts, scored: as in the first line, at the end.
        metrics, private, model, clients, uploads: SHA-256 of what the rounds left; empty where
            there is none.

    Example:
        >>> Sealed(status="finished", rounds=3, protocol="9f2c", model="77aa").clients
        ''
    """

    status: str
    rounds: int
    protocol: str
    reason: str = ""
    sizes: str = ""
    partition: str = ""
    data: str = ""
    facts: str = ""
    metrics: str = ""
    private: str = ""
    model: str = ""
    clients: str = ""
    uploads: str = ""
    # None in seals of earlier runs, whose lines must still be written as they were.
    scored: str | None = None


# What a client notes in its ledger before it gives it for secure sums.
SumEvent = KeyGiven | SurvivorsConfirmed | SharesGiven
Event = Opened | RoundCharged | Missed | Refused | Answered | SumEvent


Line = Event | Sealed


KINDS = {
    Opened: "open",
    RoundCharged: "round",
    Missed: "missed",
    Refused: "refused",
    Sealed: "sealed",
    Answered: "answered",
    KeyGiven: "key",
    SurvivorsConfirmed: "confirmed",
    SharesGiven: "shares",
}
EVENTS: dict[str, type[Any]] = {event: kind for kind, event in KINDS.items()}


def encode_line(event: Line, chain: str) -> tuple[bytes, str]:
    """Returns the line of an event, and the hash that the next line will be chained to.

    Args:
        event: The entry to write.
        chain: The hash of the line before.
    """
    # None is left out, so that lines from before there were seals are still written as they were.
    body = {name: value for name, value in vars(event).items() if value is not None}
    text = json.dumps({"v": VERSION, "event": KINDS[type(event)], **body}, separators=(",", ":"))
    # Each hash covers the one before, so no line can be changed, moved or dropped alone.
    link = hashlib.sha256((chain + text).encode()).hexdigest()
    return (text[:-1] + f',"chain":"{link}"}}\n').encode(), link


def decode_line(body: dict[str, Any]) -> Line:
    """Returns the event of a parsed line.

    Args:
        body: The JSON object of the line.

    Raises:
        ValueError: Another version, or a number below 0.
        KeyError: There is no such event.
        TypeError: An entry is missing.
    """
    # A later version may mean something else by the same words.
    if body["v"] != VERSION:
        raise ValueError("another version")
    kind = EVENTS[body["event"]]
    said = {entry.name: body[entry.name] for entry in fields(kind) if entry.name in body}
    # JSON has lists where entries have tuples.
    line: Line = kind(
        **{name: tuple(value) if type(value) is list else value for name, value in said.items()}
    )
    # A round below 0 would index from the end of an array, and be priced as another.
    if type(line) is RoundCharged and min((line.round, line.attempt, *line.clients)) < 0:
        raise ValueError("a number below 0")
    return line
