"""Behind secure aggregation attacks on uploads are given sums."""

from __future__ import annotations

import numpy as np
import pytest

from sordino import Constant, Data, FedAvg, Gaussian, SecureAggregation, train
from sordino.attacks.inversion import SETTINGS
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from sordino.federation.assignment import minibatches
from sordino.federation.store.upload_archive import read_round
from sordino.protocol import UserError
from tests.support import toy_dataset, toy_protocol


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    protocol = toy_protocol(
        channel=SecureAggregation(threshold=5), noise=Gaussian(sigma=1e-6), rounds=2
    )
    folder = tmp_path_factory.mktemp("sums") / "run"
    return train(
        protocol, data=toy_dataset(), model="logistic", folder=folder, workers=1, keep_uploads=1
    )


def test_an_attacker_is_given_the_mean_of_a_round_and_no_upload(run) -> None:
    referee = Referee(run, data=toy_dataset(), model="logistic")
    seen = referee.observe_upload(referee.public_federation(10), 0, 0)
    after = read_round(run.folder, 1).model
    np.testing.assert_allclose(seen.upload, after, atol=1e-6)
    assert len(referee.read_round(0).uploads) == 1
    described = seen.federation.protocol
    assert (described.clients, described.local.batch) == (1, 5 * 6)
    np.testing.assert_allclose(described.noise.sigma, 1e-6 / np.sqrt(5))


def test_the_truth_about_a_sum_is_what_all_contributors_drew(run) -> None:
    referee = Referee(run, data=toy_dataset(), model="logistic")
    setup = referee._setup
    drawn = [minibatches(setup, client=client, round_index=0) for client in range(5)]
    rows = np.concatenate([batch for steps in drawn for batch in steps])
    labels = referee.reveal_batch(0, 0).labels.numpy()
    assert sorted(labels) == sorted(setup.train.y.numpy()[rows])


def test_who_sent_an_upload_is_no_question_where_there_are_none(run) -> None:
    with pytest.raises(UserError):
        attack(run, "clients", data=toy_dataset(), model="logistic")


def test_a_sum_of_too_many_images_is_refused_before_any_work(tmp_path) -> None:
    """One client's batch could be told apart, and the sum of five cannot: it would fill the memory."""
    protocol = toy_protocol(
        channel=SecureAggregation(threshold=5),
        noise=Gaussian(sigma=1e-6),
        rounds=1,
        local=FedAvg(steps=1, batch=30, clip=1.0, schedule=Constant(rate=0.1)),
        data=Data(name="digits", records=40),
    )
    run = train(protocol, model="logistic", folder=tmp_path / "run", workers=1, keep_uploads=1)
    with pytest.raises(UserError, match="mixes 1 x 30 images of each of 5 clients"):
        SETTINGS["quick"].cases(Referee(run, model="logistic"))
