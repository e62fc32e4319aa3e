"""`sordino flower doctor`: checks what a party needs, and names the remedy of each fault."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sordino.flower.certificates import AUTHORITY, SERVER, find_own_address
from sordino.flower.client_folder import holds_agreement
from sordino.flower.client_store import ClientStore
from sordino.flower.consortium import Client, Coordinator, refuse_other_terms
from sordino.flower.metrics_endpoint import FRESH, HEALTH_FILE
from sordino.flower.superlink_probe import probe_superlink
from sordino.protocol import SordinoError

# Days before a certificate's end from which on it is to be renewed.
RENEWAL_DAYS = 30
# Bytes that should be free.
FREE_SPACE = 1_000_000_000
# What is found of a party that does not run.
NOT_RUNNING = "it does not run"
# All permissions of others than the owner of a file: its group, and everybody else.
OTHERS = 0o077


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Describes one check.

    Attributes:
        what: What was checked.
        seen: What was found.
        trouble: The fault, with its remedy; None if there is none.
    """

    what: str
    seen: str
    trouble: str | None = None


def examine_party(place: Path, party: Coordinator | Client) -> list[Diagnosis]:
    """Runs all checks of a party.

    Args:
        place: Folder of its consortium.toml.
        party: What the file says.

    Returns:
        The findings.
    """
    findings = [examine_versions(), examine_disk(place)]
    if isinstance(party, Coordinator):
        findings += examine_coordinator(place, party)
    else:
        findings += examine_client(place, party)
    return findings


def examine_coordinator(place: Path, party: Coordinator) -> Iterator[Diagnosis]:
    """Checks the certificates, the port and the health of a coordinator.

    Args:
        place: The coordinator's folder.
        party: What its consortium.toml says.

    Yields:
        The findings.
    """
    certificates = place / "certificates"
    yield examine_certificate(
        certificates / SERVER,
        missing="`sordino flower up` makes it",
        ending="renew it, see docs/flower.md",
    )
    yield examine_private(certificates / "server.key")
    running = examine_health(place / HEALTH_FILE)
    yield running
    # A running SuperLink is probed and holds its port itself; otherwise the port must be free.
    if running.seen != NOT_RUNNING:
        authority = str(certificates / AUTHORITY)
        address = find_own_address(certificates, party)
        trouble = probe_superlink(address, authority).trouble
        yield Diagnosis(what="SuperLink", seen=address, trouble=trouble)
    else:
        yield examine_port(party.listen, party.port)


def examine_client(place: Path, party: Client) -> Iterator[Diagnosis]:
    """Checks a client's key, clock, connection to the SuperLink, agreement and health.

    Args:
        place: Folder of the client's consortium.toml.
        party: What the file says.

    Yields:
        The findings.
    """
    certificate = place / party.certificate
    yield examine_certificate(
        certificate,
        missing=f"ask the coordinator for {AUTHORITY}",
        ending=f"ask the coordinator for the renewed {AUTHORITY}",
    )
    yield examine_private(place / party.key)
    if certificate.exists():
        key = None
        if (place / party.key).exists():
            key = str(place / party.key)
        probe = probe_superlink(party.superlink, str(certificate), key)
        seen = party.superlink
        if probe.ahead is not None:
            seen += f", clocks differ by {abs(probe.ahead):.1f} s"
        yield Diagnosis(what="SuperLink", seen=seen, trouble=probe.trouble)
    folder = place / party.folder
    agreed = examine_agreement(place, party)
    yield agreed
    # Without an agreement there is no counter yet.
    if agreed.trouble is None:
        yield examine_counter(folder)
    running = examine_health(folder / HEALTH_FILE)
    yield running
    if running.seen == NOT_RUNNING:
        yield examine_port("127.0.0.1", party.port)


def examine_versions() -> Diagnosis:
    """Checks that Sordino works with the installed version of Flower."""
    from packaging.requirements import Requirement

    installed = metadata.version("flwr")
    wanted = [Requirement(line) for line in metadata.requires("sordino") or []]
    # The requirement of the extra; without one Sordino does not need Flower at all.
    flower = next(one for one in wanted if one.name == "flwr" and "extra" in str(one.marker))
    trouble = None
    if not flower.specifier.contains(installed):
        trouble = f"Sordino needs {flower.specifier}: pip install 'sordino[flower]'"
    return Diagnosis(what="Flower", seen=installed, trouble=trouble)


