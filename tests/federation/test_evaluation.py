"""Scores of a finished run against counts made by hand."""

import numpy as np
import pytest
import torch

from sordino import Data, Shards, UserError, train
from sordino.federation.evaluation import evaluate_clients, evaluate_run
from tests.support import toy_dataset, toy_protocol


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    protocol = toy_protocol(clients=3, data=Data(name="toy", partition=Shards(per_client=1)))
    return train(protocol, data=toy_dataset(), model="logistic", folder=tmp_path_factory.mktemp("runs") / "a")


def test_accuracy_and_loss_are_those_counted_by_hand(finished) -> None:
    data = toy_dataset()
    with torch.no_grad():
        outputs = finished.model(torch.from_numpy(data.x_test)).double().numpy()
    right = outputs.argmax(axis=1) == data.y_test
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(right)), data.y_test]
    scores = evaluate_run(finished, data, chunk=7)
    assert scores["accuracy"] == pytest.approx(right.mean())
    assert scores["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    for label, name in enumerate(data.classes):
        assert scores["classes"][name] == pytest.approx(right[data.y_test == label].mean())


def test_a_client_of_one_label_is_scored_on_that_label(finished) -> None:
    data = toy_dataset()
    scores = evaluate_run(finished, data)
    shares = evaluate_clients(finished, data, size=400)
    labels = [np.bincount(data.y_train[part]).argmax() for part in np.split(np.argsort(data.y_train, kind="stable"), 3)]
    classes = list(scores["classes"].values())
    for share in shares:
        assert min(abs(share - classes[label]) for label in labels) < 0.25


def test_data_of_another_shape_are_refused(finished) -> None:
    with pytest.raises(UserError, match="shape"):
        evaluate_run(finished, toy_dataset(features=5))
