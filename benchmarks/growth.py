"""Measures how the cost of a native round grows with clients, steps and parameters.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

import time

import numpy as np
from torch import nn

from benchmarks.serving import say
from benchmarks.task import BATCH, CLASSES, CLIP, RATE
from sordino.models.flat import FlatModel
from sordino.native.kernel import Kernel, KernelRecords, PackedRule, StepRule
from sordino.native.library import choose_instruction_set
from sordino.native.program import Loss
from sordino.native.translate import translate
from tests.oracles.kernel_jobs import make_jobs

RECORDS = 64
FEATURES = 256
# Each is doubled, and doubled again.
CLIENTS = 20
STEPS = 20
WIDTH = 64
TURNS = 15


def measure_round(clients: int, steps: int, width: int) -> float:
    """Returns the processor seconds of one round on one thread."""
    simd = choose_instruction_set()
    if simd is None:
        raise SystemExit("the native kernel was not built")
    generator = np.random.default_rng(0)
    data = KernelRecords(
        generator.standard_normal((clients * RECORDS, FEATURES), dtype=np.float32),
        generator.integers(0, CLASSES, clients * RECORDS),
    )
    module = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))
    kernel = Kernel(translate(module, (FEATURES,)), Loss.CROSS_ENTROPY, batch=BATCH, simd=simd)
    rule = PackedRule(StepRule(rates=(RATE,) * steps, batch=BATCH, clip=CLIP, upload_noise=0.01))
    weights = FlatModel(module).weights.numpy().copy()
    parts = [np.arange(RECORDS) + client * RECORDS for client in range(clients)]
    jobs, _results = make_jobs(kernel, rule, weights, parts, (bytes(32),) * 3)
    # The first round fills caches and allocates.
    kernel.train(data, jobs, threads=1)
    started = time.process_time()
    kernel.train(data, jobs, threads=1)
    return time.process_time() - started


def main() -> None:
    """Measures, and prints the result."""
    settings = {(CLIENTS, STEPS, WIDTH)}
    for factor in (2, 4):
        settings |= {
            (factor * CLIENTS, STEPS, WIDTH),
            (CLIENTS, factor * STEPS, WIDTH),
            (CLIENTS, STEPS, factor * WIDTH),
        }
    taken: dict[tuple[int, int, int], list[float]] = {setting: [] for setting in sorted(settings)}
    # In turn, so that a busy machine slows all settings alike.
    for _ in range(TURNS):
        for setting in taken:
            taken[setting].append(measure_round(*setting))
    say(
        rounds=[
            {"clients": m, "steps": k, "width": width, "seconds": found}
            for (m, k, width), found in taken.items()
        ]
    )


if __name__ == "__main__":
    main()
