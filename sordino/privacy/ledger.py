"""The ledger: what was spent, one JSON line per charge, chained by hash, on disk before what it pays for is released.

The first line names the protocol (by digest) and the kind of noise; every further line says that a round was run and who took
part, who of them contributed nothing after all, or what a client was asked for and refused. The last line of a run that has ended seals
what it left behind. Prices are not stored: they follow from the
protocol, so that a ledger and a protocol can never disagree about what ran.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from sordino.protocol.errors import Changed, UserError

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The first entry: which protocol is being paid for, and whether its noise can be repeated.

    Attributes:
        protocol: SHA-256 of the protocol file.
        generator: name of the generator of random numbers.
        noise: "seeded" or "fresh".
        sizes, partition, data, facts: SHA-256 of what a run is priced and shown by (federation/seals.py). None in the ledgers of
            clients, and in those of runs that were started before there were seals.

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

    @property
    def repeatable(self) -> bool:
        """Whether a round that is run again releases the very same uploads, so that it is paid for once.

        Seeded noise can be drawn again. Across machines ("once") every client answers a round
        once, and sends the same bytes again or nothing.
        """
        return self.noise in ("seeded", "once")


@dataclass(frozen=True, kw_only=True)
class RoundCharged:
    """One round was paid for by these clients; `attempt` counts how often it had been paid for before.

    Example:
        >>> RoundCharged(round=0, clients=(0, 1, 2)).attempt
        0
    """

    round: int
    clients: tuple[int, ...]
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Clients of a round that was paid for whose uploads did not come, or could not be used: their noise is not in the model.

    They stay charged, since what a silent client sent may have been seen.

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

    Example:
        >>> Refused(round=3, reason="round 3 was answered already").round
        3
    """

    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The upload of a round, by its digest, that a client is about to send, in its own ledger.

    A round with such a line is never computed again, whatever becomes of the upload.

    Example:
        >>> Answered(round=3, upload="9f2c").round
        3
    """

    round: int
    upload: str


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """The last line of a run that has ended: digests of everything that it left behind (federation/seals.py).

    It is no charge, and so none of a ledger's events. A run that was killed between this line and its end is ended again, by the same
    line, or with fresh noise after further charges.

    Attributes:
        status: how the run ended.
        reason: why, where a budget ended it.
        rounds: the number of rounds that are in its model.
        protocol, sizes, partition, data, facts: as in the first line, at the end.
        metrics, private, model, clients, uploads: SHA-256 of what the rounds left; empty where there is none.

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


Event = Opened | RoundCharged | Missed | Refused | Answered
Line = Event | Sealed


