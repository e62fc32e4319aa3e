"""Measures 200 small trainings by `train_many`, with and without run folders, and by `train`.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.serving import say
from sordino import Constant, FedAvg, Gaussian, Protocol, train, train_many

TRAININGS = 200
TURNS = 3
# Trainings with folders in a turn; their time, which is the disk's, is scaled up.
SOME = 40
TASK = {"data": "digits", "model": "mlp", "evaluate_every": 0}


def measure_seconds(work: Callable[[], object]) -> float:
    """Returns how long a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def train_one_by_one(plans: list[Protocol], place: Path) -> None:
    """Trains each protocol by a separate call of `train`."""
    for plan in plans:
        train(plan, **TASK, folder=place / str(plan.seed))


def main() -> None:
    """Measures, and prints the result."""
    local = FedAvg(steps=5, batch=16, clip=1.0, schedule=Constant(rate=0.5))
    plan = Protocol(seed=0, clients=10, rounds=10, local=local, noise=Gaussian(sigma=0.01))
    seeds = [replace(plan, seed=seed) for seed in range(TRAININGS)]
    taken: dict[str, list[float]] = {"memory": [], "folders": [], "alone": []}
    with tempfile.TemporaryDirectory(prefix="sordino-bench-") as folder:
        place = Path(folder)
        # The first call loads data and libraries.
        train_many(seeds[:2], **TASK)
        for turn in range(TURNS):
            here = place / str(turn)
            taken["memory"].append(measure_seconds(partial(train_many, seeds, **TASK)))
            folders = measure_seconds(
                partial(train_many, seeds[:SOME], **TASK, folder=here / "many")
            )
            alone = measure_seconds(partial(train_one_by_one, seeds[:SOME], here))
            taken["folders"].append(folders * TRAININGS / SOME)
            taken["alone"].append(alone * TRAININGS / SOME)
    say(**taken)


if __name__ == "__main__":
    main()
