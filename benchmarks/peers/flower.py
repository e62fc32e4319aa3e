"""Flower's simulation on Ray, one core per client and so two at a time: steps clipped at the client, clip and noise at the server.

Ray stays up between measurements, listens on 127.0.0.1 only and reports nothing to anybody.
"""

from __future__ import annotations

import functools
import logging
import os

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DEDUP_LOGS="0",
)

import ray._private.ray_constants as ray_constants
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional

from benchmarks.serving import asked, rounds_at_once, serve
from benchmarks.task import (
    BATCH,
    CLIENTS,
    CLIP,
    RATE,
    RECORDS,
    SIGMA,
    WORKERS,
    network,
    records,
)


@functools.cache
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """The records, made once in every actor."""
    images, labels = records()
    return torch.from_numpy(images), torch.from_numpy(labels)


def train(message: Message, context: Context) -> Message:
    """A client's round."""
    torch.set_num_threads(1)
    images, labels = (tensor[int(context.node_config["partition-id"])] for tensor in tensors())
    net = network("lenet5")
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(int(message.content["config"]["steps"])):
        rows = torch.randperm(RECORDS)[:BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(net(images[rows]), labels[rows]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    reply = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": RECORDS}),
        }
    )
    return Message(content=reply, reply_to=message)


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    steps = asked().steps
    rounds = rounds_at_once(steps)
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()
    def serve_rounds(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(network("lenet5").state_dict())

        def some_rounds() -> None:
            averaging = FedAvg(
                fraction_train=1.0,
                fraction_evaluate=0.0,
                min_train_nodes=CLIENTS,
                min_available_nodes=CLIENTS,
            )
            strategy = DifferentialPrivacyServerSideFixedClipping(averaging, SIGMA, CLIP, CLIENTS)
            strategy.start(
                grid=grid,
                initial_arrays=arrays,
                num_rounds=rounds,
                train_config=ConfigRecord({"steps": steps}),
            )

        serve(some_rounds, client_steps=CLIENTS * steps * rounds)

    ray_constants.ENABLE_RAY_CLUSTER = (
        False  # else Ray takes "127.0.0.1" for the address that others can reach
    )
    ray = {
        "num_cpus": WORKERS,
        "include_dashboard": False,
        "log_to_driver": False,
        "_node_ip_address": "127.0.0.1",
    }
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server,
        client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": resources, "init_args": ray},
    )


if __name__ == "__main__":
    from benchmarks.peers import flower  # under its name, by which Ray's actors can import it too

    flower.main()
