"""Opacus doing the same steps centrally: lots of all records, each drawn by itself, two threads."""

from __future__ import annotations

import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from benchmarks.lot_task import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, network, records
from benchmarks.serving import asked, serve


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(asked().workers)
    values, labels = (torch.from_numpy(array) for array in records())
    net = GradSampleModule(network())
    noise = {
        "noise_multiplier": MULTIPLIER,
        "max_grad_norm": CLIP,
        "expected_batch_size": CLIENTS * BATCH,
    }
    optimizer = DPOptimizer(torch.optim.SGD(net.parameters(), lr=RATE), **noise)

    def one_step() -> None:
        rows = torch.nonzero(torch.rand(len(labels)) < BATCH / RECORDS).flatten()
        optimizer.zero_grad()
        functional.cross_entropy(net(values[rows]), labels[rows]).backward()
        optimizer.step()

    serve(one_step, client_steps=CLIENTS)


if __name__ == "__main__":
    main()
