"""The local rule fedprox: clipped steps pulled back to where they began (convergent-dp Eq. 4)."""

from __future__ import annotations

from sordino.federation.rules.clipped_steps import take_clipped_steps
from sordino.federation.rules.local_training import LOCAL_RULES, Assignment, LocalResult, Worker
from sordino.protocol import FedProx


@LOCAL_RULES.register(FedProx)
def train_fedprox(rule: FedProx, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the clipped and pulled steps of one client.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    return take_clipped_steps(rule, worker, task)
