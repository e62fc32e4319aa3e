"""Says who takes part in the secure sums of a training, and whose keys are genuine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

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
from sordino.secure_sums.share_holders import (
    Graph,
    Neighbourhood,
    choose_neighbourhood,
    pick_holders,
)

# Node keys are on P-384, whose strength this digest has.
SIGNATURE = ECDSA(hashes.SHA384())


class SecureSumRefused(SordinoError):
    """A client does not do what a server asks, because it could open more than one sum."""


def refuse_threshold(*, clients: int, threshold: int, colluders: int) -> None:
    """Refuses a threshold at which a server could open more than one sum of a round.

    Args:
        clients: The number of clients in the roster.
        threshold: The fewest contributions that are ever opened.
        colluders: The largest number of clients that help the server.

    Raises:
        InvalidValue: Names the key, the value and the values allowed.
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
    """Holds the clients of a training and their registered identities.

    Attributes:
        training: The name of the training; keys and masks of another one are of no use in it.
        fingerprints: The SHA-256 of every client's registered public key in DER form, in the order
            of the clients.
        threshold: The fewest contributions that are ever opened.
        colluders: The largest number of clients that help the server.
    """

    training: str
    fingerprints: tuple[str, ...]
    threshold: int
    colluders: int = 0
    digest: bytes = field(init=False, repr=False)

    @property
    def clients(self) -> range:
        """All clients."""
        return range(len(self.fingerprints))

    @cached_property
    def neighbourhood(self) -> Neighbourhood:
        """How many hold shares of a client's seeds, and how many shares open one."""
        return choose_neighbourhood(len(self.fingerprints), self.threshold, self.colluders)

    @property
    def needs_confirmation(self) -> bool:
        """Whether survivors must be confirmed by signatures before anything is unmasked.

        Where few clients may be left out and all are neighbours, lists of survivors that differ
        cannot shrink the sum below the threshold (docs/theory.md#a19).
        """
        if self.neighbourhood.others < len(self.fingerprints) - 1:
            return True
        left_out = len(self.fingerprints) - self.threshold
        return left_out**2 >= self.threshold - self.colluders

    def __post_init__(self) -> None:
        refuse_threshold(
            clients=len(self.fingerprints), threshold=self.threshold, colluders=self.colluders
        )
        # All that clients must agree on is in the digest: one that was told another threshold or
        # another key makes signatures and masks that fit nobody else's.
        text = [f"sordino roster {self.training!r} {self.threshold} {self.colluders}"]
        text.append(f"{self.neighbourhood.others} {self.neighbourhood.needed}")
        text += self.fingerprints
        object.__setattr__(self, "digest", hashlib.sha256("\n".join(text).encode()).digest())


@dataclass(frozen=True, kw_only=True)
class SignedKey:
    """Holds a client's key for letters, fresh for a training, signed by its identity.

    Attributes:
        client: The client's number.
        identity: Its registered public key in DER form.
        public: The X25519 key, 32 bytes.
        signature: The identity's signature over roster, client and key.
    """

    client: int
    identity: bytes
    public: bytes
    signature: bytes


def encode_identity(identity: EllipticCurvePrivateKey) -> bytes:
    """Returns the public half of a registered key in DER form.

    Args:
        identity: The key.
    """
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return identity.public_key().public_bytes(serialization.Encoding.DER, form)


def sign_key(
    roster: Roster, client: int, private: X25519PrivateKey, identity: EllipticCurvePrivateKey
) -> SignedKey:
    """Returns a client's key for letters under the signature of its identity.

    Args:
        roster: The training's roster.
        client: The client's number.
        private: The fresh key for letters.
        identity: The client's registered key.
    """
    public = private.public_key().public_bytes_raw()
    statement = _make_key_statement(roster, client, public)
    return SignedKey(
        client=client,
        identity=encode_identity(identity),
        public=public,
        signature=identity.sign(statement, SIGNATURE),
    )


