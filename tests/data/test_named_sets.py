"""The real data sets against what is published about them."""

import csv
import hashlib
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from sordino.data import KNOWN, Dataset, load_dataset
from sordino.protocol import UserError
from tests.data.making import gunzipped, needs


def model_inputs(dataset: Dataset, part: str = "x_train") -> np.ndarray:
    return getattr(dataset, part) * dataset.scale + dataset.shift


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    digits, original = load_dataset("digits"), load_digits()
    assert (digits.x_train.shape, digits.x_test.shape, digits.x_train.dtype) == (
        (1437, 1, 8, 8),
        (360, 1, 8, 8),
        np.uint8,
    )
    assert np.bincount(digits.y_test).min() >= 34
    held = {
        (image.tobytes(), label)
        for image, label in zip(digits.x_train, digits.y_train, strict=True)
    }
    held |= {
        (image.tobytes(), label) for image, label in zip(digits.x_test, digits.y_test, strict=True)
    }
    assert held == {
        (i.astype(np.uint8).tobytes(), label)
        for i, label in zip(original.images, original.target, strict=True)
    }
    assert (model_inputs(digits).min(), model_inputs(digits).max()) == (0.0, 1.0)


def test_breast_cancer_is_nearly_standardised_by_constants() -> None:
    cancer = load_dataset("breast-cancer")
    assert (cancer.x_train.shape, cancer.x_test.shape, cancer.classes) == (
        (455, 30),
        (114, 30),
        ("malignant", "benign"),
    )
    assert np.bincount(np.concatenate([cancer.y_train, cancer.y_test])).tolist() == [212, 357]
    inputs = model_inputs(cancer)
    assert np.abs(inputs.mean(axis=0)).max() < 0.25
    assert np.abs(inputs.std(axis=0) - 1).max() < 0.25


def test_mnist(real_data: Path) -> None:
    needs(real_data, "mnist_train-images-idx3-ubyte.gz")
    mnist = load_dataset("mnist", root=real_data)
    assert mnist.x_train.shape == (60000, 1, 28, 28)
    assert mnist.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(mnist.y_train).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert np.bincount(mnist.y_test).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    sample = model_inputs(mnist)
    assert abs(sample.mean(dtype=np.float64)) < 1e-3
    assert abs(sample.std(dtype=np.float64) - 1) < 1e-3


