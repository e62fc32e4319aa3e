"""The named sets of images: digits, MNIST and its kin, CIFAR, PneumoniaMNIST, UTKFace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.federation.data.dataset import Dataset, Scaling, published_split
from sordino.federation.data.formats import (
    damaged,
    read_cifar_batch,
    read_idx,
    read_npz,
    read_sheet,
    read_table,
    reading,
)
from sordino.federation.data.sources import OpenMLUnavailable, download, locate, not_found

Part = tuple[np.ndarray, np.ndarray]  # images and labels
DIGITS = tuple("0123456789")
IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
DEBIAN = "/usr/share/datasets/fashion-mnist"
FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar "
    "cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster "
    "house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree "
    "orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose "
    "sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
PNEUMONIA_CLASSES = ("normal", "pneumonia")
UTKFACE_CLASSES = {
    "gender": ("male", "female"),
    "race": ("White", "Black", "Asian", "Indian", "Others"),
    "age": ("0-17", "18-29", "30-44", "45-59", "60 and over"),
}
AGE_BANDS = (18, 30, 45, 60)  # first year of every band but the youngest


def standardised(mean: Sequence[float], deviation: Sequence[float]) -> Scaling:
    """Turns bytes into (byte / 255 - mean) / deviation, channel by channel."""
    centre, spread = (
        np.array(values, dtype=np.float64).reshape(-1, 1, 1) for values in (mean, deviation)
    )
    return Scaling((1 / (255 * spread)).astype(np.float32), (-centre / spread).astype(np.float32))


def centred(channels: int) -> Scaling:
    """Turns bytes into numbers from -1 to 1."""
    return standardised([0.5] * channels, [0.5] * channels)


def image_set(
    name: str,
    train: Part,
    test: Part,
    classes: tuple[str, ...],
    scaling: Scaling,
    *,
    whose: str = "public",
) -> Dataset:
    """A data set from images and labels of both parts; `whose` are the test records."""
    (x_train, y_train), (x_test, y_test) = train, test
    return Dataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
        scale=scaling.scale,
        shift=scaling.shift,
        test=whose,
    )


def load_digits(root: Path | None) -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels from 0 to 16, which come with scikit-learn; a fifth of each digit is held out."""
    from sordino.federation.data.bundled import read_digits

    found = read_digits()
    images, labels = found.data.astype(np.uint8)[:, None], found.target.astype(np.int64)
    train, test = published_split(labels)
    sixteenth = Scaling(
        np.full((1, 1, 1), 1 / 16, dtype=np.float32), np.zeros((1, 1, 1), dtype=np.float32)
    )
    return image_set(
        "digits", (images[train], labels[train]), (images[test], labels[test]), DIGITS, sixteenth
    )


def load_mnist(root: Path | None) -> Dataset:
    """MNIST: 60000 + 10000 grey images of 28 x 28 pixels."""
    layouts = [[f"mnist_{file}" for file in IDX], [f"mnist/{file}" for file in IDX]]
    train, test = _idx_parts(
        "mnist",
        root,
        layouts,
        "mnist_784",
        test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    )
    return image_set("mnist", train, test, DIGITS, standardised([0.1307], [0.3081]))


def load_fashion_mnist(root: Path | None) -> Dataset:
    """Fashion-MNIST: 60000 + 10000 grey images of 28 x 28 pixels; also where Debian's package puts it."""
    layouts = [[f"fashion-mnist/{file}" for file in IDX], [f"{DEBIAN}/{file}" for file in IDX]]
    train, test = _idx_parts(
        "fashion-mnist", root, layouts, "Fashion-MNIST", test_counts=(1000,) * 10
    )
    return image_set("fashion-mnist", train, test, FASHION, standardised([0.2860], [0.3530]))


def _idx_parts(
    name: str,
    root: Path | None,
    layouts: Sequence[Sequence[str]],
    openml: str,
    *,
    test_counts: Sequence[int],
) -> tuple[Part, Part]:
    files = locate(root, layouts)
    if files is None:
        return _downloaded_parts(
            name, root, layouts, openml, shape=(1, 28, 28), records=70000, test_counts=test_counts
        )
    return _idx_pair(files[0], files[1]), _idx_pair(files[2], files[3])


def _idx_pair(images: Path, labels: Path) -> Part:
    pixels, answers = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise damaged(
            images, "images of 28 x 28", f"they have {pixels.shape[1]} x {pixels.shape[2]} pixels"
        )
    if len(answers) != len(pixels):
        raise damaged(
            labels,
            "labels",
            f"it has {len(answers)} of them for the {len(pixels)} images of {images}",
        )
    if len(answers) > 0 and answers.max() > 9:
        raise damaged(
            labels,
            "labels",
            f"labels out of range: one is {answers.max()}, but 10 classes allow 0 to 9",
        )
    return pixels[:, None], answers.astype(np.int64)


def _downloaded_parts(
    name: str,
    root: Path | None,
    layouts: Sequence[Sequence[str]],
    openml: str,
    *,
    shape: tuple[int, int, int],
    records: int,
    test_counts: Sequence[int],
) -> tuple[Part, Part]:
    """OpenML holds training and test images in one piece, the test images last, which their label counts confirm."""
    try:
        found = download(openml, version=1, records=records)
        images, labels = (
            found.values.astype(np.uint8).reshape(-1, *shape),
            found.target.astype(np.int64),
        )
        train = records - sum(test_counts)
        if not np.array_equal(np.bincount(labels[train:]), test_counts):
            raise OpenMLUnavailable(
                f"OpenML {openml!r}: its last {sum(test_counts)} images are not the official test images"
            )
    except OpenMLUnavailable as error:
        raise not_found(name, root, layouts, error) from None
    return (images[:train], labels[:train]), (images[train:], labels[train:])


