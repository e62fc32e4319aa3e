"""The local rule scaffold: steps corrected by public control variates (Karimireddy et al. 2020)."""

from __future__ import annotations

from sordino.federation.rules.clipped_steps import take_clipped_steps
from sordino.federation.rules.local_training import LOCAL_RULES, Assignment, LocalResult, Worker
from sordino.protocol import Scaffold


@LOCAL_RULES.register(Scaffold)
def train_scaffold(rule: Scaffold, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the clipped steps of one client, with its correction in every step.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    return take_clipped_steps(rule, worker, task)
