"""Data that are passed in Python: arrays, DataFrames, paths, or a finished `Dataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.own import build_from_arrays
from sordino.data.own_tables import load_frame
from sordino.protocol import Data, UserError

# What arrays are called, by how many there are.
ARRAY_NAMES = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
EXPECTED = (
    "a name, a path, arrays (x, y) or (x_train, y_train, x_test, y_test), a pandas or polars "
    "DataFrame, or a Dataset"
)


def accept_data(given: Any, settings: Data | None) -> str | Dataset | None:
    """Returns data in one of two forms: a name or path, or a data set.

    Args:
        given: As the caller has them; None for the protocol's.
        settings: What the protocol says about its data; classes, columns and test part are taken
            from it.

    Raises:
        UserError: It is nothing of the kind, or does not fit what the protocol says.

    Example:
        >>> x = np.arange(20.0).reshape(10, 2)
        >>> data = accept_data((x, np.arange(10) % 2), Data(name="mine", classes=2))
        >>> data.x_train.shape, data.x_test.shape
        ((8, 2), (2, 2))
    """
    if given is None or isinstance(given, (str, Dataset)):
        return given
    if isinstance(given, Path):
        return str(given)
    classes = None
    columns = None
    hold_out = True
    if settings is not None:
        classes = settings.classes
        columns = settings.described_columns
        # A protocol that names its test records has none taken from the training records.
        hold_out = settings.test is None
    if isinstance(given, (tuple, list)):
        return build_from_arrays(Path("arrays"), _name_arrays(given), classes, hold_out=hold_out)
    # By what it offers, so that neither pandas nor polars has to be installed.
    if hasattr(given, "columns"):
        return load_frame(given, classes, hold_out=hold_out, columns=columns)
    raise UserError(f"data of type {type(given).__name__}: expected is {EXPECTED}.")


def _name_arrays(given: tuple[Any, ...] | list[Any]) -> dict[str, np.ndarray]:
    """Returns arrays by name."""
    if len(given) not in ARRAY_NAMES:
        raise UserError(f"data of {len(given)} arrays: expected is {EXPECTED}.")
    arrays = {}
    for name, values in zip(ARRAY_NAMES[len(given)], given, strict=True):
        try:
            arrays[name] = np.asarray(values)
        # Rows of different lengths.
        except ValueError as error:
            raise UserError(f"data: {name} is not an array: {error}.") from None
    return arrays