@pytest.mark.slow
def test_cifar10(real_data: Path) -> None:
    needs(real_data, "cifar10_train_1.webp")
    cifar = load_dataset("cifar10", root=real_data)
    channels_last = np.ascontiguousarray(cifar.x_train.transpose(0, 2, 3, 1))
    test_last = np.ascontiguousarray(cifar.x_test.transpose(0, 2, 3, 1))
    assert (
        hashlib.sha256(channels_last).hexdigest()
        == "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"
    )
    assert (
        hashlib.sha256(test_last).hexdigest()
        == "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    )
    means = cifar.x_train.mean(axis=(0, 2, 3)) / 255
    assert means == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-7)
    assert cifar.y_train[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert np.bincount(cifar.y_train).tolist() == [5000] * 10
    assert np.bincount(cifar.y_test).tolist() == [1000] * 10
    # (mean - published mean) / published deviation, rounded to four digits: nothing but the rounding is left.
    assert cifar.scale[:, 0, 0] * means * 255 + cifar.shift[:, 0, 0] == pytest.approx(
        [0, 0, 0], abs=1e-3
    )


def test_adult(real_data: Path) -> None:
    needs(real_data, "adult_train.csv.gz", "adult_test.csv.gz")
    adult = load_dataset("adult", root=real_data)
    assert (adult.x_train.shape, adult.x_test.shape) == ((32561, 108), (16281, 108))
    assert np.bincount(adult.y_train).tolist() == [24720, 7841]
    assert np.bincount(adult.y_test).tolist() == [12435, 3846]
    assert np.unique(adult.columns["sex"], return_counts=True)[1].tolist() == [10771, 21790]
    unknown = np.any([values == "?" for values in adult.columns.values()], axis=0)
    assert unknown.sum() == 2399
    inputs = model_inputs(adult)
    assert (inputs.min(), inputs.max()) == (0.0, 1.0)
    assert (inputs[:, 6:].sum(axis=1) == 8).all()
    # The first line of adult.data: 39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, ...
    assert adult.x_train[0, :6].tolist() == [39, 77516, 13, 2174, 0, 40]
    assert {name: values[0] for name, values in adult.columns.items()} == {
        "workclass": "State-gov", "education": "Bachelors", "marital-status": "Never-married", "occupation": "Adm-clerical",
        "relationship": "Not-in-family", "race": "White", "sex": "Male", "native-country": "United-States",
    }  # fmt: skip


def test_adult_encoding_does_not_depend_on_the_records(real_data: Path, tmp_path: Path) -> None:
    needs(real_data, "adult_train.csv.gz", "adult_test.csv.gz")
    for part in ("train", "test"):
        lines = gunzipped(real_data / f"adult_{part}.csv.gz")
        (tmp_path / f"adult_{part}.csv").write_text("\n".join(lines[:6]))
    few, all_of_them = load_dataset("adult", root=tmp_path), load_dataset("adult", root=real_data)
    assert np.array_equal(model_inputs(few), model_inputs(all_of_them)[:5])


def test_pneumonia(real_data: Path) -> None:
    needs(real_data, "pneumoniamnist.npz")
    pneumonia = load_dataset("pneumoniamnist", root=real_data)
    assert pneumonia.x_train.shape == (4708, 1, 28, 28)
    assert np.bincount(pneumonia.y_train).tolist() == [1214, 3494]
    assert np.bincount(pneumonia.y_test).tolist() == [234, 390]


def test_location(real_data: Path) -> None:
    needs(real_data, "location30.npz")
    location = load_dataset("location30", root=real_data)
    assert (location.x_train.shape, location.x_test.shape, location.outputs) == (
        (4008, 446),
        (1002, 446),
        30,
    )
    assert set(np.unique(location.x_train)) == {0.0, 1.0}
    counts = np.bincount(np.concatenate([location.y_train, location.y_test]))
    assert (counts.min(), counts.max()) == (97, 308)


@pytest.mark.parametrize(
    ("name", "classes"), [("utkface", 2), ("utkface-race", 5), ("utkface-age", 5)]
)
def test_utkface(real_data: Path, name: str, classes: int) -> None:
    needs(real_data, "utkface32_2500.webp")
    faces = load_dataset(name, root=real_data)
    assert (faces.x_train.shape, faces.x_test.shape, faces.outputs) == (
        (2000, 3, 32, 32),
        (500, 3, 32, 32),
        classes,
    )
    assert set(faces.columns) == {"age", "gender", "race"}
    both = np.bincount(np.concatenate([faces.y_train, faces.y_test])).tolist()
    if name == "utkface":
        assert both == [1275, 1225]
        assert np.array_equal(faces.columns["gender"] == "female", faces.y_train == 1)
    elif name == "utkface-race":
        assert both == [1046, 470, 338, 464, 182]
    else:
        ages = faces.columns["age"]
        bounds = [
            (ages[faces.y_train == band].min(), ages[faces.y_train == band].max())
            for band in range(5)
        ]
        assert [low for low, _ in bounds] == [1, 18, 30, 45, 60]
        assert [high for _, high in bounds][:4] == [17, 29, 44, 59]


@pytest.mark.slow
def test_wind_records_against_a_plain_reading_of_the_files(real_data: Path) -> None:
    needs(real_data, "gefcom2012_wind_power.csv.gz", "gefcom2012_wind_forecasts.npz")
    wind = load_dataset("gefcom-wind", root=real_data)
    assert (wind.input_shape, wind.outputs, wind.classes) == ((3, 48), 48, None)
    assert np.unique(wind.columns["farm"], return_counts=True)[1].tolist() == [1095] * 7
    assert len(wind.y_test) == 156 * 7  # the 156 windows of the competition

    power = {
        row["date"]: row
        for row in csv.DictReader(gunzipped(real_data / "gefcom2012_wind_power.csv.gz"))
    }
    forecasts = np.load(real_data / "gefcom2012_wind_forecasts.npz")

    def expected(farm: int, split: str) -> list[tuple[np.ndarray, np.ndarray]]:
        records = []
        for issue, u, v in zip(
            forecasts["issue"], forecasts["u_centi"][farm], forecasts["v_centi"][farm], strict=True
        ):
            start = datetime.strptime(str(issue), "%Y%m%d%H")
            rows = [
                power.get((start + timedelta(hours=lead)).strftime("%Y%m%d%H"))
                for lead in range(1, 49)
            ]
            if min(u.min(), v.min()) > -32768 and all(
                row is not None and row["split"] == split for row in rows
            ):
                records.append(
                    (
                        np.stack([u, v]) / 100,
                        np.array([float(row[f"wp{farm + 1}"]) for row in rows]),
                    )
                )
        return records

    third = wind.columns["farm"] == "farm 3"
    winds, powers = map(np.array, zip(*expected(2, "train"), strict=True))
    assert wind.x_train[third][:, :2] == pytest.approx(winds, abs=1e-5)
    assert wind.x_train[third][:, 2] == pytest.approx(np.sqrt((winds**2).sum(axis=1)), abs=1e-5)
    assert wind.y_train[third] == pytest.approx(powers, abs=1e-6)
    assert wind.y_test[-156:] == pytest.approx(
        np.array([answer for _, answer in expected(6, "test")]), abs=1e-6
    )


def test_unknown_names_get_a_hint_and_the_list() -> None:
    with pytest.raises(UserError, match='Did you mean "mnist"') as caught:
        load_dataset("minst")
    assert all(name in str(caught.value) for name in KNOWN)


@pytest.mark.parametrize("name", ["nowhere.npz", "no/such/folder", "nowhere.csv.gz"])
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError, match="there is no such file or folder"):
        load_dataset(name)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    with pytest.raises(UserError, match="this kind of file is not known"):
        load_dataset(str(tmp_path / "data.xlsx"))


def test_bundled_sets_do_not_care_about_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", "/no/such/folder")
    assert load_dataset("digits").outputs == 10
    with pytest.raises(
        UserError, match="SORDINO_DATA = '/no/such/folder': there is no such folder"
    ):
        load_dataset("mnist")
