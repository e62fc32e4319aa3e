"""Which upload is whose: expected updates are those that clients make, assignments are the best, and noise hides the sender."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sordino import Constant, Data, FedAvg, Gaussian, Iid, Poisson, UserError, train
from sordino.attacks.clients import (
    RIDGE,
    ClientAttack,
    match_updates,
    simulate_update,
    weigh_by_class,
)
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from sordino.cli.main import run as command
from sordino.protocol import Dirichlet
from tests.support import toy_dataset, toy_protocol

DATA = toy_dataset(records=200)
SPARE = Data(name="toy", partition=Iid(), records=20)
PLAN = ClientAttack(rounds=3, targets=4, records=100, own=50)


def referee_of(folder, **changes) -> Referee:
    protocol = toy_protocol(**{"data": SPARE, "noise": Gaussian(sigma=0.0), **changes})
    return Referee(
        train(protocol, data=DATA, model="mlp", folder=folder, keep_uploads=1, report=False),
        data=DATA,
        model="mlp",
    )


@pytest.mark.parametrize("channel", ["direct", "shuffler"])
def test_whole_batches_make_the_update_that_is_expected_of_them(tmp_path, channel) -> None:
    """With every record in every step and no noise, the upload is the expected one, whoever sent it and wherever it stands."""
    rule = FedAvg(steps=3, batch=20, clip=0.5, schedule=Constant(rate=0.3))  # the clip binds
    for case in PLAN.cases(referee_of(tmp_path, local=rule, channel=channel)):
        seen, true = case.observe(), case.reveal()
        for target, place in zip(seen.targets, true.places, strict=True):
            made = simulate_update(seen, target, torch.full((20,), 1 / 20))
            np.testing.assert_allclose(seen.model + made, seen.uploads[place], atol=2e-6)
        assert (true.uploads, len(set(true.places.tolist()))) == (5, 4)


def test_the_order_of_uploads_is_another_in_every_round(tmp_path) -> None:
    orders = [
        tuple(case.reveal().places)
        for case in replace(PLAN, rounds=4, targets=5).cases(referee_of(tmp_path))
    ]
    assert len(set(orders)) > 2


def test_the_assignment_is_the_best_of_all() -> None:
    generator = np.random.default_rng(0)
    updates, expected = generator.normal(size=(6, 4)), generator.normal(size=(3, 4))
    lengths = [np.sqrt((vectors**2).sum(axis=1, keepdims=True)) for vectors in (updates, expected)]
    fitted = (
        Ridge(alpha=RIDGE, fit_intercept=False)
        .fit((updates / lengths[0]).T, (expected / lengths[1]).T)
        .coef_
    )
    best = max(
        permutations(range(6), 3),
        key=lambda places: sum(fitted[n, place] for n, place in enumerate(places)),
    )
    assert match_updates(updates, expected).tolist() == list(best)


def test_a_class_that_the_attacker_lacks_weighs_nothing() -> None:
    assert weigh_by_class(torch.tensor([0, 0]), torch.tensor([0, 1]), 2).tolist() == [0.25, 0.25]


@pytest.mark.slow
def test_clients_are_found_without_noise_and_hidden_by_strong_noise(trained) -> None:
    """20 clients with MNIST digits in unequal shares. Margins without noise: 0.7 by their records and 0.3 by their classes, where guessing
    gets 0.05; under sigma = 5 at most 0.2 of 30 guesses, which luck exceeds once in 800 times.
    """
    settings = {"clients": 20, "dealt": Dirichlet(beta=0.1), "batch": 16, "rounds": 10}
    clear, noisy = (
        attack(trained("mnist", sigma=sigma, **settings), "clients") for sigma in (0.0, 5.0)
    )
    for rows, method, fits in (
        (clear.rows, "knows their records", lambda value: value > 0.7),
        (clear.rows, "knows their shares of classes", lambda value: value > 0.3),
        (noisy.rows, "knows their records", lambda value: value <= 0.2),
        (noisy.rows, "knows their shares of classes", lambda value: value <= 0.2),
    ):
        values = [row.value for row in rows if row.method == method]
        assert len(values) == 3
        assert fits(np.mean(values)), (method, values)
    assert {row.baseline for row in clear.rows} == {0.05}


def test_a_round_that_nobody_shares_is_not_attacked(tmp_path) -> None:
    with pytest.raises(UserError, match="uploads of two clients"):
        PLAN.cases(referee_of(tmp_path, participation=Poisson(rate=0.01)))


def test_a_run_without_uploads_gets_exit_code_2(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        command(
            [
                "train",
                "--set",
                "federation.rounds=1",
                "--set",
                "federation.clients=5",
                "--out",
                "run",
            ]
        )
        == 0
    )
    assert command(["attack", "run", "clients"]) == 2
    assert "--keep-uploads" in capfd.readouterr().err.replace("\n", " ")
