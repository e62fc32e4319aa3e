"""How the cost of a native round grows with clients, steps and parameters. A process of its own: run by `__main__`."""

from __future__ import annotations

import time

import numpy as np
from torch import nn

from benchmarks.serving import say
from benchmarks.task import BATCH, CLASSES, CLIP, RATE
from sordino.engines.native.kernel import Kernel, PackedRule, Records, StepRule, new_jobs
from sordino.engines.native.library import chosen
from sordino.engines.native.program import Loss
from sordino.engines.native.translate import translate
from sordino.federation.models.flat import FlatModel

RECORDS, FEATURES = 64, 256
CLIENTS, STEPS, WIDTH = 20, 20, 64  # each is doubled, and doubled again
TURNS = 15


def seconds(clients: int, steps: int, width: int) -> float:
    """Of one round on one thread."""
    simd = chosen()
    if simd is None:
        raise SystemExit("the native kernel was not built")
    generator = np.random.default_rng(0)
    data = Records(
        generator.standard_normal((clients * RECORDS, FEATURES), dtype=np.float32),
        generator.integers(0, CLASSES, clients * RECORDS),
    )
    module = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))
    kernel = Kernel(translate(module, (FEATURES,)), Loss.CROSS_ENTROPY, batch=BATCH, simd=simd)
    rule = PackedRule(StepRule(rates=(RATE,) * steps, batch=BATCH, clip=CLIP, upload_noise=0.01))
    weights, parts = (
        FlatModel(module).weights.numpy().copy(),
        [np.arange(RECORDS) + client * RECORDS for client in range(clients)],
    )
    jobs, _results = new_jobs(kernel, rule, weights, parts, (bytes(32),) * 3)
    kernel.train(data, jobs, threads=1)
    started = time.process_time()
    kernel.train(data, jobs, threads=1)
    return time.process_time() - started


def main() -> None:
    settings = {(CLIENTS, STEPS, WIDTH)}
    for factor in (2, 4):
        settings |= {
            (factor * CLIENTS, STEPS, WIDTH),
            (CLIENTS, factor * STEPS, WIDTH),
            (CLIENTS, STEPS, factor * WIDTH),
        }
    taken: dict[tuple[int, int, int], list[float]] = {setting: [] for setting in sorted(settings)}
    for _ in range(TURNS):
        for setting in taken:
            taken[setting].append(seconds(*setting))
    say(
        rounds=[
            {"clients": m, "steps": k, "width": width, "seconds": found}
            for (m, k, width), found in taken.items()
        ]
    )


if __name__ == "__main__":
    main()
