"""Loads the named sets of tables: Adult, breast cancer, Location.

Encodings are fixed here, so that they say nothing about any record.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset, published_split
from sordino.data.formats import damaged_file, read_npz, reading
from sordino.data.sources import OpenMLUnavailable, download, locate, not_found
from sordino.data.table_files import read_table

# The documentation of the UCI repository (adult.names) lists every value; "?" denotes an unknown
# one.
ADULT_VALUES = {
    "workclass": (
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked ?"
    ),
    "education": (
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "marital-status": (
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces ?"
    ),
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": (
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}
# What the census questionnaire could record: its lower limits and top codes, rounded. They become
# 0 and 1.
ADULT_RANGES = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 4_400),
    "hours-per-week": (1, 99),
}
ADULT_CLASSES = ("<=50K", ">50K")
ADULT_TRAIN = 32561
ADULT_TEST = 16281

# Mean and standard deviation of the 30 features as published with the whole set, rounded to two
# digits and fixed here.
BREAST_CANCER_CENTRES = (
    14, 19, 92, 650, 0.096, 0.10, 0.089, 0.049, 0.18, 0.063,
    0.41, 1.2, 2.9, 40, 0.0070, 0.025, 0.032, 0.012, 0.021, 0.0038,
    16, 26, 110, 880, 0.13, 0.25, 0.27, 0.11, 0.29, 0.084,
)  # fmt: skip
BREAST_CANCER_SPREADS = (
    3.5, 4.3, 24, 350, 0.014, 0.053, 0.080, 0.039, 0.027, 0.0071,
    0.28, 0.55, 2.0, 45, 0.0030, 0.018, 0.030, 0.0062, 0.0083, 0.0026,
    4.8, 6.1, 34, 570, 0.023, 0.16, 0.21, 0.066, 0.062, 0.018,
)  # fmt: skip

BREAST_CANCER_CLASSES = ("malignant", "benign")
LOCATION_CLASSES = tuple(str(cluster) for cluster in range(30))

# Columns of text.
Table = dict[str, np.ndarray]


def load_breast_cancer(root: Path | None) -> Dataset:
    """Loads Breast Cancer Wisconsin: 569 tumours with 30 measurements, from scikit-learn.

    A fifth is held out.

    Args:
        root: Not needed.
    """
    from sordino.data.bundled import read_breast_cancer

    tumours = read_breast_cancer()
    x = tumours.data.astype(np.float32)
    y = tumours.target.astype(np.int64)
    train, test = published_split(y)
    centre = np.array(BREAST_CANCER_CENTRES)
    spread = np.array(BREAST_CANCER_SPREADS)
    return Dataset(
        name="breast-cancer",
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        classes=BREAST_CANCER_CLASSES,
        test="public",
        scale=(1 / spread).astype(np.float32),
        shift=(-centre / spread).astype(np.float32),
    )


def load_location(root: Path | None) -> Dataset:
    """Loads Location: 5010 people by which of 446 places in Bangkok they visited, in 30 clusters.

    Kinds of place count as places. A fifth is held out.

    Args:
        root: The folder of data files.

    Raises:
        UserError: The file is not there, or damaged.
    """
    layouts = [["location30.npz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("location30", root, layouts)
    arrays = read_npz(files[0])
    with reading(files[0], "the Location set with x_packed, n_features and y"):
        bits = np.unpackbits(arrays["x_packed"], axis=1)
        x = bits[:, : int(arrays["n_features"])].astype(np.float32)
        y = arrays["y"].astype(np.int64)
        train, test = published_split(y)
        return Dataset(
            name="location30",
            x_train=x[train],
            y_train=y[train],
            x_test=x[test],
            y_test=y[test],
            classes=LOCATION_CLASSES,
            test="public",
        )


def load_adult(root: Path | None) -> Dataset:
    """Loads Adult: 32561 + 16281 people of the 1994 census, and who earns more than 50000 dollars.

    The 108 inputs are 6 numbers, scaled by fixed ranges, and the 8 categories as 0 and 1, where an
    unknown value is one more category.

    Args:
        root: The folder of data files.

    Raises:
        UserError: The files are not there and cannot be downloaded, or are damaged.
    """
    layouts = [["adult_train.csv.gz", "adult_test.csv.gz"]]
    files = locate(root, layouts)
    if files is not None:
        train_path, test_path = files
        train = _read_adult(train_path)
        test = _read_adult(test_path)
    else:
        train_path = test_path = Path("OpenML adult")
        try:
            train, test = _download_adult()
        except OpenMLUnavailable as error:
            raise not_found("adult", root, layouts, error) from None
    x_train, y_train = _encode_adult(train, train_path)
    x_test, y_test = _encode_adult(test, test_path)
    low, high = np.array(list(ADULT_RANGES.values()), dtype=np.float64).T
    categories = x_train.shape[1] - len(low)
    return Dataset(
        name="adult",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=ADULT_CLASSES,
        test="public",
        scale=np.append(1 / (high - low), np.ones(categories)).astype(np.float32),
        shift=np.append(-low / (high - low), np.zeros(categories)).astype(np.float32),
        columns={name: train[name] for name in ADULT_VALUES},
    )


def _read_adult(path: Path) -> Table:
    """Returns the columns of one of the two files."""
    table = {name.replace("_", "-"): np.array(values) for name, values in read_table(path).items()}
    lacking = [name for name in (*ADULT_RANGES, *ADULT_VALUES, "income") if name not in table]
    if lacking:
        raise damaged_file(path, "the Adult table", f"it has no column {', '.join(lacking)}")
    return table


def _download_adult() -> tuple[Table, Table]:
    """Returns both parts from OpenML, whose version 2 holds adult.test, then adult.data."""
    found = download("adult", version=2, records=ADULT_TEST + ADULT_TRAIN)
    table = {"income": found.target}
    for name, values in zip(found.features, found.values.T, strict=True):
        if name in found.categories:
            unknown = np.isnan(values)
            names = np.array([*found.categories[name], "?"])
            table[name] = names[np.where(unknown, len(names) - 1, values).astype(np.int64)]
        else:
            table[name] = values.astype(np.int64).astype(str)
    train = {name: values[ADULT_TEST:] for name, values in table.items()}
    test = {name: values[:ADULT_TEST] for name, values in table.items()}
    return train, test


def _encode_adult(table: Table, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels."""
    with reading(path, "the Adult table"):
        numbers = [table[name].astype(np.float32)[:, None] for name in ADULT_RANGES]
    categories = []
    for name, values in ADULT_VALUES.items():
        categories.append(encode_one_hot(table[name], values.split(), name, path))
    labels = encode_one_hot(table["income"], list(ADULT_CLASSES), "income", path)
    return np.hstack(numbers + categories), labels.argmax(axis=1).astype(np.int64)


def encode_one_hot(
    values: np.ndarray, vocabulary: list[str], column: str, path: Path
) -> np.ndarray:
    """Returns a column of text as one 0 or 1 for each word of the vocabulary.

    Args:
        values: The column.
        vocabulary: Its words.
        column: Its name, for the message.
        path: The file, for the message.

    Raises:
        UserError: A word that is not in the vocabulary.
    """
    hot = values[:, None] == np.array(vocabulary)
    unknown = np.flatnonzero(~hot.any(axis=1))
    if len(unknown) > 0:
        word = str(values[unknown[0]])
        reason = f"{column} is {word!r} in record {unknown[0]}, a value it does not have"
        raise damaged_file(path, "the Adult table", reason)
    columns: np.ndarray = hot.astype(np.float32)
    return columns
