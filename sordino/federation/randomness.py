"""Every random draw of a run: a ChaCha20 keystream (RFC 8439) addressed by what the draw is for.

There is no generator state. The position of a draw is fixed by (purpose, training, client, round, step), so a draw is the same
whichever process makes it, in whichever order, and after any interruption. The key comes from the seed (research: whoever knows
the seed can subtract the noise) or from the operating system; both run through the code below.

An audit trains thousands of times. So that their draws can be made in one go, `LANES` trainings share a keystream and read it side
by side, one row each: training 3 reads what follows training 2's draw of the same length. Draws of another length have a keystream
of another key, so that rows of different widths never lie across one another. Training 0, which is every run that is no audit, reads
a keystream that it shares with no other.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sordino.protocol import UserError

# Stored with every run; a new number if one bit of any draw of a run changes.
GENERATOR = "chacha20-sha256-boxmuller/1"
# Stored with every audit, likewise; with 1 rows of different widths shared a keystream.
AUDIT_GENERATOR = "chacha20-sha256-boxmuller/2"

LANES = 4096  # trainings that share a keystream
KEYSTREAM = 64 << 32  # bytes under one key and nonce: blocks of 64 are counted in 32 bits


class Purpose(Enum):
    """What a draw is for. Draws for different purposes never share keystream."""

    PARTITION = "partition"
    INITIAL_MODEL = "initial-model"
    PARTICIPATION = "participation"
    MINIBATCH = "minibatch"
    LOCAL_MODEL = "local-model"  # dropout and the like
    UPLOAD_NOISE = "upload-noise"
    SERVER_NOISE = "server-noise"
    SHUFFLER = "shuffler"
    CONNECTIVITY = "connectivity"
    CURVE = "curve"  # where on the curve of udp-fl Eq. 6 a round's uploads lie
    STEP_NOISE = "step-noise"  # noisy-sgd


@dataclass(frozen=True, kw_only=True, repr=False)
class Key:
    """A 256-bit key; its text is never shown.

    Example:
        >>> Key.from_seed(7).stream(Purpose.MINIBATCH, client=3).words(2)
        array([ 7691331543683223888, 10268466718324839093], dtype=uint64)
    """

    secret: bytes

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """The key of a research run. The seed decides every draw, so noise is private only while the seed is secret."""
        return cls(secret=hashlib.sha256(b"sordino seed %d" % seed).digest())

    @classmethod
    def from_system(cls) -> Key:
        """A fresh key from the operating system's entropy, different on every call."""
        return cls(secret=os.urandom(32))

    def stream(
        self, purpose: Purpose, *, training: int = 0, client: int = 0, round: int = 0, step: int = 0
    ) -> Stream:
        """The keystream of one purpose at one place of one training.

        RFC 8439 has 96 bits of nonce: client, round and step fill them. Purpose and group of trainings choose the key instead.
        """
        label = f"sordino stream {purpose.value} {training // LANES}".encode()
        subkey = hashlib.sha256(self.secret + label).digest()
        nonce = b"".join(place.to_bytes(4, "little") for place in (client, round, step))
        return Stream(subkey=subkey, nonce=nonce, training=training)


