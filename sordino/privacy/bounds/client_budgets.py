"""Clients with budgets (docs/theory.md#a36).

Where every client has a budget, none spends more than the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sordino.privacy.bounds.priced_view import observe_models
from sordino.privacy.bounds.question import (
    AttackedClients,
    Bound,
    Protection,
    Provider,
    Question,
    pose_question,
)
from sordino.privacy.bounds.shared_noise import certify_shared
from sordino.privacy.bounds.unequal_clients import find_kind_of_each
from sordino.privacy.bounds.worst_curve import find_worst_curve
from sordino.privacy.participation_caps import foreseen_cap
from sordino.protocol import Everyone, View
from sordino.protocol.arithmetic import draw_alike


def applies_to(question: Question) -> bool:
    """Returns whether every client has a budget, and shares its noise with the others."""
    protocol = question.protocol
    if not protocol.client or question.protection is Protection.OWN_NOISE:
        return False
    # A client without a budget takes part in every round, and would be the worst.
    if len(protocol.client) < protocol.clients:
        return False
    # A round that was paid for twice may cost more than the first rounds, by which caps are found.
    return len(np.unique(question.rounds)) == len(question.rounds)


def bound_capped_clients(question: Question) -> Iterator[Bound]:
    """Yields the bound of clients that take part as often as their budgets allow."""
    protocol = question.protocol
    rounds = len(question.rounds)
    sizes = question.sizes or (question.records,) * protocol.clients
    caps = [foreseen_cap(protocol, budget, sizes[budget.id]) for budget in protocol.client]
    # Caps that no run reaches improve nothing.
    if min(caps) >= rounds:
        return
    # As if a client took part for certain until its cap: a draw could only spare it rounds.
    certain = replace(protocol, client=(), participation=Everyone())
    certain = draw_alike(certain, protocol)
    # The server's view, since clients that have left take their noise with them.
    seen = pose_question(certain, View.SERVER, question.unit, (), question.sizes)
    largest: dict[AttackedClients | None, int] = {}
    kinds = find_kind_of_each(seen)
    for budget, cap in zip(protocol.client, caps, strict=True):
        kind = kinds[budget.id]
        largest[kind] = max(largest.get(kind, 0), min(cap, rounds))
    found = [
        certify_shared(replace(seen, rounds=np.arange(cap), attacked=kind))
        for kind, cap in largest.items()
    ]
    worst = max(found, key=lambda guarantee: guarantee.epsilon(1e-5))
    line = (
        f"By its own budget no client takes part more than {max(largest.values())} times; as the "
        "earliest rounds cost the most, those are counted."
    )
    if len(found) > 1:
        line += " Clients of each size are priced by their own caps, and the worst size counts."
    curve = find_worst_curve([guarantee.curve for guarantee in found])
    yield Bound(curve=curve, method="client budgets", lines=(*worst.derivation, line))


CLIENT_BUDGETS = Provider(applies=applies_to, bounds=bound_capped_clients, observes=observe_models)
