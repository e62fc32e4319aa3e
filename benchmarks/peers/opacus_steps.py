"""Opacus as one would use it for clients in sequence, one thread: its per-sample gradients, its clipping and noise in every step."""

from __future__ import annotations

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn import functional

from benchmarks.serving import asked_steps, serve
from benchmarks.workload import BATCH, CLIENTS, CLIP, MULTIPLIER, RATE, RECORDS, lenet5, records


def main() -> None:
    steps = asked_steps()
    torch.set_num_threads(1)
    images, labels = (torch.from_numpy(array) for array in records())
    net = GradSampleModule(lenet5())
    plain = torch.optim.SGD(net.parameters(), lr=RATE)
    # Its multiplier is in units of C; ours for batches of a fixed size is in units of 2C.
    optimizer = DPOptimizer(plain, noise_multiplier=2 * MULTIPLIER, max_grad_norm=CLIP, expected_batch_size=BATCH)

    def train(client: int) -> None:
        for _ in range(steps):
            rows = torch.randperm(RECORDS)[:BATCH]
            optimizer.zero_grad()
            functional.cross_entropy(net(images[client][rows]), labels[client][rows]).backward()
            optimizer.step()

    def one_round() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(CLIENTS):
            net.load_state_dict(start)
            train(client)
            for name, value in net.state_dict().items():
                total[name] += value
        net.load_state_dict({name: value / CLIENTS for name, value in total.items()})

    serve(one_round, client_steps=CLIENTS * steps)


if __name__ == "__main__":
    main()
