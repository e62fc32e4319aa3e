"""Measures memory of 500 clients that train LeNet-5 on MNIST, and whether it grows with rounds.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.processes import memory
from benchmarks.serving import say
from benchmarks.task import CLASSES, SHAPE
from benchmarks.workload import Federation, dataset, protocol
from sordino import Dataset, UserError
from sordino.data import load_dataset

CLIENTS = 500
# Rounds after which memory is read.
EARLY = 2
LATE = 20
# In MiB.
LIMIT = 1.5 * 1024


def load_images() -> Dataset:
    """Loads MNIST, or draws random images of its size where it is missing."""
    try:
        return load_dataset("mnist")
    except UserError:
        generator = np.random.default_rng(0)
        return dataset(
            generator.integers(0, 256, (60_000, *SHAPE), dtype=np.uint8),
            generator.integers(0, CLASSES, 60_000),
        )


def main() -> None:
    """Measures, and prints the result."""
    data = load_images()
    held = {}
    with Federation(protocol(steps=1, clients=CLIENTS, data=data.name), data) as federation:
        for done in range(1, LATE + 1):
            federation.round()
            if done in (EARLY, LATE):
                held[done], peak = memory(os.getpid())
    say(data=data.name, early=held[EARLY], late=held[LATE], peak=peak)


if __name__ == "__main__":
    main()
