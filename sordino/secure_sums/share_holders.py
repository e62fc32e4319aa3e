"""Decides which clients hold shares of whose seeds, and which pairs of clients share a mask.

Up to a hundred clients are all each other's neighbours. Beyond that, each client's shares are held
by itself and by a number of others that its own fresh key picks, and it shares a mask with those
that hold for it and those that it holds for. Everyone computes the same graph from the signed keys:
nothing else has to be sent, and the server has no say in it.

How many are picked, and how many shares open a seed, follows from the numbers of clients, threshold
and colluders: it is the smallest number for which the bounds of docs/theory.md#a19 hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log

import numpy as np

from sordino.secure_sums.masks import derive_key, expand_mask

# Up to this many clients are all each other's neighbours.
LARGEST_COMPLETE = 100
# In a whole training, a graph with which a server could open a part of a sum is at most so likely.
LOG_EXPOSURE = -40 * log(2)
# A round of as many survivors as the threshold that cannot be opened is at most so likely.
LOG_LOSS = -20 * log(2)
# Sums of logarithms are exact to far less than this.
MARGIN = 1e-6


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """How many hold shares of a client's seeds.

    Attributes:
        others: How many other clients hold shares of a client's seeds.
        needed: How many shares open a seed.

    Example:
        >>> Neighbourhood(others=49, needed=30).needed
        30
    """

    others: int
    needed: int


@lru_cache
def choose_neighbourhood(clients: int, threshold: int, colluders: int) -> Neighbourhood:
    """Returns how many hold shares of a client's seeds, and how many of them open one.

    Args:
        clients: The number of clients in the roster.
        threshold: The fewest contributions that are ever opened.
        colluders: The largest number of clients that help the server.

    Example:
        >>> choose_neighbourhood(10, 9, 2)
        Neighbourhood(others=9, needed=9)
    """
    complete = Neighbourhood(others=clients - 1, needed=threshold)
    if clients <= LARGEST_COMPLETE:
        return complete
    for others in range(2, clients - 1):
        needed = _find_most_needed(clients, threshold, others)
        if needed < 2:
            continue
        # The largest part of the clients is the likeliest to be closed, and quickly ruled out.
        largest = np.array([(clients - colluders) // 2])
        if _sum_exposures(clients, colluders, others, needed, largest) > LOG_EXPOSURE:
            continue
        if bound_exposure(clients, colluders, others, needed) <= LOG_EXPOSURE - MARGIN:
            return Neighbourhood(others=others, needed=needed)
    return complete


def bound_exposure(clients: int, colluders: int, others: int, needed: int) -> float:
    """Returns the logarithm of a bound on how likely a graph is with which a part would be opened.

    Such a graph has a set of at most half of the honest clients each of which has as many holders
    among the set and the colluders as open a seed (docs/theory.md#a19).

    Args:
        clients: The number of clients.
        colluders: How many of them help the server.
        others: How many a client picks as holders other than itself.
        needed: How many shares open a seed.
    """
    sizes = np.arange(1, (clients - colluders) // 2 + 1)
    return _sum_exposures(clients, colluders, others, needed, sizes)


def bound_loss(clients: int, threshold: int, others: int, needed: int) -> float:
    """Returns the logarithm of a bound on how likely a round that could be opened is lost.

    As many clients as the threshold survive, whichever; a round is lost if one of all clients has
    too few of them among its holders.

    Args:
        clients: The number of clients.
        threshold: How many survive.
        others: How many a client picks as holders other than itself.
        needed: How many shares open a seed.
    """
    counts = np.arange(needed)
    # A survivor counts itself as well; an absent client, whose key is to be opened, does not.
    terms = _log_hypergeometric(clients - 1, np.array(threshold - 1), others, counts)
    return log(clients) + float(np.logaddexp.reduce(terms))


def _find_most_needed(clients: int, threshold: int, others: int) -> int:
    """Returns how many shares may be needed so that rounds are hardly ever lost."""
    counts = np.arange(others + 1)
    terms = _log_hypergeometric(clients - 1, np.array(threshold - 1), others, counts)
    losses = log(clients) + np.logaddexp.accumulate(terms)
    # The loss with n shares needed is the n-th entry: fewer than n survivors hold shares.
    return int(np.sum(losses <= LOG_LOSS - MARGIN))


def _sum_exposures(
    clients: int, colluders: int, others: int, needed: int, sizes: np.ndarray
) -> float:
    """Returns the logarithm of the expected number of closed sets of honest clients."""
    # Each member holds a share of its own seeds, so it needs one less among those that it picks.
    counts = np.arange(needed - 1, others + 1)
    marked = sizes - 1 + colluders
    terms = _log_hypergeometric(clients - 1, marked[:, None], others, counts)
    each = np.minimum(np.logaddexp.reduce(terms, axis=1), 0.0)
    honest = np.array(clients - colluders)
    # Honest clients pick independently of each other.
    return float(np.logaddexp.reduce(_log_choose(honest, sizes) + sizes * each))


def _log_hypergeometric(
    population: int, marked: np.ndarray, drawn: int, counts: np.ndarray
) -> np.ndarray:
    """Returns the logarithms of the probabilities of each number of marked clients in a draw."""
    ways = _log_choose(marked, counts) + _log_choose(population - marked, drawn - counts)
    found: np.ndarray = ways - _log_choose(np.array(population), np.array(drawn))
    return found


def _log_choose(total: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns logarithms of binomial coefficients; that of 0 is minus infinity."""
    total, chosen = np.broadcast_arrays(total, chosen)
    possible = (chosen >= 0) & (chosen <= total)
    chosen = np.where(possible, chosen, 0)
    logs = _log_factorials(int(total.max()))
    found: np.ndarray = logs[total] - logs[chosen] - logs[total - chosen]
    return np.where(possible, found, -np.inf)


@lru_cache(maxsize=8)
def _log_factorials(largest: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, largest + 1)))])


