"""A second place that remembers how far a client's ledger had come.

A client's folder that is restored from a backup is whole in itself and has forgotten rounds that
were answered since. The head of the ledger (how many lines, and the hash of the last) is therefore
also kept in a file elsewhere, which a backup of the folder does not bring back.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from sordino.federation.storage import write_whole, writing
from sordino.protocol import UserError


@dataclass(frozen=True, kw_only=True)
class Head:
    """The number of lines of a ledger, and the chained hash of the last of them."""

    lines: int
    chain: str


def default_counter() -> Path:
    """Returns a new file name in the user's state folder, outside of what is usually backed up."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "sordino" / f"{secrets.token_hex(8)}.json"


def head_of(ledger: Path, lines: int | None = None) -> Head | None:
    """Reads the head of a ledger file whose chain has been verified.

    Args:
        ledger: the file.
        lines: after how many lines; by default after all that are complete.

    Returns:
        The head, or None where the ledger has fewer lines.
    """
    found = ledger.read_bytes().split(b"\n")[:-1]
    number = len(found) if lines is None else lines
    if not 0 < number <= len(found):
        return None
    return Head(lines=number, chain=str(json.loads(found[number - 1])["chain"]))


def write_counter(counter: Path, ledger: Path) -> None:
    """Notes the present head of a ledger in the second place; on return it is on the disk."""
    head = head_of(ledger)
    if head is None:
        return
    with writing(counter):
        counter.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(counter, json.dumps(asdict(head)).encode())


def check_counter(counter: Path, ledger: Path) -> None:
    """Checks that a ledger goes on from the head that the second place knows.

    A ledger that is ahead is fine: a crash may have come between its line and the counter.

    Args:
        counter: the file in the second place.
        ledger: the client's ledger.

    Raises:
        UserError: the ledger is older than the counter, or another one, or the counter is gone.
    """
    try:
        known = Head(**json.loads(counter.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"{counter} cannot be read. It says how far {ledger} had come, so that a folder which "
            "was restored from a backup is noticed. Put it back. If it is lost for good, compare "
            "the rounds in the ledger with the coordinator's, then remove `counter` from "
            "agreement.toml."
        ) from None
    if head_of(ledger, known.lines) != known:
        raise UserError(
            f"{ledger} is not the one that {counter} knows: the folder was restored from an older "
            "copy, and rounds that were answered since are missing in it. What they cost cannot "
            "be known, so nothing is answered. Restore the newest copy, or make a new agreement "
            "and count what both spend."
        )
