"""A canary's file either holds one record that the data set can hold, or is refused in words."""

from pathlib import Path

import numpy as np
import pytest

from sordino.audit.canaries.canary_records import read_record
from sordino.federation.setup import Setup, prepare
from sordino.protocol import Constant, FedAvg, Gaussian, Protocol, UserError

RULE = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
PLAN = Protocol(clients=3, rounds=2, local=RULE, noise=Gaussian(sigma=0.5))
SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def digits() -> Setup:
    return prepare(PLAN, data="digits", model="logistic")


def test_a_record_that_fits_is_read_as_it_is(digits, tmp_path) -> None:
    pixels = np.arange(64.0).reshape(SHAPE)
    np.savez(tmp_path / "mine.npz", x=pixels, y=[3])
    x, y = read_record(tmp_path / "mine.npz", digits)
    assert np.array_equal(x.numpy(), pixels)
    assert x.dtype == digits.train.x.dtype
    assert int(y) == 3


@pytest.mark.parametrize("damage", ["empty", "cut", "compressed"])
def test_a_damaged_file_is_refused_in_words(damage, digits, tmp_path) -> None:
    path: Path = tmp_path / "mine.npz"
    np.savez_compressed(path, x=np.random.default_rng(1).integers(0, 16, SHAPE), y=3)
    whole = path.read_bytes()
    broken = {
        "empty": b"",
        "cut": whole[:100],
        "compressed": whole[:60] + whole[50:60] + whole[70:],
    }
    path.write_bytes(broken[damage])
    with pytest.raises(UserError, match="is not a canary"):
        read_record(path, digits)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(SHAPE), "seven", "is not a canary"),
        (np.zeros(SHAPE), [1, 2], "is not a canary"),
        (np.zeros(SHAPE), 1.5, "a class, a whole number from 0 to 9"),
        (np.zeros(SHAPE), 10, "a class, a whole number from 0 to 9"),
        (np.zeros(SHAPE), np.nan, "y = nan"),
        (np.zeros(64), 1, r"shape \(64,\): expected finite numbers of shape \(1, 8, 8\)"),
        (np.full(SHAPE, np.inf), 1, "finite"),
        # Bytes would make 0 of the first, and 44 of the second.
        (np.full(SHAPE, 0.7), 1, "whole numbers that fit uint8"),
        (np.full(SHAPE, 300), 1, "whole numbers that fit uint8"),
    ],
)
def test_a_record_that_the_data_set_cannot_hold_is_refused(x, y, message, digits, tmp_path) -> None:
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    with pytest.raises(UserError, match=message):
        read_record(tmp_path / "mine.npz", digits)
