"""Which public key belongs to which client: the coordinator's list of whom it registered.

Flower shows the coordinator the key that every node connected with. A node is the client whose key
it holds, whatever it says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from sordino.federation.storage import write_whole, writing
from sordino.protocol import InvalidValue, UserError

CLIENTS = "clients.json"


def fingerprint(key: PublicKeyTypes) -> str:
    """Returns the SHA-256 of a public key, whatever form it was stored in."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def fingerprint_of_file(path: Path) -> str:
    """Returns the fingerprint of the public key in a file that `sordino flower key` wrote.

    Raises:
        UserError: the file cannot be read as a public key.
    """
    try:
        return fingerprint(serialization.load_ssh_public_key(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} is not a public key. The coordinator registers the file that ends in .pub."
        ) from None


def fingerprint_of_node(key: bytes) -> str | None:
    """Returns the fingerprint of the key that a node connected with, as Flower tells it.

    Returns:
        The fingerprint; None for a node without a key, or with one that cannot be read.
    """
    try:
        return fingerprint(serialization.load_pem_public_key(key))
    except (ValueError, UnsupportedAlgorithm):
        return None


def read_clients(folder: Path) -> dict[int, str]:
    """Reads the fingerprint of every registered client.

    Args:
        folder: the coordinator's folder of certificates.

    Returns:
        Fingerprints by the number of the client; none where none was registered.

    Raises:
        UserError: the list is damaged.
    """
    path = folder / CLIENTS
    if not path.exists():
        return {}
    try:
        return {int(client): str(key) for client, key in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{path} is damaged. Put it back, or register the clients anew.") from None


def assign_clients(known: Mapping[int, str], given: Sequence[str]) -> dict[int, Path]:
    """Decides which client each key is of.

    Args:
        known: clients that are registered already.
        given: "N=KEY.pub", or "KEY.pub" for the lowest number that is free.

    Returns:
        The file of every new client's key.

    Raises:
        UserError: a number that is taken, or given twice.

    Example:
        >>> assign_clients({0: "9f2c"}, ["2=south.pub", "north.pub"])
        {2: PosixPath('south.pub'), 1: PosixPath('north.pub')}
    """
    found: dict[int, Path] = {}
    for text in given:
        number, equals, name = text.partition("=")
        if not (equals and number.isdecimal()):
            taken = {*known, *found}
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
        folder: the coordinator's folder of certificates.
        new: the file of every new client's public key.

    Returns:
        The fingerprints of the new clients.

    Raises:
        UserError: a key that cannot be read, or that is registered for another client.
    """
    known = read_clients(folder)
    added: dict[int, str] = {}
    for client, path in new.items():
        key = fingerprint_of_file(path)
        for other, theirs in {**known, **added}.items():
            if theirs == key:
                raise UserError(f"{path} is the key of client {other} already.")
        added[client] = key
    write_clients(folder, {**known, **added})
    return added


def remove_client(folder: Path, client: int) -> None:
    """Removes a client from the coordinator's list."""
    known = read_clients(folder)
    known.pop(client, None)
    write_clients(folder, known)


def write_clients(folder: Path, clients: Mapping[int, str]) -> None:
    """Writes the coordinator's list, whole or not at all."""
    listed = {str(client): clients[client] for client in sorted(clients)}
    with writing(folder / CLIENTS):
        write_whole(folder / CLIENTS, (json.dumps(listed, indent=1) + "\n").encode())
