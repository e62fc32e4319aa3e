"""Serves rounds of dp-sgd behind secure sums, a step of the lot a round, without evaluation."""

from __future__ import annotations

from benchmarks.lot_task import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, network, records
from benchmarks.serving import asked, serve
from benchmarks.workload import Federation, dataset
from sordino import Constant, Data, DpSgd, Gaussian, Model, Protocol
from sordino.protocol import SecureAggregation


def main() -> None:
    """Serves rounds to the driver."""
    work = asked()
    values, labels = records()
    parameters = sum(parameter.numel() for parameter in network().parameters())
    plan = Protocol(
        seed=1,
        clients=CLIENTS,
        rounds=1_000_000,
        local=DpSgd(batch=BATCH, clip=CLIP, schedule=Constant(rate=RATE)),
        noise=Gaussian(multiplier=MULTIPLIER),
        channel=SecureAggregation(threshold=90),
        data=Data(name="random", records=RECORDS),
        model=Model(name="logistic", parameters=parameters),
    )
    data = dataset(values, labels)
    with Federation(plan, data, engine=work.engine, workers=work.workers) as federation:
        serve(federation.round, client_steps=CLIENTS)


if __name__ == "__main__":
    main()
