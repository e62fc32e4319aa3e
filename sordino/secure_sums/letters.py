"""Carries shares of seeds between clients, through a server that cannot read or change them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sordino.secure_sums.key_roster import Roster, SecureSumRefused
from sordino.secure_sums.masks import KEY_BYTES, SEED_BYTES, derive_key
from sordino.secure_sums.share_joining import combine_shares

# The length that ChaCha20-Poly1305 has (RFC 8439).
NONCE_BYTES = 12


@dataclass(frozen=True, kw_only=True)
class Letter:
    """Holds what one client tells another for a round.

    Attributes:
        mask_public: The sender's public key of the round, 32 bytes.
        own_share: A share of the seed of the sender's own mask; empty for a neighbour that holds
            none.
        key_share: A share of the seed of the sender's key of the round; empty for such a neighbour.
    """

    mask_public: bytes
    own_share: bytes = b""
    key_share: bytes = b""

    def pack(self) -> bytes:
        """Returns the letter as bytes, which are longer where it has shares."""
        return self.mask_public + self.own_share + self.key_share

    @classmethod
    def unpack(cls, packed: bytes) -> Letter:
        """Returns the letter in bytes that `pack` has made.

        Args:
            packed: The bytes.

        Raises:
            SecureSumRefused: No letter has that length.
        """
        if len(packed) not in (KEY_BYTES, KEY_BYTES + 2 * SEED_BYTES):
            raise SecureSumRefused("a letter has another length than letters have")
        shares = packed[KEY_BYTES:]
        return cls(
            mask_public=packed[:KEY_BYTES],
            own_share=shares[:SEED_BYTES],
            key_share=shares[SEED_BYTES:],
        )


@dataclass(frozen=True, kw_only=True)
class LetterAddress:
    """Says which letter it is; a sealed letter opens under exactly this address.

    Attributes:
        roster: The training's roster.
        label: The round and the attempt.
        sender: The client that writes.
        receiver: The client that reads.
    """

    roster: Roster
    label: str
    sender: int
    receiver: int

    def as_bytes(self) -> bytes:
        """Returns the address as bytes, which a sealed letter authenticates."""
        # A letter that a server moves to another client or another round does not open.
        text = f"sordino letter {self.label!r} {self.sender} {self.receiver}"
        return self.roster.digest + text.encode()


def seal_letter(
    letter: Letter, address: LetterAddress, mine: X25519PrivateKey, theirs: X25519PublicKey
) -> bytes:
    """Returns a letter that only its receiver can read and only its sender can have written.

    Args:
        letter: Its content.
        address: Which letter it is.
        mine: The sender's key for letters.
        theirs: The receiver's key for letters.
    """
    # A client that was restarted may seal a letter twice; a fresh nonce keeps both secret.
    nonce = os.urandom(NONCE_BYTES)
    cipher = _make_cipher(address, mine, theirs)
    return nonce + cipher.encrypt(nonce, letter.pack(), address.as_bytes())


def open_letter(
    sealed: bytes, address: LetterAddress, mine: X25519PrivateKey, theirs: X25519PublicKey
) -> Letter:
    """Returns what a sealed letter says.

    Args:
        sealed: The letter as the server hands it on.
        address: Which letter it must be.
        mine: The receiver's key for letters.
        theirs: The sender's key for letters.

    Raises:
        SecureSumRefused: It was changed, or belongs to another round, training or pair.
    """
    try:
        nonce = sealed[:NONCE_BYTES]
        cipher = _make_cipher(address, mine, theirs)
        packed = cipher.decrypt(nonce, sealed[NONCE_BYTES:], address.as_bytes())
    # A nonce that was cut short is a ValueError, and no better than a wrong tag.
    except (InvalidTag, ValueError):
        raise SecureSumRefused(
            f"the letter of client {address.sender} was changed, or is one of another round"
        ) from None
    return Letter.unpack(packed)


def split_seed(seed: bytes, threshold: int, receivers: list[int]) -> dict[int, bytes]:
    """Returns one share of a seed for each receiver; `threshold` of them give it back.

    Args:
        seed: 16 secret bytes.
        threshold: How many shares are needed; fewer say nothing about the seed.
        receivers: The clients that get a share.
    """
    # The n-th receiver gets the share at place n, counted from 1: `join_shares` relies on it.
    shares = Shamir.split(threshold, len(receivers), seed, ssss=False)
    return {client: share for client, (_, share) in zip(receivers, shares, strict=True)}


def join_shares(shares: dict[int, bytes], receivers: list[int], threshold: int) -> bytes:
    """Returns the seed that `split_seed` has split.

    Args:
        shares: Shares by the client that received each.
        receivers: All clients that received one, in the order of the split.
        threshold: How many shares are needed.
    """
    places = {client: place for place, client in enumerate(receivers, start=1)}
    # These determine the polynomial; further shares would only take time.
    chosen = sorted(shares)[:threshold]
    return combine_shares({places[client]: shares[client] for client in chosen})


def _make_cipher(
    address: LetterAddress, mine: X25519PrivateKey, theirs: X25519PublicKey
) -> ChaCha20Poly1305:
    """Returns the cipher of one letter, whose key is used for no other."""
    return ChaCha20Poly1305(derive_key(mine.exchange(theirs), address.as_bytes()))
