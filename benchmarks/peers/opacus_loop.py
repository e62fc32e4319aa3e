"""Opacus in a plain loop: every example's gradient clipped and noise at every step, clients in sequence, one thread."""

from __future__ import annotations

import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from benchmarks.serving import asked, serve
from benchmarks.task import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, network, records


def main() -> None:
    warnings.filterwarnings("ignore")
    work = asked()
    torch.set_num_threads(1)
    values, labels = (torch.from_numpy(array) for array in records(work.model))
    net = GradSampleModule(network(work.model))
    # Its multiplier is in units of C; ours for batches of a fixed size is in units of 2C.
    noise = {
        "noise_multiplier": 2 * MULTIPLIER,
        "max_grad_norm": CLIP,
        "expected_batch_size": BATCH,
    }
    optimizer = DPOptimizer(torch.optim.SGD(net.parameters(), lr=RATE), **noise)

    def one_round() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(CLIENTS):
            net.load_state_dict(start)
            for _ in range(work.steps):
                rows = torch.randperm(RECORDS)[:BATCH]
                optimizer.zero_grad()
                functional.cross_entropy(net(values[client][rows]), labels[client][rows]).backward()
                optimizer.step()
            for name, value in net.state_dict().items():
                total[name] += value
        net.load_state_dict({name: value / CLIENTS for name, value in total.items()})

    serve(one_round, client_steps=CLIENTS * work.steps)


if __name__ == "__main__":
    main()
