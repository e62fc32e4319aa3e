"""The kernel rounds updates to a grid and adds discrete noise, with the bits of numpy's sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sordino import FedAvg, Gaussian, Mean, SecureAggregation
from sordino.federation.client import ClientWork
from sordino.federation.integer_uploads import residues_of
from sordino.federation.setup import Setup, prepare
from sordino.mechanisms.discrete_gaussian import draw_integers
from sordino.native import step_rules
from sordino.native.library import list_runnable
from sordino.native.native_engine import NativeEngine
from sordino.native.network_builder import KernelRefusal
from sordino.native.step_rules import Output, choose_output, derive_keys, plan_draws
from sordino.protocol import Constant, Data
from sordino.randomness import KEYSTREAM_BYTES, Purpose
from tests.support import toy_dataset, toy_protocol

pytestmark = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")

each_library = pytest.mark.parametrize("simd", list_runnable())
INTEGERS = Gaussian(sigma=0.05, arithmetic="integers")
# So short that no step leaves a grid point: what is sent is the noise.
STILL = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=1e-30))


def set_up(**changes: object) -> Setup:
    return prepare(toy_protocol(noise=INTEGERS, **changes), data=toy_dataset(), model="logistic")


def draw_noise(setup: Setup, client: int, round_index: int) -> np.ndarray:
    stream = setup.noise_key.stream(
        Purpose.UPLOAD_NOISE, training=setup.training, client=client, round_index=round_index
    )
    count = setup.initial_weights().size
    return draw_integers(stream, 1, count, setup.grid.digits)[0]


def upload_of(setup: Setup, client: int, round_index: int = 2) -> np.ndarray:
    engine = NativeEngine(setup, workers=1)
    start = setup.initial_weights()
    return engine.upload(client=client, round_index=round_index, weights=start).vector


@each_library
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("digits", [1, 2, 4])
@pytest.mark.parametrize("training", [0, 1, 77])
def test_what_a_client_adds_is_what_numpy_draws(monkeypatch, simd, bits, digits, training) -> None:
    """Rows of trainings that share a keystream begin anywhere in a block."""
    monkeypatch.setenv("SORDINO_SIMD", simd)
    sums = SecureAggregation(threshold=4, colluders=1, bits=bits)
    noise = replace(INTEGERS, digits=digits, sigma=5.0 if digits == 1 else 0.5)
    setup = prepare(
        toy_protocol(noise=noise, local=STILL, channel=sums), data=toy_dataset(), model="logistic"
    )
    setup = replace(setup, training=training)
    assert choose_output(setup) is Output.INTEGERS
    assert setup.grid.digits == digits
    for client in (0, 3):
        expected = residues_of(draw_noise(setup, client, 2), setup.grid)
        np.testing.assert_array_equal(upload_of(setup, client), expected)


@each_library
@pytest.mark.parametrize("features", [239, 240, 319, 700])
def test_long_updates_have_the_noise_of_numpy_in_every_piece(monkeypatch, simd, features) -> None:
    """The kernel draws 960 coordinates at a time: with 4 (features + 1) fewer, as many, more, and several such."""
    monkeypatch.setenv("SORDINO_SIMD", simd)
    sums = SecureAggregation(threshold=4, colluders=1)
    data = toy_dataset(features=features, classes=4)
    noise = replace(INTEGERS, digits=5)
    protocol = toy_protocol(noise=noise, local=STILL, channel=sums)
    setup = prepare(protocol, data=data, model="logistic")
    setup = replace(setup, training=77)
    assert choose_output(setup) is Output.INTEGERS
    for client in (0, 3):
        expected = residues_of(draw_noise(setup, client, 2), setup.grid)
        np.testing.assert_array_equal(upload_of(setup, client), expected)


@each_library
def test_updates_are_rounded_as_in_numpy(monkeypatch, simd) -> None:
    """Both engines compute in another order: an update may lie a step of the grid aside."""
    monkeypatch.setenv("SORDINO_SIMD", simd)
    setup = set_up(channel=SecureAggregation(threshold=4, colluders=1))
    start = setup.initial_weights()
    for client in range(3):
        theirs = ClientWork(setup).upload(client=client, round_index=1, weights=start).vector
        ours = upload_of(setup, client, 1)
        apart = (ours - theirs).view(np.int64) / setup.grid.scale
        moved = (theirs.view(np.int64) - draw_noise(setup, client, 1)) / setup.grid.scale
        assert np.abs(apart).max() < 1e-6
        assert np.abs(moved).max() > 1e-3


def test_updates_are_weighed_by_public_sizes() -> None:
    sizes = (30, 15, 15, 30, 30)
    shared = {"channel": SecureAggregation(threshold=4, colluders=1), "clients": 5}
    data = Data(name="toy", sizes=sizes)
    weighed = set_up(aggregation=Mean(weights="records"), data=data, **shared)
    plain = set_up(data=data, **shared)
    assert weighed.sum_weights.tolist() == [1.0, 0.5, 0.5, 1.0, 1.0]
    for client, weight in ((0, 1.0), (1, 0.5)):
        whole = upload_of(plain, client).view(np.int64) - draw_noise(plain, client, 2)
        share = upload_of(weighed, client).view(np.int64) - draw_noise(weighed, client, 2)
        scale = weighed.grid.scale / plain.grid.scale
        np.testing.assert_allclose(share, weight * scale * whole, atol=1.01)


def test_uploads_that_are_sent_one_by_one_lie_on_the_grid_with_the_same_noise() -> None:
    setup = set_up(local=STILL)
    start = setup.initial_weights().astype(np.float64)
    expected = start + draw_noise(setup, 1, 2) / setup.grid.scale
    np.testing.assert_array_equal(upload_of(setup, 1), expected)


@pytest.mark.parametrize("digits", [2, 4])
def test_a_whole_update_is_clipped_before_it_is_rounded(digits: int) -> None:
    """The kernel does not clip it, so that it must not round it either."""
    local = replace(STILL, schedule=Constant(rate=50.0), clip_target="update", clip=0.1)
    noise = replace(INTEGERS, digits=digits)
    sums = SecureAggregation(threshold=4, colluders=1)
    setup = prepare(
        toy_protocol(noise=noise, local=local, channel=sums), data=toy_dataset(), model="logistic"
    )
    assert choose_output(setup) is Output.MODEL
    sent = upload_of(setup, 1).view(np.int64) - draw_noise(setup, 1, 2)
    assert np.linalg.norm(sent / setup.grid.scale) == pytest.approx(0.1, rel=1e-3)


def test_noise_for_which_no_keystream_is_long_enough_is_left_to_torch() -> None:
    """The kernel counts blocks in 32 bits: beyond, a row would repeat another one's noise."""
    setup = set_up(channel=SecureAggregation(threshold=4, colluders=1))
    plan = plan_draws(setup)
    assert plan is not None
    huge = replace(plan, count=KEYSTREAM_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_rules, "plan_draws", lambda setup: huge)
        with pytest.raises(KernelRefusal, match="keystream is too short"):
            derive_keys(setup)
