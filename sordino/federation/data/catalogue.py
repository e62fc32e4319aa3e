"""Every data set by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sordino.federation.data import folders, images, own, tables, wind
from sordino.federation.data.classes import Classes, refuse_other_classes
from sordino.federation.data.dataset import Dataset, without_test
from sordino.federation.data.sources import data_root
from sordino.protocol import Data, UserError
from sordino.protocol.entries import Choice, Labels, Maybe, nearest

LOADERS: Mapping[str, Callable[[Path | None], Dataset]] = {
    "digits": images.load_digits,
    "breast-cancer": tables.load_breast_cancer,
    "mnist": images.load_mnist,
    "fashion-mnist": images.load_fashion_mnist,
    "cifar10": images.load_cifar10,
    "cifar100": images.load_cifar100,
    "adult": tables.load_adult,
    "pneumoniamnist": images.load_pneumonia,
    "location30": tables.load_location,
    "gefcom-wind": wind.load_wind,
    "utkface": images.load_utkface,
    "utkface-race": partial(images.load_utkface, answer="race"),
    "utkface-age": partial(images.load_utkface, answer="age"),
}
BUNDLED = ("digits", "breast-cancer")  # come with scikit-learn: no files needed
FILES: Mapping[str, Callable[..., Dataset]] = {
    ".npz": own.load_npz,
    ".csv": own.load_csv,
    ".csv.gz": own.load_csv,
}
KNOWN = tuple(LOADERS)
CLASSES: Mapping[str, tuple[str, ...] | None] = {
    "digits": images.DIGITS,
    "breast-cancer": tables.BREAST_CANCER_CLASSES,
    "mnist": images.DIGITS,
    "fashion-mnist": images.FASHION,
    "cifar10": images.CIFAR10,
    "cifar100": tuple(images.CIFAR100.split()),
    "adult": tables.ADULT_CLASSES,
    "pneumoniamnist": images.PNEUMONIA_CLASSES,
    "location30": tables.LOCATION_CLASSES,
    "gefcom-wind": None,
    "utkface": images.UTKFACE_CLASSES["gender"],
    "utkface-race": images.UTKFACE_CLASSES["race"],
    "utkface-age": images.UTKFACE_CLASSES["age"],
}  # of every named set, published with it; known without loading it


def load_dataset(
    name: str,
    *,
    root: Path | None = None,
    classes: Classes | Sequence[str] | None = None,
    test: str | None = None,
) -> Dataset:
    """A data set by name, or from a path: an .npz file, a .csv or .csv.gz file, or a folder of images.

    Named sets are looked for in `root`, by default the folder that the environment variable SORDINO_DATA names, then at OpenML;
    docs/data.md lists the files. A name wins over a file of the same name.

    Args:
        name: one of `KNOWN`, or a path.
        root: folder of the files of named sets.
        classes: of data from a path with labels, how many classes there are, or their names in order. They are public, and never
            taken from the records.
        test: "none" for a data set without a test part, all of whose records are for training.

    Raises:
        UserError: an unknown name, files that are missing or damaged, classes that were not said, or data that make no sense.

    Example:
        >>> digits = load_dataset("digits")
        >>> digits.x_train.shape, digits.x_test.shape, digits.outputs
        ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    said = Maybe(Labels()).accept("classes", classes)
    hold_out = Maybe(Choice(("none",))).accept("test", test) is None
    if name in LOADERS:
        refuse_other_classes(name, CLASSES[name], said)
        found = LOADERS[name](None if name in BUNDLED else data_root(root))
        return found if hold_out else without_test(found)
    path = Path(os.path.expanduser(name))
    suffix = next((suffix for suffix in FILES if path.name.endswith(suffix)), None)
    if os.path.isdir(path):
        return folders.load_folder(path, said, hold_out=hold_out)
    if suffix is not None and os.path.isfile(path):
        return FILES[suffix](path, said, hold_out=hold_out)
    raise _unknown(name, path, is_path=suffix is not None or "/" in name)


def load_data(data: Data, name: str | None = None) -> Dataset:
    """Loads the data set that a protocol names, or another one of the same classes.

    Args:
        data: what the protocol says.
        name: a name or a path in place of the protocol's.

    Example:
        >>> load_data(Data(name="digits", test="none")).y_test.size
        0
    """
    source = data.name if name is None else name
    classes = data.classes
    if source != data.name:
        classes = None if source in KNOWN else agreed_classes(data)
    found = load_dataset(source, classes=classes, test=data.test)
    refuse_other_columns(source, found.inputs, data.columns)
    return found


def refuse_other_columns(
    source: str, found: tuple[str, ...] | None, said: tuple[str, ...] | None
) -> None:
    """Refuses a table whose input columns are not those that a protocol lists.

    A model that was trained on weight and age would take age for weight without a word.

    Args:
        source: the file, for the message.
        found: its input columns in order; None where records are no rows of a table.
        said: what the protocol lists; None where it leaves them open.

    Raises:
        UserError: a column is missing, unknown or in another place; the first such is named.

    Example:
        >>> refuse_other_columns("wards.csv", ("age", "weight"), ("age", "weight"))
    """
    if said is None or found == said:
        return
    if found is None:
        raise UserError(
            f"data.columns = {list(said)}: {source} is no table with named columns. Use a .csv "
            "file, or leave the key out."
        )
    problem = f"its columns are {', '.join(found)}"
    for place, name in enumerate(said):
        if name not in found:
            problem = f"it has no column {name!r} of numbers"
            break
        if place >= len(found) or found[place] != name:
            problem = f"column {name!r} is input {found.index(name) + 1}, and must be {place + 1}"
            break
    extra = [name for name in found if name not in said]
    if extra and set(said) <= set(found):
        problem = f"its column {extra[0]!r} is none of them"
    raise UserError(f"data.columns = {list(said)}: {source} does not fit: {problem}.")


def agreed_classes(data: Data) -> Classes | None:
    """Returns the classes that everyone who has the protocol knows: those that it lists, or those of the public set it names.

    Example:
        >>> agreed_classes(Data(name="breast-cancer"))
        ('malignant', 'benign')
    """
    return data.classes if data.classes is not None else CLASSES.get(data.name)


def _unknown(name: str, path: Path, *, is_path: bool) -> UserError:
    if os.path.exists(path):
        return UserError(
            f"data {name!r}: this kind of file is not known. Allowed are {', '.join(FILES)} files and folders of images."
        )
    if is_path:
        return UserError(
            f"data {name!r}: there is no such file or folder (looked for {path.absolute()})."
        )
    hint = nearest(name, KNOWN)
    return UserError(
        f"data {name!r} is not known.{' ' + hint if hint else ''} Known are {', '.join(KNOWN)}; or give the path of an .npz file, a .csv "
        "file or a folder of images."
    )
