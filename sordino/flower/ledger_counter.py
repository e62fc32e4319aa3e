"""Keeps the length of a client's ledger in a second place.

A client's folder that is restored from a backup is consistent, but lacks the rounds that were
answered since. The head of the ledger (how many lines, and the hash of the last) is therefore
also kept in a file elsewhere, which a backup of the folder does not bring back.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from sordino.federation.store.files import write_whole, writing
from sordino.protocol import UserError


@dataclass(frozen=True, kw_only=True)
class LedgerHead:
    """Describes how far a ledger has come.

    Attributes:
        lines: Number of its lines.
        chain: Chained hash of the last line.
    """

    lines: int
    chain: str


def name_counter() -> Path:
    """Returns a new file name in the user's state folder, which is rarely backed up."""
    # A random name: several clients of one account must not share a counter.
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "sordino" / f"{secrets.token_hex(8)}.json"


def read_head(ledger: Path, lines: int | None = None) -> LedgerHead | None:
    """Returns the head of a ledger file whose chain has been verified.

    Args:
        ledger: The file.
        lines: After how many lines; by default after all that are complete.

    Returns:
        The head, or None where the ledger has fewer lines.
    """
    # A line without its end was being written when the machine stopped, and does not count.
    found = ledger.read_bytes().split(b"\n")[:-1]
    if lines is None:
        lines = len(found)
    if not 0 < lines <= len(found):
        return None
    return LedgerHead(lines=lines, chain=str(json.loads(found[lines - 1])["chain"]))


def write_counter(counter: Path, ledger: Path) -> None:
    """Writes the present head of a ledger to the second place; on return it is on the disk.

    Args:
        counter: The file in the second place.
        ledger: The client's ledger.
    """
    head = read_head(ledger)
    # A ledger without a whole line has nothing to remember.
    if head is None:
        return
    with writing(counter):
        counter.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(counter, json.dumps(asdict(head)).encode())


def begin_counter(counter: Path, ledger: Path) -> None:
    """Writes the head of a new ledger to the second place.

    Args:
        counter: The file in the second place.
        ledger: The ledger, which knows of no round yet.

    Raises:
        UserError: The file belongs to a ledger with rounds, or cannot be written.
    """
    if counter.exists() and not is_of_unused_ledger(counter):
        raise UserError(
            f"{counter} says how far another ledger had come, and would be lost. If that ledger is "
            "gone, put it back: what it spent is known nowhere else. For a second agreement, name "
            "another file as its counter."
        )
    write_counter(counter, ledger)


def is_of_unused_ledger(counter: Path) -> bool:
    """Returns whether a counter belongs to a ledger that nothing was ever written to.

    Args:
        counter: The file in the second place.
    """
    try:
        # The first line of a ledger opens it.
        return LedgerHead(**json.loads(counter.read_bytes())).lines == 1
    except (OSError, ValueError, TypeError):
        return False


def require_writable(counter: Path) -> None:
    """Checks that the second place can be written, by a file that is gone at once.

    Args:
        counter: The file in the second place.

    Raises:
        UserError: It cannot.
    """
    with writing(counter), tempfile.TemporaryFile(dir=counter.parent):
        pass


def check_counter(counter: Path, ledger: Path) -> None:
    """Checks that a ledger continues the head in the second place.

    A ledger that is ahead is fine: a crash may have come between its line and the counter.

    Args:
        counter: The file in the second place.
        ledger: The client's ledger.

    Raises:
        UserError: The ledger is older than the counter, or another one, or the counter is gone.
    """
    try:
        # A counter that cannot be read refuses: otherwise removing it would allow an old folder.
        known = LedgerHead(**json.loads(counter.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"{counter} cannot be read. It says how far {ledger} had come, so that a folder which "
            "was restored from a backup is noticed. Put it back. If it is lost for good, compare "
            "the rounds in the ledger with the coordinator's, then remove `counter` from "
            "agreement.toml."
        ) from None
    # The chained hash of that line commits to all lines before it, so one comparison is enough.
    if read_head(ledger, known.lines) != known:
        raise UserError(
            f"{ledger} is not the one that {counter} knows: the folder was restored from an older "
            "copy, and rounds that were answered since are missing in it. What they cost cannot "
            "be known, so nothing is answered. Restore the newest copy, or make a new agreement "
            "and count what both spend."
        )
