"""Hides a vector of integers under masks that cancel in a sum, or that shares can remove."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

# Seeds are what is shared: 128 bits are the block of the secret sharing.
SEED_BYTES = 16
KEY_BYTES = 32


def derive_key(secret: bytes, context: bytes) -> bytes:
    """Derives 32 bytes that nobody can guess without the secret (HKDF, RFC 5869).

    Args:
        secret: A seed, or what a key exchange gave.
        context: What the bytes are for; another context gives unrelated bytes.
    """
    # No salt: every secret is fresh, and the context keeps its derived keys apart.
    kdf = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=context)
    return kdf.derive(secret)


def derive_round_key(seed: bytes) -> X25519PrivateKey:
    """Derives the key pair of a round from a seed.

    Args:
        seed: 16 secret bytes, of which shares are handed out.
    """
    # A seed is short enough to be shared in one block, and the key pair follows from it.
    return X25519PrivateKey.from_private_bytes(derive_key(seed, b"sordino mask key"))


def expand_mask(key: bytes, count: int, kind: np.dtype) -> np.ndarray:
    """Returns a uniform vector of residues: a ChaCha20 keystream (RFC 8439) read as integers.

    Args:
        key: 32 bytes, used for one mask only.
        count: The length of the vector.
        kind: uint32 or uint64, whose range is the modulus.
    """
    # The key is fresh for every mask, so that the nonce may be constant.
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    stream = cipher.update(bytes(count * kind.itemsize))
    # Little-endian on every machine, or the two sides of a pair's mask would not cancel.
    return np.frombuffer(stream, dtype=kind.newbyteorder("<")).astype(kind, copy=False)


def expand_own_mask(seed: bytes, count: int, kind: np.dtype) -> np.ndarray:
    """Returns the mask that a client adds for itself alone.

    Args:
        seed: 16 secret bytes, of which shares are handed out.
        count: The length of the vector.
        kind: uint32 or uint64.
    """
    return expand_mask(derive_key(seed, b"sordino own mask"), count, kind)


def expand_pair_mask(
    mine: X25519PrivateKey,
    theirs: X25519PublicKey,
    *,
    context: bytes,
    adds: bool,
    count: int,
    kind: np.dtype,
) -> np.ndarray:
    """Returns the mask of a pair of clients, as one of them adds it.

    Args:
        mine: The round's key of the client that adds the mask.
        theirs: The round's key of the other client.
        context: What both must agree on for the mask to cancel.
        adds: Whether this client is the one that adds; the other one subtracts.
        count: The length of the vector.
        kind: uint32 or uint64.
    """
    # Both clients get the same secret from the exchange, whichever of the two keys is theirs.
    mask = expand_mask(derive_key(mine.exchange(theirs), context), count, kind)
    if adds:
        return mask
    # Residues wrap around: this is the negative modulo the range.
    negative: np.ndarray = (np.zeros(1, kind) - mask).astype(kind, copy=False)
    return negative
