"""The version of the package that is installed."""

from __future__ import annotations

import functools
from importlib.metadata import version


@functools.cache
def own_version() -> str:
    """Returns the version of Sordino that is installed.

    Example:
        >>> own_version().count(".")
        2
    """
    return version("sordino")
