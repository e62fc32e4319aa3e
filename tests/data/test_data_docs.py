"""The page names every set, and importing the room costs nothing heavy."""

import subprocess
import sys
from pathlib import Path

from sordino.data import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_names_every_set() -> None:
    page = PAGE.read_text()
    assert [name for name in KNOWN if f"`{name}`" not in page] == []


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = "import sys, sordino.data; print(sorted({'torch', 'sklearn', 'PIL', 'pandas', 'matplotlib'} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PAGE.parents[1],
    )
    assert answer.stdout.strip() == "[]"
