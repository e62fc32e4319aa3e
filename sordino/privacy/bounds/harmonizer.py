"""Clients with individual noise: the worst counts (udp-fl's Harmonizer, docs/theory.md#a36).

Once its budget is spent, a client takes no further part (`participation_caps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sordino.privacy.bounds.priced_view import observe_uploads
from sordino.privacy.bounds.question import (
    Bound,
    Observation,
    Protection,
    Provider,
    Question,
    pose_question,
)
from sordino.privacy.bounds.shared_noise import certify_shared
from sordino.privacy.bounds.worst_curve import WorstCurve
from sordino.privacy.guarantee import Guarantee, notes_on
from sordino.privacy.own_noise import own_protocol
from sordino.privacy.participation_caps import foreseen_cap
from sordino.protocol import ClientBudget, Everyone, Protocol, View


def applies_to(question: Question) -> bool:
    """Returns whether clients have individual noise."""
    return question.protection is Protection.OWN_NOISE and len(question.rounds) > 0


def bound_worst_client(question: Question) -> Iterator[Bound]:
    """Yields the bound of the worst client, each priced by its own noise against the server.

    All that other views see is made of the uploads.
    """
    guarantees = own_guarantees(question).values()
    # Clients of one kind share a guarantee; curves need not be compared to see that.
    found = list({id(guarantee): guarantee for guarantee in guarantees}.values())
    worst = max(found, key=lambda guarantee: guarantee.epsilon(1e-5))
    lines = (
        f"Every client has its own noise, found for its own budget ({len(found)} kinds of "
        "clients); the worst one counts.",
        f"The adversary sees {question.sees}, all of it computed from the uploads: the "
        "server's bound holds.",
        *worst.derivation,
    )
    vouched = dict.fromkeys(line for guarantee in found for line in guarantee.assumptions)
    curve = WorstCurve(curves=tuple(guarantee.curve for guarantee in found))
    yield Bound(curve=curve, method="harmonizer", lines=lines, vouched=tuple(vouched))


def own_guarantees(question: Question) -> dict[int, Guarantee]:
    """Returns every client's guarantee against the server; clients of one kind share one.

    Args:
        question: The question of a protocol whose clients have individual noise.
    """
    by_kind: dict[tuple[Protocol, int], Guarantee] = {}
    by_client = {}
    for budget in question.protocol.client:
        records = question.records
        if question.sizes is not None:
            records = question.sizes[budget.id]
        alone = own_protocol(question.protocol, budget, records)
        cap = find_cap(question, budget, records)
        if (alone, cap) not in by_kind:
            by_kind[alone, cap] = price_client(question, alone, cap, records)
        by_client[budget.id] = by_kind[alone, cap]
    return by_client


def price_client(question: Question, alone: Protocol, cap: int, records: int | None) -> Guarantee:
    """Returns a client's guarantee: by the draw of clients or by its own cap, the smaller.

    Args:
        question: The protocol, view and unit to bound.
        alone: The federation as the client sees it.
        cap: The most rounds that the client takes part in.
        records: The number of records of the client, where known.
    """
    rounds = tuple(question.rounds.tolist())
    found = [certify_alone(alone, question.unit, rounds, records)]
    # A budget that ends a client's part bounds it better than a draw of all rounds may.
    if cap < len(rounds):
        certain = replace(alone, participation=Everyone())
        found.append(certify_alone(certain, question.unit, tuple(range(cap)), records))
    least = min(found, key=lambda guarantee: guarantee.epsilon(1e-5))
    # A client alone has no partition; what the federation's says of every guarantee stays.
    return replace(least, notes=notes_on(question.protocol))


@lru_cache(maxsize=64)  # all views are answered by the server's
def certify_alone(
    alone: Protocol, unit: str, rounds: tuple[int, ...], records: int | None
) -> Guarantee:
    """Returns the guarantee against the server in a federation of clients that are all the same.

    Args:
        alone: The federation, in which all clients have the same noise.
        unit: The hidden unit, "record" or "client".
        rounds: The rounds that are run.
        records: The number of records of every client, where known.
    """
    sizes = None if records is None else [records] * alone.clients
    return certify_shared(pose_question(alone, View.SERVER, unit, rounds, sizes))


def find_cap(question: Question, budget: ClientBudget, records: int | None) -> int:
    """Returns how often a client takes part at most in the rounds of a question.

    Args:
        question: The protocol, view and unit to bound.
        budget: The budget of the client.
        records: The number of records of the client, where known.
    """
    # A round that was paid for twice may cost more than those by which caps are found.
    if len(np.unique(question.rounds)) < len(question.rounds):
        return len(question.rounds)
    return min(foreseen_cap(question.protocol, budget, records), len(question.rounds))


def observe_own_releases(question: Question) -> Observation:
    """Returns what these bounds are proved against: a client's uploads, or its noisy steps."""
    if question.protocol.release.in_steps:
        return Observation.STEPS
    return observe_uploads(question)


HARMONIZER = Provider(applies=applies_to, bounds=bound_worst_client, observes=observe_own_releases)
