"""Sets that come from OpenML: recorded replies in scikit-learn's cache, and what is said when there is no network."""

import gzip
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from sordino.data import digest, load_dataset
from sordino.data.tables import ADULT_RANGES, ADULT_VALUES
from sordino.protocol import UserError
from tests.data.making import gunzipped, needs

MNIST_TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def record(cache: Path, address: str, content: bytes) -> None:
    """Put a reply where `fetch_openml` keeps what it downloaded."""
    path = cache / "openml" / "openml.org" / f"{address}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content))


def record_adult(cache: Path, real_data: Path) -> None:
    """OpenML's set 1590, which is adult.test followed by adult.data, with the headers and replies of that set."""
    rows = []
    for part in ("test", "train"):
        lines = gunzipped(real_data / f"adult_{part}.csv.gz")
        header, rows = (
            lines[0].replace("_", "-").split(","),
            rows + [line.replace(",", ", ") for line in lines[1:]],
        )
    nominal = {
        name: [value for value in values.split() if value != "?"]
        for name, values in ADULT_VALUES.items()
    }
    nominal["class"] = [">50K", "<=50K"]
    names = [name if name != "income" else "class" for name in header]
    kinds = [
        f"{{ {', '.join(nominal[name])} }}" if name in nominal else "numeric" for name in names
    ]
    arff = "\n".join(
        [
            "@relation adult",
            *(f"@attribute {n} {k}" for n, k in zip(names, kinds, strict=True)),
            "@data",
            *rows,
            "",
        ]
    ).encode()
    features = [
        {"index": str(i), "name": name, "data_type": "nominal" if name in nominal else "numeric", "is_target": str(name == "class").lower(),
         "is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0"}
        for i, name in enumerate(names)
    ]  # fmt: skip
    description = {
        "id": "1590", "name": "adult", "version": "2", "status": "active", "format": "ARFF", "description": "", "file_id": "1595261",
        "url": "https://api.openml.org/data/v1/download/1595261/adult.arff", "md5_checksum": hashlib.md5(arff).hexdigest(),
    }  # fmt: skip
    api = "api/v1/json/data"
    listing = {
        "data": {"dataset": [{"did": 1590, "name": "adult", "version": 2, "status": "active"}]}
    }
    record(
        cache, f"{api}/list/data_name/adult/limit/2/data_version/2", json.dumps(listing).encode()
    )
    record(cache, f"{api}/1590", json.dumps({"data_set_description": description}).encode())
    record(
        cache, f"{api}/features/1590", json.dumps({"data_features": {"feature": features}}).encode()
    )
    qualities = [{"name": "NumberOfInstances", "value": str(len(rows))}]
    record(
        cache,
        f"{api}/qualities/1590",
        json.dumps({"data_qualities": {"quality": qualities}}).encode(),
    )
    record(cache, "data/v1/download/1595261/adult.arff", arff)


@pytest.mark.slow
def test_adult_from_openml_is_the_adult_of_the_files(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(real_data, "adult_train.csv.gz", "adult_test.csv.gz")
    record_adult(tmp_path, real_data)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    assert digest(load_dataset("adult")) == digest(load_dataset("adult", root=real_data))
    assert len(ADULT_RANGES) + len(ADULT_VALUES) == 14


def replying(
    monkeypatch: pytest.MonkeyPatch, values: np.ndarray, target: np.ndarray
) -> list[tuple[str, int]]:
    asked = []

    def fetch_openml(name: str, *, version: int, **options: object) -> SimpleNamespace:
        asked.append((name, version))
        features = [f"pixel{place}" for place in range(values.shape[1])]
        return SimpleNamespace(
            data=values,
            target=target.astype(str).astype(object),
            feature_names=features,
            categories={},
        )

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    return asked


def test_mnist_from_openml(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.concatenate([np.arange(60000) % 10, np.repeat(np.arange(10), MNIST_TEST_COUNTS)])
    pixels = np.zeros((70000, 784), dtype=np.uint8)
    pixels[:, 29] = labels
    asked = replying(monkeypatch, pixels, labels)
    mnist = load_dataset("mnist")
    assert asked == [("mnist_784", 1)]
    assert (mnist.x_train.shape, mnist.x_test.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert np.array_equal(mnist.x_test[:, 0, 1, 1], mnist.y_test)


@pytest.mark.parametrize(
    ("name", "openml", "shape", "records"),
    [
        ("cifar10", "CIFAR_10", (3, 32, 32), 60000),
        ("fashion-mnist", "Fashion-MNIST", (1, 28, 28), 70000),
    ],
)
def test_balanced_sets_from_openml(
    monkeypatch: pytest.MonkeyPatch, name: str, openml: str, shape: tuple[int, ...], records: int
) -> None:
    labels = np.arange(records) % 10
    pixels = np.zeros((records, int(np.prod(shape))), dtype=np.uint8)
    pixels[:, -1] = labels
    asked = replying(monkeypatch, pixels, labels)
    loaded = load_dataset(name)
    assert asked == [(openml, 1)]
    assert (loaded.input_shape, len(loaded.y_train), len(loaded.y_test)) == (
        shape,
        records - 10000,
        10000,
    )
    assert np.array_equal(loaded.x_train[:, -1, -1, -1], loaded.y_train)


@pytest.mark.parametrize(
    ("records", "why"),
    [(70000, "not the official test images"), (69999, "69999 records instead of 70000")],
)
def test_an_unexpected_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, records: int, why: str
) -> None:
    replying(monkeypatch, np.zeros((records, 784), dtype=np.uint8), np.arange(records) % 10)
    with pytest.raises(UserError, match=why):
        load_dataset("mnist")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "adult"])
@pytest.mark.parametrize("root", [False, True])
def test_without_files_and_network_one_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, root: bool
) -> None:
    def unreachable(*args: object, **options: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", unreachable)
    monkeypatch.setattr("sklearn.datasets._openml.time.sleep", lambda seconds: None)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))
    with pytest.raises(UserError) as caught:
        load_dataset(name, root=tmp_path if root else None)
    message = str(caught.value)
    assert (str(tmp_path) in message) == root
    assert ("SORDINO_DATA is not set" in message) != root
    assert "Name or service not known" in message
    files = {"cifar10": "cifar10_train_1.webp", "adult": "adult_train.csv.gz"}
    assert files.get(name, "train-images-idx3-ubyte.gz") in message


@pytest.mark.parametrize(
    "name", ["cifar100", "pneumoniamnist", "location30", "gefcom-wind", "utkface", "utkface-race"]
)
def test_sets_that_only_files_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="was not found") as caught:
        load_dataset(name, root=tmp_path)
    assert "Let the environment variable SORDINO_DATA name a folder that holds" in str(caught.value)