class Ledger:
    """An append-only file of charges. It holds an open file: close it, or use it as a context.

    Example:
        >>> with Ledger.create(path, Opened(protocol="9f2c", generator="chacha20", noise="seeded")) as ledger:  # doctest: +SKIP
        ...     ledger.charge(round=0, clients=[0, 1, 2])
    """

    def __init__(self, path: Path, file: BinaryIO, reading: Reading) -> None:
        self.path, self._file, self._chain, self._size = path, file, reading.chain, reading.size
        self.cut_short = (
            reading.cut_short
        )  # whether a crash had left an incomplete line, which was dropped
        self._events = list(reading.events)
        self._seal = reading.seal
        self._charged = {(e.round, e.clients) for e in self._events if isinstance(e, RoundCharged)}
        self._attempts = Counter(e.round for e in self._events if isinstance(e, RoundCharged))
        self._file.seek(self._size)

    @classmethod
    def create(cls, path: Path, opened: Opened) -> Ledger:
        """Start the ledger of a run; a file that is there already is never written over."""
        ledger = cls(
            path,
            open(path, "x+b", buffering=0),  # noqa: SIM115
            Reading(events=(), seal=None, chain="", size=0, cut_short=False),
        )
        ledger._append(opened)
        return ledger

    @classmethod
    def resume(cls, path: Path) -> Ledger:
        """Open a ledger to go on with. A last line that a crash cut short is dropped, and `cut_short` says so.

        With repeatable noise the round is charged again by the same line; with fresh noise the caller charges what was cut short.
        """
        content = contents(path)
        reading = verified(content, path)
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 - held open on purpose
        try:
            refuse_grown(file, len(content), path)
            if reading.cut_short:
                file.truncate(reading.size)
            return cls(path, file, reading)
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def events(self) -> tuple[Event, ...]:
        """All entries so far."""
        return tuple(self._events)

    @property
    def opened(self) -> Opened:
        """The first entry."""
        return first_entry(self._events, self.path)

    def charge(self, *, round: int, clients: Iterable[int]) -> None:
        """Pay for a round: on return the line is on the disk. A repeatable round that is paid for already costs nothing more."""
        members = tuple(int(client) for client in clients)
        earlier = self._attempts[round]
        if earlier > 0 and self.opened.repeatable and (round, members) in self._charged:
            return
        self._append(RoundCharged(round=round, clients=members, attempt=earlier))
        self._charged.add((round, members))
        self._attempts[round] += 1

    def miss(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Note who contributed nothing to a round that was paid for, and why."""
        self._append(Missed(round=round, clients=tuple(reasons), reasons=tuple(reasons.values())))

    def refuse(self, *, round: int, reason: str) -> None:
        """Note what was asked for and refused."""
        self._append(Refused(round=round, reason=reason))

    def answer(self, *, round: int, upload: str) -> None:
        """Notes the digest of an upload that is about to be sent."""
        self._append(Answered(round=round, upload=upload))

    def seal(self, sealed: Sealed) -> None:
        """End the ledger of a run; a run that is ended again in the same way is sealed already."""
        if self._seal != sealed:
            self._append(sealed)

    def _append(self, event: Line) -> None:
        line, chain = encode(event, self._chain)
        refuse_grown(self._file, self._size, self.path)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError("the disk took only a part of the line")
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._chain, self._size = chain, self._size + len(line)
        self._seal = event if isinstance(event, Sealed) else None
        if not isinstance(event, Sealed):
            self._events.append(event)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a ledger file says; `cut_short` tells that its last line is incomplete, `seal` is its last line if that seals it."""

    events: tuple[Event, ...]
    seal: Sealed | None
    chain: str
    size: int
    cut_short: bool


def read(path: Path) -> Reading:
    """Read and verify a ledger without changing it.

    Raises:
        Changed: a line was changed, removed or put in another order since it was written.

    Example:
        >>> read(Path("runs/digits-1/ledger.jsonl")).events[0]  # doctest: +SKIP
        Opened(protocol='...', generator='chacha20-...', noise='seeded')
    """
    return verified(contents(path), path)


def contents(path: Path) -> bytes:
    """The bytes of a ledger file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"the ledger {path} cannot be read: {error.strerror}.") from None


def refuse_unpaid(path: Path, events: Iterable[Event], rounds: int) -> None:
    """Refuse a ledger that does not pay for the first so many rounds, which were run: lines at its end leave no gap in its chain."""
    paid = {event.round for event in events if isinstance(event, RoundCharged)}
    missing = next((t for t in range(rounds) if t not in paid), None)
    if missing is not None:
        raise Changed(
            f"{path} lacks round {missing}, which was run: lines were removed from it. What was spent cannot be known from it."
        )


def refuse_grown(file: BinaryIO, size: int, path: Path) -> None:
    """Refuse to write where somebody else has written: no charge may be cut off, or written over."""
    if os.fstat(file.fileno()).st_size != size:
        raise UserError(
            f"another process has written to {path}. Wait until it has ended, or stop it."
        )


def verified(content: bytes, path: Path) -> Reading:
    """What the bytes of a ledger say, once every line is seen to follow from the one before."""
    *lines, tail = content.split(b"\n")
    events: list[Event] = []
    seal = None
    chain, size = "", 0
    for number, line in enumerate(lines, start=1):
        event, chain = verified_line(line, chain, path, number)
        seal = event if isinstance(event, Sealed) else None
        if not isinstance(event, Sealed):
            events.append(event)
        size += len(line) + 1
    first_entry(events, path)
    return Reading(events=tuple(events), seal=seal, chain=chain, size=size, cut_short=bool(tail))


def verified_line(line: bytes, chain: str, path: Path, number: int) -> tuple[Line, str]:
    try:
        event = decode(json.loads(line))
        expected, next_chain = encode(event, chain)
    except (ValueError, KeyError, TypeError):
        expected, next_chain = b"", ""
    if expected != line + b"\n":
        raise Changed(
            f"{path}, line {number}: this line was changed after it was written. What was spent cannot be known from it."
        )
    return event, next_chain


def first_entry(events: Sequence[Event], path: Path) -> Opened:
    """The entry that opens a ledger."""
    if not events or not isinstance(events[0], Opened):
        raise UserError(f"the ledger {path} does not begin with the protocol that it pays for.")
    return events[0]


KINDS = {
    Opened: "open",
    RoundCharged: "round",
    Missed: "missed",
    Refused: "refused",
    Sealed: "sealed",
    Answered: "answered",
}


def encode(event: Line, chain: str) -> tuple[bytes, str]:
    """The line of an event, and the hash that the next line will be chained to."""
    # What is None is left out, so that lines from before there were seals are still written as they were.
    body = {name: value for name, value in vars(event).items() if value is not None}
    text = json.dumps({"v": VERSION, "event": KINDS[type(event)], **body}, separators=(",", ":"))
    link = hashlib.sha256((chain + text).encode()).hexdigest()
    return (text[:-1] + f',"chain":"{link}"}}\n').encode(), link


def decode(body: dict[str, Any]) -> Line:
    """The event of a parsed line."""
    if body["v"] != VERSION:
        raise ValueError("another version")
    if body["event"] == "open":
        return Opened(**said_by(Opened, body))
    if body["event"] == "sealed":
        return Sealed(**said_by(Sealed, body))
    if body["event"] == "missed":
        return Missed(
            round=body["round"], clients=tuple(body["clients"]), reasons=tuple(body["reasons"])
        )
    if body["event"] == "refused":
        return Refused(round=body["round"], reason=body["reason"])
    if body["event"] == "answered":
        return Answered(round=body["round"], upload=body["upload"])
    charged = RoundCharged(
        round=body["round"], clients=tuple(body["clients"]), attempt=body["attempt"]
    )
    if min((charged.round, charged.attempt, *charged.clients)) < 0:
        raise ValueError("a number below 0")
    return charged


def said_by(kind: type[Opened] | type[Sealed], body: dict[str, Any]) -> dict[str, Any]:
    """Returns what a parsed line says of the attributes of its kind."""
    return {entry.name: body[entry.name] for entry in fields(kind) if entry.name in body}
