"""What a model gives away: attributes of records by its embeddings, itself by its answers."""

import numpy as np
import pytest
import torch

from sordino import Constant, Data, Dataset, FedAvg, UserError, train
from sordino.attacks.attributes import read_attribute, score_values
from sordino.attacks.extraction import copy_untrained
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from sordino.data import load_dataset
from tests.attacks.conftest import STRONG
from tests.support import real_file, toy_dataset, toy_protocol

SEVERAL = FedAvg(steps=5, batch=20, clip=10.0, schedule=Constant(rate=0.1))


def last(rows, metric: str, method: str):
    return max(
        (row for row in rows if (row.metric, row.method) == (metric, method)),
        key=lambda row: row.round,
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("data", "margin", "gain"), [("cifar10", 0.15, 0.03), ("utkface-race", 0.12, -0.05)]
)
def test_an_attribute_is_inferred_without_noise_and_guessed_under_strong_noise(
    trained, data, margin, gain
) -> None:
    """Animal or not, and gender: accuracy above the majority's by the margin without noise, within 0.06 of it under sigma = 1.

    Training adds at least 0.03 to what the embeddings of the untrained model show on CIFAR-10; on so few faces next to nothing.
    """
    runs = [trained(data, sigma=sigma, model="lenet5", local=SEVERAL) for sigma in (0.0, STRONG)]
    clear, noisy = (attack(run, "attributes").rows for run in runs)
    found = last(clear, "accuracy", "embeddings")
    assert found.value > found.baseline + margin
    assert last(clear, "F1", "embeddings").value > last(clear, "F1", "embeddings").baseline + margin
    [before] = [
        row for row in clear if (row.round, row.metric, row.method) == (0, "accuracy", "embeddings")
    ]
    assert found.value > before.value + gain
    for method in ("embeddings", "answers"):
        lost = last(noisy, "accuracy", method)
        assert abs(lost.value - lost.baseline) < 0.06, method


@pytest.mark.slow
def test_sex_is_an_input_on_adult_and_no_noise_in_training_hides_it_from_embeddings(
    trained,
) -> None:
    """Margin: 0.2 above the majority at every noise and at every round, even before the first; answers alone tell hardly anything."""
    for sigma in (0.0, STRONG):
        rows = attack(trained("adult", sigma=sigma, local=SEVERAL), "attributes").rows
        assert all(
            row.value > row.baseline + 0.2
            for row in rows
            if (row.metric, row.method) == ("accuracy", "embeddings")
        )
        lost = last(rows, "accuracy", "answers")
        assert abs(lost.value - lost.baseline) < 0.1


@pytest.mark.slow
def test_another_attribute_can_be_named(trained) -> None:
    rows = attack(trained("adult", sigma=0.0, local=SEVERAL), "attributes", attribute="race").rows
    assert {row.baseline for row in rows if row.metric == "accuracy"} != {0.0}
    assert all(row.samples == 500 for row in rows)


def test_the_majority_is_scored_as_a_classifier_that_always_says_it() -> None:
    true = np.array(["a"] * 6 + ["b"] * 4)
    assert score_values(np.full(10, "a"), true) == {
        "accuracy": 0.6,
        "F1": pytest.approx((2 * 0.6 * 1.0 / 1.6 + 0.0) / 2),
    }


@pytest.mark.slow
def test_the_animals_of_cifar_are_six_classes(cached) -> None:
    real_file("cifar10_labels.npz")
    name, values = read_attribute(cached("cifar10"), None)
    assert name == "animal"
    assert (values == "animal").mean() == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("data", "wanted", "words"),
    [
        ("breast-cancer", None, "It has none"),
        ("breast-cancer", "age", "no attribute 'age'"),
        ("digits", "colour", "Its attributes are: even"),
    ],
)
def test_data_without_the_attribute_are_refused(data, wanted, words) -> None:
    with pytest.raises(UserError, match=words):
        read_attribute(load_dataset(data), wanted)


def test_faces_have_an_attribute_and_another_one_is_refused() -> None:
    real_file("utkface32_2500_labels.csv.gz")
    with pytest.raises(UserError, match="race"):
        read_attribute(load_dataset("utkface"), "age")


def test_an_attacker_without_records_is_refused(tmp_path) -> None:
    everything = toy_dataset(records=120)
    data = Dataset(
        **{
            name: getattr(everything, name)
            for name in ("name", "x_train", "y_train", "x_test", "y_test", "classes")
        },
        columns={"side": np.array(["left", "right"] * 60)},
    )
    run = train(
        toy_protocol(data=Data(name="toy", records=24)),
        data=data,
        model="mlp",
        folder=tmp_path,
        report=False,
    )
    with pytest.raises(UserError, match=r"smaller data\.records"):
        attack(run, "attributes", attribute="side", data=data)
    assert not (tmp_path / "attacks").exists()


@pytest.mark.slow
def test_a_substitute_learns_from_answers_and_not_from_noise(trained) -> None:
    """Margins on digits: within 0.1 of the model's accuracy and 0.8 agreement; with noise on the answers below 0.4 of either;

    under sigma = 5 there is no accuracy to steal: within 0.15 of naming one class.
    """
    clear, noisy = (
        attack(trained("mnist", sigma=sigma, local=SEVERAL), "extraction").rows
        for sigma in (0.0, 5 * STRONG)
    )
    attacked, stolen = (
        last(clear, "accuracy", method).value for method in ("attacked model", "substitute")
    )
    assert attacked > 0.75
    assert stolen > attacked - 0.1
    assert last(clear, "agreement", "substitute").value > 0.8
    assert last(clear, "accuracy", "substitute, logits + 100 std").value < 0.4
    assert last(clear, "agreement", "substitute, logits + 100 std").value < 0.4
    lost = last(noisy, "accuracy", "substitute")
    assert abs(lost.value - lost.baseline) < 0.15


def test_a_substitute_begins_from_weights_of_its_own(trained) -> None:
    module = Referee(trained("mnist", sigma=0.0)).public_federation(5).module
    own = copy_untrained(module)
    for mine, theirs in zip(own.parameters(), module.parameters(), strict=True):
        assert not torch.equal(mine, theirs)
    assert all(
        torch.equal(a, b)
        for a, b in zip(own.parameters(), copy_untrained(module).parameters(), strict=True)
    )
