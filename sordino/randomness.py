"""Draws every random number of a run from a ChaCha20 keystream (RFC 8439).

There is no generator state. The address of a draw, (purpose, training, client, round, step), fixes
its position in the keystream, so that a draw is the same in every process, in any order, and after
any interruption. The key comes from the seed or from the operating system. Seeded noise is for
research: an adversary that knows the seed can subtract the noise.

An audit trains thousands of times. So that the draws of many trainings can be made in one call,
`LANES` trainings share a keystream and read it side by side, one row each: training 3 reads the
bytes that follow training 2's draw of the same length. Draws of another length read a keystream
under another key, so rows of different widths never overlap. Training 0, which is every run that
is not an audit, reads a keystream that it shares with no other training.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from sordino.protocol import UserError
from sordino.uniform_words import (
    choose_swaps,
    count_items_in_heads,
    fill_normal_pairs,
    shuffle_columns,
    shuffle_rows,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

# Stored with every run. The number rises when one bit of any draw of a run changes.
GENERATOR = "chacha20-sha256-boxmuller/1"
# Stored with every audit, likewise. Under number 1, rows of different widths shared a keystream.
AUDIT_GENERATOR = "chacha20-sha256-boxmuller/2"

# How many trainings share a keystream.
LANES = 4096
# How many bytes one key and nonce give: RFC 8439 counts blocks of 64 bytes in 32 bits.
KEYSTREAM_BYTES = 64 << 32

# From this number of rows on, shuffling whole columns at once is faster than row by row.
ROWS_FOR_COLUMN_SHUFFLE = 256
# How many words are turned into choices at a time, which bounds the memory.
WORDS_PER_BLOCK = 1 << 20
# How many normals are made at a time. Temporaries that stay in the cache make this twice as fast.
NORMALS_PER_BLOCK = 16384


class Purpose(Enum):
    """What a draw is for. Draws for different purposes never share keystream."""

    PARTITION = "partition"
    INITIAL_MODEL = "initial-model"
    PARTICIPATION = "participation"
    MINIBATCH = "minibatch"
    # Randomness inside a network that torch draws, from a seed.
    LOCAL_MODEL = "local-model"
    # What dropouts drop.
    DROPOUT = "dropout"
    UPLOAD_NOISE = "upload-noise"
    SERVER_NOISE = "server-noise"
    SHUFFLER = "shuffler"
    CONNECTIVITY = "connectivity"
    # Where on the curve of udp-fl, Equation 6, the uploads of a round lie.
    CURVE = "curve"
    # Noise inside the steps of noisy-sgd.
    STEP_NOISE = "step-noise"
    # Noise on counts of examples within a clip.
    COUNT_NOISE = "count-noise"


@dataclass(frozen=True, kw_only=True, repr=False)
class Key:
    """A 256-bit key. It has no readable representation, so that it never ends up in a log.

    Attributes:
        secret: The 32 bytes of the key.

    Example:
        >>> Key.from_seed(7).stream(Purpose.MINIBATCH, client=3).words(2)
        array([ 7691331543683223888, 10268466718324839093], dtype=uint64)
    """

    secret: bytes

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """Returns the key of a research run.

        The seed decides every draw, so noise is private only while the seed is secret.

        Args:
            seed: The seed of the protocol.
        """
        return cls(secret=hashlib.sha256(b"sordino seed %d" % seed).digest())

    @classmethod
    def from_system(cls) -> Key:
        """Returns a fresh key from the operating system's entropy, different on every call."""
        return cls(secret=os.urandom(32))

    def stream(
        self,
        purpose: Purpose,
        *,
        training: int = 0,
        client: int = 0,
        round_index: int = 0,
        step: int = 0,
    ) -> Stream:
        """Returns the keystream at one address.

        Args:
            purpose: What the draw is for.
            training: The number of the training; 0 for every run that is not an audit.
            client: The client that draws; 0 for draws of the server.
            round_index: The round, counted from 0.
            step: The local step, counted from 0.

        Returns:
            The keystream, from its beginning.
        """
        # RFC 8439 has 96 bits of nonce, which client, round and step fill. Purpose and group of
        # trainings therefore choose the key.
        label = f"sordino stream {purpose.value} {training // LANES}".encode()
        subkey = hashlib.sha256(self.secret + label).digest()
        nonce = b"".join(part.to_bytes(4, "little") for part in (client, round_index, step))
        return Stream(subkey=subkey, nonce=nonce, training=training)


