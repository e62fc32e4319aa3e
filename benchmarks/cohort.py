"""Serves rounds of pfl-research's benchmark on CIFAR-10 by an engine of Sordino."""

from __future__ import annotations

from benchmarks.cohort_task import (
    BATCH,
    CLIENTS,
    CLIP,
    COHORT,
    NOISE,
    RATE,
    RECORDS,
    STEPS,
    network,
    records,
)
from benchmarks.serving import asked, serve
from benchmarks.workload import Federation, dataset
from sordino import Constant, Data, FedAvg, FixedSize, Gaussian, Protocol


def main() -> None:
    """Serves rounds to the driver."""
    work = asked()
    values, labels = records()
    local = FedAvg(
        steps=STEPS, batch=BATCH, clip=CLIP, clip_target="update", schedule=Constant(rate=RATE)
    )
    plan = Protocol(
        seed=1,
        clients=CLIENTS,
        rounds=1_000_000,
        local=local,
        # On the mean.
        noise=Gaussian(sigma=NOISE * CLIP / COHORT, where="server"),
        participation=FixedSize(size=COHORT),
        data=Data(name="random", records=RECORDS),
    )
    data = dataset(values.reshape(-1, *values.shape[2:]), labels.reshape(-1))
    with Federation(
        plan, data, engine=work.engine, workers=work.workers, model=network()
    ) as federation:
        serve(federation.round, client_steps=COHORT * STEPS)


if __name__ == "__main__":
    main()
