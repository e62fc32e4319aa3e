"""Loads every data set by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sordino.data import folders, images, own, own_tables, tables, wind
from sordino.data.classes import Classes, refuse_other_classes
from sordino.data.dataset import Dataset, drop_test_part
from sordino.data.sources import data_root
from sordino.data.table_files import TABLE_SUFFIXES, is_table
from sordino.protocol import Data, UserError
from sordino.protocol.column_kinds import Column
from sordino.protocol.spelling import suggest_spelling
from sordino.protocol.value_checks import Choice, Labels, Maybe

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
# These come with scikit-learn, and need no files.
# Loading them must work without SORDINO_DATA, since the demo does.
BUNDLED = ("digits", "breast-cancer")
ARRAY_SUFFIX = ".npz"
KNOWN = tuple(LOADERS)
# The classes of every named set, published with it; known without loading it.
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
}


def load_dataset(
    name: str,
    *,
    root: Path | None = None,
    classes: Classes | Sequence[str] | None = None,
    test: str | None = None,
    columns: Sequence[Column] | None = None,
) -> Dataset:
    """Loads a data set by name, or from a path.

    A path is an .npz file, a table (CSV or Parquet), or a folder of images or tables. Named sets
    are looked for in `root`, by default the folder that the environment variable SORDINO_DATA
    names, then at OpenML; docs/data.md lists the files. A name wins over a file of the same name.

    Args:
        name: One of `KNOWN`, or a path.
        root: Folder of the files of named sets.
        classes: Of data from a path with labels, how many classes there are, or their names in
            order. They are public, and never taken from the records.
        test: "none" for a data set without a test part, all of whose records are for training.
        columns: The description of every column of a table.

    Returns:
        The data set.

    Raises:
        UserError: An unknown name, files that are missing or damaged, classes that were not given,
            or data that make no sense.

    Example:
        >>> digits = load_dataset("digits")
        >>> digits.x_train.shape, digits.x_test.shape, digits.outputs
        ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    given = Maybe(Labels()).accept_value("classes", classes)
    hold_out = Maybe(Choice(("none",))).accept_value("test", test) is None
    if name in LOADERS:
        # Checked before the files are looked for: a wrong list should not cost a download.
        refuse_other_classes(name, CLASSES[name], given)
        _refuse_description(name, columns)
        folder = None
        if name not in BUNDLED:
            folder = data_root(root)
        dataset = LOADERS[name](folder)
        if hold_out:
            return dataset
        return drop_test_part(dataset)
    # A name that is known never means a file, even if one of that name is there.
    path = Path(os.path.expanduser(name))
    if is_table(path):
        return own_tables.load_table(path, given, hold_out=hold_out, columns=columns)
    if not os.path.exists(path):
        raise _unknown_data(name, path)
    _refuse_description(name, columns)
    if os.path.isdir(path):
        return folders.load_folder(path, given, hold_out=hold_out)
    if path.name.endswith(ARRAY_SUFFIX) and os.path.isfile(path):
        return own.load_npz(path, given, hold_out=hold_out)
    raise _unknown_data(name, path)


def load_data(data: Data, name: str | None = None) -> Dataset:
    """Loads the data set that a protocol names, or another one of the same classes.

    Args:
        data: What the protocol says.
        name: A name or a path in place of the protocol's.

    Returns:
        The data set.

    Raises:
        UserError: As `load_dataset`, or columns that are not those the protocol lists.

    Example:
        >>> load_data(Data(name="digits", test="none")).y_test.size
        0
    """
    source = data.name
    classes = data.classes
    if name is not None and name != data.name:
        source = name
        # Another set brings its own classes. A user's file has no list, and takes the protocol's.
        classes = None
        if source not in KNOWN:
            classes = find_agreed_classes(data)
    found = load_dataset(source, classes=classes, test=data.test, columns=data.described_columns)
    refuse_other_columns(source, found.inputs, data.input_columns)
    return found


def refuse_other_columns(
    source: str, found: tuple[str, ...] | None, said: tuple[str, ...] | None
) -> None:
    """Refuses a table whose input columns are not those that a protocol lists.

    A model that was trained on weight and age would take age for weight without a word.

    Args:
        source: The file, for the message.
        found: Its input columns in order; None where records are no rows of a table.
        said: What the protocol lists; None where it leaves them open.

    Raises:
        UserError: A column is missing, unknown or in another place; the first such is named.

    Example:
        >>> refuse_other_columns("wards.csv", ("age", "weight"), ("age", "weight"))
    """
    # Order matters as much as names: a model's first weights belong to the first column.
    if said is None or found == said:
        return
    if found is None:
        raise UserError(
            f"data.columns = {list(said)}: {source} is not a table with named columns. Use a .csv "
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
    # An additional column is the last resort: a missing or misplaced one explains more.
    extra = [name for name in found if name not in said]
    if extra and set(said) <= set(found):
        problem = f"its column {extra[0]!r} is none of them"
    raise UserError(f"data.columns = {list(said)}: {source} does not fit: {problem}.")


def find_agreed_classes(data: Data) -> Classes | None:
    """Returns the classes that the protocol lists, or those of the public set it names.

    They are public: the protocol itself fixes them.

    Args:
        data: What the protocol says about its data.

    Example:
        >>> find_agreed_classes(Data(name="breast-cancer"))
        ('malignant', 'benign')
    """
    if data.classes is not None:
        return data.classes
    return CLASSES.get(data.name)


def _refuse_description(name: str, columns: Sequence[Column] | None) -> None:
    """Refuses a description of columns for data that are no table."""
    if columns is not None:
        raise UserError(
            f"[data.columns] describes the columns of a table, and {name} is none. Use a table "
            f"({', '.join(TABLE_SUFFIXES)}) or a folder of them, save a spreadsheet as one, or "
            "leave the description out."
        )


def _unknown_data(name: str, path: Path) -> UserError:
    """Returns the error for data that are neither a known name nor a readable path."""
    suffixes = (ARRAY_SUFFIX, *TABLE_SUFFIXES)
    if os.path.exists(path):
        return UserError(
            f"data {name!r}: this kind of file is not known. "
            f"Allowed are {', '.join(suffixes)} files and folders of images or tables."
        )
    if name.endswith(suffixes) or "/" in name:
        return UserError(
            f"data {name!r}: there is no such file or folder (looked for {path.absolute()})."
        )
    hint = suggest_spelling(name, KNOWN)
    if hint:
        hint = f" {hint}"
    return UserError(
        f"data {name!r} is not known.{hint} Known are {', '.join(KNOWN)}; "
        "or give the path of an .npz file, a .csv file or a folder of images or tables."
    )
