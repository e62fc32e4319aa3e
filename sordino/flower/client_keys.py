"""The coordinator's list of registered clients: which public key belongs to which client.

Flower tells the coordinator the key that every node connected with. A node is the client whose key
it holds, whatever it claims.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from sordino.federation.store.files import write_whole, writing
from sordino.flower.node_certificates import read_certificate
from sordino.protocol import InvalidValue, UserError

CLIENTS = "clients.json"
# The certificates of all registered clients.
NODES = "nodes.pem"


def compute_fingerprint(key: PublicKeyTypes) -> str:
    """Returns the SHA-256 of a public key, whatever form it was stored in.

    Args:
        key: The key.
    """
    # The same key in OpenSSH's and in PEM form must have one fingerprint.
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def fingerprint_of_file(path: Path) -> str:
    """Returns the fingerprint of the public key in a file that `sordino flower key` wrote.

    Args:
        path: The file.

    Raises:
        UserError: The file cannot be read as a public key.
    """
    try:
        return compute_fingerprint(serialization.load_ssh_public_key(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} is not a public key. The coordinator registers the file that ends in .pub."
        ) from None


def fingerprint_of_node(key: bytes) -> str | None:
    """Returns the fingerprint of the key that a node connected with.

    Args:
        key: The key as Flower tells it, in PEM.

    Returns:
        The fingerprint; None for a node without a key, or with one that cannot be read.
    """
    try:
        return compute_fingerprint(serialization.load_pem_public_key(key))
    except (ValueError, UnsupportedAlgorithm):
        # A node with an unreadable key is nobody; an error would end the round for all.
        return None


def read_clients(folder: Path) -> dict[int, str]:
    """Reads the fingerprint of every registered client.

    Args:
        folder: The coordinator's folder of certificates.

    Returns:
        Fingerprints by the number of the client; empty where none was registered.

    Raises:
        UserError: The list is damaged.
    """
    path = folder / CLIENTS
    if not path.exists():
        return {}
    return read_client_list(path)


def read_client_list(path: Path) -> dict[int, str]:
    """Reads a coordinator's list of clients, which every client may have a copy of.

    Args:
        path: The file.

    Returns:
        Fingerprints by the number of the client.

    Raises:
        UserError: The list is missing or damaged.
    """
    try:
        listed = json.loads(path.read_bytes(), object_pairs_hook=_read_listed_clients)
    except (OSError, ValueError):
        listed = None
    if not isinstance(listed, dict):
        raise UserError(
            f"{path} is missing or damaged. Put it back, or register the clients again."
        )
    return listed


def _read_listed_clients(pairs: list[tuple[str, Any]]) -> dict[int, str]:
    """Returns the entries of a list of clients; raises ValueError where one is unclear."""
    listed: dict[int, str] = {}
    for text, key in pairs:
        client = int(text)
        # People compare this list line by line. A client that is on it twice, or also as "01",
        # would have the key that they looked at, and another one that counts.
        if str(client) != text or client in listed:
            raise ValueError("a client is listed twice, or under a strange number")
        listed[client] = str(key)
    return listed


def list_fingerprints(path: Path) -> tuple[str, ...]:
    """Returns the fingerprints of all clients, in their order, for a client's agreement.

    Args:
        path: A copy of the coordinator's list.

    Raises:
        UserError: There is no list, or a client is left out.
    """
    if not path.exists():
        raise UserError(
            f"there is no {path}. Give your public key to the coordinator, and put its {CLIENTS} "
            "there once all clients are registered."
        )
    listed = read_client_list(path)
    missing = sorted(set(range(len(listed))) - set(listed))
    if missing:
        raise UserError(f"{path} has no client {missing[0]}: clients are numbered from 0.")
    return tuple(listed[client] for client in range(len(listed)))


def assign_clients(known: Mapping[int, str], given: Sequence[str]) -> dict[int, Path]:
    """Decides which client each key is of.

    Args:
        known: Clients that are registered already.
        given: "N=KEY.pub", or "KEY.pub" for the lowest number that is free.

    Returns:
        The file of every new client's key.

    Raises:
        UserError: A number is taken, or given twice.

    Example:
        >>> assign_clients({0: "9f2c"}, ["2=south.pub", "north.pub"])
        {2: PosixPath('south.pub'), 1: PosixPath('north.pub')}
    """
    found: dict[int, Path] = {}
    for text in given:
        number, equals, name = text.partition("=")
        if not (equals and number.isdecimal()):
            taken = {*known, *found}
            # The least number that is free, as clients are numbered from 0.
            found[min(set(range(len(taken) + 1)) - taken)] = Path(text)
            continue
        client = int(number)
        if client in known or client in found:
            raise InvalidValue(
                "key",
                text,
                f"a client that has no key yet: client {client} has one. To replace it, remove "
                f"the client from {CLIENTS} and the node from the SuperLink first",
            )
        found[client] = Path(name)
    return found


def add_clients(folder: Path, new: Mapping[int, Path]) -> dict[int, str]:
    """Adds clients to the coordinator's list.

    Args:
        folder: The coordinator's folder of certificates.
        new: File of every new client's public key.

    Returns:
        The fingerprints of the new clients.

    Raises:
        UserError: A key cannot be read, or is registered for another client.
    """
    known = read_clients(folder)
    added: dict[int, str] = {}
    for client, path in new.items():
        key = fingerprint_of_file(path)
        # One key for two clients would let one machine answer twice in a round.
        for other, theirs in {**known, **added}.items():
            if theirs == key:
                raise UserError(f"{path} is the key of client {other} already.")
        added[client] = key
    # Read before the list is written: a missing certificate must leave no client half registered.
    certificates = [read_certificate(path) for path in new.values()]
    write_clients(folder, {**known, **added}, certificates)
    return added


def remove_client(folder: Path, client: int) -> None:
    """Removes a client from the coordinator's list.

    Args:
        folder: The coordinator's folder of certificates.
        client: Number of the client.
    """
    known = read_clients(folder)
    known.pop(client, None)
    write_clients(folder, known)


def write_clients(
    folder: Path, clients: Mapping[int, str], new: Sequence[x509.Certificate] = ()
) -> None:
    """Writes the coordinator's list and the certificates of the clients in it.

    Args:
        folder: The coordinator's folder of certificates.
        clients: Fingerprint of every client.
        new: Certificates of clients that are new.
    """
    path = folder / NODES
    certificates = list(new)
    if path.exists() and path.stat().st_size:
        certificates = [*x509.load_pem_x509_certificates(path.read_bytes()), *new]
    # A later certificate of the same key replaces an earlier one.
    by_key = {compute_fingerprint(one.public_key()): one for one in certificates}
    parts = []
    for key, certificate in by_key.items():
        if key in clients.values():
            parts.append(certificate.public_bytes(serialization.Encoding.PEM))
    # Certificates come first: a listed client without one could not connect, and nobody would see
    # why.
    with writing(path):
        write_whole(path, b"".join(parts))
    listed = {str(client): clients[client] for client in sorted(clients)}
    with writing(folder / CLIENTS):
        write_whole(folder / CLIENTS, (json.dumps(listed, indent=1) + "\n").encode())
