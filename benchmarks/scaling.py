"""Measures seconds per round against the number of clients and of participants.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from benchmarks.serving import say
from benchmarks.task import CLASSES, SHAPE
from benchmarks.workload import Federation, dataset, protocol

STEPS = 5
PARTICIPANTS = 20
CLIENTS = (100, 1_000, 10_000)
# Participants out of COHORT_CLIENTS.
COHORTS = (10, 20, 40)
COHORT_CLIENTS = 1_000
ROUNDS = 15
# Of a client: few, so that 10,000 clients fit into memory.
RECORDS = 40


def make_federation(clients: int, participants: int) -> Federation:
    """Returns clients with random images, kept as bytes."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (clients * RECORDS, *SHAPE), dtype=np.uint8)
    data = dataset(images, generator.integers(0, CLASSES, len(images)))
    return Federation(protocol(steps=STEPS, clients=clients, participants=participants), data)


def main() -> None:
    """Measures, and prints the result."""
    kinds = sorted(
        {(clients, PARTICIPANTS) for clients in CLIENTS}
        | {(COHORT_CLIENTS, size) for size in COHORTS}
    )
    seconds: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        federations = {kind: stack.enter_context(make_federation(*kind)) for kind in kinds}
        for turn in range(ROUNDS + 2):
            for kind in kinds:
                taken = federations[kind].round()
                # The first rounds set things up.
                if turn >= 2:
                    seconds[kind].append(taken)
    say(
        rounds=[
            {"clients": clients, "participants": size, "seconds": seconds[clients, size]}
            for clients, size in kinds
        ]
    )


if __name__ == "__main__":
    main()
