"""Measures an audit of a worst case: 20 clients, 100 rounds, 10,000 trainings.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

import resource
import tempfile
import time

import sordino
from benchmarks.serving import say
from sordino import Constant, FedAvg, Gaussian, Protocol

# In all: on both data sets, to choose a test and to judge by it.
TRAININGS = 10_000
TURNS = 3


def processor_seconds() -> float:
    """Returns the processor seconds of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Measures, and prints the result."""
    plan = Protocol(
        seed=1,
        clients=20,
        rounds=100,
        local=FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1)),
        noise=Gaussian(sigma=1.0),
    )
    found = []
    spent = []
    with tempfile.TemporaryDirectory(prefix="sordino-bench-") as folder:
        for turn in range(TURNS):
            used = processor_seconds()
            started = time.perf_counter()
            sordino.audit(plan, view="server", trainings=TRAININGS // 4, folder=f"{folder}/{turn}")
            found.append(time.perf_counter() - started)
            spent.append(processor_seconds() - used)
    say(seconds=found, processor=spent)


if __name__ == "__main__":
    main()
