"""What can be said about a protocol's data before they are loaded: by the header of a file, no record is looked at."""

from __future__ import annotations

import csv
import gzip
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.federation.data.catalogue import KNOWN
from sordino.protocol import Data

NOT_COVERED = "scores on them are exact, and no promise covers them"
LEFT_OUT = 'data.test = "none" scores nothing'


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What the header of a file, or the names in a folder, say about own data.

    Attributes:
        labelled: whether answers are labels of classes, and not quantities.
        listed: whether the file or folder lists its classes itself.
        divided: whether it says which records are for testing.
    """

    labelled: bool
    listed: bool
    divided: bool


def outline_of(name: str) -> Outline | None:
    """Returns the outline of own data; None where there is no such file or folder, or it cannot be read.

    Args:
        name: a path.

    Example:
        >>> outline_of("nowhere.csv") is None
        True
    """
    path = Path(os.path.expanduser(name))
    try:
        if path.is_dir():
            return Outline(labelled=True, listed=True, divided=(path / "train").is_dir())
        if path.name.endswith(".npz"):
            return _npz_outline(path)
        if path.name.endswith((".csv", ".csv.gz")):
            return _csv_outline(path)
    except (OSError, ValueError, KeyError, EOFError, csv.Error, zipfile.BadZipFile):
        return None  # training says what is wrong with it
    return None


def _csv_outline(path: Path) -> Outline:
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        header = [name.strip() for name in next(csv.reader(file), [])]
    return Outline(labelled="label" in header, listed=False, divided="split" in header)


def _npz_outline(path: Path) -> Outline:
    with np.load(path, allow_pickle=False) as arrays:
        answers = arrays["y" if "y" in arrays.files else "y_train"]
        return Outline(
            labelled=answers.dtype.kind in "biu",
            listed="classes" in arrays.files,
            divided="x_test" in arrays.files,
        )


def data_hints(data: Data) -> list[str]:
    """Returns what the owner of a protocol should know before training: whether classes have to be said, and whose records are scored.

    Args:
        data: what the protocol says about its data.

    Example:
        >>> data_hints(Data(name="digits"))
        ['Scores are on public test records.']
    """
    if data.name in KNOWN:
        nothing = data.test == "none"
        return [
            f"Nothing is scored: {LEFT_OUT}." if nothing else "Scores are on public test records."
        ]
    outline = outline_of(data.name)
    return [*_classes_hint(data, outline), _scores_hint(data, outline)]


def _classes_hint(data: Data, outline: Outline | None) -> list[str]:
    if data.classes is not None:
        return []
    if outline is None:
        return ["data.classes is not said: if the data have labels, training will ask for it."]
    if not outline.labelled or outline.listed:
        return []
    return [
        f"data.classes is missing: {data.name} has labels, and training will ask for their list. Write under [data] "
        'how many classes there are (classes = 2), or their names in order (classes = ["no", "yes"]).'
    ]


def _scores_hint(data: Data, outline: Outline | None) -> str:
    if data.test == "none":
        return f"Nothing is scored: {LEFT_OUT}."
    held_out = f"a fifth of the clients' own records is held out; {NOT_COVERED}; {LEFT_OUT}"
    brought = f"the test records that come with the data; if these are private, {NOT_COVERED}"
    if outline is None:
        return f"Scores are on test records if the data bring some; otherwise {held_out}."
    if outline.divided:
        return f"Scores are on {brought}; {LEFT_OUT}."
    return f"The data have no test part: {held_out}."