def pick_holders(
    client: int, public: bytes, clients: int, others: int, context: bytes
) -> tuple[int, ...]:
    """Returns who holds shares of a client's seeds, itself among them, in ascending order.

    Args:
        client: Number of the client, from 0.
        public: Its key for letters, which is fresh and which nobody else has chosen.
        clients: The number of clients.
        others: How many it picks other than itself.
        context: The roster's digest.

    Example:
        >>> pick_holders(1, bytes(32), 4, 3, b"")
        (0, 1, 2, 3)
    """
    if others == clients - 1:
        return tuple(range(clients))
    key = derive_key(public, context + f"sordino holders {client}".encode())
    high, low = expand_mask(key, 2 * clients, np.dtype(np.uint64)).reshape(2, clients)
    # The first of a random order are a uniform choice; with 128 bits there are no ties.
    order = [int(other) for other in np.lexsort((low, high)) if other != client]
    return tuple(sorted([client, *order[:others]]))


class Graph:
    """Says who holds shares of whose seeds among the clients of a training."""

    def __init__(self, holders: Mapping[int, tuple[int, ...]], needed: int) -> None:
        """Creates the graph.

        Args:
            holders: For each client whose key is known, the clients that hold shares of its seeds.
            needed: How many shares open a seed.
        """
        self.holders = holders
        self.needed = needed
        self._sets = {client: frozenset(held) for client, held in holders.items()}

    def holds(self, holder: int, client: int) -> bool:
        """Returns whether a client holds shares of another client's seeds.

        Args:
            holder: The client that may hold shares.
            client: The client whose seeds were split.
        """
        return holder in self._sets[client]

    def find_neighbours(self, client: int) -> list[int]:
        """Returns the clients whose masks meet a client's, in ascending order.

        Args:
            client: Number of the client, from 0.
        """
        return [
            other
            for other in sorted(self.holders)
            if other != client and (self.holds(other, client) or self.holds(client, other))
        ]

    def find_thin(self, clients: Collection[int]) -> list[int]:
        """Returns the members of a group that have too few holders in it to open their seeds.

        Args:
            clients: The group: the clients that take part, or that survive.
        """
        present = frozenset(clients)
        return [
            client for client in sorted(present) if len(present & self._sets[client]) < self.needed
        ]

    def drop_thin(self, clients: Collection[int]) -> list[int]:
        """Returns the largest part of a group whose members all have enough holders in it.

        Args:
            clients: The group: the clients that could take part, or that survive.
        """
        left = set(clients)
        thin = self.find_thin(left)
        # A client that leaves was a holder for others.
        while thin:
            left -= set(thin)
            thin = self.find_thin(left)
        return sorted(left)