def examine_disk(place: Path) -> Diagnosis:
    """Checks that there is space for uploads, ledgers and logs.

    Args:
        place: A folder on the disk.
    """
    free = shutil.disk_usage(place).free
    trouble = None
    if free < FREE_SPACE:
        trouble = "make space: a round that cannot be written is refused"
    return Diagnosis(what="Disk", seen=f"{free / 1e9:.1f} GB free", trouble=trouble)


def examine_certificate(path: Path, *, missing: str, ending: str) -> Diagnosis:
    """Checks how long a certificate is still valid.

    Args:
        path: Its file.
        missing: What to do when there is none.
        ending: What to do when it ends soon.
    """
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        return Diagnosis(what="Certificate", seen=str(path), trouble=f"it is missing: {missing}")
    except (OSError, ValueError) as error:
        words = f"it cannot be read ({error}): {ending}"
        return Diagnosis(what="Certificate", seen=str(path), trouble=words)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    seen = f"{path.name}, valid for {left.days} more days"
    trouble = None
    if left.days < RENEWAL_DAYS:
        trouble = ending
    return Diagnosis(what="Certificate", seen=seen, trouble=trouble)


def examine_private(path: Path) -> Diagnosis:
    """Checks that a private key exists and only its owner can read it.

    Args:
        path: Its file.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        remedy = "it is missing: `sordino flower up` makes it, or put it back from a backup"
        return Diagnosis(what="Key", seen=str(path), trouble=remedy)
    trouble = None
    if mode & OTHERS:
        trouble = f"others can read it: chmod 600 {path}"
    return Diagnosis(what="Key", seen=str(path), trouble=trouble)


def examine_port(host: str, port: int) -> Diagnosis:
    """Checks that a port is free.

    Args:
        host: Address of this machine.
        port: The port.
    """
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    with socket.socket(family) as probe:
        # Without it a port that was closed a moment ago counts as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            words = f"{os.strerror(error.errno or 0)}: another program has it, name another port"
            return Diagnosis(what="Port", seen=str(port), trouble=words)
    return Diagnosis(what="Port", seen=f"{port} is free")


def examine_agreement(place: Path, party: Client) -> Diagnosis:
    """Checks that agreement and ledger are as they were written, and what consortium.toml says.

    Args:
        place: Folder of the client's consortium.toml.
        party: What the file says.
    """
    folder = place / party.folder
    if not holds_agreement(folder):
        remedy = "there is none yet: `sordino flower up` makes it as consortium.toml says"
        return Diagnosis(what="Agreement", seen=str(folder), trouble=remedy)
    try:
        # Opening the store verifies agreement and ledger; any fault is an error with its remedy.
        store = ClientStore(folder)
        refuse_other_terms(place, party, store.agreement)
        paid = len(store.rounds_paid)
    except SordinoError as error:
        return Diagnosis(what="Agreement", seen=str(folder), trouble=str(error))
    seen = f"{folder}, {paid} rounds answered, {len(store.refusals)} requests refused"
    return Diagnosis(what="Agreement", seen=seen)


def examine_counter(folder: Path) -> Diagnosis:
    """Checks that the second place knows the ledger, and can be written.

    Args:
        folder: The client's folder.
    """
    try:
        store = ClientStore(folder)
        store.check_second_place()
    except SordinoError as error:
        return Diagnosis(what="Counter", seen="of the ledger", trouble=str(error))
    seen = "none: a folder that is restored from a backup is not noticed"
    if store.agreement.counter is not None:
        seen = f"{store.agreement.counter} knows the ledger"
    return Diagnosis(what="Counter", seen=seen)


def examine_health(path: Path) -> Diagnosis:
    """Checks the last state that `sordino flower up` published.

    Args:
        path: The file of the state.
    """
    stopped = Diagnosis(what="Health", seen=NOT_RUNNING, trouble="sordino flower up")
    if not path.exists():
        return stopped
    try:
        facts = json.loads(path.read_bytes())
        at, healthy, said = float(facts["at"]), bool(facts["healthy"]), str(facts["said"])
    except (OSError, ValueError, KeyError, TypeError):
        return stopped
    # A killed process leaves its last state behind, which would look healthy for ever.
    # A time that is still to come is that of a clock that was put back since.
    if abs(time.time() - at) > FRESH:
        return stopped
    trouble = None
    if not healthy:
        trouble = "see the log next to it"
    return Diagnosis(what="Health", seen=said, trouble=trouble)
