"""Says who takes part in the secure sums of a training, and whose keys are genuine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sordino.protocol.channel_kinds import SMALLEST_THRESHOLD
from sordino.protocol.errors import InvalidValue, SordinoError

# Node keys are on P-384, whose strength this digest has.
SIGNATURE = ECDSA(hashes.SHA384())


class SecureSumRefused(SordinoError):
    """A client does not do what a server asks, because it could open more than one sum."""


def refuse_threshold(*, clients: int, threshold: int, colluders: int) -> None:
    """Refuses a threshold at which a server could open more than one sum of a round.

    Args:
        clients: the number of clients in the roster.
        threshold: the fewest contributions that are ever opened.
        colluders: the largest number of clients that help the server.

    Raises:
        InvalidValue: names the key, the value and what is allowed.
    """
    key = "federation.channel.secure-aggregation"
    if not SMALLEST_THRESHOLD <= threshold <= clients:
        allowed = f"from {SMALLEST_THRESHOLD} to the number of clients, {clients}"
        raise InvalidValue(f"{key}.threshold", threshold, allowed)
    # As many colluders as the threshold could put every seed together without an honest client.
    if not 0 <= colluders < threshold:
        allowed = f"from 0 to {threshold - 1}, below the threshold"
        raise InvalidValue(f"{key}.colluders", colluders, allowed)
    # Two groups of honest clients that each open a sum would need this many between them.
    if 2 * threshold <= clients + colluders:
        least = (clients + colluders) // 2 + 1
        allowed = (
            f"at least {least} with {clients} clients and {colluders} colluders, so that "
            "2 threshold > clients + colluders: else two sums of one round could be opened"
        )
        raise InvalidValue(f"{key}.threshold", threshold, allowed)


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The clients of a training and their registered identities.

    Attributes:
        training: the name of the training; keys and masks of another one are of no use in it.
        identities: for each client, its registered public key in DER form.
        threshold: the fewest contributions that are ever opened.
        colluders: the largest number of clients that help the server.
    """

    training: str
    identities: Mapping[int, bytes]
    threshold: int
    colluders: int = 0
    digest: bytes = field(init=False, repr=False)

    @property
    def needs_confirmation(self) -> bool:
        """Whether survivors must be confirmed by signatures before anything is unmasked.

        Where few clients may be left out, lists of survivors that differ cannot shrink the sum
        below the threshold (docs/theory.md#a19).
        """
        left_out = len(self.identities) - self.threshold
        return left_out**2 >= self.threshold - self.colluders

    def __post_init__(self) -> None:
        refuse_threshold(
            clients=len(self.identities), threshold=self.threshold, colluders=self.colluders
        )
        # All that clients must agree on is in the digest: one that was told another threshold or
        # another key makes signatures and masks that fit nobody else's.
        text = [f"sordino roster {self.training!r} {self.threshold} {self.colluders}"]
        for client in sorted(self.identities):
            text.append(f"{client} {self.identities[client].hex()}")
        object.__setattr__(self, "digest", hashlib.sha256("\n".join(text).encode()).digest())


@dataclass(frozen=True, kw_only=True)
class SignedKey:
    """A client's key for letters, fresh for a training, under the signature of its identity.

    Attributes:
        client: the client's number.
        public: the X25519 key, 32 bytes.
        signature: the identity's signature over roster, client and key.
    """

    client: int
    public: bytes
    signature: bytes


def sign_key(
    roster: Roster, client: int, private: X25519PrivateKey, identity: EllipticCurvePrivateKey
) -> SignedKey:
    """Returns a client's key for letters under the signature of its identity.

    Args:
        roster: the training's roster.
        client: the client's number.
        private: the fresh key for letters.
        identity: the client's registered key.
    """
    public = private.public_key().public_bytes_raw()
    statement = _state_key(roster, client, public)
    return SignedKey(client=client, public=public, signature=identity.sign(statement, SIGNATURE))


def verify_statement(
    roster: Roster, client: int, statement: bytes, signature: bytes, what: str
) -> None:
    """Checks that a client's registered identity has signed a statement.

    Args:
        roster: the training's roster.
        client: the client that is said to have signed.
        statement: the bytes that were signed.
        signature: the signature.
        what: what the statement is, for a refusal.

    Raises:
        SecureSumRefused: the client is unknown, or the signature is not its own.
    """
    if client not in roster.identities:
        raise SecureSumRefused(f"client {client} is not in the roster that was agreed on")
    identity = serialization.load_der_public_key(roster.identities[client])
    if not isinstance(identity, EllipticCurvePublicKey):
        raise SecureSumRefused(f"the identity of client {client} is of another kind")
    try:
        identity.verify(signature, statement, SIGNATURE)
    except InvalidSignature:
        raise SecureSumRefused(
            f"the {what} of client {client} is not signed by its registered identity"
        ) from None


def verify_keys(roster: Roster, keys: Iterable[SignedKey]) -> dict[int, X25519PublicKey]:
    """Returns the keys for letters of all clients, each checked against its registered identity.

    Args:
        roster: the training's roster.
        keys: what the server says the clients' keys are.

    Raises:
        SecureSumRefused: a client is missing, unknown or named twice, or a signature is wrong.
    """
    found: dict[int, X25519PublicKey] = {}
    for key in keys:
        if key.client not in roster.identities:
            raise SecureSumRefused(f"client {key.client} is not in the roster that was agreed on")
        # With two keys it would be open which of them letters are sealed for.
        if key.client in found:
            raise SecureSumRefused(f"client {key.client} has two keys")
        statement = _state_key(roster, key.client, key.public)
        verify_statement(roster, key.client, statement, key.signature, "key")
        found[key.client] = X25519PublicKey.from_public_bytes(key.public)
    # Every client gets shares, so every client's key is needed.
    missing = sorted(set(roster.identities) - set(found))
    if missing:
        raise SecureSumRefused(f"no key was shown for the clients {missing}")
    return found


def _state_key(roster: Roster, client: int, public: bytes) -> bytes:
    """Returns what an identity signs."""
    # The words in front keep a signature over a key from passing for one over a request.
    return b"sordino key for letters\n" + roster.digest + client.to_bytes(8, "little") + public
