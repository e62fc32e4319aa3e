"""The kernel's draws: known answers, and those of the Python generator."""

import numpy as np
import pytest

from sordino.mechanisms import mechanism_of
from sordino.native.layout import NoiseLaw
from sordino.native.library import list_runnable
from sordino.protocol import Laplace, Staircase
from sordino.randomness import Key, Purpose
from tests.oracles import kernel_draws

pytestmark = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")

each_library = pytest.mark.parametrize("simd", list_runnable())
STREAM = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE, client=3, round_index=2, step=9)


@each_library
def test_the_keystream_has_the_known_answers_of_rfc_8439(simd: str) -> None:
    # Section 2.3.2: key 00 01 02 ..., block counter 1.
    words = kernel_draws.read_keystream(
        simd, bytes(range(32)), bytes.fromhex("000000090000004a00000000"), 32
    )[16:]
    answer = "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3 466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de"
    assert [f"{word:08x}" for word in words] == [*answer.split(), "e883d0cb", "4e3c50a2"]
    # Appendix A.1, first vector: all zero, block counter 0.
    words = kernel_draws.read_keystream(simd, bytes(32), bytes(12), 16)
    answer = "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b 7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815"
    assert [f"{word:08x}" for word in words] == [*answer.split(), "69b687c3", "8665eeb2"]


@each_library
def test_the_keystream_is_that_of_python_to_the_last_bit(simd: str) -> None:
    for count in (1, 2, 15, 16, 17, 255, 256, 257, 10_000):
        ours = kernel_draws.read_keystream(simd, STREAM.subkey, STREAM.nonce, 2 * count)
        assert np.array_equal(ours.view("<u8"), STREAM.words(count))


@each_library
def test_normals_are_those_of_python(simd: str) -> None:
    for count in (1, 7, 8, 9, 127, 128, 129, 100_001):
        ours, theirs = (
            kernel_draws.draw_noise(simd, STREAM.subkey, STREAM.nonce, count),
            STREAM.normals(count),
        )
        assert np.abs(ours - theirs).max() < 1e-9
        assert np.array_equal(ours.astype(np.float32), theirs.astype(np.float32)) or count > 1000
    same = ours.astype(np.float32) == theirs.astype(np.float32)
    assert same.mean() > 0.9999


LAWS = {
    "laplace": Laplace(scale=1.0),
    "staircase": Staircase(step=0.7, width=1.0),
    "steep staircase": Staircase(step=40.0, width=1.0, nu=0.2),
    "staircase without a lower stair": Staircase(step=2.0, width=1.0, nu=1.0),
}


def draw_natively(simd: str, noise: Laplace | Staircase, key: bytes, count: int, first: int = 0):
    shape: dict[str, object] = {"law": NoiseLaw.LAPLACE}
    if type(noise) is Staircase:
        shape = {"law": NoiseLaw.STAIRCASE, "fall": noise.step, "place": noise.falls_at}
    return kernel_draws.draw_noise(simd, key, STREAM.nonce, count, first=first, **shape)


@each_library
@pytest.mark.parametrize("noise", LAWS.values(), ids=LAWS.keys())
def test_noise_of_other_laws_is_that_of_python(simd: str, noise: Laplace | Staircase) -> None:
    for count in (1, 3, 4, 5, 31, 64, 65, 100_001):
        ours = draw_natively(simd, noise, STREAM.subkey, count)
        theirs = mechanism_of(noise).draw(STREAM, 1, count)[0]
        assert np.allclose(ours, theirs, rtol=1e-13, atol=1e-15)
    # A row of another training begins inside a block.
    other = Key.from_seed(7).stream(
        Purpose.UPLOAD_NOISE, training=4096 + 77, client=3, round_index=2, step=9
    )
    words = 1 if type(noise) is Laplace else 2
    for count in (1, 13, 1000):
        key = other.key_of(8 * words * count)
        ours = draw_natively(simd, noise, key, count, first=77 * count)
        theirs = mechanism_of(noise).draw(other, 1, count)[0]
        assert np.allclose(ours, theirs, rtol=1e-13, atol=1e-15)


@each_library
def test_draws_begin_anywhere_in_the_keystream(simd: str) -> None:
    stream = Key.from_seed(7).stream(Purpose.UPLOAD_NOISE, training=4096 + 77, client=3)
    for count in (1, 8, 13, 1000):
        first = 77 * (count + count % 2)
        key = stream.key_of(8 * (count + count % 2))
        ours = kernel_draws.draw_noise(simd, key, stream.nonce, count, first=first)
        assert np.abs(ours - stream.normals(count)).max() < 1e-9
        key = stream.key_of(8 * count)
        words = kernel_draws.read_keystream(
            simd, key, stream.nonce, 2 * count, first=2 * 77 * count
        )
        assert np.array_equal(words.view("<u8"), stream.words(count))


@each_library
def test_subsets_are_those_of_python(simd: str) -> None:
    for count, size, population in (
        (5, 32, 256),
        (1, 1, 1),
        (3, 7, 7),
        (40, 5, 6),
        (2, 1, 100_000),
        (3, 999, 1000),
    ):
        ours = kernel_draws.draw_subsets(simd, STREAM.subkey, STREAM.nonce, count, size, population)
        assert np.array_equal(ours, STREAM.subsets(count, size, population))
