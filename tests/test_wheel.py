"""What is installed: a wheel with the kernel inside, without network and compiler, and one from source without a compiler."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import REPOSITORY

pytestmark = pytest.mark.soak

# The kernel's speed is tested elsewhere: a build that hurries has the same files.
HURRIED = {"SORDINO_NATIVE_FLAGS": "-O0"}
NO_COMPILER = {"CC": "false", "CXX": "false"}


def run_python(*words: str, **changes: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **changes}
    command = [sys.executable, *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=900
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The source archive, made of what is under version control."""
    folder = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, check=True
    ).stdout
    packed = subprocess.run(
        ["tar", "-C", str(REPOSITORY), "--null", "-T", "-", "-c"],
        input=names, capture_output=True, check=True,
    ).stdout  # fmt: skip
    subprocess.run(["tar", "-C", str(folder), "-x"], input=packed, check=True)
    call = "import os, sys, runpy; os.chdir(sys.argv.pop(1)); runpy.run_path('setup.py', run_name='__main__')"
    run_python("-c", call, str(folder), "--quiet", "sdist")
    [made] = (folder / "dist").glob("*.tar.gz")
    return made


def build_wheel(archive: Path, folder: Path, **changes: str) -> Path:
    run_python(
        "-m", "pip", "wheel", str(archive), "--no-deps", "--no-build-isolation", "--no-index",
        "--quiet", "--wheel-dir", str(folder),
        **changes,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    return wheel


def train_installed(wheel: Path, folder: Path) -> dict:
    """Installs a wheel without network, and trains the demo where no program is found."""
    place = folder / "installed"
    run_python(
        "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--target", str(place), str(wheel)
    )  # fmt: skip
    empty = folder / "empty"
    empty.mkdir()
    call = (
        "import os, sys; os.chdir(sys.argv[1]); from sordino.cli.main import run; import sordino; "
        "assert sordino.__file__.startswith(sys.argv[2]), sordino.__file__; "
        "sys.exit(run(['train', '--set', 'federation.rounds=3', '--out', 'run']))"
    )
    run_python(
        "-c", call, str(folder), str(place), PATH=str(empty), PYTHONPATH=str(place)
    )  # fmt: skip
    assert (folder / "run" / "report.html").exists()
    return json.loads((folder / "run" / "run.json").read_text())


def test_a_wheel_has_the_kernel_and_trains_without_network_and_compiler(archive, tmp_path) -> None:
    wheel = build_wheel(archive, tmp_path, **HURRIED)
    # One for every version of Python: the kernel is loaded by ctypes.
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "sordino/native/built/portable.so" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "experiments/"))]
    assert train_installed(wheel, tmp_path)["engine"] == "native"


def test_a_source_archive_installs_without_a_compiler_and_trains_with_torch(
    archive, tmp_path
) -> None:
    wheel = build_wheel(archive, tmp_path, **NO_COMPILER)
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert train_installed(wheel, tmp_path)["engine"] == "torch"
