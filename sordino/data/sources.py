"""Finds the files of a data set: below a folder, or at OpenML through scikit-learn.

Otherwise one message says what to put where.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.protocol import UserError

VARIABLE = "SORDINO_DATA"


def data_root(root: Path | None = None) -> Path | None:
    """Returns the folder of data files: the given one, else what SORDINO_DATA names, else none.

    Args:
        root: The given folder.

    Raises:
        UserError: The folder does not exist.

    Example:
        >>> data_root(Path("/")).as_posix()
        '/'
    """
    origin = f"root = {str(root)!r}"
    # An argument is nearer to the call than the environment, so it wins.
    if root is None:
        from_environment = os.environ.get(VARIABLE, "")
        if from_environment == "":
            return None
        root = Path(from_environment)
        origin = f"{VARIABLE} = {from_environment!r}"
    if not os.path.isdir(root):
        raise UserError(
            f"{origin}: there is no such folder. "
            "Name the folder that holds the data files, or leave it out."
        )
    return root


def locate(root: Path | None, layouts: Sequence[Sequence[str]]) -> tuple[Path, ...] | None:
    """Returns the files of the first layout that is there in full.

    Args:
        root: The folder that relative names are looked up in; None where there is none.
        layouts: Alternatives, best first, each a list of file names. Absolute names need no root,
            and each file may also lack its `.gz`.

    Returns:
        The files; None where no layout is there.

    Raises:
        UserError: Some files of a layout are there and others are not.
    """
    for names in layouts:
        paths = [Path(name) for name in names]
        if root is not None:
            paths = [root / name for name in names]
        # Without a root only absolute names can be looked for.
        elif not all(path.is_absolute() for path in paths):
            continue
        found = []
        missing = []
        for path in paths:
            present = _find_file(path)
            if present is None:
                missing.append(str(path))
            else:
                found.append(present)
        if not missing:
            return tuple(found)
        # Half a layout is a mistake. Falling through to the next one would train on other files.
        if found:
            raise UserError(
                f"{found[0]} is there, but not {', '.join(missing)}. "
                "Add what is missing, or move the other files away."
            )
    return None


def _find_file(path: Path) -> Path | None:
    """Returns a file, or the same without its `.gz`; None where neither is there."""
    if os.path.isfile(path):
        return path
    # Downloads are often unpacked by hand.
    if path.suffix == ".gz" and os.path.isfile(path.with_suffix("")):
        return path.with_suffix("")
    return None


def not_found(
    name: str,
    root: Path | None,
    layouts: Sequence[Sequence[str]],
    openml: OpenMLUnavailable | None = None,
) -> UserError:
    """Returns the error for a data set that is nowhere, which says what to put where.

    Args:
        name: The data set.
        root: The folder that was looked in.
        layouts: Alternative lists of its files.
        openml: Why a download failed, if one was tried.
    """
    reason = f"{root} does not hold it"
    if root is None:
        reason = f"{VARIABLE} is not set"
    if openml is not None:
        reason += f", and the download failed ({openml})"
    alternatives = "\n  or  ".join(_describe_layout(names) for names in layouts)
    return UserError(
        f"data set {name!r} was not found: {reason}.\n"
        f"Let the environment variable {VARIABLE} name a folder that holds\n      {alternatives}"
    )


def _describe_layout(names: Sequence[str]) -> str:
    """Returns file names, with a folder that they share named once."""
    folder = os.path.dirname(names[0])
    if folder == "":
        return ", ".join(names)
    files = ", ".join(os.path.basename(name) for name in names)
    if os.path.isabs(folder):
        return f"(without the variable) {folder} with {files}"
    return f"a folder {folder} with {files}"


class OpenMLUnavailable(Exception):
    """A set is not available from OpenML; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """One set as OpenML holds it, in the order of its file.

    Attributes:
        values: float64 (records, features); a category is its place in `categories`, a missing
            value is NaN.
        target: The answers, as text.
        features: Name of every feature.
        categories: The values of every feature that is categorical.
    """

    values: np.ndarray
    target: np.ndarray
    features: tuple[str, ...]
    categories: dict[str, list[str]]


def download(name: str, *, version: int, records: int) -> Download:
    """Returns a set from OpenML, or from scikit-learn's copy of an earlier download.

    Args:
        name: What OpenML calls it.
        version: Which of the sets of that name.
        records: How many there must be; a truncated copy is refused.

    Raises:
        OpenMLUnavailable: No network, no such set, or a damaged copy.
    """
    # Both are slow to load, and most data sets are files.
    from http.client import HTTPException

    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            # About retries and inactive versions; what matters is in the exception.
            warnings.simplefilter("ignore")
            # Of the two parsers only this one does without pandas.
            bunch = fetch_openml(
                name,
                version=version,
                as_frame=False,
                parser="liac-arff",
                n_retries=1,
            )
    except (OSError, ValueError, KeyError, HTTPException) as error:
        raise OpenMLUnavailable(
            f"OpenML {name!r} version {version}: {type(error).__name__}: {error}"
        ) from error
    # A version that OpenML has changed would make other records with the same name.
    if len(bunch.data) != records:
        raise OpenMLUnavailable(
            f"OpenML {name!r} version {version}: {len(bunch.data)} records instead of {records}"
        )
    return Download(
        values=bunch.data,
        target=bunch.target.astype(str),
        features=tuple(bunch.feature_names),
        categories=dict(bunch.categories or {}),
    )
