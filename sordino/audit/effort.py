"""Estimates the work of a worst-case game, so that checks next to it can be kept shorter."""

from __future__ import annotations

from sordino.audit.worst_cases.noisy_step_pair import COMPANY
from sordino.protocol import Protocol


def count_round_draws(protocol: Protocol) -> int:
    """Returns about how many draws a round of the worst case makes.

    A draw is a vector of noise, or a record of the attacked client's minibatches.

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
