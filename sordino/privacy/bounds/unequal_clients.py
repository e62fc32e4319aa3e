"""Unequal clients, each priced by itself (docs/theory.md#a18).

A large client has a large share in the mean and many records to hide one among. The bound of a
federation is that of its worst client, and no client has both the largest share and the fewest
records. Clients of similar size are priced together, as one that has the largest share and the
fewest records among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from sordino.privacy.bounds.central_cohorts import client_noise, server_noise
from sordino.privacy.bounds.joined_steps import adds_up
from sordino.privacy.bounds.priced_view import find_priced_view
from sordino.privacy.bounds.question import AttackedClients, Bound, Question
from sordino.privacy.bounds.worst_curve import find_worst_curve

KINDS = 8  # groups of clients that are priced apart; more would only add time


def prices_clients_apart(question: Question) -> bool:
    """Returns whether clients differ in what hides a record and in what their uploads weigh.

    Then no single client is the worst. Everyone must take part: the shares of random participants
    are not known.
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
    if protocol.release.in_steps and not adds_up(protocol):
        return False
    if protocol.release.at_server or protocol.release.secure_sum is not None:
        return True
    return not find_priced_view(question).view.is_server


def split_question(question: Question) -> list[Question]:
    """Returns a question for every kind of client, or the question itself where one kind counts."""
    if not prices_clients_apart(question):
        return [question]
    return [replace(question, attacked=kind) for kind in find_kinds(question)]


def find_kinds(question: Question) -> list[AttackedClients]:
    """Returns the kinds of clients of a question, in the order of `group_clients`.

    Args:
        question: The question to answer; the number of records of every client must be known.
    """
    shares = question.shares
    if question.sizes is None or shares is None:
        return []
    if question.protocol.release.secure_sum is not None:
        # Clients weigh their updates before they are summed, the largest by 1.
        shares = shares / shares.max()
    return find_kinds_of_clients(question.sizes, shares, question.colluders)