@dataclass(frozen=True, kw_only=True, repr=False)
class Stream:
    """One keystream, always read from its beginning: equal calls give equal draws.

    What is read is a table with one row per training. Methods that take `trainings` also return the rows that follow, with a leading
    axis.

    Attributes:
        subkey: of the purpose and the group of trainings.
        nonce: client, round and step.
        training: the number of the training, whose place in its group is its row.
    """

    subkey: bytes
    nonce: bytes
    training: int = 0

    @property
    def lane(self) -> int:
        """The row of this training in the tables of its group."""
        return self.training % LANES

    def key_of(self, width: int) -> bytes:
        """Returns the key under which this training reads a row of `width` bytes, from byte `lane` times `width` on.

        Rows of one key are all of one width, so no two trainings read the same bytes, whatever the lengths of their draws are.

        Example:
            >>> first, second = (Key.from_seed(7).stream(Purpose.MINIBATCH, training=n) for n in (1, 2))
            >>> first.key_of(8) == second.key_of(8), first.key_of(16) == second.key_of(8)
            (True, False)
        """
        return self.subkey if self.training == 0 else self._table_key(width)

    def _table_key(self, width: int) -> bytes:
        return hashlib.sha256(self.subkey + b"sordino rows of %d bytes" % width).digest()

    def bytes(self, count: int, trainings: int = 1) -> bytes:
        """`count` bytes for each training, block counter from 0."""
        return self._rows(count, trainings).read(count * trainings)

    def _rows(self, width: int, trainings: int) -> Rows:
        """The rows of so many trainings, from this one on; that of training 0 has a key of its own."""
        start = self.lane * width
        if start + trainings * width > KEYSTREAM:
            raise UserError(
                "a model this large cannot be trained so many times side by side: train it one by one"
            )
        alone = 1 if self.training == 0 else 0
        pieces = [(self.subkey, start, width)] * alone
        if trainings > alone:
            table = self._table_key(width)
            pieces.append((table, start + alone * width, (trainings - alone) * width))
        return Rows(self.nonce, pieces)

    def words(self, count: int, trainings: int = 1) -> np.ndarray:
        """`count` 64-bit words for each training, little-endian."""
        return np.frombuffer(self.bytes(8 * count, trainings), dtype="<u8")

    def normals(self, count: int) -> np.ndarray:
        """Independent standard normals in float64, a Box-Muller pair from every two words."""
        return self.normals_of(1, count)[0]

    def normals_of(self, trainings: int, count: int) -> np.ndarray:
        """The same for several trainings, one a row.

        The radius uses 52 bits, so normals reach 8.5: a uniform of 32 bits would cut the tail at 6.7, which a model of a million
        parameters notices.
        """
        width = count + count % 2
        out = np.empty(trainings * width)
        rows = self._rows(8 * width, trainings)
        for start in range(0, len(out), BLOCK):
            block = out[start : start + BLOCK].reshape(-1, 2)
            words = np.frombuffer(rows.read(block.nbytes), dtype="<u8").reshape(-1, 2)
            fill_normal_pairs(words, block)
        return out.reshape(trainings, width)[:, :count]

    def subset(self, size: int, population: int) -> np.ndarray:
        """`size` distinct numbers below `population`, every ordered choice equally likely (to within 2^-40)."""
        return self.subsets(1, size, population)[0]

    def subsets(self, count: int, size: int, population: int, trainings: int = 1) -> np.ndarray:
        """`count` independent subsets for each training, one a row: the first `size` places of a Fisher-Yates shuffle, kept sparse."""
        rows = count * trainings
        if size == population:
            return np.broadcast_to(np.arange(population), (rows, population))
        places = np.arange(size, dtype=np.uint64)
        spans = np.uint64(population) - places
        swaps = scaled(self.words(count * size, trainings).reshape(rows, size), spans) + places
        return (
            shuffled_heads(swaps.astype(np.int64), population)
            if rows > SPARSE
            else sparse_heads(swaps)
        )

    def held(
        self, items: np.ndarray, count: int, size: int, population: int, trainings: int = 1
    ) -> np.ndarray:
        """How many of some items each of the `subsets` holds: the same draws, without writing the subsets down.

        Example:
            >>> stream = Key.from_seed(7).stream(Purpose.MINIBATCH)
            >>> drawn = stream.subsets(4, 3, 10)
            >>> np.array_equal(stream.held(np.array([2, 5]), 4, 3, 10), np.isin(drawn, [2, 5]).sum(axis=1))
            True
        """
        rows = count * trainings
        if size == population:
            return np.full(rows, len(items))
        places = np.arange(size, dtype=np.uint64)
        spans = np.uint64(population) - places
        found = [
            places_in_heads(scaled(words, spans) + places, items)
            for words in self._word_rows(count, size, trainings)
        ]
        return np.concatenate(found)

    def coins(self, count: int, population: int, rate: float, trainings: int = 1) -> np.ndarray:
        """`count` rows of independent choices for each training, one for each of a population, true with probability at most `rate`."""
        if rate >= 1:
            return np.ones((count * trainings, population), dtype=bool)
        limit = np.uint64(int(rate * 2.0**64))
        return np.concatenate(
            [words < limit for words in self._word_rows(count, population, trainings)]
        )

    def _word_rows(self, count: int, width: int, trainings: int) -> Iterator[np.ndarray]:
        """`count` rows of words for each training, all below one another, in blocks that fit the memory."""
        keystream = self._rows(8 * count * width, trainings)
        rows = count * trainings
        most = max(1, WORDS // width)
        for start in range(0, rows, most):
            held = min(most, rows - start)
            yield np.frombuffer(keystream.read(8 * held * width), dtype="<u8").reshape(held, width)

    def seed(self) -> int:
        """A 63-bit seed for a library that keeps a generator of its own."""
        return int(self.words(1)[0] >> np.uint64(1))

    def numpy(self) -> np.random.Generator:
        """A numpy generator for what has no need to be the same in every engine, such as the partition of data."""
        return np.random.Generator(np.random.Philox(key=self.words(2)))


class Rows:
    """Reads pieces of keystreams one after another. It holds how far it has read.

    Args:
        nonce: of all of them.
        pieces: the key of each, its first byte and its length.
    """

    def __init__(self, nonce: bytes, pieces: Iterable[tuple[bytes, int, int]]) -> None:
        self._nonce = nonce
        self._waiting = iter(pieces)
        self._left = 0
        self._encryptor: CipherContext | None = None

    def read(self, count: int) -> bytes:
        """The next `count` bytes."""
        found = []
        while count > 0:
            if self._encryptor is None or self._left == 0:
                self._encryptor = self._begin(*next(self._waiting))
            length = min(count, self._left)
            found.append(self._encryptor.update(bytes(length)))
            self._left -= length
            count -= length
        return found[0] if len(found) == 1 else b"".join(found)

    def _begin(self, key: bytes, start: int, length: int) -> CipherContext:
        block, skip = divmod(start, 64)
        place = block.to_bytes(4, "little") + self._nonce
        encryptor = Cipher(ChaCha20(key, place), mode=None).encryptor()
        encryptor.update(bytes(skip))
        self._left = length
        return encryptor


SPARSE = 256  # rows above which whole columns are shuffled at once
WORDS = 1 << 20  # words that are turned into choices at a time


def sparse_heads(swaps: np.ndarray) -> np.ndarray:
    """The first places of a shuffle, row by row, given which place each is exchanged with; costs as much as there are swaps."""
    chosen = np.empty(swaps.shape, dtype=np.int64)
    for row, targets in enumerate(swaps.tolist()):
        moved: dict[int, int] = {}
        for place, target in enumerate(targets):
            chosen[row, place] = moved.get(target, target)
            moved[target] = moved.get(place, place)
    return chosen


def shuffled_heads(swaps: np.ndarray, population: int) -> np.ndarray:
    """The same for many rows at once.

    Example:
        >>> swaps = np.array([[2, 1], [0, 2]])
        >>> shuffled_heads(swaps, 3).tolist() == sparse_heads(swaps).tolist()
        True
    """
    rows = np.arange(len(swaps))
    table = np.broadcast_to(np.arange(population), (len(swaps), population)).copy()
    for place in range(swaps.shape[1]):
        target = swaps[:, place]
        table[rows, target], table[rows, place] = table[rows, place], table[rows, target]
    return table[:, : swaps.shape[1]]


def places_in_heads(swaps: np.ndarray, items: np.ndarray) -> np.ndarray:
    """How many of some items end among the first places of each row's shuffle, by following each item alone.

    Example:
        >>> swaps = np.array([[2, 1], [0, 2]])
        >>> places_in_heads(swaps, np.array([1, 2])).tolist() == np.isin(sparse_heads(swaps), [1, 2]).sum(axis=1).tolist()
        True
    """
    found = np.zeros(len(swaps), dtype=np.int64)
    columns = np.ascontiguousarray(swaps.T.astype(np.int64))
    for item in items.tolist():
        at = np.full(len(swaps), item)
        for place, target in enumerate(columns):
            at = np.where(target == at, place, np.where(at == place, target, at))
        found += at < len(columns)
    return found


def scaled(words: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """floor(word * span / 2^64): uniform below `span` (Lemire 2019), exact in 64-bit halves for spans below 2^32."""
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    return np.asarray((high * spans + ((low * spans) >> np.uint64(32))) >> np.uint64(32))


BLOCK = 16384  # normals made at a time: temporaries that stay in the cache make this twice as fast


def fill_normal_pairs(words: np.ndarray, out: np.ndarray) -> None:
    """Box and Muller: a pair of words to a pair of normals, row by row."""
    radius = np.sqrt(-2.0 * np.log(unit_interval(words[:, 0])))
    cosine = -sine_half_turn(unit_interval(words[:, 1]) - 0.5)
    sine = np.sqrt(np.maximum(1.0 - cosine * cosine, 0.0))
    np.multiply(radius, cosine, out=out[:, 0])
    np.multiply(radius, np.where(words[:, 1] & np.uint64(1), -sine, sine), out=out[:, 1])


def unit_interval(words: np.ndarray) -> np.ndarray:
    """The upper 52 bits of each word as the midpoint (k + 1/2) / 2^52, never 0 or 1; exact, by filling in the bits of a float64."""
    return ((words >> np.uint64(12)) | np.uint64(0x3FF0000000000000)).view(np.float64) - (
        1.0 - 2.0**-53
    )


# Taylor coefficients of sin(pi y) / y in y^2; on |y| <= 1/2 the next one is below 3e-16. A polynomial of our own, and not numpy's
# sine, so that a compiled kernel can repeat it to the last digit that matters; it is also four times faster.
SINE = tuple((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(10))


def sine_half_turn(turns: np.ndarray) -> np.ndarray:
    """sin(pi y) for |y| <= 1/2."""
    square = turns * turns
    total = np.full_like(turns, SINE[-1])
    for coefficient in SINE[-2::-1]:
        total *= square
        total += coefficient
    return total * turns