def load_cifar10(root: Path | None) -> Dataset:
    """CIFAR-10: 50000 + 10000 colour images of 32 x 32 pixels, from sheets or from the "python version"."""
    sheets = [
        *(f"cifar10_train_{k}.webp" for k in range(1, 6)),
        "cifar10_test.webp",
        "cifar10_labels.npz",
    ]
    batches = [
        *(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)),
        "cifar-10-batches-py/test_batch",
    ]
    if (files := locate(root, [sheets])) is not None:
        train, test = _sheet_parts(files[:5], files[5], files[6])
    elif (files := locate(root, [batches])) is not None:
        train, test = _cifar_part(files[:5], "labels"), _cifar_part(files[5:], "labels")
    else:
        layouts = [batches, sheets]
        train, test = _downloaded_parts(
            "cifar10",
            root,
            layouts,
            "CIFAR_10",
            shape=(3, 32, 32),
            records=60000,
            test_counts=(1000,) * 10,
        )
    return image_set(
        "cifar10",
        train,
        test,
        CIFAR10,
        standardised([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    )


def _sheet_parts(train: Sequence[Path], test: Path, labels: Path) -> tuple[Part, Part]:
    answers = read_npz(labels)
    parts = []
    for key, images in (
        ("y_train", np.concatenate([read_sheet(sheet, 32) for sheet in train])),
        ("y_test", read_sheet(test, 32)),
    ):
        if key not in answers or answers[key].shape != images.shape[:1]:
            raise damaged(
                labels,
                "labels of CIFAR-10",
                f"{key} must be one label for each of {len(images)} images",
            )
        parts.append((images, answers[key].astype(np.int64)))
    return parts[0], parts[1]


def _cifar_part(files: Sequence[Path], label_key: str) -> Part:
    images, labels = zip(*(read_cifar_batch(file, label_key) for file in files), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def load_cifar100(root: Path | None) -> Dataset:
    """CIFAR-100 with its 100 fine labels: 50000 + 10000 colour images of 32 x 32 pixels, from the "python version"."""
    layouts = [["cifar-100-python/train", "cifar-100-python/test"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("cifar100", root, layouts)
    train, test = (read_cifar_batch(file, "fine_labels") for file in files)
    return image_set(
        "cifar100",
        train,
        test,
        tuple(CIFAR100.split()),
        standardised([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    )


def load_pneumonia(root: Path | None) -> Dataset:
    """PneumoniaMNIST: 4708 + 624 chest X-rays of 28 x 28 pixels. The 524 validation images are left out."""
    layouts = [["pneumoniamnist.npz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("pneumoniamnist", root, layouts)
    arrays = read_npz(files[0])
    train, test = (_medmnist_part(files[0], arrays, part) for part in ("train", "test"))
    return image_set("pneumoniamnist", train, test, PNEUMONIA_CLASSES, centred(1))


def _medmnist_part(path: Path, arrays: dict[str, np.ndarray], part: str) -> Part:
    images, labels = arrays.get(f"{part}_images"), arrays.get(f"{part}_labels")
    if (
        images is None
        or labels is None
        or images.dtype != np.uint8
        or images.ndim != 3
        or labels.shape != (len(images), 1)
    ):
        expected = f"{part}_images as uint8 (n, 28, 28) and {part}_labels as (n, 1)"
        raise damaged(path, "a file of MedMNIST", f"it must hold {expected}")
    return images[:, None], labels[:, 0].astype(np.int64)


def load_utkface(root: Path | None, answer: str = "gender") -> Dataset:
    """2500 faces of 32 x 32 pixels; the answer is `gender`, `race` or the band of `age`. A fifth is held out, the same for each."""
    layouts = [["utkface32_2500.webp", "utkface32_2500_labels.csv.gz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("utkface", root, layouts)
    images, table = read_sheet(files[0], 32), read_table(files[1])
    if not set(UTKFACE_CLASSES) <= set(table) or len(table["age"]) != len(images):
        raise damaged(
            files[1],
            "labels of UTKFace",
            f"it must hold age, gender and race of {len(images)} faces",
        )
    with reading(files[1], "labels of UTKFace"):
        codes = {name: np.array(table[name]).astype(np.int64) for name in UTKFACE_CLASSES}
        named = {name: np.array(UTKFACE_CLASSES[name])[codes[name]] for name in ("gender", "race")}
    labels = (
        np.digitize(codes["age"], AGE_BANDS).astype(np.int64) if answer == "age" else codes[answer]
    )
    train, test = published_split(codes["gender"])
    scaling = centred(3)
    return Dataset(
        name="utkface" if answer == "gender" else f"utkface-{answer}",
        x_train=images[train], y_train=labels[train], x_test=images[test], y_test=labels[test], classes=UTKFACE_CLASSES[answer],
        test="public",
        columns={name: values[train] for name, values in {"age": codes["age"], **named}.items()},
        scale=scaling.scale, shift=scaling.shift,
    )  # fmt: skip
