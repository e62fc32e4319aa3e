"""The generator: known answers of RFC 8439, laws of the draws, independence of streams."""

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sordino.randomness import LANES, Key, Purpose, Stream
from sordino.uniform_words import scale_words, sine_half_turn, unit_interval

# RFC 8439, appendix A.1, test vector 1: all-zero key and nonce, block counter 0; and section 2.3.2 has counter 1.
RFC_ZERO_BLOCK = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK_1 = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


def plain_chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """The block function of RFC 8439, section 2.3, word by word."""
    words = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    words += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)] + [counter]
    words += [int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4)]
    x = list(words)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) % 2**32
            mixed = x[r] ^ x[p]
            x[r] = (mixed << turn | mixed >> (32 - turn)) % 2**32

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return b"".join(((a + b) % 2**32).to_bytes(4, "little") for a, b in zip(x, words, strict=True))


def test_the_keystream_gives_the_known_answers_of_the_rfc() -> None:
    assert Stream(subkey=bytes(32), nonce=bytes(12)).read_bytes(64) == RFC_ZERO_BLOCK
    stream = Stream(subkey=bytes(range(32)), nonce=RFC_NONCE)
    assert stream.read_bytes(128)[64:] == RFC_BLOCK_1
    assert stream.read_bytes(64) == plain_chacha_block(bytes(range(32)), 0, RFC_NONCE)


def test_the_place_of_a_draw_is_in_the_nonce_as_documented() -> None:
    stream = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE, client=3, round_index=258, step=1)
    assert stream.nonce == bytes.fromhex("030000000201000001000000")
    assert stream.read_bytes(64) == plain_chacha_block(stream.subkey, 0, stream.nonce)


def test_no_two_places_share_keystream() -> None:
    key = Key.from_seed(1)
    places = itertools.product(Purpose, range(2), range(2), range(2), range(2))
    seen = [
        key.stream(p, training=n, client=c, round_index=r, step=s).read_bytes(16)
        for p, n, c, r, s in places
    ]
    assert len(set(seen)) == len(seen)
    assert Key.from_seed(2).stream(Purpose.MINIBATCH).read_bytes(16) not in seen


def test_trainings_whose_draws_differ_in_length_share_no_keystream() -> None:
    key = Key.from_seed(1)
    for numbers in (range(7), range(5 * LANES, 5 * LANES + 7)):
        streams = [key.stream(Purpose.MINIBATCH, training=number) for number in numbers]
        drawn = [stream.words(length) for stream, length in zip(streams, range(1, 8), strict=True)]
        drawn += [
            stream.words(length) for stream, length in zip(streams, range(60, 0, -9), strict=True)
        ]
        seen = np.concatenate([np.unique(row) for row in drawn[7:]])
        assert len(np.unique(seen)) == len(seen)
        assert not any(
            np.isin(drawn[n], drawn[7 + m]).any() for n in range(7) for m in range(7) if n != m
        )


def test_the_key_of_a_row_is_hashed_from_its_width() -> None:
    streams = [Key.from_seed(7).stream(Purpose.CURVE, training=n) for n in (0, 3, LANES)]
    first, later, other = (
        hashlib.sha256(hashlib.sha256(b"sordino seed 7").digest() + label).digest()
        for label in (
            b"sordino stream curve 0",
            b"sordino stream curve 0",
            b"sordino stream curve 1",
        )
    )
    rows = b"sordino rows of 24 bytes"
    assert [stream.key_of(24) for stream in streams] == [
        first,
        hashlib.sha256(later + rows).digest(),
        hashlib.sha256(other + rows).digest(),
    ]
    alone = plain_chacha_block(streams[1].key_of(24), 1, bytes(12))
    assert streams[1].read_bytes(24) == alone[8:32]  # bytes 72 to 96


