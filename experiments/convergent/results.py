"""The files of results: one CSV a table, to which every finished cell is appended."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.convergent.cells import Cell

COLUMNS = (
    "cell",
    "model",
    "schedule",
    "seed",
    "rounds",
    "distance",
    "bound",
    "accuracy",
    "epsilon_rounds",
    "epsilon_server",
    "seconds",
)
KEY = COLUMNS[:4]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of a table's file.

    Attributes:
        cell: The cell's name.
        model: Of what was trained.
        schedule: Of its learning rates.
        seed: Of the training.
        rounds: After which it was measured.
        distance: Of twins; None for a training.
        bound: The largest that twins can have; None for a training.
        accuracy: In percent; None where it was not scored.
        epsilon_rounds: Certified against adversaries that see every round's model.
        epsilon_server: Certified against the server.
        seconds: That the cell took.
    """

    cell: str
    model: str
    schedule: str
    seed: int
    rounds: int
    distance: float | None
    bound: float | None
    accuracy: float | None
    epsilon_rounds: float
    epsilon_server: float
    seconds: float


def file_of(folder: Path, table: str) -> Path:
    """Returns the file of a table.

    Args:
        folder: Of all files.
        table: Its name.
    """
    return folder / f"{table}.csv"


def read_results(folder: Path, table: str) -> list[Result]:
    """Returns what was measured for a table, in the order of its file.

    Args:
        folder: Of all files.
        table: Its name.

    Returns:
        The lines; none if there is no file yet.
    """
    path = file_of(folder, table)
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [_read_line(line) for line in csv.DictReader(lines)]


def find_finished(folder: Path, table: str) -> set[tuple[str, ...]]:
    """Returns the keys of the cells that a table's file holds.

    Args:
        folder: Of all files.
        table: Its name.
    """
    return {
        (row.cell, row.model, row.schedule, str(row.seed)) for row in read_results(folder, table)
    }


def append_results(folder: Path, cell: Cell, measured: list[dict[str, Any]]) -> None:
    """Adds the lines of a cell to its table's file, at once.

    Args:
        folder: Of all files.
        cell: What was measured.
        measured: The lines without the cell's own columns.
    """
    path = file_of(folder, cell.table)
    new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(_spell_lines(cell, measured))


def _spell_lines(cell: Cell, measured: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for line in measured:
        own = dict(zip(KEY, cell.key, strict=True))
        yield {**own, **{name: _spell_value(value) for name, value in line.items()}}


def _spell_value(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _read_line(line: dict[str, str]) -> Result:
    def read(name: str) -> float | None:
        return float(line[name]) if line[name] else None

    return Result(
        cell=line["cell"],
        model=line["model"],
        schedule=line["schedule"],
        seed=int(line["seed"]),
        rounds=int(line["rounds"]),
        distance=read("distance"),
        bound=read("bound"),
        accuracy=read("accuracy"),
        epsilon_rounds=float(line["epsilon_rounds"]),
        epsilon_server=float(line["epsilon_server"]),
        seconds=float(line["seconds"]),
    )
