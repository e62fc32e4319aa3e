"""Says how much work the game of a worst case is, so that nothing beside it takes longer."""

from __future__ import annotations

from sordino.audit.worst_cases.noisy_step_pair import COMPANY
from sordino.protocol import Protocol


def count_round_draws(protocol: Protocol) -> int:
    """Returns about how many numbers a round of the worst case draws.

    They are the vectors of noise, and the records of the attacked client's minibatches if those
    are drawn.

    Args:
        protocol: The protocol that is audited.
    """
    rule = protocol.local
    release = protocol.release
    sizes = protocol.stated_sizes
    draws = protocol.clients
    if release.in_steps:
        draws = COMPANY * release.noise_draws
    if sizes is None or rule.batch is None or rule.batch >= sizes[0]:
        return draws
    if not rule.draws_batches:
        return draws
    per_step = sizes[0] if release.varying_batches else rule.batch
    return draws + rule.steps * per_step
