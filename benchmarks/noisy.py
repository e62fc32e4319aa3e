"""Sordino's rule noisy-sgd with one worker, so that a core stands against a core, with evaluation off."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.serving import asked_steps, serve
from benchmarks.workload import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, SHAPE, Federation, dataset, protocol, records
from sordino import Constant, Gaussian, NoisySgd


def main() -> None:
    steps = asked_steps()
    images, labels = records()
    data = dataset(images.reshape(CLIENTS * RECORDS, *SHAPE), labels.reshape(-1))
    local = NoisySgd(steps=steps, batch=BATCH, clip=CLIP, schedule=Constant(rate=RATE))
    plan = replace(protocol(steps=steps), local=local, noise=Gaussian(multiplier=MULTIPLIER))
    with Federation(plan, data, workers=1) as federation:
        serve(federation.round, client_steps=CLIENTS * steps)


if __name__ == "__main__":
    main()
