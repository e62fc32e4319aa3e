"""Measures how a Python tree reads: density, names, comments, docstrings.

    python -m tools.yardstick sordino
    python -m tools.yardstick sordino --densest 20

The readings are signposts. The aim is that a stranger reads a file once and understands it; a
file that reads well may miss any of them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# What the readings are over dp_accounting, jax_privacy, pfl-research, Opacus and the Python of
# OpenDP, without their tests. About half of their comments are licence headers.
PEERS = {
    "code tokens per source line": "6.1 to 6.8",
    "lines over 100 columns, %": "0 to 3",
    "conditional expressions per 1000 lines": "4 to 6",
    "nested conditional expressions": "0",
    "tuple assignments per 1000 lines": "1.5 to 5",
    "one-word function names, %": "9 to 33",
    "participles as function names, %": "1 to 7",
    "comments per 1000 lines": "82 to 217",
    "documented public functions with parameters, %": "51 to 72",
    "isinstance calls per 1000 lines": "7 to 31",
    "unidiomatic phrases per 1000 docstring words": "0",
    "top-level names in several modules": "0 to 17",
}

LONGEST_LINE = 100
# Files with fewer lines of code than this are not listed by density: one table makes them dense.
SHORTEST_RATED = 30

NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
IRREGULAR_PARTICIPLES = {
    *("begun", "built", "drawn", "found", "given", "held", "kept"),
    *("known", "made", "sent", "shown", "sown", "told"),
}
UNIDIOMATIC = re.compile(
    r"\b(whoever|so many|of (its|their|our) own|what is|who (sees|is|has|reads|knows)\b)",
    re.IGNORECASE,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True, kw_only=True)
class Docstring:
    """A docstring and the lines it stands on.

    Attributes:
        first: First line, counted from 1.
        last: Last line.
        text: The docstring without its indentation.
    """

    first: int
    last: int
    text: str


def find_docstrings(tree: ast.Module) -> list[Docstring]:
    """Returns the docstrings of a module, its classes and its functions.

    Args:
        tree: The parsed module.

    Returns:
        The docstrings, in no particular order.
    """
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, Documented):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        statement = node.body[0]
        last = statement.end_lineno or statement.lineno
        found.append(Docstring(first=statement.lineno, last=last, text=text))
    return found


def count_tokens(text: str, docstrings: Sequence[Docstring]) -> Counter[str]:
    """Counts the lines and tokens of a file that are code, and its comments.

    Args:
        text: The source of the file.
        docstrings: Its docstrings, whose lines are not code.

    Returns:
        Counts of "tokens", "lines" (with code on them) and "comments".
    """
    documentation: set[int] = set()
    for docstring in docstrings:
        documentation.update(range(docstring.first, docstring.last + 1))
    counts: Counter[str] = Counter()
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first = token.start[0]
        last = token.end[0]
        if token.type == tokenize.COMMENT:
            counts["comments"] += 1
        if token.type in NOT_CODE or first in documentation:
            continue
        counts["tokens"] += 1
        code_lines.update(range(first, last + 1))
    counts["lines"] = len(code_lines)
    return counts


def is_participle(name: str) -> bool:
    """Returns whether a function's name begins with a participle.

    Args:
        name: The name, such as "drawn_clients".

    Example:
        >>> is_participle("_drawn_clients"), is_participle("draw_clients"), is_participle("need")
        (True, False, False)
    """
    first = name.strip("_").split("_")[0]
    return first in IRREGULAR_PARTICIPLES or (first.endswith("ed") and len(first) > 4)


def count_function(node: Function) -> Counter[str]:
    """Counts what the name and the docstring of a function say about it.

    Args:
        node: The definition; that of a dunder method counts as nothing.
    """
    counts: Counter[str] = Counter()
    if node.name.startswith("__"):
        return counts
    counts["functions"] = 1
    counts["one word"] = int("_" not in node.name.strip("_"))
    counts["participles"] = int(is_participle(node.name))
    arguments = [*node.args.args, *node.args.kwonlyargs]
    parameters = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    if parameters and not node.name.startswith("_"):
        counts["with parameters"] = 1
        counts["documented"] = int(explains_parameters(node))
    return counts


def explains_parameters(node: Function) -> bool:
    """Returns whether the parameters of a function are documented.

    Args:
        node: The definition. The options of a command are documented by the help that is printed:
            its docstring is part of that help, so it has no Args.
    """
    if "Args:" in (ast.get_docstring(node) or ""):
        return True
    keywords = [one for one in ast.walk(node.args) if isinstance(one, ast.keyword)]
    decorators = [ast.unparse(one) for one in node.decorator_list]
    has_help = any(keyword.arg == "help" for keyword in keywords)
    return has_help or any(".command(" in decorator for decorator in decorators)


def find_functions(tree: ast.Module) -> list[Function]:
    """Returns the functions and methods of a module that can be called from outside.

    Args:
        tree: The parsed module. Functions inside functions are left out.
    """
    found: list[Function] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, Function):
                found.append(node)
            else:
                waiting.append(node)
    return found


def count_expressions(tree: ast.Module) -> Counter[str]:
    """Counts conditional expressions, tuple assignments and `isinstance` calls.

    Args:
        tree: The parsed module.
    """
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            counts["conditional"] += 1
            inner = [child for child in ast.walk(node) if isinstance(child, ast.IfExp)]
            # The walk begins with the expression itself.
            counts["nested"] += int(len(inner) > 1)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            counts["tuples"] += int(any(isinstance(target, ast.Tuple) for target in node.targets))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            counts["isinstance"] += int(node.func.id == "isinstance")
    return counts


def count_file(text: str) -> Counter[str]:
    """Returns every count of one file.

    Args:
        text: The source of the file.
    """
    tree = ast.parse(text)
    docstrings = find_docstrings(tree)
    counts = count_tokens(text, docstrings) + count_expressions(tree)
    for node in find_functions(tree):
        counts += count_function(node)
    rows = text.splitlines()
    counts["all lines"] = len(rows)
    counts["long lines"] = sum(len(row) > LONGEST_LINE for row in rows)
    for docstring in docstrings:
        counts["docstring words"] += len(docstring.text.split())
        counts["unidiomatic"] += len(UNIDIOMATIC.findall(docstring.text))
    return counts


def find_shared_names(texts: Sequence[str]) -> list[str]:
    """Returns public top-level functions and classes that several modules define.

    Args:
        texts: The sources of the modules.
    """
    modules: dict[str, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for node in ast.parse(text).body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(number)
    return sorted(name for name, numbers in modules.items() if len(numbers) > 1)


def measure_readability(texts: Sequence[str]) -> dict[str, float]:
    """Returns the readings over all files together.

    Args:
        texts: The sources of the files.
    """
    total: Counter[str] = Counter()
    for text in texts:
        total += count_file(text)

    def per_thousand(count: str) -> float:
        return 1000 * total[count] / max(total["lines"], 1)

    def percent(count: str, of: str) -> float:
        return 100 * total[count] / max(total[of], 1)

    words = max(total["docstring words"], 1)
    return {
        "code tokens": total["tokens"],
        "source lines": total["lines"],
        "code tokens per source line": total["tokens"] / max(total["lines"], 1),
        "lines over 100 columns, %": percent("long lines", of="all lines"),
        "conditional expressions per 1000 lines": per_thousand("conditional"),
        "nested conditional expressions": total["nested"],
        "tuple assignments per 1000 lines": per_thousand("tuples"),
        "one-word function names, %": percent("one word", of="functions"),
        "participles as function names, %": percent("participles", of="functions"),
        "comments per 1000 lines": per_thousand("comments"),
        "documented public functions with parameters, %": percent(
            "documented", of="with parameters"
        ),
        "isinstance calls per 1000 lines": per_thousand("isinstance"),
        "unidiomatic phrases per 1000 docstring words": 1000 * total["unidiomatic"] / words,
        "top-level names in several modules": len(find_shared_names(texts)),
    }


def rate_density(files: Sequence[Path]) -> list[tuple[float, Path]]:
    """Returns the files with their tokens per line, the densest first.

    Args:
        files: Python files; short ones are left out.
    """
    rated = []
    for path in files:
        counts = count_file(path.read_text(encoding="utf-8"))
        if counts["lines"] > SHORTEST_RATED:
            rated.append((counts["tokens"] / counts["lines"], path))
    return sorted(rated, reverse=True)


def find_files(places: Sequence[Path]) -> Iterator[Path]:
    """Yields the Python files of some files and folders.

    Args:
        places: Python files, or folders that are searched for them.
    """
    for place in places:
        if place.is_dir():
            yield from sorted(place.rglob("*.py"))
        else:
            yield place


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the readings of the given places beside those of peers.

    Args:
        arguments: Those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", type=Path, default=[Path("sordino")])
    parser.add_argument("--densest", type=int, default=10, help="how many dense files to list")
    options = parser.parse_args(arguments)
    files = list(find_files(options.places))
    texts = [path.read_text(encoding="utf-8") for path in files]
    for name, value in measure_readability(texts).items():
        print(f"{name:50}{value:12,.1f}   {PEERS.get(name, '')}")
    for density, path in rate_density(files)[: options.densest]:
        print(f"{density:6.1f} tokens per line  {path}")


if __name__ == "__main__":
    main()
