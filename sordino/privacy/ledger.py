"""The ledger: what was spent, one JSON line per charge, chained by hash.

A line is on disk before what it pays for is released. The first line names the protocol (by digest)
and the kind of noise; every further line says that a round was run and who took part, who of them
contributed nothing after all, or what a client was asked for and refused. The last line of a run
that has ended seals what it left behind. Prices are not stored: they follow from the protocol, so
that a ledger and a protocol can never disagree about what ran.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sordino.privacy.ledger_lines import (
    Answered,
    Event,
    Line,
    Missed,
    Opened,
    Refused,
    RoundCharged,
    Sealed,
    SumEvent,
    decode_line,
    encode_line,
)
from sordino.protocol.errors import Changed, UserError


class Ledger:
    """An append-only file of charges. It holds an open file: close it, or use it as a context.

    Example:
        >>> opened = Opened(protocol="9f2c", generator="chacha20", noise="seeded")
        >>> with Ledger.create(path, opened) as ledger:  # doctest: +SKIP
        ...     ledger.charge(round=0, clients=[0, 1, 2])
    """

    def __init__(self, path: Path, file: BinaryIO, reading: Reading) -> None:
        self.path = path
        self._file = file
        self._chain = reading.chain
        self._size = reading.size
        # Whether a crash had left an incomplete line, which was dropped.
        self.cut_short = reading.cut_short
        self._events = list(reading.events)
        self._seal = reading.seal
        self._charged = {(e.round, e.clients) for e in self._events if isinstance(e, RoundCharged)}
        self._attempts = Counter(e.round for e in self._events if isinstance(e, RoundCharged))
        self._file.seek(self._size)

    @classmethod
    def create(cls, path: Path, opened: Opened) -> Ledger:
        """Starts the ledger of a run; a file that is there already is never written over.

        Args:
            path: The path of the ledger file.
            opened: The first entry, which names the protocol.

        Raises:
            FileExistsError: There is a file at this path already.
        """
        ledger = cls(
            path,
            open(path, "x+b", buffering=0),  # noqa: SIM115
            Reading(events=(), seal=None, chain="", size=0, cut_short=False),
        )
        ledger._append_line(opened)
        return ledger

    @classmethod
    def resume(cls, path: Path) -> Ledger:
        """Opens a ledger to go on with.

        A last line that a crash cut short is dropped, and `cut_short` says so. With repeatable
        noise the round is charged again by the same line; with fresh noise the caller charges what
        was cut short.

        Args:
            path: The path of the ledger file.

        Raises:
            Changed: The file was changed since it was written.
            UserError: The file cannot be read, or another process writes to it.
        """
        content = read_content(path)
        reading = verify_content(content, path)
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
        """Closes the file."""
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
        """Charges for a round; on return the line is on the disk.

        A repeatable round that has been paid for costs nothing more.

        Args:
            round: The number of the round, from 0.
            clients: The clients that take part.
        """
        members = tuple(int(client) for client in clients)
        earlier = self._attempts[round]
        # Seeded noise repeats bit for bit, so a second release of the round tells nothing new.
        if earlier > 0 and self.opened.repeatable and (round, members) in self._charged:
            return
        self._append_line(RoundCharged(round=round, clients=members, attempt=earlier))
        self._charged.add((round, members))
        self._attempts[round] += 1

    def note_missing(self, *, round: int, reasons: Mapping[int, str]) -> None:
        """Notes who contributed nothing to a round that was paid for, and why.

        Args:
            round: The number of the round, from 0.
            reasons: For each such client, why its upload did not come.
        """
        self._append_line(
            Missed(round=round, clients=tuple(reasons), reasons=tuple(reasons.values()))
        )

    def note_refusal(self, *, round: int, reason: str) -> None:
        """Notes what was asked for and refused.

        Args:
            round: The number of the round, from 0.
            reason: Why it was refused.
        """
        self._append_line(Refused(round=round, reason=reason))

    def note_answer(self, *, round: int, upload: str, attempt: int | None = None) -> None:
        """Notes the digest of an upload that is about to be sent.

        Args:
            round: The number of the round, from 0.
            upload: The digest of the upload.
            attempt: Attempt of the round's secure sum; None for an upload without masks.
        """
        self._append_line(Answered(round=round, upload=upload, attempt=attempt))

    def note_sum(self, event: SumEvent) -> None:
        """Notes what the client is about to give for a secure sum.

        Args:
            event: The training that a key is given in, the list of survivors that is signed, or the
                sum that shares are given for.
        """
        self._append_line(event)

    def seal(self, sealed: Sealed) -> None:
        """Ends the ledger of a run; a run that is ended again in the same way is sealed already.

        Args:
            sealed: The entry that seals the run.
        """
        if self._seal != sealed:
            self._append_line(sealed)

    def _append_line(self, event: Line) -> None:
        # A crash leaves at most one line that is cut short, which `resume` drops.
        line, chain = encode_line(event, self._chain)
        refuse_grown(self._file, self._size, self.path)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError("the disk took only a part of the line")
            os.fsync(self._file.fileno())
        except OSError:
            # Half a line would break the chain for whatever is written next.
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._chain = chain
        self._size += len(line)
        # A run that continues after its seal is no longer sealed by it.
        self._seal = event if isinstance(event, Sealed) else None
        if not isinstance(event, Sealed):
            self._events.append(event)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a ledger file says.

    Attributes:
        events: The entries, without a seal.
        seal: The last line, if it seals the ledger.
        chain: The hash that the next line is chained to.
        size: The size in bytes of all complete lines.
        cut_short: Whether the last line is incomplete.
    """

    events: tuple[Event, ...]
    seal: Sealed | None
    chain: str
    size: int
    cut_short: bool


