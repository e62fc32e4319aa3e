"""Rooms import downwards only, and each may use only what the architecture gives it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sordino"

# From the top down; a room may import those that stand later in the list.
ROOMS = [
    "cli",
    "ui",
    "report",
    "papers",
    "attacks",
    "audit",
    "engines",
    "federation",
    "privacy",
    "protocol",
]
FORBIDDEN = {
    "privacy": {"torch", "sklearn", "typer", "rich"},
    "protocol": {"torch", "numpy", "scipy", "sklearn", "typer", "rich"},
}


# The steps upwards, each when it is called: `protocol.to_dp_event()` asks for prices, `sordino.audit(...)` for published claims, a
# training that has ended for its report.
EXCEPTIONS = {
    ("protocol", "sordino.privacy.events"),
    ("audit", "sordino.papers.applied"),
    ("engines", "sordino.report.writing"),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_point_downwards(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in ROOMS, f"{room} is not a room of the architecture"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "sordino" and len(parts) > 1 and (room, name) not in EXCEPTIONS:
            assert ROOMS.index(parts[1]) >= ROOMS.index(room), f"{room} must not import {name}"
        assert parts[0] not in FORBIDDEN.get(room, set()), f"{room} must not import {parts[0]}"


def test_importing_the_package_and_its_protocol_loads_nothing_heavy() -> None:
    code = "import sys, sordino, sordino.protocol; print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
