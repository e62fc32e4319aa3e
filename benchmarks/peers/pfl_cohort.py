"""pfl-research's own benchmark on CIFAR-10: a cohort's epochs, and the Gaussian mechanism at the server."""

from __future__ import annotations

import logging

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

from benchmarks.cohort_task import (
    BATCH,
    CLIENTS,
    CLIP,
    COHORT,
    NOISE,
    RATE,
    STEPS,
    network,
    records,
)
from benchmarks.peers.pfl_research import Net, take_part

ROUNDS_AT_ONCE = 2


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    set_framework_module(pytorch_ops)
    images, labels = (torch.from_numpy(array) for array in records())
    users = {str(client): (images[client], labels[client]) for client in range(CLIENTS)}
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset(users[user], user_id=user),
        get_user_sampler("minimize_reuse", list(users)),
    )
    net = Net(network())
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
    training = NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=RATE,
        local_batch_size=BATCH,
    )
    plan = NNAlgorithmParams(
        central_num_iterations=1 + ROUNDS_AT_ONCE,
        evaluation_frequency=10**6,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    )

    def some_rounds() -> None:
        algorithm = FederatedAveraging()
        # Number 0 is always evaluated, on the data of all clients; the others never here.
        algorithm._current_central_iteration = 1
        algorithm.run(plan, backend, model, training, send_metrics_to_platform=False)

    take_part(some_rounds, client_steps=COHORT * STEPS * ROUNDS_AT_ONCE)


if __name__ == "__main__":
    main()
