"""The loop that one writes in an afternoon: clients in sequence, one thread, `torch.optim`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.serving import asked, serve
from benchmarks.task import BATCH, CLIENTS, CLIP, RATE, RECORDS, SIGMA, network, records


def main() -> None:
    work = asked()
    steps = work.steps
    torch.set_num_threads(1)
    images, labels = (torch.from_numpy(array) for array in records(work.model))
    net = network(work.model)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)

    def train(client: int) -> None:
        for _ in range(steps):
            rows = torch.randperm(RECORDS)[:BATCH]
            optimizer.zero_grad()
            functional.cross_entropy(net(images[client][rows]), labels[client][rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()

    def one_round() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(CLIENTS):
            net.load_state_dict(start)
            train(client)
            for name, value in net.state_dict().items():
                total[name] += value + SIGMA * torch.randn_like(value)
        net.load_state_dict({name: value / CLIENTS for name, value in total.items()})

    serve(one_round, client_steps=CLIENTS * steps)


if __name__ == "__main__":
    main()
