"""Scores of a finished run against counts made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino import Data, Dataset, Run, Shards, UserError, train
from sordino.federation.evaluation import evaluate_clients, evaluate_run
from sordino.report.closing_panel import result_line
from tests.support import toy_dataset, toy_protocol


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    protocol = toy_protocol(clients=3, data=Data(name="toy", partition=Shards(per_client=1)))
    return train(
        protocol, data=toy_dataset(), model="logistic", folder=tmp_path_factory.mktemp("runs") / "a"
    )


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
    labels = [
        np.bincount(data.y_train[part]).argmax()
        for part in np.split(np.argsort(data.y_train, kind="stable"), 3)
    ]
    classes = list(scores["classes"].values())
    for share in shares:
        assert min(abs(share - classes[label]) for label in labels) < 0.25


def test_data_of_another_shape_are_refused(finished) -> None:
    with pytest.raises(UserError, match="shape"):
        evaluate_run(finished, toy_dataset(features=5))


def test_a_model_file_of_another_run_does_not_fit_the_seal(finished, tmp_path) -> None:
    other = train(toy_protocol(clients=3), data=toy_dataset(), model="mlp", folder=tmp_path / "b")
    (other.folder / "model.safetensors").write_bytes(
        (finished.folder / "model.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match="the seal in the ledger does not fit the model"):
        Run.load(other.folder)


def test_the_model_of_another_run_is_refused(finished) -> None:
    """Without a seal, as in runs of earlier versions, the tensors themselves do not fit."""
    weights = {f"0.{name}": tensor for name, tensor in finished.state.items()}
    with pytest.raises(UserError, match="tensors of another model"):
        evaluate_run(replace(finished, state=weights), toy_dataset())


def test_a_regression_is_held_against_the_mean_of_its_test_records(tmp_path) -> None:
    """The baseline is the loss that a constant model has at its best, found here by looking for it."""
    generator = np.random.default_rng(2)
    x, y = (
        generator.normal(size=(90, 3)).astype(np.float32),
        generator.normal(2.0, [0.5, 3.0], size=(90, 2)).astype(np.float32),
    )
    data = Dataset(
        name="quantities", x_train=x, y_train=y, x_test=x[:30], y_test=y[:30] + 1, classes=None
    )
    run = train(toy_protocol(), data=data, model="logistic", folder=tmp_path / "run", workers=1)
    constants = [
        [((y[:30, column] + 1 - c) ** 2).mean() for c in np.linspace(0, 6, 6001)]
        for column in range(2)
    ]
    best = np.mean([min(losses) for losses in constants])
    assert evaluate_run(run, data)["baseline"] == pytest.approx(best, rel=1e-5)
    assert run.facts["baseline"] == evaluate_run(run, data)["baseline"]
    assert f"predicting their mean has {best:.4f}" in result_line(run)


def test_classes_have_no_such_baseline(finished) -> None:
    assert evaluate_run(finished, toy_dataset())["baseline"] is None
    assert "mean" not in result_line(finished)