def find_kinds_of_clients(
    sizes: Sequence[int], shares: np.ndarray, colluders: int
) -> list[AttackedClients]:
    """Returns the kinds of clients of a federation, from the smallest to the largest.

    Args:
        sizes: The number of records of every client.
        shares: The share of every client in the mean.
        colluders: The number of clients whose noise the adversary knows; at worst those with the
            largest shares.

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
    groups = group_clients(sizes)
    found = []
    # A group counts with its largest share and its fewest records, which no bound undercuts.
    for group in range(groups.max() + 1):
        members = groups == group
        kind = AttackedClients(
            share=float(shares[members].max()),
            visible=float(visible[members].max()),
            records=int(records[members].min()),
            most_records=int(records[members].max()),
        )
        found.append(kind)
    return found


def group_clients(sizes: Sequence[int]) -> np.ndarray:
    """Returns the number of every client's group of clients of similar size, from the smallest on.

    Args:
        sizes: The number of records of every client.

    Example:
        >>> group_clients([400, 100, 100]).tolist()
        [1, 0, 0]
    """
    records = np.asarray(sizes)
    distinct = np.unique(records)
    edges = distinct[1:]
    if len(distinct) > KINDS:
        edges = np.geomspace(distinct[0], distinct[-1], KINDS + 1)[1:-1]
    groups = np.searchsorted(edges, records, side="right")
    # Where sizes leave a gap there is nobody in between.
    return np.unique(groups, return_inverse=True)[1]


def find_kind_of_each(question: Question) -> list[AttackedClients | None]:
    """Returns the kind of every client; None for clients that are not known to differ."""
    sizes = question.sizes
    if sizes is None or question.shares is None or len(set(sizes)) == 1:
        return [None] * question.protocol.clients
    kinds = find_kinds(question)
    return [kinds[group] for group in group_clients(sizes).tolist()]


def count_equals_by_round(
    question: Question, absent: Mapping[int, Collection[int]]
) -> Callable[[int, int, float], float]:
    """Returns a function that says how many equal clients hide a client in a round, after a run.

    Args:
        question: The protocol, view and unit to bound.
        absent: The clients that contributed nothing, by round.

    Returns:
        A function of the client, the round, and the number of those who contributed, which is the
        answer where all clients weigh the same, or it is not known how they do.
    """
    protocol = question.protocol
    alike = question.sizes is None or question.shares is None or question.equal_shares
    if alike or protocol.participation.draws or protocol.release.secure_sum is not None:
        return lambda client, round_index, number: number

    @cache
    def count(gone: frozenset[int]) -> np.ndarray:
        return count_equal_clients(question, gone)

    def find(client: int, round_index: int, number: float) -> float:
        return float(count(frozenset(absent.get(round_index, ())))[client])

    return find


def count_equal_clients(question: Question, absent: Collection[int]) -> np.ndarray:
    """Returns how many equal clients would hide each client as well as those in a round did.

    Colluders are among them, as among equal clients that came.

    Args:
        question: The question to answer; the number of records of every client must be known.
        absent: The clients that contributed nothing.

    Returns:
        A number for every client, the smallest of all clients of its kind.
    """
    records = np.asarray(question.sizes, dtype=float)
    came = np.isin(np.arange(len(records)), list(absent), invert=True)
    weights = np.where(came, records, 0.0)
    # A client that fell silent is priced as if its upload, with its noise, had come.
    own = np.where(came, 0.0, records)
    honest = (sum_honest_squares(weights, question.colluders) + own**2) / records**2
    numbers = find_equal_number(question, np.maximum(honest, 1.0), (weights.sum() + own) / records)
    groups = group_clients(question.sizes or ())
    fewest = np.full(groups.max() + 1, np.inf)
    np.minimum.at(fewest, groups, numbers)
    of_each: np.ndarray = fewest[groups]
    return of_each


def find_equal_number(question: Question, honest: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """Returns how many equal clients, colluders among them, hide a client as well as others do.

    Args:
        question: The protocol, view and unit to bound.
        honest: The number of equal clients whose noise is as much as that in the sum.
        divisor: The number of equal clients by which the sum is divided.
    """
    release = question.protocol.release
    if not release.at_server:
        return honest + question.colluders
    if not release.at_client:
        return divisor
    # n equal clients, k of whom collude, have (n - k) c^2 + n^2 s^2.
    own = client_noise(question.protocol) ** 2
    joint = server_noise(question.protocol) ** 2
    whole = own * honest + joint * divisor**2
    root = np.sqrt(own**2 + 4 * joint * (whole + own * question.colluders))
    number = (root - own) / (2 * joint)
    # The attacked client is honest, however many collude.
    alone = np.sqrt((whole - own) / joint)
    return np.where(number >= question.colluders + 1, number, alone)


def sum_honest_squares(shares: np.ndarray, colluders: int) -> np.ndarray:
    """Returns, for every client as the attacked one, the sum of the squared honest shares.

    Args:
        shares: The share of every client in the mean.
        colluders: The number of the other clients that collude, those with the largest shares.

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


def find_smallest(bounds: Sequence[Bound]) -> Bound:
    """Returns the bound with the smallest epsilon.

    Args:
        bounds: The bounds to choose from, at least one.
    """
    # An epsilon takes time, and mostly there is no choice.
    if len(bounds) == 1:
        return bounds[0]
    return min(bounds, key=lambda bound: bound.curve.epsilon(1e-5))


def join_bounds(found: Sequence[Sequence[Bound]]) -> Iterator[Bound]:
    """Yields the bounds of a federation from those of its kinds of clients, a method at a time.

    Args:
        found: The bounds of every kind of client.
    """
    if len(found) == 1:
        yield from found[0]
        return
    line = (
        f"Clients differ in size, and each is priced separately ({len(found)} kinds); "
        "the worst one counts (docs/theory.md#a18)."
    )
    methods = dict.fromkeys(bound.method for bounds in found for bound in bounds)
    for method in methods:
        chosen = []
        for bounds in found:
            same = [bound for bound in bounds if bound.method == method]
            # A kind for which the method brings nothing has its smallest bound in the place.
            chosen.append(find_smallest(same or bounds))
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