def read_ledger(path: Path) -> Reading:
    """Reads and verifies a ledger without changing it.

    Args:
        path: The path of the ledger file.

    Raises:
        Changed: A line was changed, removed or put in another order since it was written.

    Example:
        >>> read_ledger(Path("runs/digits-1/ledger.jsonl")).events[0]  # doctest: +SKIP
        Opened(protocol='...', generator='chacha20-...', noise='seeded')
    """
    return verify_content(read_content(path), path)


def read_content(path: Path) -> bytes:
    """Returns the bytes of a ledger file.

    Args:
        path: The path of the ledger file.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"the ledger {path} cannot be read: {error.strerror}.") from None


def refuse_unpaid(path: Path, events: Iterable[Event], rounds: int) -> None:
    """Refuses a ledger that does not pay for the first rounds, which were run.

    Lines that were removed from its end leave no gap in its chain.

    Args:
        path: The path of the ledger file, for the message.
        events: The entries of the ledger.
        rounds: The number of rounds that were run.

    Raises:
        Changed: A round that was run is not paid for.
    """
    paid = {event.round for event in events if isinstance(event, RoundCharged)}
    # A chain shows what was changed, not that its end was cut off; the rounds that were run show
    # that.
    missing = next((t for t in range(rounds) if t not in paid), None)
    if missing is not None:
        raise Changed(
            f"{path} lacks round {missing}, which was run: lines were removed from it. "
            "What was spent cannot be known from it."
        )


def refuse_grown(file: BinaryIO, size: int, path: Path) -> None:
    """Refuses to write where somebody else has written.

    No charge may be cut off, or written over.

    Args:
        file: The open ledger.
        size: The size that the file had when this process last read or wrote it.
        path: The path of the ledger file, for the message.

    Raises:
        UserError: The file has another size.
    """
    # Two processes on one ledger would each believe that the budget is theirs.
    if os.fstat(file.fileno()).st_size != size:
        raise UserError(
            f"another process has written to {path}. Wait until it has ended, or stop it."
        )


def verify_content(content: bytes, path: Path) -> Reading:
    """Returns the entries of a ledger, after checking that every line follows from the one before.

    Args:
        content: The bytes of the file.
        path: The path of the ledger file, for messages.

    Raises:
        Changed: A line was changed, removed or put in another order since it was written.
    """
    # Every line ends with a line break, so whatever follows the last one was cut short.
    *lines, tail = content.split(b"\n")
    events: list[Event] = []
    seal = None
    chain, size = "", 0
    for number, line in enumerate(lines, start=1):
        event, chain = verify_line(line, chain, path, number)
        seal = event if isinstance(event, Sealed) else None
        if not isinstance(event, Sealed):
            events.append(event)
        size += len(line) + 1
    first_entry(events, path)
    return Reading(events=tuple(events), seal=seal, chain=chain, size=size, cut_short=bool(tail))


def verify_line(line: bytes, chain: str, path: Path, number: int) -> tuple[Line, str]:
    """Returns the entry of a line, and the hash that the next line is chained to.

    Args:
        line: The line without its line break.
        chain: The hash of the line before.
        path: The path of the ledger file, for the message.
        number: The number of the line, for the message.

    Raises:
        Changed: The line is not the one that was written there.
    """
    try:
        event = decode_line(json.loads(line))
        expected, next_chain = encode_line(event, chain)
    # A line that cannot be read was changed, too; what exactly is wrong with it does not matter.
    except (ValueError, KeyError, TypeError):
        expected, next_chain = b"", ""
    if expected != line + b"\n":
        raise Changed(
            f"{path}, line {number}: this line was changed after it was written. "
            "What was spent cannot be known from it."
        )
    return event, next_chain


def first_entry(events: Sequence[Event], path: Path) -> Opened:
    """Returns the entry that opens a ledger.

    Args:
        events: The entries of the ledger.
        path: The path of the ledger file, for the message.

    Raises:
        UserError: The ledger begins with something else.
    """
    if not events or not isinstance(events[0], Opened):
        raise UserError(f"the ledger {path} does not begin with the protocol that it pays for.")
    return events[0]