def test_a_run_that_is_no_audit_keeps_its_draws() -> None:
    words = Key.from_seed(7).stream(Purpose.MINIBATCH, client=3).words(2)
    assert words.tolist() == [7691331543683223888, 10268466718324839093]
    stream = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE)
    assert np.array_equal(stream.words(5), stream.words(9)[:5])
    assert stream.read_bytes(64) == plain_chacha_block(stream.subkey, 0, bytes(12))


def test_seeds_repeat_and_the_system_key_never_does() -> None:
    assert Key.from_seed(5) == Key.from_seed(5)
    assert Key.from_system() != Key.from_system()
    assert "secret" not in repr(Key.from_seed(5))


def scale_rejected(draws: np.ndarray, scale: float) -> bool:
    return stats.kstest(draws / scale, "norm").pvalue < 1e-6


def test_normals_are_normal_at_their_scale_and_at_no_other() -> None:
    draws = Key.from_seed(11).stream(Purpose.UPLOAD_NOISE).normals(200_001)
    assert not scale_rejected(draws, 1.0)
    assert scale_rejected(draws, 2 / 3)
    assert scale_rejected(draws, 3 / 2)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5 / math.sqrt(len(draws))
    assert abs(np.corrcoef(draws[:-1:2] ** 2, draws[1::2] ** 2)[0, 1]) < 7 / math.sqrt(
        len(draws) / 2
    )
    assert stats.kurtosistest(draws).pvalue > 1e-6


def test_the_tail_of_the_normals_is_there() -> None:
    draws = Key.from_seed(12).stream(Purpose.UPLOAD_NOISE).normals(4_000_000)
    for limit in (3.0, 4.0):
        expected = 2 * stats.norm.sf(limit) * len(draws)
        assert abs((np.abs(draws) > limit).sum() - expected) < 6 * math.sqrt(expected)


def test_normals_are_box_muller_of_the_words_by_another_route() -> None:
    stream = Key.from_seed(3).stream(Purpose.UPLOAD_NOISE)
    words = stream.words(1000).tolist()
    for i, pair in enumerate(stream.normals(1000).reshape(-1, 2)):
        radius = math.sqrt(-2 * math.log(((words[2 * i] >> 12) + 0.5) / 2**52))
        angle = (
            math.pi * ((words[2 * i + 1] >> 12) + 0.5) / 2**52 * (-1 if words[2 * i + 1] & 1 else 1)
        )
        assert pair == pytest.approx([radius * math.cos(angle), radius * math.sin(angle)], abs=1e-9)


def test_normals_of_any_length_begin_alike() -> None:
    stream = Key.from_seed(3).stream(Purpose.UPLOAD_NOISE)
    long = stream.normals(40_000)
    for count in (0, 1, 2, 7, 16_384, 16_385, 39_999):
        assert np.array_equal(stream.normals(count), long[:count])


def test_extreme_words_give_finite_normals() -> None:
    extremes = unit_interval(np.array([0, 2**64 - 1, 2**63], dtype=np.uint64))
    assert (extremes > 0).all()
    assert (extremes < 1).all()
    assert math.sqrt(-2 * math.log(extremes[0])) > 8.5
    assert sine_half_turn(np.array([-0.5, 0.0, 0.5])) == pytest.approx([-1, 0, 1], abs=1e-15)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_subsets_are_distinct_and_in_range(size: int, more: int, client: int, count: int) -> None:
    population = size + more
    rows = (
        Key.from_seed(1).stream(Purpose.MINIBATCH, client=client).subsets(count, size, population)
    )
    assert rows.shape == (count, size)
    for row in rows:
        assert len(set(row.tolist())) == size
        assert row.min() >= 0
        assert row.max() < population


def test_every_ordered_subset_is_equally_likely() -> None:
    draws = Key.from_seed(4).stream(Purpose.MINIBATCH).subsets(60_000, 3, 5)
    counts = Counter(map(tuple, draws.tolist()))
    assert len(counts) == 60
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1))
def test_scaled_is_the_exact_product_shifted(word: int, span: int) -> None:
    assert int(scale_words(np.uint64(word)[None], np.uint64(span)[None])[0]) == word * span >> 64
