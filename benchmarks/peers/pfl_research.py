"""pfl-research's simulated backend: steps clipped at the client, the Gaussian mechanism at the server.

One process with one thread, or as many as torchrun starts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor, distributed, nn
from torch.nn import functional

from benchmarks.serving import asked, rounds_at_once, serve
from benchmarks.task import BATCH, CLIENTS, CLIP, RATE, RECORDS, SIGMA, network, records


class Net(nn.Module):
    """The network with the methods that pfl asks a model for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return functional.cross_entropy(self.net(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, object]:
        return {}


class Batches(PyTorchTensorDataset):
    """A client's records, of which every batch is a fresh draw."""

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, ...]]:
        while True:
            rows = torch.randperm(RECORDS)[:batch_size]
            yield tuple(tensor[rows] for tensor in self.raw_data)


def main() -> None:
    work = asked()
    steps = work.steps
    rounds = rounds_at_once(steps)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    set_framework_module(pytorch_ops)
    images, labels = (torch.from_numpy(array) for array in records(work.model))
    users = {str(client): (images[client], labels[client]) for client in range(CLIENTS)}
    data = FederatedDataset(
        lambda user: Batches(users[user], user_id=user),
        get_user_sampler("minimize_reuse", list(users)),
    )
    net = Net(network(work.model))
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, SIGMA))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
    training = NNTrainHyperParams(
        local_num_epochs=None,
        local_num_steps=steps,
        local_learning_rate=RATE,
        local_batch_size=BATCH,
        local_max_grad_norm=CLIP,
    )
    plan = NNAlgorithmParams(
        central_num_iterations=1 + rounds,
        evaluation_frequency=10**6,
        train_cohort_size=CLIENTS,
        val_cohort_size=0,
    )

    def some_rounds() -> None:
        algorithm = FederatedAveraging()
        algorithm._current_central_iteration = (
            1  # number 0 is always evaluated, on the data of all clients; the others never here
        )
        algorithm.run(plan, backend, model, training, send_metrics_to_platform=False)

    take_part(some_rounds, client_steps=CLIENTS * steps * rounds)


def take_part(some_rounds: Callable[[], None], *, client_steps: int) -> None:
    """Does what the driver asks for. It talks to the first process, which calls the others, if any, to every turn."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        serve(some_rounds, client_steps=client_steps)
        return
    more = torch.ones(1)
    if distributed.get_rank() > 0:
        distributed.broadcast(more, 0)
        while more.item() > 0:
            some_rounds()
            distributed.broadcast(more, 0)
        return

    def together() -> None:
        distributed.broadcast(more, 0)
        some_rounds()

    serve(together, client_steps=client_steps)
    distributed.broadcast(torch.zeros(1), 0)


if __name__ == "__main__":
    main()
