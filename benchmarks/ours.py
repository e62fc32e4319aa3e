"""Sordino's torch engine with two workers, with evaluation off."""

from __future__ import annotations

from benchmarks.serving import asked_steps, serve
from benchmarks.workload import CLIENTS, RECORDS, SHAPE, Federation, dataset, protocol, records


def main() -> None:
    steps = asked_steps()
    images, labels = records()
    data = dataset(images.reshape(CLIENTS * RECORDS, *SHAPE), labels.reshape(-1))
    with Federation(protocol(steps=steps), data) as federation:
        serve(federation.round, client_steps=CLIENTS * steps)


if __name__ == "__main__":
    main()
