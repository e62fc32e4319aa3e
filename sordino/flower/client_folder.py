"""Makes the folder of a client that agrees to a protocol: a whole agreement, or none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from sordino.federation.store.files import sync_folder, write_whole, writing
from sordino.flower.agreement import Agreement, refuse_unsupported, write_agreement
from sordino.flower.ledger_counter import begin_counter
from sordino.flower.sum_parties import refuse_unknown_clients
from sordino.privacy.ledger import Ledger
from sordino.privacy.ledger_lines import Opened
from sordino.protocol import Protocol, UserError, dumps
from sordino.protocol.arithmetic import state_integers
from sordino.randomness import GENERATOR

LEDGER = "ledger.jsonl"
# The folder of the last uploads.
ANSWERS = "answers"


def make_client_folder(folder: Path, agreement: Agreement, protocol: Protocol) -> None:
    """Makes the folder of a client that agrees to a protocol.

    The ledger gets its name last, after its counter and the agreement: a folder without a ledger is
    no agreement yet, and can be made again.

    Args:
        folder: The client's own folder.
        agreement: What the client agrees to.
        protocol: The protocol that it agrees to.

    Raises:
        UserError: The folder holds an agreement already, noise from a seed was not allowed, or a
            file cannot be written.
    """
    # So that the file says how noise is drawn, as every request does.
    protocol = state_integers(protocol)
    refuse_unsupported(protocol)
    refuse_unknown_clients(protocol, agreement)
    refuse_seeded_noise(protocol, agreement)
    refuse_counter_inside(folder, agreement)
    ledger = folder / LEDGER
    # A second agreement over the same ledger would forget what was spent under the first one.
    if ledger.exists():
        raise UserError(
            f"{folder} holds an agreement already: choose another folder. What it spent is "
            "in its ledger."
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / ANSWERS).mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".agreeing-") as making:
            unnamed = Path(making) / LEDGER
            Ledger.create(unnamed, make_first_entry(protocol)).close()
            if agreement.counter is not None:
                begin_counter(Path(agreement.counter), unnamed)
            write_whole(folder / "protocol.toml", dumps(protocol).encode())
            write_agreement(agreement, folder)
            os.replace(unnamed, ledger)
        sync_folder(folder)


def holds_agreement(folder: Path) -> bool:
    """Returns whether a folder holds a whole agreement.

    Args:
        folder: The client's own folder.
    """
    return (folder / LEDGER).exists()


def make_first_entry(protocol: Protocol) -> Opened:
    """Returns the first entry of a client's ledger.

    Args:
        protocol: The protocol that is agreed to.
    """
    noise = "seeded"
    if protocol.noise.secure:
        noise = "fresh"
    digest = hashlib.sha256(dumps(protocol).encode()).hexdigest()
    return Opened(protocol=digest, generator=GENERATOR, noise=noise)


def refuse_seeded_noise(protocol: Protocol, agreement: Agreement) -> None:
    """Refuses noise that can be repeated, unless that was allowed.

    Args:
        protocol: The federation that the machines train.
        agreement: The agreement.

    Raises:
        UserError: The noise follows from a seed.
    """
    if protocol.noise.secure or agreement.seeded:
        return
    raise UserError(
        "noise.secure = false: anyone who knows the seed can subtract the noise. Set "
        "noise.secure = true, or for a test agree to it with --seeded."
    )


def refuse_counter_inside(folder: Path, agreement: Agreement) -> None:
    """Refuses a counter that a backup of the client's folder would bring back.

    Args:
        folder: The client's folder.
        agreement: The agreement.

    Raises:
        UserError: The counter is in the folder.
    """
    if agreement.counter is None:
        return
    if Path(agreement.counter).resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"counter = {agreement.counter!r} is inside {folder}: anyone who restores the folder "
            "from a backup restores the counter with it. Name a file in another place, which is "
            "not part of that backup."
        )
