"""Where a data set is found: files below a folder, or OpenML through scikit-learn; otherwise one message that says what to put where."""

from __future__ import annotations

import http.client
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.protocol import UserError

VARIABLE = "SORDINO_DATA"


def data_root(root: Path | None = None) -> Path | None:
    """The folder of data files: the one given, else what SORDINO_DATA names, else none.

    Raises:
        UserError: the folder does not exist.

    Example:
        >>> data_root(Path("/")).as_posix()
        '/'
    """
    named = os.environ.get(VARIABLE, "")
    if root is None and named == "":
        return None
    folder = Path(named) if root is None else root
    if not os.path.isdir(folder):
        origin = f"{VARIABLE} = {named!r}" if root is None else f"root = {str(root)!r}"
        raise UserError(
            f"{origin}: there is no such folder. Name the folder that holds the data files, or leave it out."
        )
    return folder


def locate(root: Path | None, layouts: Sequence[Sequence[str]]) -> tuple[Path, ...] | None:
    """The files of the first layout that is there in full; each file may also lack its `.gz`.

    Args:
        root: folder that relative names are looked up in; None where there is none.
        layouts: alternatives, best first, each a list of file names. Absolute names need no root.

    Raises:
        UserError: some files of a layout are there and others are not.
    """
    for names in layouts:
        places = [Path(name) if root is None else root / name for name in names]
        if root is None and not all(place.is_absolute() for place in places):
            continue
        present = [_present(place) for place in places]
        found = tuple(place for place in present if place is not None)
        if len(found) == len(places):
            return found
        if found:
            lacking = ", ".join(
                str(place) for place, there in zip(places, present, strict=True) if there is None
            )
            raise UserError(
                f"{found[0]} is there, but not {lacking}. Add what is missing, or move the other files away."
            )
    return None


def _present(place: Path) -> Path | None:
    choices = (place, place.with_suffix("")) if place.suffix == ".gz" else (place,)
    return next((choice for choice in choices if os.path.isfile(choice)), None)


def not_found(
    name: str,
    root: Path | None,
    layouts: Sequence[Sequence[str]],
    openml: OpenMLUnavailable | None = None,
) -> UserError:
    """The one message for a data set that is nowhere: where was looked, why a download failed, what to put where."""
    looked = f"{VARIABLE} is not set" if root is None else f"{root} does not hold it"
    download = f", and the download failed ({openml})" if openml is not None else ""
    alternatives = "\n  or  ".join(_listing(names) for names in layouts)
    return UserError(
        f"data set {name!r} was not found: {looked}{download}.\n"
        f"Let the environment variable {VARIABLE} name a folder that holds\n      {alternatives}"
    )


def _listing(names: Sequence[str]) -> str:
    """File names, with a folder that they share named once."""
    folder = os.path.dirname(names[0])
    if folder == "":
        return ", ".join(names)
    files = ", ".join(os.path.basename(name) for name in names)
    return (
        f"a folder {folder} with {files}"
        if not os.path.isabs(folder)
        else f"(without the variable) {folder} with {files}"
    )


class OpenMLUnavailable(Exception):
    """A set could not be had from OpenML; its text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """One set as OpenML holds it, in the order of its file.

    Attributes:
        values: float64 (records, features); a category is its place in `categories`, a missing value is NaN.
        target: the answers, as text.
        features: name of every feature.
        categories: the values of every feature that is categorical.
    """

    values: np.ndarray
    target: np.ndarray
    features: tuple[str, ...]
    categories: dict[str, list[str]]


def download(name: str, *, version: int, records: int) -> Download:
    """A set from OpenML, or from the copy that scikit-learn keeps of an earlier download.

    Args:
        name: what OpenML calls it.
        version: which of the sets of that name.
        records: how many there must be; a truncated copy is refused.

    Raises:
        OpenMLUnavailable: no network, no such set, or a damaged copy.
    """
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about retries and inactive versions; what matters is in the exception
            # Of the two parsers only this one does without pandas.
            bunch = fetch_openml(
                name, version=version, as_frame=False, parser="liac-arff", n_retries=1
            )
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        raise OpenMLUnavailable(
            f"OpenML {name!r} version {version}: {type(error).__name__}: {error}"
        ) from error
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
