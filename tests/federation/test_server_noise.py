"""Noise at the server as it is trained: on the mean, before rounding, in empty rounds too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from sordino import FixedSize, Gaussian, Laplace, Mean, Poisson, train
from sordino.federation.server_noise import draw_server_noise
from sordino.federation.setup import prepare
from sordino.federation.upload import upload_type
from tests.support import aggregate, play_table, toy_dataset, toy_protocol, uploads_of


def test_a_fixed_denominator_divides_the_sum_of_updates() -> None:
    current = np.array([1.0, 2.0], np.float32)
    uploads = [np.array([2.0, 2.0]), np.array([1.0, 5.0])]
    rule = Mean(denominator="fixed")
    moved = aggregate(rule, current, uploads, np.ones(2), expected=4.0)
    np.testing.assert_allclose(moved, [1 + 1 / 4, 2 + 3 / 4])
    half = aggregate(
        replace(rule, mixing=0.5),
        current,
        uploads,
        np.ones(2),
        expected=4.0,
        noise=np.array([0.4, 0.0]),
    )
    np.testing.assert_allclose(half, [1 + (1 / 4 + 0.4) / 2, 2 + 3 / 8])
    np.testing.assert_allclose(
        aggregate(rule, current, [], np.ones(0), expected=4.0, noise=np.array([0.25, 0.0])),
        [1.25, 2.0],
    )
    np.testing.assert_array_equal(
        aggregate(Mean(), current, [], np.ones(0), expected=4.0, noise=np.array([0.25, 0.0])),
        current,
    )
    tables = aggregate(
        rule,
        np.zeros((2, 1), np.float32),
        [np.ones((2, 1))],
        np.array([[[1.0], [0.0]]]),
        expected=2.0,
        noise=np.ones((2, 1)),
    )
    np.testing.assert_allclose(tables, [[1.5], [1.0]])


@pytest.mark.parametrize("noise", [Gaussian(sigma=0.3, where="server"), Laplace(scale=0.3, where="server"),
                                   Gaussian(sigma=0.4, server_sigma=0.3, where="both")])  # fmt: skip
def test_the_mean_carries_the_noise_once(noise: object) -> None:
    protocol = toy_protocol(noise=noise, rounds=1)
    setup, quiet = (
        prepare(replace(protocol, noise=one), data=toy_dataset(), model="logistic")
        for one in (protocol.noise, Gaussian(sigma=0.0))
    )
    noisy = next(rounds_of_many_one(setup))
    clean = next(rounds_of_many_one(quiet))
    left = (noisy - clean).ravel()
    expected = draw_server_noise(setup, round_index=0, trainings=range(1))
    assert expected is not None
    if protocol.noise.where == "server":
        np.testing.assert_allclose(left, expected[0], atol=1e-6)
    else:
        client = left - expected[0]
        assert 0.4 / np.sqrt(5) * 0.6 < client.std() < 0.4 / np.sqrt(5) * 1.5
    assert upload_type(protocol) is np.float64


def rounds_of_many_one(setup: object) -> object:
    """The model after each round, as `train` makes it."""
    from sordino.engines.torch_engine import TorchEngine
    from sordino.federation.aggregation.joining import upload_weights

    weights = setup.initial_weights()  # type: ignore[attr-defined]
    with TorchEngine(setup, workers=1) as engine:  # type: ignore[arg-type]
        clients = np.arange(setup.protocol.clients)  # type: ignore[attr-defined]
        vectors = [
            upload.vector
            for upload in uploads_of(engine, round=0, weights=weights, participants=clients)
        ]
        noise = draw_server_noise(setup, round_index=0, trainings=range(1))  # type: ignore[arg-type]
        rule = setup.protocol.aggregation  # type: ignore[attr-defined]
        yield aggregate(
            rule,
            weights,
            vectors,
            upload_weights(rule, setup.sizes),
            noise=None if noise is None else noise[0],
        )  # type: ignore[attr-defined]


def test_an_empty_round_of_a_hidden_draw_releases_noise_all_the_same(tmp_path: Path) -> None:
    noise = Gaussian(sigma=0.5, where="server")
    protocol = toy_protocol(
        noise=noise,
        rounds=30,
        participation=Poisson(rate=0.001),
        aggregation=Mean(denominator="fixed"),
    )
    run = train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path / "run", workers=1)
    assert run.metrics["participants"].sum() == 0
    moved = vector(run.state or {})
    start = vector(prepare(run.protocol, data=toy_dataset(), model="logistic").module.state_dict())
    spread = (moved - start) / (0.5 * np.sqrt(30))
    assert stats.kstest(spread, "norm").pvalue > 1e-4
    visible = train(
        replace(protocol, aggregation=Mean()),
        data=toy_dataset(),
        model="logistic",
        folder=tmp_path / "seen",
        workers=1,
    )
    np.testing.assert_array_equal(vector(visible.state or {}), start)


def vector(state: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([state[name].numpy().ravel() for name in sorted(state)])


@pytest.mark.parametrize("participation", [None, FixedSize(size=2), Poisson(rate=0.5)])
@pytest.mark.parametrize("fixed", [False, True])
def test_many_trainings_side_by_side_see_the_same_noise(participation: object, fixed: bool) -> None:
    from sordino.audit.worst_cases.worst_pair import make_worst_pair
    from sordino.engines.torch_engine import TorchEngine
    from sordino.federation.aggregation.joining import upload_weights
    from sordino.federation.attendance import draw_participants
    from sordino.protocol import View
    from sordino.randomness import Key

    changes = {"participation": participation} if participation is not None else {}
    mean = Mean(denominator="fixed") if fixed else Mean()
    protocol = toy_protocol(
        noise=Gaussian(sigma=0.2, server_sigma=0.1, where="both"),
        rounds=2,
        aggregation=mean,
        **changes,
    )
    setup = make_worst_pair(protocol, View.ROUNDS, "record", key=Key.from_seed(3), rounds=2).zero
    many = list(play_table(setup, range(3)))
    for training in range(3):
        one, weights = replace(setup, training=training), setup.initial_weights()
        with TorchEngine(one, workers=1) as engine:
            for t in range(2):
                chosen = draw_participants(
                    protocol, round_index=t, key=setup.draw_key, training=training
                )
                vectors = [
                    upload.vector
                    for upload in uploads_of(engine, round=t, weights=weights, participants=chosen)
                ]
                noise = draw_server_noise(
                    one, round_index=t, trainings=range(training, training + 1)
                )
                expected = protocol.participation.count_expected(clients=5)
                shares = upload_weights(mean, setup.sizes[chosen])
                weights = aggregate(
                    mean,
                    weights,
                    vectors,
                    shares,
                    expected=expected,
                    noise=noise[0] if noise is not None else None,
                )
        np.testing.assert_allclose(many[-1].after[training], weights, atol=2e-6)
