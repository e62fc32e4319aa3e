"""Loads the named sets of images: digits, MNIST and its kin, CIFAR, PneumoniaMNIST, UTKFace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset, Scaling, published_split
from sordino.data.formats import (
    damaged_file,
    read_cifar_batch,
    read_idx,
    read_npz,
    read_sheet,
    reading,
)
from sordino.data.sources import OpenMLUnavailable, download, locate, not_found
from sordino.data.table_files import read_table

# Images and labels.
Part = tuple[np.ndarray, np.ndarray]
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
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse "
    "mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy "
    "porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television "
    "tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
PNEUMONIA_CLASSES = ("normal", "pneumonia")
UTKFACE_CLASSES = {
    "gender": ("male", "female"),
    "race": ("White", "Black", "Asian", "Indian", "Others"),
    "age": ("0-17", "18-29", "30-44", "45-59", "60 and over"),
}
# The first year of every band but the youngest.
AGE_BANDS = (18, 30, 45, 60)


def standardise_pixels(mean: Sequence[float], deviation: Sequence[float]) -> Scaling:
    """Returns the scaling of bytes to (byte / 255 - mean) / deviation, channel by channel.

    Args:
        mean: Mean of each channel.
        deviation: The standard deviation of each channel.
    """
    centre = np.array(mean, dtype=np.float64).reshape(-1, 1, 1)
    spread = np.array(deviation, dtype=np.float64).reshape(-1, 1, 1)
    return Scaling((1 / (255 * spread)).astype(np.float32), (-centre / spread).astype(np.float32))


def centre_pixels(channels: int) -> Scaling:
    """Returns the scaling of bytes to numbers from -1 to 1.

    Args:
        channels: How many channels an image has.
    """
    return standardise_pixels([0.5] * channels, [0.5] * channels)


def make_image_set(
    name: str,
    train: Part,
    test: Part,
    classes: tuple[str, ...],
    scaling: Scaling,
    *,
    whose: str = "public",
) -> Dataset:
    """Returns a data set of images.

    Args:
        name: What it is called in reports.
        train: The images and labels of the training part.
        test: The images and labels of the test part.
        classes: The names of the classes.
        scaling: The scaling from bytes to a model's inputs.
        whose: Whose records the test part holds, a key of `TEST_PARTS`.
    """
    x_train, y_train = train
    x_test, y_test = test
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
    """Loads 1797 handwritten digits of 8 x 8 pixels from 0 to 16, which come with scikit-learn.

    A fifth of each digit is held out.

    Args:
        root: Not needed.
    """
    from sordino.data.bundled import read_digits

    digits = read_digits()
    images = digits.data.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    train, test = published_split(labels)
    sixteenth = np.full((1, 1, 1), 1 / 16, dtype=np.float32)
    return make_image_set(
        "digits",
        (images[train], labels[train]),
        (images[test], labels[test]),
        DIGITS,
        Scaling(sixteenth, np.zeros((1, 1, 1), dtype=np.float32)),
    )


def load_mnist(root: Path | None) -> Dataset:
    """Loads MNIST: 60000 + 10000 grey images of 28 x 28 pixels.

    Args:
        root: The folder of data files.

    Raises:
        UserError: The files are not there and cannot be downloaded, or are damaged.
    """
    layouts = [[f"mnist_{file}" for file in IDX], [f"mnist/{file}" for file in IDX]]
    train, test = _idx_parts(
        "mnist",
        root,
        layouts,
        "mnist_784",
        test_counts=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    )
    return make_image_set("mnist", train, test, DIGITS, standardise_pixels([0.1307], [0.3081]))


def load_fashion_mnist(root: Path | None) -> Dataset:
    """Loads Fashion-MNIST: 60000 + 10000 grey images of 28 x 28 pixels.

    Args:
        root: The folder of data files; Debian's package is found without it.

    Raises:
        UserError: The files are not there and cannot be downloaded, or are damaged.
    """
    layouts = [[f"fashion-mnist/{file}" for file in IDX], [f"{DEBIAN}/{file}" for file in IDX]]
    train, test = _idx_parts(
        "fashion-mnist", root, layouts, "Fashion-MNIST", test_counts=(1000,) * 10
    )
    return make_image_set(
        "fashion-mnist", train, test, FASHION, standardise_pixels([0.2860], [0.3530])
    )


def _idx_parts(
    name: str,
    root: Path | None,
    layouts: Sequence[Sequence[str]],
    openml: str,
    *,
    test_counts: Sequence[int],
) -> tuple[Part, Part]:
    """Returns both parts of a set in the idx format, or as OpenML holds it."""
    files = locate(root, layouts)
    if files is None:
        return _downloaded_parts(
            name, root, layouts, openml, shape=(1, 28, 28), records=70000, test_counts=test_counts
        )
    return _idx_pair(files[0], files[1]), _idx_pair(files[2], files[3])


def _idx_pair(images: Path, labels: Path) -> Part:
    """Returns the images and labels of two idx files."""
    pixels = read_idx(images, 3)
    answers = read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        reason = f"they have {pixels.shape[1]} x {pixels.shape[2]} pixels"
        raise damaged_file(images, "images of 28 x 28", reason)
    if len(answers) != len(pixels):
        reason = f"it has {len(answers)} of them for the {len(pixels)} images of {images}"
        raise damaged_file(labels, "labels", reason)
    if len(answers) > 0 and answers.max() > 9:
        reason = f"labels out of range: one is {answers.max()}, but 10 classes allow 0 to 9"
        raise damaged_file(labels, "labels", reason)
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
    """Returns both parts of a set as OpenML holds it: in one piece, the test images last."""
    try:
        found = download(openml, version=1, records=records)
        images = found.values.astype(np.uint8).reshape(-1, *shape)
        labels = found.target.astype(np.int64)
        # OpenML holds both parts in one table, the official test part last.
        train = records - sum(test_counts)
        # The counts of their labels confirm that the last images are the test images.
        if not np.array_equal(np.bincount(labels[train:]), test_counts):
            raise OpenMLUnavailable(
                f"OpenML {openml!r}: its last {sum(test_counts)} images are not the official "
                "test images"
            )
    except OpenMLUnavailable as error:
        # The message names the reason of the download; a traceback would only hide it.
        raise not_found(name, root, layouts, error) from None
    return (images[:train], labels[:train]), (images[train:], labels[train:])


def load_cifar10(root: Path | None) -> Dataset:
    """Loads CIFAR-10: 50000 + 10000 colour images of 32 x 32 pixels.

    Args:
        root: The folder of data files: sheets, or the "python version".

    Raises:
        UserError: The files are not there and cannot be downloaded, or are damaged.
    """
    sheets = [
        *(f"cifar10_train_{k}.webp" for k in range(1, 6)),
        "cifar10_test.webp",
        "cifar10_labels.npz",
    ]
    batches = [
        *(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)),
        "cifar-10-batches-py/test_batch",
    ]
    # Sheets come first: they are smaller, and hold the same images.
    if (files := locate(root, [sheets])) is not None:
        train, test = _sheet_parts(files[:5], files[5], files[6])
    elif (files := locate(root, [batches])) is not None:
        train = _cifar_part(files[:5], "labels")
        test = _cifar_part(files[5:], "labels")
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
    return make_image_set(
        "cifar10",
        train,
        test,
        CIFAR10,
        standardise_pixels([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    )


def _sheet_parts(train: Sequence[Path], test: Path, labels: Path) -> tuple[Part, Part]:
    """Returns both parts of CIFAR-10 from sheets of images and a file of labels."""
    answers = read_npz(labels)
    images_by_key = {
        "y_train": np.concatenate([read_sheet(sheet, 32) for sheet in train]),
        "y_test": read_sheet(test, 32),
    }
    parts = []
    for key, images in images_by_key.items():
        if key not in answers or answers[key].shape != images.shape[:1]:
            reason = f"{key} must be one label for each of {len(images)} images"
            raise damaged_file(labels, "labels of CIFAR-10", reason)
        parts.append((images, answers[key].astype(np.int64)))
    return parts[0], parts[1]


def _cifar_part(files: Sequence[Path], label_key: str) -> Part:
    """Returns the images and labels of several batches."""
    batches = [read_cifar_batch(file, label_key) for file in files]
    images = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    return images, labels


def load_cifar100(root: Path | None) -> Dataset:
    """Loads CIFAR-100 with its 100 fine labels: 50000 + 10000 colour images of 32 x 32 pixels.

    Args:
        root: The folder of data files: the "python version".

    Raises:
        UserError: The files are not there, or damaged.
    """
    layouts = [["cifar-100-python/train", "cifar-100-python/test"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("cifar100", root, layouts)
    train, test = (read_cifar_batch(file, "fine_labels") for file in files)
    return make_image_set(
        "cifar100",
        train,
        test,
        tuple(CIFAR100.split()),
        standardise_pixels([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    )


def load_pneumonia(root: Path | None) -> Dataset:
    """Loads PneumoniaMNIST: 4708 + 624 chest X-rays of 28 x 28 pixels.

    The 524 validation images are left out.

    Args:
        root: The folder of data files.

    Raises:
        UserError: The file is not there, or damaged.
    """
    layouts = [["pneumoniamnist.npz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("pneumoniamnist", root, layouts)
    arrays = read_npz(files[0])
    train, test = (_medmnist_part(files[0], arrays, part) for part in ("train", "test"))
    return make_image_set("pneumoniamnist", train, test, PNEUMONIA_CLASSES, centre_pixels(1))


def _medmnist_part(path: Path, arrays: dict[str, np.ndarray], part: str) -> Part:
    """Returns the images and labels of one part of a file of MedMNIST."""
    images = arrays.get(f"{part}_images")
    labels = arrays.get(f"{part}_labels")
    if images is not None and labels is not None:
        is_grey = images.dtype == np.uint8 and images.ndim == 3
        if is_grey and labels.shape == (len(images), 1):
            return images[:, None], labels[:, 0].astype(np.int64)
    expected = f"{part}_images as uint8 (n, 28, 28) and {part}_labels as (n, 1)"
    raise damaged_file(path, "a file of MedMNIST", f"it must hold {expected}")


def load_utkface(root: Path | None, answer: str = "gender") -> Dataset:
    """Loads 2500 faces of 32 x 32 pixels (UTKFace).

    A fifth is held out, the same for each answer.

    Args:
        root: The folder of data files.
        answer: The quantity that is predicted: "gender", "race" or the band of "age".

    Raises:
        UserError: The files are not there, or damaged.
    """
    layouts = [["utkface32_2500.webp", "utkface32_2500_labels.csv.gz"]]
    files = locate(root, layouts)
    if files is None:
        raise not_found("utkface", root, layouts)
    images = read_sheet(files[0], 32)
    table = read_table(files[1])
    if not set(UTKFACE_CLASSES) <= set(table) or len(table["age"]) != len(images):
        reason = f"it must hold age, gender and race of {len(images)} faces"
        raise damaged_file(files[1], "labels of UTKFace", reason)
    with reading(files[1], "labels of UTKFace"):
        codes = {name: np.array(table[name]).astype(np.int64) for name in UTKFACE_CLASSES}
        columns = {"age": codes["age"]}
        for name in ("gender", "race"):
            columns[name] = np.array(UTKFACE_CLASSES[name])[codes[name]]
    labels = codes[answer]
    if answer == "age":
        labels = np.digitize(codes["age"], AGE_BANDS).astype(np.int64)
    set_name = f"utkface-{answer}"
    if answer == "gender":
        set_name = "utkface"
    # Split by gender whatever the answer is, so that all three sets have the same test faces.
    train, test = published_split(codes["gender"])
    faces = make_image_set(
        set_name,
        (images[train], labels[train]),
        (images[test], labels[test]),
        UTKFACE_CLASSES[answer],
        centre_pixels(3),
    )
    # Only training records are shared out among clients.
    return replace(faces, columns={name: values[train] for name, values in columns.items()})
