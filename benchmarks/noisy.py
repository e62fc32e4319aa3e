"""Serves rounds of Sordino's rule noisy-sgd, by the engine that is asked for.

Every example's gradient is clipped, every step is noisy, and evaluation is off.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.serving import asked, serve
from benchmarks.task import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, records
from benchmarks.workload import Federation, dataset, protocol
from sordino import Constant, Gaussian, NoisySgd


def main() -> None:
    """Serves rounds to the driver."""
    work = asked()
    values, labels = records(work.model)
    data = dataset(values.reshape(CLIENTS * RECORDS, *values.shape[2:]), labels.reshape(-1))
    local = NoisySgd(steps=work.steps, batch=BATCH, clip=CLIP, schedule=Constant(rate=RATE))
    plan = replace(
        protocol(steps=work.steps, model=work.model),
        local=local,
        noise=Gaussian(multiplier=MULTIPLIER),
    )
    with Federation(plan, data, engine=work.engine, workers=work.workers) as federation:
        serve(federation.round, client_steps=CLIENTS * work.steps)


if __name__ == "__main__":
    main()
