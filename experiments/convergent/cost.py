"""Prints what is left to measure, and how long that takes on one core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.convergent.cells import Cell
from experiments.convergent.measuring import PROBE
from experiments.convergent.results import find_finished
from experiments.markdown_tables import print_header, print_row

# Processor seconds of one local step on a batch, by model, records and batch: LeNet-5 in the native
# engine (processor time of 10,000 steps, on two cores that others used), the rest a gradient in torch.
PACES: dict[tuple[str, str, int | None], float] = {
    ("lenet5", "mnist", 8): 0.00043,
    ("lenet5", "mnist", 50): 0.00082,
    ("lenet5", "cifar10", 8): 0.00052,
    ("lenet5", "cifar10", 50): 0.0013,
    ("resnet18", "cifar10", 8): 0.42,
    ("resnet18", "cifar10", 50): 2.45,
    ("vit-small", "cifar10", 8): 0.89,
}
# Records of three channels cost about the same, 64 x 64 pixels four times as much.
LIKE = {"table-10": ("cifar10", 1), "table-10-tiny": ("cifar10", 4)}


def print_costs(folder: Path, cells: Sequence[Cell]) -> None:
    """Prints for every table how many cells are left and how many hours of one core they take.

    Args:
        folder: Of the files.
        cells: Of all tables.
    """
    print_header("table", "model", "schedule", "cells", "left", "local steps left", "hours left")
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.table, cell.model, cell.schedule), []).append(cell)
    for (table, model, schedule), members in groups.items():
        finished = find_finished(folder, table)
        left = [cell for cell in members if cell.key not in finished]
        print_row(
            table,
            model,
            schedule,
            len(members),
            len(left),
            f"{sum(cell.client_steps for cell in left) / 1e6:.1f} million",
            spell_hours(sum(map(estimate_hours, left))),
        )


def estimate_hours(cell: Cell) -> float:
    """Returns the hours of one core that a cell takes; NaN if such steps were never timed.

    Args:
        cell: What is trained.
    """
    name, times = LIKE.get(cell.table, (cell.data, 1))
    pace = PACES.get((cell.model, name, cell.protocol.local.batch), math.nan)
    hours = times * pace * cell.client_steps / 3600
    # What diverges ends after the first rounds.
    return hours / PROBE if cell.diverges else hours


def spell_hours(hours: float) -> str:
    """Returns hours in words.

    Args:
        hours: Of a table; NaN if they are not known.
    """
    return "not timed" if math.isnan(hours) else f"{hours:,.1f}"
