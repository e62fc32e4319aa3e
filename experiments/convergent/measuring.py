"""Measures one cell: the accuracy of a training, or the distance of twins, with its price beside."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.convergent.cells import Cell
from sordino import Protocol, Run, certify, resume, train
from sordino.audit.twin_sweeps import measure_sensitivity
from sordino.protocol import dumps

DELTA = 1e-5
# The noise of a single round moves the accuracy, so the mean of ten is taken, all in the last
# twentieth of the rounds.
SCORED = 200
AVERAGED = 10
# Of a training that may diverge a tenth of the rounds is tried first.
PROBE = 10
# Of ten classes.
CHANCE = 15.0


def measure_cell(cell: Cell, runs: Path) -> list[dict[str, Any]]:
    """Returns the lines of a cell.

    Args:
        cell: What to train.
        runs: The folder in which a training is kept until it has ended, so that one that was
            interrupted goes on.

    Returns:
        For each of its marks, or once after the last round: rounds, distance, bound, accuracy,
        epsilon_rounds, epsilon_server and seconds.
    """
    started = time.monotonic()
    lines = measure_twins(cell) if cell.marks else [measure_accuracy(cell, runs)]
    seconds = time.monotonic() - started
    return [{**line, "seconds": seconds} for line in lines]


def measure_twins(cell: Cell) -> list[dict[str, Any]]:
    """Returns the distances of twins after every mark, and the accuracy after the last.

    Args:
        cell: What to train twice.
    """
    found = measure_sensitivity(cell.protocol, seeds=1, workers=1, score=cell.scored)
    accuracy = 100 * float(found.accuracies[0])
    lines = []
    for mark in cell.marks:
        last = mark == cell.protocol.rounds and math.isfinite(accuracy)
        lines.append(
            {
                "rounds": mark,
                "distance": float(found.distances[0, mark - 1]),
                "bound": float(found.bound[mark - 1]),
                "accuracy": accuracy if last else None,
                **price_rounds(cell.protocol, mark),
            }
        )
    return lines


def measure_accuracy(cell: Cell, runs: Path) -> dict[str, Any]:
    """Returns the accuracy of a training; that of its first tenth, if it is at chance there.

    Args:
        cell: What to train.
        runs: The folder of trainings that have not ended.
    """
    protocol = cell.protocol
    rounds = protocol.rounds
    accuracy = math.nan
    if cell.diverges:
        rounds = max(1, protocol.rounds // PROBE)
        accuracy = train_for_accuracy(replace(protocol, rounds=rounds), runs)
    # Rates do not depend on T, so the first rounds of a training are a training.
    if not accuracy < CHANCE:
        rounds = protocol.rounds
        accuracy = train_for_accuracy(protocol, runs)
    return {
        "rounds": rounds,
        "distance": None,
        "bound": None,
        "accuracy": accuracy,
        **price_rounds(protocol, protocol.rounds),
    }


def train_for_accuracy(protocol: Protocol, runs: Path) -> float:
    """Returns the mean accuracy of the last scored rounds, in percent.

    Args:
        protocol: What to train; goes on where a training of it was interrupted.
        runs: The folder of trainings that have not ended.
    """
    digest = hashlib.sha256(dumps(protocol).encode()).hexdigest()
    folder = runs / digest[:12]
    run = finish_training(protocol, folder)
    scored = run.metrics["accuracy"]
    scored = scored[np.isfinite(scored)]
    shutil.rmtree(folder)
    # A model that is no longer finite names no class.
    if run.status == "diverged":
        return 0.0
    return 100 * float(scored[-AVERAGED:].mean())


def finish_training(protocol: Protocol, folder: Path) -> Run:
    """Returns the run of a protocol: trained, resumed or read.

    Args:
        protocol: What to train.
        folder: Of the run.
    """
    if not (folder / "protocol.toml").exists():
        every = max(1, protocol.rounds // SCORED)
        return train(protocol, folder=folder, workers=1, evaluate_every=every, report=False)
    run = Run.load(folder)
    if run.status == "unfinished":
        return resume(folder, workers=1, report=False)
    return run


def price_rounds(protocol: Protocol, rounds: int) -> dict[str, float]:
    """Returns the certified epsilons after a number of rounds, one record replaced.

    Args:
        protocol: What is trained.
        rounds: How many.
    """
    plan = replace(protocol, rounds=rounds)
    return {f"epsilon_{view}": certify(plan, view).epsilon(DELTA) for view in ("rounds", "server")}