def verify_statement(key: SignedKey, statement: bytes, signature: bytes, what: str) -> None:
    """Checks that the identity behind a client's key has signed a statement.

    Args:
        key: The key of the client that claims to have signed, which was checked before.
        statement: The bytes that were signed.
        signature: The signature that is checked.
        what: What the statement is, for a refusal.

    Raises:
        SecureSumRefused: The signature is not its own.
    """
    identity = serialization.load_der_public_key(key.identity)
    if not isinstance(identity, EllipticCurvePublicKey):
        raise SecureSumRefused(f"the identity of client {key.client} is of another kind")
    try:
        identity.verify(signature, statement, SIGNATURE)
    except InvalidSignature:
        raise SecureSumRefused(
            f"the {what} of client {key.client} is not signed by its registered identity"
        ) from None


def verify_key(roster: Roster, key: SignedKey) -> None:
    """Checks that a key for letters is its client's own, and that secrets can be made with it.

    Args:
        roster: The training's roster.
        key: What the server says the client's key is.

    Raises:
        SecureSumRefused: The client is unknown, its identity is another one, the signature is
            wrong, or every secret that is made with the key is known.
    """
    if key.client not in roster.clients:
        raise SecureSumRefused(f"client {key.client} is not in the roster that was agreed on")
    # Shares must reach the agreed clients and nobody else (docs/theory.md#a19).
    if hashlib.sha256(key.identity).hexdigest() != roster.fingerprints[key.client]:
        raise SecureSumRefused(
            f"the key that was shown for client {key.client} is not the one that was agreed to"
        )
    statement = _make_key_statement(roster, key.client, key.public)
    verify_statement(key, statement, key.signature, "key")
    refuse_weak_key(key.public, key.client, "key for letters")


def refuse_weak_key(public: bytes, client: int, what: str) -> None:
    """Refuses an X25519 key of small order: every exchange with it gives zeros (RFC 7748).

    Args:
        public: The key.
        client: Whose it is.
        what: What the key is, for the refusal.

    Raises:
        SecureSumRefused: Names the client.
    """
    try:
        # With any private key: all of them are multiples of the small orders.
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureSumRefused(
            f"the {what} of client {client} is one whose secrets everybody knows"
        ) from None


def verify_keys(roster: Roster, keys: Iterable[SignedKey]) -> dict[int, SignedKey]:
    """Returns clients' keys for letters, each checked against its client's registered identity.

    Clients that were not there yet may be missing: they hold no shares and take no part.

    Args:
        roster: The training's roster.
        keys: What the server says the clients' keys are.

    Raises:
        SecureSumRefused: A client is unknown or named twice, a key is not its own, or fewer than
            the threshold are shown.
    """
    found: dict[int, SignedKey] = {}
    for key in keys:
        # With two keys it would be open which of them letters are sealed for.
        if key.client in found:
            raise SecureSumRefused(f"client {key.client} has two keys")
        verify_key(roster, key)
        found[key.client] = key
    if len(found) < roster.threshold:
        raise SecureSumRefused(
            f"keys of {len(found)} clients were shown, fewer than the threshold, {roster.threshold}"
        )
    return found


def draw_graph(roster: Roster, keys: Mapping[int, SignedKey]) -> Graph:
    """Returns who holds shares for whom, as the clients' fresh keys pick it.

    Args:
        roster: The training's roster.
        keys: The keys for letters, which were checked.
    """
    chosen = roster.neighbourhood
    holders = {
        client: pick_holders(
            client, key.public, len(roster.fingerprints), chosen.others, roster.digest
        )
        for client, key in keys.items()
    }
    return Graph(holders, chosen.needed)


def _make_key_statement(roster: Roster, client: int, public: bytes) -> bytes:
    """Returns what an identity signs about its key for letters."""
    # The words in front keep a signature over a key from passing for one over a request.
    return b"sordino key for letters\n" + roster.digest + client.to_bytes(8, "little") + public
