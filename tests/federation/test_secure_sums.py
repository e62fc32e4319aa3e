"""Training on integers: what is sent, what is summed, and what the server learns of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino import Gaussian, Mean, Poisson, SecureAggregation, resume, train, train_many
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.integer_uploads import (
    WrappedSum,
    noisy_integers,
    open_residues,
    place_on_grid,
    residues_of,
    round_update,
)
from sordino.federation.round import play_training
from sordino.federation.setup import prepare
from sordino.federation.store.upload_archive import kept_rounds, read_round
from sordino.protocol import Data, Grid
from sordino.randomness import Key, Purpose
from tests.support import toy_dataset, toy_protocol

STREAM = Key.from_seed(5).stream(Purpose.UPLOAD_NOISE)
INTEGERS = Gaussian(sigma=0.05, arithmetic="integers")
SUMS = SecureAggregation(threshold=4, colluders=1)
GRID = Grid(scale=1000.0, digits=2, bits=32, contributions=5)


def final_model(run) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in (run.state or {}).values()])


def finish(tmp_path: Path, name: str = "run", **changes: object):
    options = {key: changes.pop(key) for key in ("engine", "keep_uploads") if key in changes}
    return train(
        toy_protocol(**changes),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / name,
        workers=1,
        report=False,
        **options,
    )


@pytest.mark.parametrize("bits", [32, 64])
def test_a_sum_of_residues_opens_as_the_sum_of_updates(bits) -> None:
    grid = replace(GRID, bits=bits)
    updates = np.random.default_rng(0).normal(size=(5, 40)) * 100
    rounded = [round_update(update, grid) for update in updates]
    total = sum((residues_of(one, grid) for one in rounded), start=np.zeros(40, np.uint64))
    opened = open_residues(residues_of(total.astype(np.int64), grid), grid)
    exact = [sum(int(one[place]) for one in rounded) / 1000 for place in range(40)]
    np.testing.assert_array_equal(opened, exact)
    assert np.abs(opened - updates.sum(axis=0)).max() <= 5 * 0.5 / 1000 + 1e-9


@pytest.mark.parametrize("bits", [32, 64])
def test_a_sum_that_wrapped_around_is_noticed(bits) -> None:
    grid = replace(GRID, bits=bits)
    largest = grid.largest_sum
    assert open_residues(residues_of(np.array([largest, -largest]), grid), grid)[0] > 0
    for wrong in (largest + 1, -largest - 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        with pytest.raises(WrappedSum, match="the sum is void"):
            open_residues(residues_of(np.array([0, wrong]), grid), grid)


def test_an_update_that_is_no_number_or_too_long_leaves_room_for_the_others() -> None:
    limit = GRID.largest_coordinate
    sent = round_update(np.array([np.inf, -np.inf, np.nan, 1e30, 0.0014]), GRID)
    assert sent.tolist() == [limit, -limit, 0, limit, 1]


def test_a_model_on_the_grid_tells_the_integers_and_nothing_else() -> None:
    """What leaves a client is a function of the public model and of the integers, and back."""
    start = np.random.default_rng(1).normal(size=50).astype(np.float32)
    steps = noisy_integers(np.linspace(-1, 1, 50), GRID, STREAM)
    sent = place_on_grid(start, steps, GRID)
    np.testing.assert_array_equal(np.rint((sent - start.astype(np.float64)) * GRID.scale), steps)


def test_rows_of_a_table_get_the_noise_of_their_trainings() -> None:
    table = noisy_integers(np.zeros((3, 7)), GRID, STREAM)
    assert len({tuple(row) for row in table.tolist()}) == 3


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("bits", [32, 64])
def test_secure_aggregation_trains_the_model_of_the_direct_channel(tmp_path, engine, bits) -> None:
    noise = replace(INTEGERS, digits=4)
    direct = finish(tmp_path, "direct", noise=noise, engine=engine)
    channel = replace(SUMS, bits=bits)
    summed = finish(tmp_path, "summed", noise=noise, channel=channel, engine=engine)
    np.testing.assert_allclose(final_model(direct), final_model(summed), atol=2e-6)
    assert (tmp_path / "summed" / "protocol.toml").read_text().count("parameters = 21") == 1


def test_the_noise_of_integers_is_as_large_as_that_of_floats(tmp_path) -> None:
    """Two trainings without steps that matter: the models are made of noise alone."""
    quiet = replace(toy_protocol().local, clip=1e-9)
    spreads = []
    for noise in (INTEGERS, replace(INTEGERS, arithmetic="floats")):
        run = finish(tmp_path, noise.arithmetic, noise=noise, local=quiet, clients=2, rounds=60)
        start = finish(
            tmp_path, noise.arithmetic + "0", noise=noise, local=quiet, clients=2, rounds=1
        )
        spreads.append(np.std(final_model(run) - final_model(start)))
    expected = 0.05 * np.sqrt(59 / 2)
    assert all(0.6 * expected < spread < 1.5 * expected for spread in spreads)


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, engine) -> None:
    whole = finish(tmp_path, "whole", channel=SUMS, engine=engine)

    class Stop(Exception):
        pass

    def stop(metrics) -> None:
        if metrics.round == 1:
            raise Stop

    with pytest.raises(Stop):
        train(
            toy_protocol(channel=SUMS),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "cut",
            workers=1,
            on_round=stop,
            engine=engine,
        )
    again = resume(tmp_path / "cut", data=toy_dataset(), model="logistic", workers=1)
    np.testing.assert_array_equal(final_model(whole), final_model(again))


def test_many_trainings_end_with_the_model_of_each_alone(tmp_path) -> None:
    plans = [toy_protocol(channel=SUMS, seed=seed) for seed in (3, 4)]
    together = train_many(plans, data=toy_dataset(), model="logistic", folder=tmp_path / "many")
    for plan, run in zip(plans, together, strict=True):
        alone = train(
            plan, data=toy_dataset(), model="logistic", folder=tmp_path / f"{plan.seed}", workers=1
        )
        np.testing.assert_array_equal(final_model(run), final_model(alone))


def test_the_server_is_given_one_sum_and_who_contributed() -> None:
    setup = prepare(toy_protocol(channel=SUMS), data=toy_dataset(), model="logistic")
    with TorchEngine(setup, workers=1) as engine:
        for record in play_training(setup, engine, 2):
            assert len(record.delivered) == 1
            (delivered,) = record.delivered
            exact = [
                sum(int(one) for one in column) % 2**64
                for column in zip(
                    *(upload.vector.tolist() for upload in record.uploads), strict=True
                )
            ]
            assert delivered.tolist() == exact
            assert record.present.tolist() == [0, 1, 2, 3, 4]


def test_a_sum_of_fewer_than_the_threshold_is_not_opened() -> None:
    plan = toy_protocol(
        channel=replace(SUMS, threshold=3), participation=Poisson(rate=0.6), rounds=12
    )
    setup = prepare(plan, data=toy_dataset(), model="logistic")
    lost = 0
    with TorchEngine(setup, workers=1) as engine:
        for record in play_training(setup, engine, 12):
            enough = len(record.present) >= 3
            assert len(record.delivered) == int(enough)
            same = np.array_equal(record.before.weights, record.after.weights)
            assert same != enough
            lost += not enough
    assert 0 < lost < 12


def test_clients_weigh_their_updates_by_public_sizes_before_they_are_summed() -> None:
    data = Data(name="toy", sizes=(10, 20, 30, 20, 40))
    plan = toy_protocol(
        channel=SUMS, aggregation=Mean(weights="records"), data=data, noise=Gaussian(sigma=1e-9)
    )
    direct = replace(plan, channel="direct", noise=Gaussian(sigma=0.0))
    models = []
    for one in (plan, direct):
        setup = prepare(one, data=toy_dataset(), model="logistic")
        with TorchEngine(setup, workers=1) as engine:
            models.append(list(play_training(setup, engine, 3))[-1].after.weights)
    np.testing.assert_allclose(models[0], models[1], atol=1e-6)


def test_kept_uploads_are_the_sum_and_who_contributed(tmp_path) -> None:
    run = finish(tmp_path, channel=SUMS, keep_uploads=2)
    for round_index in kept_rounds(run.folder):
        kept = read_round(run.folder, round_index)
        assert len(kept.uploads) == 0
        assert kept.total is not None
        assert kept.total.dtype == np.uint64
        assert kept.clients.tolist() == [0, 1, 2, 3, 4]
    after = read_round(run.folder, 2).model
    kept = read_round(run.folder, 0)
    assert not np.array_equal(kept.model, after)
