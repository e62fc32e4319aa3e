"""Reads a client's identity, and checks the list of clients that it agrees to sum with."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from sordino.flower.agreement import Agreement
from sordino.flower.client_keys import compute_fingerprint
from sordino.protocol import Protocol, UserError
from sordino.secure_sums.key_roster import encode_identity


def read_identity(path: Path) -> EllipticCurvePrivateKey:
    """Returns a client's registered private key.

    Args:
        path: The file that `sordino flower key` wrote.

    Raises:
        UserError: It cannot be read, or is of another kind.
    """
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as a private key.") from None
    # A key of another kind would only fail when the first statement is signed with it.
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"{path} is not a key that `sordino flower key` made.")
    return key


def find_own_identity(agreement: Agreement) -> bytes:
    """Returns a client's registered public key in DER form.

    Args:
        agreement: What the client agreed to.

    Returns:
        The key; nothing where it agreed to no secure sums.
    """
    # The coordinator takes an empty key to mean that this client cannot be summed with.
    if agreement.clients is None or agreement.key is None:
        return b""
    return encode_identity(read_identity(Path(agreement.key)))


def refuse_unknown_clients(protocol: Protocol, agreement: Agreement) -> None:
    """Refuses an agreement to secure sums that does not say with whom.

    Args:
        protocol: The protocol that is agreed to.
        agreement: What else is agreed to.

    Raises:
        UserError: The list is missing or has another length, or the client's key is not on it.
    """
    if protocol.release.secure_sum is None:
        return
    clients = agreement.clients
    if clients is None or agreement.key is None:
        raise UserError(
            "federation.channel is secure aggregation: a client must know its own key and those "
            "of all others, or the coordinator could invent them. Give --key, and --clients with "
            "the coordinator's clients.json, and compare its fingerprints with the other clients'."
        )
    # That only one sum can be opened is proved for a given number of clients (docs/theory.md#a19).
    if len(clients) != protocol.clients:
        raise UserError(
            f"{len(clients)} keys of clients were given; the protocol has {protocol.clients} "
            "clients."
        )
    # With another key in its place, somebody else could sign for this client.
    own = compute_fingerprint(read_identity(Path(agreement.key)).public_key())
    if clients[agreement.client] != own:
        raise UserError(
            f"client {agreement.client} has another key in the list than {agreement.key}, whose "
            f"fingerprint is {own}."
        )
