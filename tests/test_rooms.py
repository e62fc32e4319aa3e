"""Rooms import downwards only, without cycles, and no two modules share a name."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from sordino.wiring import ANSWERED_BY, ask_above

PACKAGE = Path(__file__).parents[1] / "sordino"
TEMPLATES = PACKAGE / "flower" / "app"  # copied into users' folders, never imported from here

# From the top down; a room may import those that stand later in the list.
ROOMS = [
    "cli",
    "explorer",
    "report",
    "papers",
    "attacks",
    "audit",
    "sweeps",
    "flower",
    "secure_sums",
    "engines",
    "native",
    "federation",
    "models",
    "data",
    "privacy",
    "mechanisms",
    "randomness",
    "uniform_words",
    "protocol",
    "wiring",
]
FORBIDDEN = {
    "mechanisms": {"torch", "sklearn", "typer", "rich", "dp_accounting"},
    "privacy": {"torch", "sklearn", "typer", "rich"},
    "protocol": {"torch", "numpy", "scipy", "sklearn", "typer", "rich"},
}

# What stands around the core, which works without any of them.
SATELLITES = {"explorer", "report", "papers", "attacks", "flower", "native"}
# The one module of the core that imports a satellite.
SEAMS = {("sordino.engines.compiled", "native")}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


MODULES = {
    module_name(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.is_relative_to(TEMPLATES)
}


def imports(tree: ast.AST) -> set[str]:
    """The names of all that is imported anywhere, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add(node.module or "")
    return found


def imported_modules(tree: ast.AST) -> set[str]:
    """Our modules that are imported when the code runs, at the top or inside functions.

    `from sordino.room import name` may mean a module or a name of the room; what is imported for
    type checkers alone cannot go in circles.
    """
    found = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in whole} - {None}
        waiting.extend(ast.iter_child_nodes(node))
    return found & set(MODULES)


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that reach one another: each with each."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in graph.get(waiting.pop(), set()) - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    reached = {name: reach(name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached.get(other, set()))
        for name in graph
        if name in reached[name]
    }
    return [set(group) for group in groups]


def room_of(name: str) -> str:
    return name.split(".")[1]


def is_in_a_room(name: str) -> bool:
    return name not in ("sordino", "sordino.__main__")


@pytest.mark.parametrize("name", [name for name in MODULES if is_in_a_room(name)])
def test_imports_point_downwards(name: str) -> None:
    room = room_of(name)
    assert room in ROOMS, f"{room} is not a room of the architecture"
    for imported in imports(ast.parse(MODULES[name].read_text())):
        parts = imported.split(".")
        if parts[0] == "sordino":
            # The package, whose names come from everywhere, stands above all rooms.
            assert len(parts) > 1, f"{name} must not import the package itself"
            assert ROOMS.index(parts[1]) >= ROOMS.index(room), f"{room} must not import {imported}"
        assert parts[0] not in FORBIDDEN.get(room, set()), f"{room} must not import {parts[0]}"


@pytest.mark.parametrize("name", [name for name in MODULES if is_in_a_room(name)])
def test_the_core_imports_a_satellite_through_one_module_alone(name: str) -> None:
    room = room_of(name)
    if room in SATELLITES or room == "cli":
        return
    for imported in imports(ast.parse(MODULES[name].read_text())):
        parts = imported.split(".")
        if parts[0] == "sordino" and len(parts) > 1 and parts[1] in SATELLITES:
            assert (name, parts[1]) in SEAMS, f"{name} must not import {imported}"


def asked_above(tree: ast.AST) -> set[str]:
    """The names that a module asks rooms above it for."""
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "ask_above"
        and isinstance(node.args[0], ast.Constant)
    }


def test_whatever_is_asked_of_a_room_above_is_answered_and_nothing_else_is_listed() -> None:
    asked = {
        name: asked_above(ast.parse(path.read_text()))
        for name, path in MODULES.items()
        if is_in_a_room(name)
    }
    assert set().union(*asked.values()) == set(ANSWERED_BY)
    for name, above in asked.items():
        for one in above:
            assert callable(ask_above(one))
            answers = room_of(ANSWERED_BY[one])
            assert ROOMS.index(answers) <= ROOMS.index(room_of(name)), f"{name} can import {one}"


@pytest.mark.slow
def test_no_modules_import_one_another_in_circles() -> None:
    graph = {
        name: imported_modules(ast.parse(path.read_text())) - {name}
        for name, path in MODULES.items()
    }
    assert [sorted(circle) for circle in cycles(graph)] == []


def test_a_circle_is_found_and_what_leads_to_it_is_not() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    code = "if TYPE_CHECKING:\n    import sordino.report.page\ndef f():\n    from sordino.data import own"
    assert imported_modules(ast.parse(code)) == {"sordino.data.own"}


def test_module_names_are_unique() -> None:
    same = defaultdict(list)
    for name in MODULES:
        same[name.rsplit(".", 1)[-1]].append(name)
    assert {last: names for last, names in same.items() if len(names) > 1} == {}


@pytest.mark.parametrize("module", ["sordino.protocol", "sordino.cli.main"])
def test_importing_the_package_its_protocol_and_its_commands_loads_nothing_heavy(
    module: str,
) -> None:
    code = (
        f"import sys, sordino, {module}; "
        "print(sorted({'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
