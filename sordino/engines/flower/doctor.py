"""`sordino flower doctor`: looks at what a party needs, and names the remedy of what is wrong."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sordino.engines.flower.certificates import AUTHORITY, SERVER
from sordino.engines.flower.consortium import Client, Coordinator
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.party import HEALTH
from sordino.engines.flower.probing import probe_superlink
from sordino.protocol import SordinoError

SOON = 30  # days before a certificate's end at which it is to be renewed
SPACE = 1_000_000_000  # bytes that should be free
FRESH = 30.0  # seconds after which a sign of health is old


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Describes what was looked at: `trouble` is what is wrong, with the remedy, or None."""

    what: str
    seen: str
    trouble: str | None = None


def examine(place: Path, party: Coordinator | Client) -> list[Finding]:
    """Returns everything that was looked at for a party."""
    looks: dict[type, Callable[[Path], Iterator[Finding]]] = {
        Coordinator: lambda folder: examine_coordinator(folder, party),  # type: ignore[arg-type]
        Client: lambda folder: examine_client(folder, party),  # type: ignore[arg-type]
    }
    return [examine_versions(), examine_disk(place), *looks[type(party)](place)]


def examine_coordinator(place: Path, party: Coordinator) -> Iterator[Finding]:
    """Looks at the certificates, the port and the health of a coordinator."""
    certificates = place / "certificates"
    yield examine_certificate(certificates / SERVER, "renew it, see docs/flower.md")
    yield examine_private(certificates / "server.key")
    running = examine_health(place / HEALTH)
    yield running
    if running.trouble is None:
        authority = str(certificates / AUTHORITY)
        trouble = probe_superlink(party.address, authority).trouble
        yield Finding(what="SuperLink", seen=party.address, trouble=trouble)
    else:
        yield examine_port(party.listen, party.port)


def examine_client(place: Path, party: Client) -> Iterator[Finding]:
    """Looks at a client's key, clock, way to the SuperLink, agreement and health."""
    certificate = place / party.certificate
    yield examine_certificate(certificate, "ask the coordinator for the renewed ca.crt")
    yield examine_private(place / party.key)
    if certificate.exists():
        probe = probe_superlink(party.superlink, str(certificate))
        ahead = "" if probe.ahead is None else f", clocks differ by {abs(probe.ahead):.1f} s"
        yield Finding(what="SuperLink", seen=f"{party.superlink}{ahead}", trouble=probe.trouble)
    folder = place / party.folder
    yield examine_agreement(folder)
    running = examine_health(folder / HEALTH)
    yield running
    if running.seen == "it does not run":
        yield examine_port("127.0.0.1", party.port)


def examine_versions() -> Finding:
    """Looks whether the installed Flower is one that Sordino fits."""
    from packaging.requirements import Requirement

    installed = metadata.version("flwr")
    wanted = [Requirement(line) for line in metadata.requires("sordino") or []]
    flower = next(one for one in wanted if one.name == "flwr" and "extra" in str(one.marker))
    fits = flower.specifier.contains(installed)
    trouble = None if fits else f"Sordino needs {flower.specifier}: pip install 'sordino[flower]'"
    return Finding(what="Flower", seen=installed, trouble=trouble)


def examine_disk(place: Path) -> Finding:
    """Looks whether there is space for uploads, ledgers and logs."""
    free = shutil.disk_usage(place).free
    trouble = None if free >= SPACE else "make space: a round that cannot be written is refused"
    return Finding(what="Disk", seen=f"{free / 1e9:.1f} GB free", trouble=trouble)


def examine_certificate(path: Path, remedy: str) -> Finding:
    """Looks how long a certificate is still valid."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        words = f"it cannot be read ({error}): {remedy}"
        return Finding(what="Certificate", seen=str(path), trouble=words)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    seen = f"{path.name}, valid for {left.days} more days"
    return Finding(what="Certificate", seen=seen, trouble=None if left.days >= SOON else remedy)


def examine_private(path: Path) -> Finding:
    """Looks whether a private key is there and its owner's alone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        remedy = "it is missing: `sordino flower up` makes it, or put it back from a backup"
        return Finding(what="Key", seen=str(path), trouble=remedy)
    trouble = f"others can read it: chmod 600 {path}" if mode & 0o077 else None
    return Finding(what="Key", seen=str(path), trouble=trouble)


def examine_port(host: str, port: int) -> Finding:
    """Looks whether a port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            words = f"{os.strerror(error.errno or 0)}: another program has it, name another port"
            return Finding(what="Port", seen=str(port), trouble=words)
    return Finding(what="Port", seen=f"{port} is free")


def examine_agreement(folder: Path) -> Finding:
    """Looks whether agreement and ledger can be read as they were written."""
    try:
        custodian = Custodian(folder)
        paid = len(custodian.rounds_paid)
    except SordinoError as error:
        return Finding(what="Agreement", seen=str(folder), trouble=str(error))
    seen = f"{folder}, {paid} rounds answered, {len(custodian.refusals)} requests refused"
    return Finding(what="Agreement", seen=seen)


def examine_health(path: Path) -> Finding:
    """Looks at the last sign of health of what `sordino flower up` runs."""
    if not path.exists():
        return Finding(what="Health", seen="it does not run", trouble="sordino flower up")
    facts = json.loads(path.read_bytes())
    age = time.time() - facts["at"]
    if age > FRESH:
        return Finding(what="Health", seen="it does not run", trouble="sordino flower up")
    trouble = None if facts["healthy"] else "see the log beside it"
    return Finding(what="Health", seen=str(facts["said"]), trouble=trouble)
