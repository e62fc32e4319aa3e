"""Clients with budgets: where every client has one, none spends more than the largest of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import (
    Bound,
    Protection,
    Provider,
    Question,
    pose_question,
)
from sordino.privacy.bounds.shared_noise import certify_shared
from sordino.privacy.participation_caps import foreseen_cap
from sordino.protocol import Everyone, View
from sordino.protocol.arithmetic import draw_alike


def applies_to(question: Question) -> bool:
    """Returns whether every client has a budget, and shares its noise with the others.

    Args:
        question: The protocol that is priced, against which view and for which unit.
    """
    protocol = question.protocol
    if not protocol.client or question.protection is Protection.OWN_NOISE:
        return False
    # A client without a budget takes part in every round, and would be the worst.
    if len(protocol.client) < protocol.clients:
        return False
    # A round that was paid for twice may cost more than the first rounds, by which caps are found.
    return len(np.unique(question.rounds)) == len(question.rounds)


def bound_capped_clients(question: Question) -> Iterator[Bound]:
    """Yields the bound of a client that takes part as often as the largest budget allows.

    Args:
        question: The protocol that is priced, against which view and for which unit.
    """
    protocol = question.protocol
    sizes = question.sizes or (question.records,) * protocol.clients
    caps = [foreseen_cap(protocol, budget, sizes[budget.id]) for budget in protocol.client]
    most = max(caps)
    # A cap that no run reaches improves nothing.
    if most >= len(question.rounds):
        return
    # As if the client took part for certain until its cap: a draw could only spare it rounds.
    certain = replace(protocol, client=(), participation=Everyone())
    certain = draw_alike(certain, protocol)
    reduced = certify_shared(
        # The server's view, since clients that have left take their noise with them.
        pose_question(certain, View.SERVER, question.unit, range(most), question.sizes)
    )
    line = (
        f"No client takes part more than {most} times, by its own budget; earlier rounds cost the "
        "most."
    )
    yield Bound(curve=reduced.curve, method="client budgets", lines=(*reduced.derivation, line))


CLIENT_BUDGETS = Provider(applies=applies_to, bounds=bound_capped_clients, observes=observe_models)
