"""Describes a protocol's data before they are loaded.

Only the header of a file is read; no record is looked at.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from sordino.data.feature_shapes import IMAGE_SHAPES, Shape, find_feature_shape
from sordino.data.named_sets import KNOWN
from sordino.data.table_columns import describe_column
from sordino.data.table_files import is_table, read_header
from sordino.protocol import Data, UserError
from sordino.protocol.column_kinds import LabelColumn, SplitColumn
from sordino.protocol.data_entries import FEATURES

NOT_COVERED = "scores on them are exact, and no promise covers them"
LEFT_OUT = 'data.test = "none" scores nothing'


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What the header of a file, or the names in a folder, say about own data.

    Attributes:
        labelled: Whether answers are labels of classes, and not quantities.
        listed: Whether the file or folder lists its classes itself.
        divided: Whether it says which records are for testing.
    """

    labelled: bool
    listed: bool
    divided: bool


def make_outline(name: str) -> Outline | None:
    """Returns the outline of own data.

    Args:
        name: A path.

    Returns:
        The outline; None where there is no such file or folder, or it cannot be read.

    Example:
        >>> make_outline("nowhere.csv") is None
        True
    """
    # Nothing here may look at a record: certify and check run on machines that should not read
    # them.
    path = Path(os.path.expanduser(name))
    try:
        if is_table(path):
            return _outline_table(path)
        if path.is_dir():
            return Outline(labelled=True, listed=True, divided=(path / "train").is_dir())
        if path.name.endswith(".npz"):
            return _npz_outline(path)
    # Whatever the file is, describing a protocol must not fail.
    except (OSError, ValueError, KeyError, EOFError, UserError, zipfile.BadZipFile):
        # Training names the fault in it.
        return None
    return None


def _outline_table(path: Path) -> Outline:
    """Returns the outline of a table, from its first line."""
    header = read_header(path)
    return Outline(labelled="label" in header, listed=False, divided="split" in header)


def _npz_outline(path: Path) -> Outline:
    """Returns the outline of arrays, from their names and types."""
    with np.load(path, allow_pickle=False) as arrays:
        answers = arrays["y" if "y" in arrays.files else "y_train"]
        return Outline(
            # Whole numbers are labels and real numbers are targets, as `own` reads them.
            labelled=answers.dtype.kind in "biu",
            listed="classes" in arrays.files,
            divided="x_test" in arrays.files,
        )


def data_hints(data: Data) -> list[str]:
    """Returns what the owner of a protocol should know about its data before training.

    That is whether classes have to be given, and whose records are scored.

    Args:
        data: What the protocol says about its data.

    Example:
        >>> data_hints(Data(name="digits"))
        ['Scores are on public test records.']
    """
    hints = _features_hint(data)
    if data.name in KNOWN:
        if data.test == "none":
            return [*hints, f"Nothing is scored: {LEFT_OUT}."]
        return [*hints, "Scores are on public test records."]
    outline = _outline_description(data) or make_outline(data.name)
    return [
        *hints,
        *_column_hints(data),
        *_classes_hint(data, outline),
        _scores_hint(data, outline),
    ]


def _outline_description(data: Data) -> Outline | None:
    """Returns the outline that described columns give, for a file of any names."""
    if data.described_columns is None:
        return None
    kinds = [type(column) for column in data.described_columns]
    return Outline(labelled=LabelColumn in kinds, listed=False, divided=SplitColumn in kinds)


def _column_hints(data: Data) -> list[str]:
    """Returns what happens to every column of a table."""
    if data.described_columns is None:
        return []
    return [f"Column {describe_column(column)}." for column in data.described_columns]


def _features_hint(data: Data) -> list[str]:
    """Returns sentences about the features: their shape, and what they must be.

    Raises:
        UserError: Built-in features of records that are known to be no images.
    """
    if data.features is None:
        return []
    if data.features not in FEATURES:
        return [
            f"Features by {data.features}: it must be a fixed function of a single record, which "
            "training tests on invented records; their shape is known then."
        ]
    kept = (
        "They are kept in the cache folder (SORDINO_CACHE), where they are as private as the "
        "records."
    )
    shape = find_record_shape(data.name)
    if shape is None:
        return [f"Features by {data.features}: images must be of 8 by 8 pixels or more. {kept}"]
    made = find_feature_shape(data.features, shape)
    return [f"Features by {data.features}: records of shape {shape} become {made}. {kept}"]


def find_record_shape(name: str) -> Shape | None:
    """Returns the shape of one record of a named set or an .npz file, from its header.

    Args:
        name: A known data set, or a path.

    Returns:
        The shape; None where it is not known before the records are read.

    Example:
        >>> find_record_shape("mnist")
        (1, 28, 28)
    """
    if name in IMAGE_SHAPES:
        return IMAGE_SHAPES[name]
    path = Path(os.path.expanduser(name))
    if name in KNOWN or not path.name.endswith(".npz"):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            member = "x.npy" if "x.npy" in archive.namelist() else "x_train.npy"
            with archive.open(member) as file:
                shape, dtype = _read_header(file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    # Grey images may come without their channel, as `own` reads them.
    if dtype == np.uint8 and len(shape) == 3:
        return (1, *shape[1:])
    return shape[1:]


def _read_header(file: IO[bytes]) -> tuple[Shape, np.dtype]:
    """Returns the shape and the type of a stored array; none of its values is read."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return shape, dtype


def _classes_hint(data: Data, outline: Outline | None) -> list[str]:
    """Returns a sentence about classes that are missing, if any are."""
    if data.classes is not None:
        return []
    if outline is None:
        return ["data.classes is missing: if the data have labels, training will ask for it."]
    if not outline.labelled or outline.listed:
        return []
    return [
        f"data.classes is missing: {data.name} has labels, and training will ask for their list. "
        "Write under [data] how many classes there are (classes = 2), or their names in order "
        '(classes = ["no", "yes"]).'
    ]


def _scores_hint(data: Data, outline: Outline | None) -> str:
    """Returns a sentence about the records that are scored."""
    if data.test == "none":
        return f"Nothing is scored: {LEFT_OUT}."
    held_out = f"a fifth of the clients' own records is held out; {NOT_COVERED}; {LEFT_OUT}"
    brought = f"the test records that come with the data; if these are private, {NOT_COVERED}"
    if outline is None:
        return f"Scores are on test records if the data bring some; otherwise {held_out}."
    if outline.divided:
        return f"Scores are on {brought}; {LEFT_OUT}."
    return f"The data have no test part: {held_out}."
