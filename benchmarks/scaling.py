"""Seconds per round against the number of clients and of participants. A process of its own: run by `__main__`."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from benchmarks.serving import say
from benchmarks.task import CLASSES, SHAPE
from benchmarks.workload import Federation, dataset, protocol

STEPS = 5
PARTICIPANTS = 20
CLIENTS = (100, 1_000, 10_000)
COHORTS = (10, 20, 40)  # participants out of COHORT_CLIENTS
COHORT_CLIENTS = 1_000
ROUNDS = 15
RECORDS = 40  # of a client: few, so that 10,000 clients fit into memory


def federation(clients: int, participants: int) -> Federation:
    """Clients with random images, kept as bytes."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (clients * RECORDS, *SHAPE), dtype=np.uint8)
    data = dataset(images, generator.integers(0, CLASSES, len(images)))
    return Federation(protocol(steps=STEPS, clients=clients, participants=participants), data)


def main() -> None:
    kinds = sorted(
        {(clients, PARTICIPANTS) for clients in CLIENTS}
        | {(COHORT_CLIENTS, size) for size in COHORTS}
    )
    seconds: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        federations = {kind: stack.enter_context(federation(*kind)) for kind in kinds}
        for turn in range(ROUNDS + 2):
            for kind in kinds:
                taken = federations[kind].round()
                if turn >= 2:  # the first rounds set things up
                    seconds[kind].append(taken)
    say(
        rounds=[
            {"clients": clients, "participants": size, "seconds": seconds[clients, size]}
            for clients, size in kinds
        ]
    )


if __name__ == "__main__":
    main()
