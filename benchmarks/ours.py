"""Serves rounds of Sordino without evaluation, by the engine and workers asked for."""

from __future__ import annotations

from benchmarks.serving import asked, serve
from benchmarks.task import CLIENTS, RECORDS, records
from benchmarks.workload import Federation, dataset, protocol


def main() -> None:
    """Serves rounds to the driver."""
    work = asked()
    values, labels = records(work.model)
    data = dataset(values.reshape(CLIENTS * RECORDS, *values.shape[2:]), labels.reshape(-1))
    plan = protocol(steps=work.steps, model=work.model)
    with Federation(plan, data, engine=work.engine, workers=work.workers) as federation:
        serve(federation.round, client_steps=CLIENTS * work.steps)


if __name__ == "__main__":
    main()
