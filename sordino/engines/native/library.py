"""The compiled kernel: which libraries the build has made, which of them this processor can run, and how they are called."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path

from sordino.protocol import InvalidValue

HERE = Path(__file__).parent
# From the best down; the number is what `sordino_processor` says of a processor that can run it.
INSTRUCTION_SETS = {"avx512": 2, "avx2": 1, "portable": 0}
CHOICE = "SORDINO_SIMD"  # environment variable: one of the names above, for measurements and tests
FOLDER = "SORDINO_NATIVE_LIBRARIES"  # environment variable: where to look for libraries instead, such as instrumented ones

VERSION = 5  # of the interface, as in src/interface.h
ABSENT = (
    "the native engine is absent: no compiled kernel came with this installation (it needs a C++17 compiler, GCC 12 or Clang 15, when "
    "Sordino is installed), or an older one did, and `make native` builds it anew"
)

_pointer, _whole = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "sordino_version": (_whole, []),
    "sordino_lanes": (_whole, []),
    "sordino_processor": (_whole, []),
    "sordino_plan": (_pointer, [_pointer, _whole, _pointer, _whole, _whole, _whole]),
    "sordino_release": (None, [_pointer]),
    "sordino_parameters": (_whole, [_pointer]),
    "sordino_memory": (_whole, [_pointer]),
    "sordino_train": (_whole, [_pointer, _pointer, _whole, _whole]),
    "sordino_gradient": (
        _whole,
        [_pointer, _pointer, _pointer, _pointer, _pointer, _whole, _pointer, _pointer],
    ),
    "sordino_outputs": (_whole, [_pointer, _pointer, _pointer, _pointer, _whole, _pointer, _whole]),
    "sordino_keystream": (None, [_pointer, _pointer, _pointer, _whole, _whole]),
    "sordino_normals": (None, [_pointer, _pointer, _pointer, _whole, _whole]),
    "sordino_subsets": (None, [_pointer, _pointer, _pointer, _whole, _whole, _whole]),
}


def folder() -> Path:
    """Where the build puts the libraries."""
    return Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else HERE / "built"


def library_path(name: str) -> Path | None:
    """The library for an instruction set, if it was built for the tables that this version hands over: others would be misread."""
    found = sorted(path for path in folder().glob(f"{name}.*so") if version_of(path) == VERSION)
    return found[0] if found else None


@functools.cache
def version_of(path: Path) -> int:
    """The version of a library's interface; 0 if it does not say."""
    return getattr(ctypes.CDLL(str(path)), "sordino_version", lambda: 0)()


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def runnable() -> list[str]:
    """The instruction sets that were built and that this processor has, best first; none if the kernel is absent.

    Example:
        >>> set(runnable()) <= {"avx512", "avx2", "portable"}
        True
    """
    portable = library_path("portable")
    if portable is None:
        return []
    level = _loaded(portable).sordino_processor()
    return [
        name
        for name, needed in INSTRUCTION_SETS.items()
        if needed <= level and library_path(name) is not None
    ]


def chosen() -> str | None:
    """The instruction set that is used: the best, or what the environment variable SORDINO_SIMD names; None if the kernel is absent."""
    names, wanted = runnable(), os.environ.get(CHOICE)
    if wanted and names and wanted not in names:
        raise InvalidValue(CHOICE, wanted, "one of " + ", ".join(names))
    return wanted if wanted and names else names[0] if names else None


def load(name: str) -> ctypes.CDLL:
    """The library for an instruction set."""
    path = library_path(name)
    if path is None:
        raise InvalidValue(CHOICE, name, "an instruction set that was built")
    return _loaded(path)


@functools.cache
def fingerprint(name: str) -> str:
    """What a run notes of the kernel it used: two libraries of one fingerprint give the same bits.

    Example:
        >>> fingerprint("portable").startswith("portable")
        True
    """
    path = library_path(name)
    return (
        f"{name}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" if path is not None else name
    )
