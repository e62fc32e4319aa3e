"""Memory of 500 clients that train LeNet-5 on MNIST, and whether it grows with the rounds. A process of its own: run by `__main__`."""

from __future__ import annotations

import os

import numpy as np

from benchmarks.processes import memory
from benchmarks.serving import say
from benchmarks.task import CLASSES, SHAPE
from benchmarks.workload import Federation, dataset, protocol
from sordino import Dataset, UserError
from sordino.federation.data import load_dataset

CLIENTS = 500
EARLY, LATE = 2, 20  # rounds after which memory is read
LIMIT = 1.5 * 1024  # MiB


def mnist() -> Dataset:
    """MNIST, or random images of its size where it is not at hand."""
    try:
        return load_dataset("mnist")
    except UserError:
        generator = np.random.default_rng(0)
        return dataset(
            generator.integers(0, 256, (60_000, *SHAPE), dtype=np.uint8),
            generator.integers(0, CLASSES, 60_000),
        )


def main() -> None:
    data = mnist()
    held = {}
    with Federation(protocol(steps=1, clients=CLIENTS, data=data.name), data) as federation:
        for done in range(1, LATE + 1):
            federation.round()
            if done in (EARLY, LATE):
                held[done], peak = memory(os.getpid())
    say(data=data.name, early=held[EARLY], late=held[LATE], peak=peak)


if __name__ == "__main__":
    main()