@dataclass(frozen=True, kw_only=True, repr=False)
class Stream:
    """One keystream, always read from its beginning: equal calls give equal draws.

    A keystream is read as a table with one row for each training of a group. Methods that take
    `trainings` return the rows of that number of trainings, from this one on, along the leading
    axis.

    Attributes:
        subkey: The key of the purpose and the group of trainings.
        nonce: Client, round and step.
        training: The number of the training.
    """

    subkey: bytes
    nonce: bytes
    training: int = 0

    @property
    def lane(self) -> int:
        """The row of this training in the tables of its group."""
        return self.training % LANES

    def key_of(self, width: int) -> bytes:
        """Returns the key under which this training reads a row, from byte `lane * width` on.

        All rows under one key have the same width, so no two trainings read the same bytes,
        whatever the lengths of their draws are.

        Args:
            width: The length of the row in bytes.

        Returns:
            The key.

        Example:
            >>> first = Key.from_seed(7).stream(Purpose.MINIBATCH, training=1)
            >>> second = Key.from_seed(7).stream(Purpose.MINIBATCH, training=2)
            >>> first.key_of(8) == second.key_of(8), first.key_of(16) == second.key_of(8)
            (True, False)
        """
        if self.training == 0:
            return self.subkey
        return self._table_key(width)

    def read_bytes(self, count: int, trainings: int = 1) -> bytes:
        """Returns bytes of the keystream, from block 0 on.

        Args:
            count: How many bytes each training reads.
            trainings: The number of trainings, from this one on.

        Returns:
            `count * trainings` bytes.

        Raises:
            UserError: The rows would pass the end of the keystream.
        """
        return self._open_rows(count, trainings).read(count * trainings)

    def words(self, count: int, trainings: int = 1) -> np.ndarray:
        """Returns 64-bit words, little-endian.

        Args:
            count: How many words each training reads.
            trainings: The number of trainings, from this one on.

        Returns:
            `count * trainings` words.
        """
        return np.frombuffer(self.read_bytes(8 * count, trainings), dtype="<u8")

    def normals(self, count: int) -> np.ndarray:
        """Returns independent standard normals in float64, a Box-Muller pair from every two words.

        Args:
            count: How many normals.

        Returns:
            A vector of `count` normals.
        """
        row: np.ndarray = self.normal_rows(1, count)[0]
        return row

    def normal_rows(self, trainings: int, count: int) -> np.ndarray:
        """Returns independent standard normals for several trainings.

        Args:
            trainings: The number of trainings, from this one on.
            count: How many normals each training draws.

        Returns:
            A table of shape (trainings, count).
        """
        # Every row begins with a whole pair, so a row of odd length leaves one normal unused.
        width = count + count % 2
        normals = np.empty(trainings * width)
        rows = self._open_rows(8 * width, trainings)
        for start in range(0, len(normals), NORMALS_PER_BLOCK):
            block = normals[start : start + NORMALS_PER_BLOCK].reshape(-1, 2)
            words = np.frombuffer(rows.read(block.nbytes), dtype="<u8").reshape(-1, 2)
            fill_normal_pairs(words, block)
        return normals.reshape(trainings, width)[:, :count]

    def subsets(
        self,
        count: int,
        size: int,
        population: int,
        trainings: int = 1,
    ) -> np.ndarray:
        """Returns independent subsets, each the first places of a Fisher-Yates shuffle.

        Every ordered choice is equally likely, to within 2^-40.

        Args:
            count: How many subsets each training draws.
            size: How many distinct numbers a subset has.
            population: Numbers are drawn from 0 to `population - 1`.
            trainings: The number of trainings, from this one on.

        Returns:
            A table with one subset a row, of shape (count * trainings, size).
        """
        rows = count * trainings
        # Where there is no choice, no keystream is spent.
        if size == population:
            return np.broadcast_to(np.arange(population), (rows, population))
        words = self.words(count * size, trainings).reshape(rows, size)
        swaps = choose_swaps(words, population)
        if rows > ROWS_FOR_COLUMN_SHUFFLE:
            return shuffle_columns(swaps.astype(np.int64), population)
        return shuffle_rows(swaps)

    def count_in_subsets(
        self,
        items: np.ndarray,
        count: int,
        size: int,
        population: int,
        trainings: int = 1,
    ) -> np.ndarray:
        """Returns how many of some items each of the `subsets` has, without storing the subsets.

        Args:
            items: The items that are counted.
            count: How many subsets each training draws.
            size: How many distinct numbers a subset has.
            population: Numbers are drawn from 0 to `population - 1`.
            trainings: The number of trainings, from this one on.

        Returns:
            One number for each subset, in the order of `subsets`.

        Example:
            >>> stream = Key.from_seed(7).stream(Purpose.MINIBATCH)
            >>> counts = stream.count_in_subsets(np.array([2, 5]), 4, 3, 10)
            >>> np.array_equal(counts, np.isin(stream.subsets(4, 3, 10), [2, 5]).sum(axis=1))
            True
        """
        if size == population:
            return np.full(count * trainings, len(items))
        counts = []
        for words in self._word_blocks(count, size, trainings):
            counts.append(count_items_in_heads(choose_swaps(words, population), items))
        return np.concatenate(counts)

    def coins(
        self,
        count: int,
        population: int,
        rate: float,
        trainings: int = 1,
    ) -> np.ndarray:
        """Returns independent coins, each true with probability at most `rate`.

        Args:
            count: How many rows of coins each training draws.
            population: How many coins a row has.
            rate: The probability of a coin, rounded down to a multiple of 2^-64.
            trainings: The number of trainings, from this one on.

        Returns:
            A table of booleans of shape (count * trainings, population).
        """
        if rate >= 1:
            return np.ones((count * trainings, population), dtype=bool)
        limit = np.uint64(int(rate * 2.0**64))
        blocks = [words < limit for words in self._word_blocks(count, population, trainings)]
        return np.concatenate(blocks)

    def draw_seed(self) -> int:
        """Returns a 63-bit seed for a library that has its own generator."""
        return int(self.words(1)[0] >> np.uint64(1))

    def numpy_generator(self) -> np.random.Generator:
        """Returns a numpy generator, for draws that only one engine makes, as the partition."""
        return np.random.Generator(np.random.Philox(key=self.words(2)))

    def _table_key(self, width: int) -> bytes:
        """Returns the key of the table whose rows have `width` bytes."""
        return hashlib.sha256(self.subkey + b"sordino rows of %d bytes" % width).digest()

    def _open_rows(self, width: int, trainings: int) -> KeystreamReader:
        """Returns a reader of the rows of several trainings, from this one on."""
        start = self.lane * width
        if start + trainings * width > KEYSTREAM_BYTES:
            raise UserError(
                "a model this large cannot be trained that many times side by side: "
                "train it one by one"
            )
        pieces = []
        if self.training == 0:
            # The row of training 0 lies in a keystream that no other training reads.
            pieces.append((self.subkey, start, width))
            start += width
            trainings -= 1
        if trainings > 0:
            pieces.append((self._table_key(width), start, trainings * width))
        return KeystreamReader(self.nonce, pieces)

    def _word_blocks(self, count: int, width: int, trainings: int) -> Iterator[np.ndarray]:
        """Yields `count` rows of `width` words for each training, in blocks that fit the memory."""
        keystream = self._open_rows(8 * count * width, trainings)
        rows = count * trainings
        rows_per_block = max(1, WORDS_PER_BLOCK // width)
        for start in range(0, rows, rows_per_block):
            height = min(rows_per_block, rows - start)
            block = keystream.read(8 * height * width)
            yield np.frombuffer(block, dtype="<u8").reshape(height, width)


class KeystreamReader:
    """Reads pieces of keystreams one after another, and remembers how far it has read."""

    def __init__(self, nonce: bytes, pieces: Iterable[tuple[bytes, int, int]]) -> None:
        """Begins before the first piece.

        Args:
            nonce: The nonce of all pieces.
            pieces: The key of each piece, its first byte, and its length.
        """
        self._nonce = nonce
        self._pieces = iter(pieces)
        self._bytes_left = 0
        self._encryptor: CipherContext | None = None

    def read(self, count: int) -> bytes:
        """Returns the next `count` bytes.

        Args:
            count: How many bytes.
        """
        parts = []
        while count > 0:
            if self._encryptor is None or self._bytes_left == 0:
                self._encryptor = self._open_piece(*next(self._pieces))
            length = min(count, self._bytes_left)
            # The keystream is what a stream cipher makes of zeros.
            parts.append(self._encryptor.update(bytes(length)))
            self._bytes_left -= length
            count -= length
        if len(parts) == 1:
            return parts[0]
        return b"".join(parts)

    def _open_piece(self, key: bytes, start: int, length: int) -> CipherContext:
        """Returns a cipher that continues at byte `start` of the keystream of a key."""
        block, bytes_to_skip = divmod(start, 64)
        counter = block.to_bytes(4, "little")
        cipher, algorithm = load_cipher()
        encryptor = cipher(algorithm(key, counter + self._nonce), mode=None).encryptor()
        if bytes_to_skip > 0:
            encryptor.update(bytes(bytes_to_skip))
        self._bytes_left = length
        return encryptor


@cache
def load_cipher() -> tuple[type[Cipher[None]], type[ChaCha20]]:
    """Returns the classes of a stream cipher and of its algorithm."""
    # Slow to load, and whoever asks for a price alone draws nothing. Kept, because an import inside
    # a function that is called for every draw takes as long as a short draw.
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher, ChaCha20
