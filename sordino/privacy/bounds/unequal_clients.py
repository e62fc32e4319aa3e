"""Unequal clients, each priced by itself (docs/theory.md#a18).

A large client has a large share in the mean and many records to hide one among. The bound of a
federation is that of its worst client, and no client has both the largest share and the fewest
records. Clients of similar size are priced together, as one that has the largest share and the
fewest records among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import AttackedClients, Bound, Question
from sordino.privacy.bounds.worst_curve import find_worst_curve

KINDS = 8  # groups of clients that are priced apart; more would only add time


def prices_clients_apart(question: Question) -> bool:
    """Returns whether clients differ in what hides a record and in what their uploads weigh.

    Then no single client is the worst. Everyone must take part: the shares of random participants
    are not known.

    Args:
        question: The protocol that is priced, against which view and for which unit.
    """
    if question.attacked is not None or question.present is not None:
        return False
    if question.sizes is None or question.shares is None or question.equal_shares:
        return False
    protocol = question.protocol
    # How far all records of a client move its upload does not depend on how many there are, so for
    # the unit "client" the largest share is the worst.
    if question.unit != "record" or protocol.client or protocol.participation.draws:
        return False
    if protocol.release.in_steps:
        return False
    if protocol.release.at_server or protocol.release.secure_sum is not None:
        return True
    return not find_priced_view(question).view.is_server


def split_question(question: Question) -> list[Question]:
    """Returns one question for every kind of client, or the question itself where one kind counts.

    Args:
        question: The protocol that is priced, against which view and for which unit.
    """
    if question.sizes is None or question.shares is None or not prices_clients_apart(question):
        return [question]
    shares = question.shares
    if question.protocol.release.secure_sum is not None:
        # Clients weigh their updates before they are summed, the largest by 1.
        shares = shares / shares.max()
    kinds = find_kinds_of_clients(question.sizes, shares, question.colluders)
    return [replace(question, attacked=kind) for kind in kinds]


def find_kinds_of_clients(
    sizes: Sequence[int], shares: np.ndarray, colluders: int
) -> list[AttackedClients]:
    """Returns the kinds of clients of a federation, from the smallest to the largest.

    Args:
        sizes: Number of records of every client.
        shares: Share of every client in the mean.
        colluders: Clients whose noise the adversary knows; at worst those with the largest shares.

    Example:
        >>> sizes = [100, 100, 400]
        >>> kinds = find_kinds_of_clients(sizes, np.array(sizes) / 600, 0)
        >>> [(kind.records, round(kind.visible, 3)) for kind in kinds]
        [(100, 0.236), (400, 0.943)]
    """
    records = np.asarray(sizes)
    # A client's share over the norm of the honest noise, which is all that a mean shows
    # (docs/theory.md#a8).
    visible = shares / np.sqrt(sum_honest_squares(shares, colluders))
    distinct = np.unique(records)
    if len(distinct) > KINDS:
        # A group counts with its largest share and its fewest records, which no bound undercuts.
        edges = np.geomspace(distinct[0], distinct[-1], KINDS + 1)[1:-1]
        groups = np.searchsorted(edges, records, side="right")
    else:
        groups = np.searchsorted(distinct, records)
    found = []
    for group in np.unique(groups):
        members = groups == group
        kind = AttackedClients(
            share=float(shares[members].max()),
            visible=float(visible[members].max()),
            records=int(records[members].min()),
        )
        found.append(kind)
    return found


def sum_honest_squares(shares: np.ndarray, colluders: int) -> np.ndarray:
    """Returns, for every client as the attacked one, the sum of the squared honest shares.

    Args:
        shares: Share of every client in the mean.
        colluders: How many of the others collude, those with the largest shares.

    Example:
        >>> sum_honest_squares(np.array([1.0, 2.0, 3.0]), 1).tolist()
        [5.0, 5.0, 10.0]
    """
    squares = np.square(shares)
    largest_first = np.argsort(-squares, kind="stable")
    ordered = squares[largest_first]
    rank = np.empty(len(squares), dtype=np.int64)
    rank[largest_first] = np.arange(len(squares))
    # A client among the largest does not collude against itself: the next one takes its place.
    top = float(ordered[:colluders].sum())
    following = float(ordered[: colluders + 1].sum())
    gone = np.where(rank < colluders, following - squares, top)
    left: np.ndarray = squares.sum() - gone
    return left


def join_bounds(found: Sequence[Sequence[Bound]]) -> Iterator[Bound]:
    """Yields the bounds of a federation from those of its kinds of clients, a method at a time.

    Args:
        found: The bounds of every kind.
    """
    if len(found) == 1:
        yield from found[0]
        return
    line = (
        f"Clients differ in size, and each is priced by itself ({len(found)} kinds); "
        "the worst one counts (docs/theory.md#a18)."
    )
    methods = dict.fromkeys(bound.method for bounds in found for bound in bounds)
    for method in methods:
        chosen = []
        for bounds in found:
            same = [bound for bound in bounds if bound.method == method]
            # A kind for which the method brings nothing has its first bound in the place.
            chosen.append(same[0] if same else bounds[0])
        # Only the words are this one's: the curve is the worst of all at every delta.
        worst = max(chosen, key=lambda bound: bound.curve.epsilon(1e-5))
        vouched = dict.fromkeys(text for bound in chosen for text in bound.vouched)
        yield replace(
            worst,
            curve=find_worst_curve([bound.curve for bound in chosen]),
            method=method,
            lines=(*worst.lines, line),
            vouched=tuple(vouched),
        )
