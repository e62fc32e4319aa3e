"""The compiled kernel: which libraries were built, which of them this processor can run."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path

from sordino.native.layout import find_layout_difference, parse_layout
from sordino.protocol import InvalidValue, UserError

HERE = Path(__file__).parent

# From the best down. The number is what `sordino_processor` says of a processor that can run it.
INSTRUCTION_SETS = {"avx512": 2, "avx2": 1, "portable": 0}

# An environment variable: one of the names above, for measurements and tests.
CHOICE = "SORDINO_SIMD"

# An environment variable: a folder of other libraries to use instead, such as instrumented ones.
FOLDER = "SORDINO_NATIVE_LIBRARIES"

# Of the interface, as in src/interface.h.
VERSION = 11

ABSENT = (
    "the native engine is absent: no compiled kernel came with this installation (it needs a "
    "C++17 compiler, GCC 12 or Clang 15, when Sordino is installed), or an older one did, and "
    "`make native` rebuilds it"
)

_pointer = ctypes.c_void_p
_integer = ctypes.c_int64
_number = ctypes.c_double

# The result and the arguments of every function that a library exports.
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    # What a library is, and what it can run on.
    "sordino_version": (_integer, []),
    "sordino_layout": (ctypes.c_char_p, []),
    "sordino_has_faults": (_integer, []),
    "sordino_lanes": (_integer, []),
    "sordino_processor": (_integer, []),
    # A network and its memory.
    "sordino_plan": (_pointer, [_pointer, _integer, _pointer, _integer, _integer, _integer]),
    "sordino_release": (None, [_pointer]),
    "sordino_parameters": (_integer, [_pointer]),
    "sordino_memory": (_integer, [_pointer]),
    # Work on a network.
    "sordino_train": (_integer, [_pointer, _pointer, _integer, _integer]),
    "sordino_gradient": (
        _integer,
        [_pointer, _pointer, _pointer, _pointer, _pointer, _integer, _pointer, _pointer, _pointer],
    ),
    "sordino_outputs": (
        _integer,
        [_pointer, _pointer, _pointer, _pointer, _integer, _pointer, _integer],
    ),
    # Draws, for comparison.
    "sordino_keystream": (None, [_pointer, _pointer, _pointer, _integer, _integer]),
    "sordino_noise": (
        None,
        [_pointer, _pointer, _integer, _number, _number, _pointer, _integer, _integer],
    ),
    "sordino_subsets": (None, [_pointer, _pointer, _pointer, _integer, _integer, _integer]),
    "sordino_digits": (_integer, [_pointer, _pointer, _integer, _pointer]),
}


def find_library(name: str) -> Path | None:
    """Returns the library for an instruction set, if this version of Sordino can use it.

    Args:
        name: One of `INSTRUCTION_SETS`.

    Returns:
        Its path; None if it was not built, or for another version of the interface.
    """
    folder = Path(os.environ.get(FOLDER) or HERE / "built")
    # Tables of another version of the interface would be misread.
    for path in sorted(folder.glob(f"{name}.*so")):
        if _read_version(path) == VERSION:
            return path
    return None


@functools.cache
def _read_version(path: Path) -> int:
    """Returns the version of a library's interface; 0 if it does not say."""
    read = getattr(ctypes.CDLL(str(path)), "sordino_version", None)
    if read is None:
        return 0
    return int(read())


@functools.cache
def _open_library(path: Path) -> ctypes.CDLL:
    """Returns a library whose structures lie in memory as this version fills them in."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        # Without types ctypes would pass addresses as 32-bit integers.
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    # A field at another place would be read as something else, without any error.
    difference = find_layout_difference(parse_layout(library.sordino_layout().decode()))
    if difference is not None:
        raise UserError(
            f"the compiled kernel {path} does not fit this version of Sordino: {difference}. "
            "Rebuild it with `make native`"
        )
    return library


def list_runnable() -> list[str]:
    """Returns the instruction sets that were built and that this processor has, best first.

    Returns:
        Names of `INSTRUCTION_SETS`; none if the kernel is absent.

    Example:
        >>> set(list_runnable()) <= {"avx512", "avx2", "portable"}
        True
    """
    # The portable library runs on every processor, and knows which this one is.
    portable = find_library("portable")
    if portable is None:
        return []
    level = _open_library(portable).sordino_processor()
    runnable = []
    for name, needed in INSTRUCTION_SETS.items():
        if needed <= level and find_library(name) is not None:
            runnable.append(name)
    return runnable


def choose_instruction_set() -> str | None:
    """Returns the instruction set to use: the best, or the one that SORDINO_SIMD names.

    Returns:
        A name of `INSTRUCTION_SETS`; None if the kernel is absent.

    Raises:
        InvalidValue: SORDINO_SIMD names one that cannot be run.
    """
    names = list_runnable()
    if not names:
        return None
    wanted = os.environ.get(CHOICE)
    if not wanted:
        return names[0]
    if wanted not in names:
        raise InvalidValue(CHOICE, wanted, "one of " + ", ".join(names))
    return wanted


def load_library(name: str) -> ctypes.CDLL:
    """Returns the library for an instruction set, ready to be called.

    Args:
        name: One of `INSTRUCTION_SETS`.

    Raises:
        InvalidValue: It was not built.
        UserError: It was built from other sources than this version's.
    """
    path = find_library(name)
    if path is None:
        raise InvalidValue(CHOICE, name, "an instruction set that was built")
    return _open_library(path)


@functools.cache
def fingerprint_library(name: str) -> str:
    """Returns what a run notes of its kernel: libraries of one fingerprint give the same bits.

    Args:
        name: One of `INSTRUCTION_SETS`.

    Example:
        >>> fingerprint_library("portable").startswith("portable")
        True
    """
    path = find_library(name)
    if path is None:
        return name
    # Of the bytes, since another compiler may round otherwise under the same version.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}-{digest[:12]}"
