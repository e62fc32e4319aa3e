"""Examples run, the page names every set, and importing the room costs nothing heavy."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.federation.data import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
MODULES = ["catalogue", "dataset", "folders", "formats", "images", "own", "partition", "picture", "sources", "tables", "wind"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_modules(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"sordino.federation.data.{name}")).failed == 0


def test_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 1
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})


def test_the_page_names_every_set() -> None:
    page = PAGE.read_text()
    assert [name for name in KNOWN if f"`{name}`" not in page] == []


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = "import sys, sordino.federation.data; print(sorted({'torch', 'sklearn', 'PIL', 'pandas', 'matplotlib'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PAGE.parents[1])
    assert answer.stdout.strip() == "[]"
