"""A user's own data: arrays in an .npz file, or a table in a .csv file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.federation.data.dataset import Dataset, described, split
from sordino.federation.data.formats import read_npz, read_table
from sordino.federation.data.images import centred
from sordino.protocol import UserError

ONE_PIECE, TWO_PIECES = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")
COLUMN = "column_"
SPECIAL = ("label", "target", "split")


def load_npz(path: Path) -> Dataset:
    """Arrays from an .npz file: `x` and `y`, of which a fifth is held out, or `x_train`, `y_train`, `x_test`, `y_test`.

    Whole numbers in y are labels from 0, real numbers are targets. Images are uint8, (n, height, width) or (n, channels, height, width).
    Any other array named `column_<name>`, one value per training record, is a column that a partition may go by.

    Raises:
        UserError: arrays that are missing, unknown, or of a type or shape that does not fit.
    """
    arrays = read_npz(path)
    columns = {name[len(COLUMN) :]: values for name, values in arrays.items() if name.startswith(COLUMN)}
    names = tuple(sorted(name for name in arrays if not name.startswith(COLUMN)))
    if names == ONE_PIECE:
        train, test = split(_rows(arrays["y"], "y", path))
        parts = [_rows(arrays[name], name, path) for name in ONE_PIECE]
        if len(parts[0]) != len(parts[1]):
            raise UserError(f"{path}: x has {len(parts[0])} records, but y has {len(parts[1])}.")
        x_train, y_train, x_test, y_test = (values[rows] for rows in (train, test) for values in parts)
        columns = {name: values[train] for name, values in columns.items() if _fits(values, name, len(parts[1]), path)}
    elif names == tuple(sorted(TWO_PIECES)):
        x_train, y_train, x_test, y_test = (_rows(arrays[name], name, path) for name in TWO_PIECES)
    elif names == ("x_train", "y_train"):
        return load_pieces_missing(path)
    else:
        raise UserError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected are x, y or {', '.join(TWO_PIECES)}, and column_<name>.")
    return Dataset(name=path.stem)
