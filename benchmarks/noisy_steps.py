"""The native kernel with every example's gradient clipped and noise at every step, drawn from ChaCha20; models averaged in float64."""

from __future__ import annotations

import numpy as np

from benchmarks.serving import asked, serve
from benchmarks.workload import BATCH, CLIENTS, CLIP, RATE, RECORDS, SIGMA, network, records
from sordino.engines.native.kernel import Kernel, PackedRule, Records, StepRule, new_jobs
from sordino.engines.native.library import chosen
from sordino.engines.native.program import Loss
from sordino.engines.native.translate import translate
from sordino.federation.models.flat import FlatModel


def main() -> None:
    work, simd = asked(), chosen()
    if simd is None:
        raise SystemExit("the native kernel was not built")
    values, labels = records(work.model)
    data = Records(values.reshape(CLIENTS * RECORDS, *values.shape[2:]), labels.reshape(-1))
    module = network(work.model)
    kernel = Kernel(translate(module, values.shape[2:]), Loss.CROSS_ENTROPY, batch=BATCH, simd=simd)
    rule = PackedRule(StepRule(rates=(RATE,) * work.steps, batch=BATCH, clip=CLIP, per_example=True, step_noise=SIGMA))
    weights, parts = FlatModel(module).weights.numpy().copy(), [np.arange(RECORDS) + client * RECORDS for client in range(CLIENTS)]
    keys = (bytes(32), bytes(31) + b"1", bytes(31) + b"2")
    jobs, results = new_jobs(kernel, rule, weights, parts, keys)

    def one_round() -> None:
        kernel.train(data, jobs, threads=work.workers)
        weights[:] = results.mean(axis=0, dtype=np.float64)
        jobs["round"] += 1

    serve(one_round, client_steps=CLIENTS * work.steps)


if __name__ == "__main__":
    main()
