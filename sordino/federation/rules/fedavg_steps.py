"""The local rule fedavg: K clipped steps from the global model (convergent-dp Eq. 2)."""

from __future__ import annotations

from sordino.federation.rules.clipped_steps import take_clipped_steps
from sordino.federation.rules.local_training import LOCAL_RULES, Assignment, LocalResult, Worker
from sordino.protocol import FedAvg


@LOCAL_RULES.register(FedAvg)
def train_fedavg(rule: FedAvg, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the clipped steps of one client.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    return take_clipped_steps(rule, worker, task)
