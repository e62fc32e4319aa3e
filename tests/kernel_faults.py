"""A test build of the kernel that can be made to misbehave in the C++ alone.

`build_faulty_kernel` compiles it, `choose_fault` makes a library of it misbehave. Nothing in Python
changes: an audit that notices a fault has noticed what the compiled code did.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sordino.native import library

# As src/faults.h names them.
FAULTS = (
    "noise removed",
    "noise halved",
    "noise drawn twice",
    "normal stand-in",
    "clip removed",
    "rate doubled",
    "client skipped",
    "control variates left out",
)
FLAG = "SORDINO_TEST_FAULTS"
CHOICE = "SORDINO_TEST_FAULT"
SOURCES = Path(library.__file__).parent / "src"
COMPILER = os.environ.get("CXX", "g++")

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no compiler")


def build_faulty_kernel(folder: Path) -> Path:
    """Compiles the portable library with its faults into a folder, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_portable(SOURCES, folder / "portable.test.so", "-O1", f"-D{FLAG}")
    return folder


def compile_portable(sources: Path, target: Path, *options: str) -> None:
    """Compiles the portable library of some sources, as the build does but for these options."""
    # Visible symbols of one library would stand in for those of another in the same process.
    always = ["-std=c++17", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden"]
    command = [COMPILER, *always, *options, str(sources / "portable.cpp"), "-o", str(target)]
    subprocess.run(command, check=True)


def choose_fault(patch: pytest.MonkeyPatch, folder: Path, fault: str | None) -> None:
    """Lets everything use the test build, with one fault or with none."""
    patch.setenv(library.FOLDER, str(folder))
    patch.delenv(library.CHOICE, raising=False)
    if fault is None:
        patch.delenv(CHOICE, raising=False)
    else:
        assert fault in FAULTS
        patch.setenv(CHOICE, fault)


@pytest.fixture(scope="session")
def faulty_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the test build; import this fixture where it is used."""
    return build_faulty_kernel(tmp_path_factory.mktemp("faulty-kernel"))
